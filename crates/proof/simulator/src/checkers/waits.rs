//! Guards E3 and E4 for commands that wait, and E3 for leases. In each slot every replica takes the
//! same steps; each command that waits is answered once, or not at all if its client went on without
//! it; in vain from its deadline on, by agreed time, and not before; and with what it waited for
//! before its deadline only. Nobody is shown a tuple whose lease has ended.
//!
//! A wait ends with its client: by what withdraws it, and with its session; under the first rules also by the first command that executes of
//! a frame with which the client went on. What a replica holds as waiting, in its service and in its live
//! sessions, is after each slot just what waits by the steps so far.
//!
//! What is handed over is an offer: it becomes the client's once, in time, and only if the client said that it has it; else it is taken back,
//! when its time is over, the client withdrew it or its session ended. So nothing is given to the dead.
//!
//! By the clocks of the machines, no wait outlasts its deadline for longer than a call may wait: the
//! group orders a tick if it orders nothing else.

use super::progress::TIMEOUT_US;
use crate::report::Mark;
use crate::violation::{Broken, Check};
use crate::witness::{Execution, Step};
use bytes::Bytes;
use perdura_execution::Release;
use perdura_protocol::{Decode, PublicKey, SessionId, Slot, Time, limits};
use perdura_tuples::{Found, Operation, TupleCommand, TupleReply};
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "Waits (E3, E4)";
const LEASES: &str = "Leases (E3)";

/// A command, by its session and number.
type Number = (SessionId, u64);

/// A command that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    deadline: Time,
    // Restarts of replicas before it began.
    restarts: u64,
}

/// When a command that had waited was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answered {
    /// In which slot.
    pub slot: Slot,
    /// When the first replica was seen to, microseconds.
    pub at_us: u64,
}

/// The checker. It also knows the order of all that happened.
#[derive(Debug, Default)]
pub struct Waits {
    // How long an offer lasts.
    offer_ms: u64,
    // Whether all happens under the first version of the rules.
    first_rules: bool,
    slots: BTreeMap<Slot, Vec<Step>>,
    waiting: BTreeMap<Number, Waiting>,
    // What waited after a slot, with the deadlines; slots that changed nothing are left out.
    after: BTreeMap<Slot, BTreeMap<Number, Time>>,
    answered: BTreeMap<Number, Answered>,
    // The least that a frame with this number acknowledged.
    carried: BTreeMap<Number, u64>,
    // Of a session: when it last executed something, and when its client ended.
    executed: BTreeMap<SessionId, Time>,
    gone: BTreeMap<SessionId, (Time, u64)>,
    withdrawn: BTreeSet<Number>,
    // What is offered to whom, until when; and what clients have said that they have.
    offered: BTreeMap<Number, Time>,
    confirmed: BTreeSet<Number>,
    // What was offered after a slot; slots that changed nothing are left out.
    offered_after: BTreeMap<Slot, BTreeSet<Number>>,
    // By how much the clock is behind agreed time, milliseconds.
    stood_ms: u64,
    // Agreed time was ahead of the clocks that are in order: what ends by it ends when they have come so far.
    ran_ahead: bool,
    restarts: u64,
    reached: Vec<Mark>,
}

/// What waits for a client of which nothing was executed for this time is withdrawn, milliseconds: within a second nothing is noted.
const UNATTENDED_MS: u64 = limits::ATTENDED_MS - 1_000;

/// What waits for a client that ended is withdrawn after this time, milliseconds: at a whole second.
const GONE_MS: u64 = limits::ATTENDED_MS + 1_000;

fn fail(what: String) -> Check {
    Err(Broken::new(RULE, what))
}

/// How long a command may wait, milliseconds of the clock; nothing if it does not.
pub fn wait_ms(command: &TupleCommand) -> Option<u64> {
    match command {
        TupleCommand::On {
            operation:
                Operation::Rd { wait_ms, .. }
                | Operation::In { wait_ms, .. }
                | Operation::Claim { wait_ms, .. }
                | Operation::Lease { wait_ms, .. },
            ..
        } => Some(*wait_ms).filter(|wait_ms| *wait_ms > 0),
        _ => None,
    }
}

/// Whether an operator ends a wait by this.
fn ends_wait(command: &Bytes) -> bool {
    let command = TupleCommand::decode(command);
    matches!(command, Ok(TupleCommand::On { operation: Operation::EndWait { .. }, .. }))
}

/// The tuples in a reply.
fn found(reply: &TupleReply) -> &[Found] {
    match reply {
        TupleReply::Found(Some(found)) | TupleReply::Replaced { old: found, .. } => {
            std::slice::from_ref(found)
        }
        TupleReply::FoundAll { tuples, .. } => tuples,
        _ => &[],
    }
}

