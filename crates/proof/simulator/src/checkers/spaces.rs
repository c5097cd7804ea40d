//! Guards linearizability of the tuple spaces, with the order of execution as the witness: every
//! answer is what a plain model gives in that order (the oldest match, waiters in the order in which
//! they came, leases by agreed time), what clients saw is that answer, and the order respects real
//! time. Of commands that do not conflict by their footprints (E1, E2), neighbours are tried in the
//! other order as well.

use super::commit_order::Seen;
use super::real_time::{self, Span};
use crate::violation::{Broken, Check};
use crate::witness::{Execution, Step};
use perdura_execution::{Footprint, Release};
use perdura_protocol::{Decode, PublicKey, SessionId, Slot};
use perdura_tuples::{Operation, TupleCommand, TupleReply};
use std::collections::{BTreeMap, BTreeSet};

mod model;
use model::{Answer, Caller, Late, Model};

const RULE: &str = "TupleSpaces (commit order)";
const FOOTPRINTS: &str = "Footprints (E1, E2)";

/// A call of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Its number in the order, if it was sent for ordering.
    pub number: Option<(SessionId, u64)>,
    /// Its client.
    pub client: PublicKey,
    /// Its command.
    pub command: TupleCommand,
    /// When it was called.
    pub invoked: u64,
    /// When it ended; none if never.
    pub ended: Option<u64>,
    /// How it ended.
    pub seen: Seen<TupleReply>,
}

/// What the judge learned beside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Judged {
    /// Tuples whose leases ended.
    pub leases_ended: u64,
    /// The most of these whose tuples were left for a later batch to remove.
    pub leases_left: u64,
    /// Deletions that left tuples for another one.
    pub partly_deleted: u64,
    /// Leases that were renewed.
    pub renewed: u64,
    /// Leases that their owners would have renewed, and that had ended, or tuples that were gone.
    pub renewed_too_late: u64,
    /// Claims that had waited and got through.
    pub claims_served: u64,
    /// Claims that were let through as a lease had ended, whether or not their clients confirmed them.
    pub claims_by_ended: u64,
    /// Jobs that came back since the leases under which somebody had them had ended.
    pub jobs_returned: u64,
    /// Jobs that somebody would have finished who had them no longer.
    pub finished_too_late: u64,
}

fn broken(what: String) -> Broken {
    Broken::new(RULE, what)
}

fn answer(result: &Result<bytes::Bytes, String>) -> Result<Answer, Broken> {
    match result {
        Err(_) => Ok(Err(())),
        Ok(bytes) => match TupleReply::from_bytes(bytes.clone()) {
            Ok(reply) => Ok(Ok(reply)),
            Err(error) => Err(broken(format!("{bytes:?} is no reply: {error}"))),
        },
    }
}

/// Walks through the order.
struct Walk {
    model: Model,
    states: Vec<Model>,
    // Where each number was executed, and where it was answered.
    places: BTreeMap<(SessionId, u64), (usize, usize)>,
    answers: BTreeMap<(SessionId, u64), Answer>,
    // What was offered, and is not confirmed.
    offered: BTreeSet<(SessionId, u64)>,
    // What waited and was given up.
    forgotten: BTreeSet<(SessionId, u64)>,
    // Answers that the model gave to those who waited, and the service has not been seen to give.
    awaited: Vec<Late>,
    // They may be given in any order: what happens at the beginning of a batch happens at one time.
    in_any_order: bool,
    judged: Judged,
    // The command before, if it was in the same batch: the state before it, and its footprint.
    before: Option<(Model, Execution, Footprint)>,
}