impl Waits {
    /// Where offers last so long.
    #[must_use]
    pub fn new(offer_ms: u64) -> Waits {
        Waits { offer_ms, ..Waits::default() }
    }

    /// All happens under the first version of the rules, or may not.
    pub fn is_of_first_rules(&mut self, first_rules: bool) {
        self.first_rules = first_rules;
    }

    /// Some replica starts, or its state is replaced.
    pub fn restarted(&mut self) {
        self.restarts += 1;
    }

    /// A client sends a frame with this number that acknowledges all numbers below `below`.
    pub fn sent(&mut self, session: SessionId, number: u64, below: u64) {
        let known = self.carried.entry((session, number)).or_insert(below);
        *known = below.min(*known);
    }

    /// A client sends that it asks for this number no more.
    pub fn withdraws(&mut self, session: SessionId, number: u64) {
        self.withdrawn.insert((session, number));
    }

    /// A client sends that it has what this number waited for.
    pub fn confirms(&mut self, session: SessionId, number: u64) {
        self.confirmed.insert((session, number));
    }

    /// The clock of a replica is behind agreed time by this, milliseconds.
    pub fn stands(&mut self, stood_ms: u64) {
        self.stood_ms = self.stood_ms.max(stood_ms);
    }

    /// Agreed time is ahead of the clocks that are in order.
    pub fn runs_ahead(&mut self) {
        self.ran_ahead = true;
    }

    /// A client ends at this time.
    pub fn client_ends(&mut self, client: PublicKey, now: Time) {
        for (session, _) in self.waiting.keys().filter(|(session, _)| session.client == client) {
            self.gone.entry(*session).or_insert((now, self.stood_ms));
        }
    }

    /// `replica` took these steps in `slot`. `may_forget` says whether the client of a number may have
    /// gone on without its reply, or its session have ended.
    pub fn executed(
        &mut self,
        replica: usize,
        slot: Slot,
        steps: Vec<Step>,
        now_us: u64,
        may_forget: impl Fn(SessionId, u64) -> bool,
    ) -> Check {
        if let Some(known) = self.slots.get(&slot) {
            if *known == steps {
                return Ok(());
            }
            return fail(format!(
                "in slot {slot} replica {replica} does {steps:?}, others {known:?}"
            ));
        }
        let check = self.take_in(slot, &steps, now_us, may_forget);
        self.slots.insert(slot, steps);
        check
    }

    fn take_in(
        &mut self,
        slot: Slot,
        steps: &[Step],
        now_us: u64,
        may_forget: impl Fn(SessionId, u64) -> bool,
    ) -> Check {
        let Some(Step::Began(time, _)) = steps.first().cloned() else {
            return fail(format!("slot {slot} does not begin with its time: {steps:?}"));
        };
        let (mut served, mut by_operator) = (0, false);
        for step in steps {
            match step {
                Step::Began(..) => {}
                Step::Executed(execution) => {
                    (served, by_operator) = (0, ends_wait(&execution.command));
                    self.begins(execution, time)?;
                }
                Step::Released(release) => {
                    let answer = Answered { slot, at_us: now_us };
                    served += u64::from(self.ends(release, time, answer)?);
                    if served == 2 {
                        self.reached.push(Mark::SeveralServed);
                    }
                    if release.result.is_err() {
                        let deleted = Mark::WaitRefused;
                        self.reached.push(if by_operator {
                            Mark::WaitEndedByOperator
                        } else {
                            deleted
                        });
                    }
                }
                Step::Confirmed { session, number } => {
                    self.is_confirmed((*session, *number), time)?;
                }
                Step::TakenBack { session, number } => {
                    served = 0;
                    let of = (*session, *number);
                    self.is_taken_back(of, time, may_forget(*session, *number))?;
                }
                Step::Forgotten { session, number } => {
                    if self.waiting.remove(&(*session, *number)).is_none() {
                        return fail(format!(
                            "number {number} of {session:?} is forgotten, and does not wait"
                        ));
                    }
                    let last = self.executed.get(session).map_or(0, |at| at.0);
                    let unattended = time.0 >= last + UNATTENDED_MS;
                    let withdrawn = self.withdrawn.contains(&(*session, *number));
                    if withdrawn {
                        self.reached.push(Mark::WaitWithdrawn);
                    } else if may_forget(*session, *number) {
                        self.reached.push(Mark::WaitForgotten);
                    } else if unattended {
                        self.reached.push(Mark::WaitUnattended);
                    } else {
                        return fail(format!(
                            "number {number} of {session:?} waits no longer, and its client asks for it"
                        ));
                    }
                }
            }
        }
        let late = self.offered.iter().find(|(_, until)| **until <= time);
        if let Some((number, until)) = late {
            return fail(format!(
                "after slot {slot} it is {time}, and {number:?} has not confirmed what it was offered until {until}"
            ));
        }
        if self
            .offered_after
            .values()
            .next_back()
            .is_none_or(|before| !before.iter().eq(self.offered.keys()))
        {
            self.offered_after.insert(slot, self.offered.keys().copied().collect());
        }
        let stays = self.waiting.iter().find(|(_, waiting)| waiting.deadline <= time);
        if let Some((number, waiting)) = stays {
            return fail(format!(
                "after slot {slot} it is {time}, and {number:?} waits that had to end at {}",
                waiting.deadline
            ));
        }
        let waiting = self.waiting.iter().map(|(number, waiting)| (*number, waiting.deadline));
        let before = self.after.last_key_value().map(|(_, before)| before);
        if before.is_none_or(|before| !waiting.clone().eq(before.iter().map(|(n, t)| (*n, *t)))) {
            let waiting = waiting.collect();
            self.after.insert(slot, waiting);
        }
        Ok(())
    }