impl Walk {
    fn step(
        &mut self,
        slot: Slot,
        step: &Step,
        footprint: &impl Fn(&Execution) -> Footprint,
    ) -> Check {
        if !matches!(step, Step::Released(_)) && !self.awaited.is_empty() {
            return Err(broken(format!("in slot {slot} nobody answers {:?}", self.awaited)));
        }
        if !matches!(step, Step::Released(_)) {
            self.in_any_order = matches!(step, Step::Began(..));
        }
        match step {
            Step::Began(time, version) => {
                // Between the batches fast reads go by it already.
                if self.model.is_raised(*version) {
                    self.states.push(self.model.clone());
                }
                self.awaited = self.model.begin(*time, *version);
                self.before = None;
            }
            Step::Executed(execution) => {
                let marks = footprint(execution);
                self.commutes(execution, &marks)?;
                let before = (self.model.clone(), execution.clone(), marks);
                self.execute(execution)?;
                self.before = Some(before);
            }
            Step::Released(release) => self.release(slot, release)?,
            Step::Confirmed { session, number } => {
                let of = Caller { session: *session, number: *number };
                let offered = self.offered.remove(&(*session, *number));
                let Some(late) = self.model.confirm(of).filter(|_| offered) else {
                    return Err(broken(format!(
                        "in slot {slot} {of:?} is given what it was not offered"
                    )));
                };
                self.awaited = late;
                if let Some(places) = self.places.get_mut(&(*session, *number)) {
                    places.1 = self.states.len();
                }
                self.before = None;
            }
            Step::TakenBack { session, number } => {
                let of = Caller { session: *session, number: *number };
                if !self.offered.remove(&(*session, *number)) {
                    return Err(broken(format!(
                        "in slot {slot} what {of:?} was not offered is taken back"
                    )));
                }
                self.awaited = self.model.take_back(of);
                self.answers.remove(&(*session, *number));
                self.forgotten.insert((*session, *number));
                self.before = None;
            }
            Step::Forgotten { session, number } => {
                self.model.forget(Caller { session: *session, number: *number });
                self.forgotten.insert((*session, *number));
                self.before = None;
            }
        }
        self.states.push(self.model.clone());
        Ok(())
    }

    fn execute(&mut self, execution: &Execution) -> Check {
        let Execution { session, number, command, ahead_ms, reply, .. } = execution;
        let given = reply.as_ref().map(answer).transpose()?;
        let Ok(command) = TupleCommand::decode(command) else {
            // A hostile client's.
            return match given {
                Some(Err(())) => Ok(()),
                _ => Err(broken(format!("{execution:?} is no command of the tuple spaces"))),
            };
        };
        let caller = Caller { session: *session, number: *number };
        let learned = given.as_ref().and_then(|given| given.as_ref().ok());
        let (expected, late) = self.model.run(caller, &command, *ahead_ms, learned);
        if given != expected {
            let what = format!("{command:?} gave {given:?}, the model {expected:?}");
            return Err(broken(what));
        }
        let judged = &mut self.judged;
        match (learned, &command) {
            (Some(TupleReply::Renewed { renewed: true, .. }), _) => judged.renewed += 1,
            (Some(TupleReply::Renewed { renewed: false, .. }), _) => judged.renewed_too_late += 1,
            (
                Some(TupleReply::Holding { held: false, .. }),
                TupleCommand::On { operation: Operation::Finish { .. }, .. },
            ) => judged.finished_too_late += 1,
            _ => {}
        }
        let place = self.states.len();
        self.places.insert((*session, *number), (place, place));
        if let Some(given) = given {
            self.answers.insert((*session, *number), given);
        }
        self.awaited = late;
        Ok(())
    }

    fn release(&mut self, slot: Slot, release: &Release) -> Check {
        let Release { session, number, result, offer } = release;
        let given = answer(result)?;
        let wanted = Late { session: *session, number: *number, answer: given, offer: *offer };
        // Else who began to wait first is served first.
        let most = if self.in_any_order { self.awaited.len() } else { 1 };
        let Some(at) = self.awaited.iter().take(most).position(|late| *late == wanted) else {
            let what = format!(
                "in slot {slot} {wanted:?} is answered, and by the model {:?}",
                self.awaited
            );
            return Err(broken(what));
        };
        drop(self.awaited.remove(at));
        let place = self.states.len();
        if let Some(places) = self.places.get_mut(&(*session, *number)) {
            places.1 = place;
        }
        self.answers.insert((*session, *number), wanted.answer);
        if *offer {
            self.offered.insert((*session, *number));
        }
        Ok(())
    }

    /// With the command before it, if their footprints do not conflict: either order gives the same.
    fn commutes(&self, execution: &Execution, marks: &Footprint) -> Check {
        let Some((model, before, before_marks)) = &self.before else { return Ok(()) };
        if before_marks.conflicts(marks) {
            return Ok(());
        }
        let run = |model: &mut Model, execution: &Execution| {
            let Ok(command) = TupleCommand::decode(&execution.command) else { return None };
            let Execution { session, number, ahead_ms, reply, .. } = execution;
            let reply = reply.as_ref().and_then(|reply| reply.as_ref().ok());
            let learned = reply.and_then(|reply| TupleReply::from_bytes(reply.clone()).ok());
            let caller = Caller { session: *session, number: *number };
            Some(model.run(caller, &command, *ahead_ms, learned.as_ref()))
        };
        let (mut forth, mut back) = (model.clone(), model.clone());
        let (first, second) = (run(&mut forth, before), run(&mut forth, execution));
        let (second_back, first_back) = (run(&mut back, execution), run(&mut back, before));
        let same_session = before.session == execution.session;
        if same_session || first != first_back || second != second_back || forth != back {
            let what = format!("{before:?} and {execution:?} conflict by no footprint");
            return Err(Broken::new(FOOTPRINTS, what));
        }
        Ok(())
    }
}