    fn is_confirmed(&mut self, number: Number, time: Time) -> Check {
        let Some(until) = self.offered.remove(&number) else {
            return fail(format!("{number:?} is given what it is not offered"));
        };
        if until <= time {
            return fail(format!(
                "at {time} {number:?} is given what it was offered until {until}"
            ));
        }
        if !self.confirmed.contains(&number) {
            return fail(format!(
                "{number:?} is given something, and its client did not say that it has it"
            ));
        }
        self.reached.push(Mark::OfferConfirmed);
        Ok(())
    }

    fn is_taken_back(&mut self, number: Number, time: Time, may_forget: bool) -> Check {
        let Some(until) = self.offered.remove(&number) else {
            return fail(format!("what {number:?} is not offered is taken back"));
        };
        if until <= time {
            self.reached.push(Mark::OfferLapsed);
        } else if self.withdrawn.contains(&number) || may_forget {
            self.reached.push(Mark::OfferTakenBack);
        } else {
            return fail(format!(
                "at {time} what {number:?} is offered until {until} is taken back, and its client is there"
            ));
        }
        Ok(())
    }

    fn begins(&mut self, execution: &Execution, time: Time) -> Check {
        let Execution { session, number, .. } = *execution;
        self.executed.insert(session, time);
        // From version 1 of the rules on a wait holds nobody up, and goes on.
        let below = self.carried.get(&(session, number)).copied().unwrap_or_default();
        let below = if self.first_rules { below } else { 0 };
        let left = self.waiting.range((session, 0)..(session, below)).next();
        if let Some(((_, left), _)) = left {
            return fail(format!(
                "number {left} of {session:?} waits, and its client went on to {below} with \
                 number {number}"
            ));
        }
        match &execution.reply {
            Some(Ok(reply)) => shows(reply, Time(time.0.saturating_add(execution.ahead_ms))),
            Some(Err(_)) => Ok(()),
            None => {
                let command = TupleCommand::decode(&execution.command);
                let wait_ms = command.as_ref().ok().and_then(wait_ms);
                let Some(wait_ms) = wait_ms else { return fail(format!("{command:?} waits")) };
                let deadline = Time(time.0.saturating_add(wait_ms));
                let waiting = Waiting { deadline, restarts: self.restarts };
                let number = (execution.session, execution.number);
                match self.waiting.insert(number, waiting) {
                    None => Ok(()),
                    Some(_) => fail(format!("{number:?} waits already, and begins to")),
                }
            }
        }
    }

    /// Whether it got a tuple.
    fn ends(&mut self, release: &Release, time: Time, answer: Answered) -> Result<bool, Broken> {
        let number = (release.session, release.number);
        let Some(Waiting { deadline, restarts }) = self.waiting.remove(&number) else {
            return Err(Broken::new(RULE, format!("{number:?} is answered and does not wait")));
        };
        self.answered.insert(number, answer);
        if release.offer {
            self.offered.insert(number, Time(time.0.saturating_add(self.offer_ms)));
        }
        if restarts < self.restarts {
            self.reached.push(Mark::WaitOutlivedRestart);
        }
        let Ok(reply) = &release.result else { return Ok(false) };
        shows(reply, time)?;
        let told = TupleReply::from_bytes(reply.clone());
        let in_vain = matches!(told, Ok(TupleReply::Found(None) | TupleReply::Leased(None)));
        if in_vain != (deadline <= time) {
            let what =
                format!("{number:?} waits until {deadline} and is answered {reply:?} at {time}");
            return Err(Broken::new(RULE, what));
        }
        self.reached.push(if in_vain { Mark::WaitEnded } else { Mark::WaiterServed });
        Ok(!in_vain)
    }

    /// After `slot` these commands wait in the service of `replica`, until these times, and `sessions`
    /// in its live sessions.
    pub fn holds(
        &self,
        replica: usize,
        slot: Slot,
        service: Vec<(SessionId, u64, Time)>,
        sessions: impl Iterator<Item = Number>,
        offered: impl Iterator<Item = Number>,
    ) -> Check {
        // Of a slot that only replicas which do not count have executed nothing is known.
        if self.slots.last_key_value().is_none_or(|(last, _)| *last < slot) {
            return Ok(());
        }
        let none = BTreeMap::new();
        let known = self.after.range(..=slot).next_back().map_or(&none, |(_, waiting)| waiting);
        let held = service.len();
        let service: BTreeMap<Number, Time> = service
            .into_iter()
            .map(|(session, number, until)| ((session, number), until))
            .collect();
        if service != *known || held != known.len() {
            return fail(format!(
                "after slot {slot} the service of replica {replica} lets wait {service:?}, and by \
                 what it did {known:?} wait"
            ));
        }
        let offered: BTreeSet<Number> = offered.collect();
        let none = BTreeSet::new();
        let known_offers =
            self.offered_after.range(..=slot).next_back().map_or(&none, |(_, all)| all);
        if offered != *known_offers {
            return fail(format!(
                "after slot {slot} live sessions of replica {replica} are offered {offered:?}, and by what its service did {known_offers:?}"
            ));
        }
        let sessions: BTreeSet<Number> = sessions.collect();
        if !sessions.iter().eq(known.keys()) {
            return fail(format!(
                "after slot {slot} in live sessions of replica {replica} wait {sessions:?}, and by \
                 what its service did {:?}",
                known.keys()
            ));
        }
        Ok(())
    }

    /// Everything that happened, slot by slot.
    pub fn slots(&self) -> impl Iterator<Item = (Slot, &[Step])> {
        self.slots.iter().map(|(slot, steps)| (*slot, &steps[..]))
    }

    /// When a command that had waited was answered.
    #[must_use]
    pub fn answered(&self, session: SessionId, number: u64) -> Option<Answered> {
        self.answered.get(&(session, number)).copied()
    }

    /// The agreed time at which a command has to wait no longer, if it waits.
    #[must_use]
    pub fn deadline(&self, session: SessionId, number: u64) -> Option<Time> {
        self.waiting.get(&(session, number)).map(|waiting| self.agreed(waiting.deadline))
    }

    /// Agreed time when the clock shows `at`.
    fn agreed(&self, at: Time) -> Time {
        Time(at.0.saturating_add(self.stood_ms))
    }

    /// The first such time, or one by which what waits for a client that ended has to be withdrawn.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        let ends = |((session, _), waiting): (&Number, &Waiting)| {
            let gone = self.gone.get(session).filter(|_| !self.ran_ahead);
            let gone = gone.map(|(at, stood)| Time(at.0 + GONE_MS + self.stood_ms - stood));
            gone.into_iter().chain([self.agreed(waiting.deadline)]).min()
        };
        self.waiting.iter().filter_map(ends).min()
    }

    /// Rare branches that were taken since this was last asked.
    pub fn reached(&mut self) -> Vec<Mark> {
        std::mem::take(&mut self.reached)
    }
}

/// A reply at this agreed time shows no tuple whose lease has ended.
fn shows(reply: &Bytes, time: Time) -> Check {
    let Ok(reply) = TupleReply::from_bytes(reply.clone()) else { return Ok(()) };
    let ended = |found: &&Found| found.expires.is_some_and(|expires| expires <= time);
    match found(&reply).iter().find(ended) {
        None => Ok(()),
        Some(found) => {
            let what = format!("at {time} somebody is shown {found:?}, whose lease has ended");
            Err(Broken::new(LEASES, what))
        }
    }
}

/// A command waits, `late_us` after all clocks in order have shown its deadline and the last replica
/// failed.
pub fn late(deadline: Time, late_us: u64) -> Check {
    if late_us < TIMEOUT_US {
        return Ok(());
    }
    fail(format!("a wait that had to end at {deadline} goes on, {} ms later", late_us / 1000))
}

#[cfg(test)]
mod tests;