/// Holds what services did and what clients were told against the model.
///
/// # Errors
/// The first thing that the model does not explain.
pub fn check<'a>(
    slots: impl Iterator<Item = (Slot, &'a [Step])>,
    footprint: impl Fn(&Execution) -> Footprint,
    calls: &[Told],
) -> Result<Judged, Broken> {
    let mut walk = Walk {
        model: Model::default(),
        states: vec![Model::default()],
        places: BTreeMap::new(),
        answers: BTreeMap::new(),
        offered: BTreeSet::new(),
        forgotten: BTreeSet::new(),
        awaited: Vec::new(),
        in_any_order: false,
        judged: Judged::default(),
        before: None,
    };
    let mut next = Slot(1);
    for (slot, steps) in slots {
        if slot != next {
            return Err(broken(format!("nobody was seen to execute slot {next}, but slot {slot}")));
        }
        next = slot.next();
        steps.iter().try_for_each(|step| walk.step(slot, step, &footprint))?;
        if !walk.awaited.is_empty() {
            return Err(broken(format!("in slot {slot} nobody answers {:?}", walk.awaited)));
        }
    }
    for call in calls {
        told(call, &walk)?;
    }
    in_real_time(&walk, calls)?;
    let Judged { renewed, renewed_too_late, finished_too_late, .. } = walk.judged;
    Ok(Judged { renewed, renewed_too_late, finished_too_late, ..walk.model.judged })
}

/// A client was told what its command gave.
fn told(call: &Told, walk: &Walk) -> Check {
    let Some(number) = call.number else { return Ok(()) };
    let executed = walk.places.contains_key(&number);
    let given = walk.answers.get(&number);
    let fits = match &call.seen {
        Seen::Ok(seen) => given == Some(&Ok(seen.clone())) && !walk.offered.contains(&number),
        // What its client withdrew got nothing, and may not even have begun to wait.
        Seen::RefusedInOrder if given.is_none() => !executed || walk.forgotten.contains(&number),
        Seen::RefusedInOrder => given == Some(&Err(())),
        Seen::NotSent => !executed,
        Seen::Unknown => true,
    };
    if fits {
        return Ok(());
    }
    let Told { command, seen, .. } = call;
    Err(broken(format!("{command:?} gave {given:?}, its client got {seen:?}")))
}

fn in_real_time(walk: &Walk, calls: &[Told]) -> Check {
    let spans: Vec<Span> = calls
        .iter()
        .map(|call| {
            let sure = matches!(call.seen, Seen::Ok(_) | Seen::RefusedInOrder);
            let places = call.number.and_then(|number| walk.places.get(&number)).copied();
            Span { invoked: call.invoked, ended: call.ended.filter(|_| sure), places }
        })
        .collect();
    let choose = |index: usize, behind: usize| {
        let Told { command, seen, number: None, client, invoked, .. } = &calls[index] else {
            return Ok(None);
        };
        let wanted = match seen {
            Seen::Ok(reply) => Ok(reply.clone()),
            Seen::RefusedInOrder => Err(()),
            Seen::NotSent | Seen::Unknown => return Ok(None),
        };
        let wanted = Some(wanted);
        // The earliest state that gives this answer is the best choice for all that comes later.
        let states = behind..walk.states.len();
        let fits = states.into_iter().find(|at| walk.states[*at].ask(*client, command) == wanted);
        fits.map(Some).ok_or_else(|| {
            broken(format!(
                "the fast read {command:?}, called at {invoked}, gave {seen:?}, which no state from \
                 number {behind} on holds"
            ))
        })
    };
    real_time::check(&spans, choose, |index, (place, behind)| {
        let Told { command, invoked, .. } = &calls[index];
        broken(format!(
            "{command:?} called at {invoked} was executed as number {place}, behind which stands \
             {behind}, that had ended by then"
        ))
    })
}

#[cfg(test)]
mod tests;
