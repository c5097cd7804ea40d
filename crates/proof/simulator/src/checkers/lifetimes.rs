//! Guards when sessions open and end (section 12): goes through the decided batches by itself, and holds the live sessions of replicas
//! against what it comes to. From version 1 of the rules on, and for the key-value store, which has nothing due of its own.
//!
//! Which of several batches of a slot was decided the history hashes of replicas tell, and which of its commands were begun the witness. What was not
//! begun was put off (A6): it renews nothing, its number stays free, and no key has that happen to all of its frames slot after slot.

use crate::violation::{Broken, Check};
use crate::witness::Execution;
use perdura_execution::{Machine, Service};
use perdura_protocol::{
    Batch, Command, Decode, Digest, Frame, PublicKey, Record, SessionId, Slot, Time, limits,
};
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "Sessions (12)";

const SHARES: &str = "Shares (A6)";

/// In so many slots with its frames all that a key asks for may be put off.
const SLOTS_PUT_OFF: u64 = 2;

/// What is this late, milliseconds, tells that the group stood still.
const OUTAGE_MS: u64 = 2_000;

/// Within this time, milliseconds, a session is not renewed again.
const RENEWED_MS: u64 = 1_000;

/// A live session.
#[derive(Clone, Debug)]
struct Life {
    // By the clock that stands still with the group.
    renewed_ms: u64,
    renewal: u64,
    acked_below: u64,
    executed: BTreeSet<u64>,
}

/// Sessions behind a slot.
#[derive(Clone, Debug, Default)]
struct Model {
    time_ms: u64,
    stood_ms: u64,
    live: BTreeMap<SessionId, Life>,
    used: BTreeSet<SessionId>,
    // In how many slots with its frames, up to the last one, all that a key asked for was put off.
    put_off: BTreeMap<PublicKey, u64>,
}

/// Commands that were begun: where, of which session and number.
type Begun = BTreeSet<(Slot, SessionId, u64)>;

/// What became in a slot of what is not begun twice.
#[derive(Default)]
struct Turn {
    begun: BTreeSet<PublicKey>,
    put_off: BTreeSet<PublicKey>,
}

/// What happened to sessions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ends {
    /// Nothing renewed them.
    pub by_time: u64,
    /// Their clients closed them.
    pub closed: u64,
    /// They were renewed by a command for that alone.
    pub renewed: u64,
    /// They did not open, for their numbers are of another time.
    pub astray: u64,
    /// The group stood still, and their ends moved.
    pub outages: u64,
}

impl Model {
    fn due_ms(&self) -> Option<u64> {
        self.live.values().map(Life::ends_ms).min().map(|end| end + self.stood_ms)
    }

    /// Where nobody told what was begun of a slot, since all who executed it are gone, all of it is taken for that: gives whether that mattered.
    fn execute(&mut self, (slot, batch): (Slot, &Batch), begun: &Begun, ends: &mut Ends) -> bool {
        let is_told = begun.iter().any(|(at, ..)| *at == slot);
        let (before, due) = (self.time_ms, self.due_ms());
        self.time_ms = before.max(batch.time().0);
        if let Some(due) = due.filter(|due| self.time_ms > due + OUTAGE_MS) {
            self.stood_ms += self.time_ms - before.max(due - OUTAGE_MS);
            ends.outages += 1;
        }
        let clock = self.time_ms - self.stood_ms;
        let count = self.live.len();
        self.live.retain(|_, life| life.ends_ms() > clock);
        ends.by_time += (count - self.live.len()) as u64;
        let mut turn = Turn::default();
        for frame in batch.frames() {
            let of = |number: u64| !is_told || begun.contains(&(slot, frame.session, number));
            self.take(frame, clock, of, (&mut turn, ends));
        }
        let assumed = !is_told && !turn.begun.is_empty();
        for key in turn.begun {
            self.put_off.remove(&key);
            turn.put_off.remove(&key);
        }
        for key in turn.put_off {
            *self.put_off.entry(key).or_default() += 1;
        }
        assumed
    }

    fn take(
        &mut self,
        frame: &Frame,
        clock: u64,
        is_begun: impl Fn(u64) -> bool,
        (turn, ends): (&mut Turn, &mut Ends),
    ) {
        let (session, first) = (frame.session, frame.first_number);
        let commands: Vec<_> = frame.commands().map(Command::from_bytes).collect();
        let opens = matches!(&commands[..], [Ok(Command::Open | Command::OpenBy { .. })]);
        if first == 0 && opens {
            self.open(session, clock, ends);
            return;
        }
        let Some(life) = self.live.get_mut(&session) else { return };
        if first < limits::FIRST_RENEWAL && commands == [Ok(Command::Close)] {
            if first >= life.acked_below.max(1) && !life.executed.contains(&first) {
                self.live.remove(&session);
                ends.closed += 1;
            }
            return;
        }
        if commands == [Ok(Command::Renew)] {
            if first >= limits::FIRST_RENEWAL {
                life.acknowledge(frame.acked_below);
                if first > life.renewal {
                    life.renewal = first;
                    life.touch(clock);
                    ends.renewed += 1;
                }
            }
            return;
        }
        life.acknowledge(frame.acked_below);
        for (number, command) in (first..frame.end_number()).zip(&commands) {
            if !life.is_fresh(number) {
                continue;
            }
            if let Ok(Command::Service(_)) = command {
                if !is_begun(number) {
                    turn.put_off.insert(session.client);
                    continue;
                }
                turn.begun.insert(session.client);
            }
            life.executed.insert(number);
            life.touch(clock);
            // What is withdrawn before it comes does not execute any more.
            if let Ok(Command::Withdraw { number: of }) = command
                && life.is_fresh(*of)
            {
                life.executed.insert(*of);
            }
        }
    }

    fn open(&mut self, session: SessionId, clock: u64, ends: &mut Ends) {
        let opened_ms = session.nonce / limits::NONCES_PER_MS;
        let last = self.time_ms + limits::NONCE_MS;
        let late = opened_ms + limits::NONCE_MS < self.time_ms;
        let early = session.nonce > last * limits::NONCES_PER_MS;
        if late || early {
            ends.astray += u64::from(!self.used.contains(&session));
            return;
        }
        if self.used.insert(session) {
            let life =
                Life { renewed_ms: clock, renewal: 0, acked_below: 0, executed: BTreeSet::new() };
            self.live.insert(session, life);
        }
    }
}

impl Life {
    /// At a whole second of the clock that stands still with the group.
    fn ends_ms(&self) -> u64 {
        (self.renewed_ms + limits::SESSION_MS).div_ceil(1_000) * 1_000
    }

    fn is_fresh(&self, number: u64) -> bool {
        number >= self.acked_below.max(1)
            && number < limits::FIRST_RENEWAL
            && number - self.acked_below < limits::SESSION_WINDOW
            && !self.executed.contains(&number)
    }

    fn acknowledge(&mut self, below: u64) {
        self.acked_below = self.acked_below.max(below);
        self.executed = self.executed.split_off(&self.acked_below);
    }

    fn touch(&mut self, clock: u64) {
        if clock >= self.renewed_ms + RENEWED_MS {
            self.renewed_ms = clock;
        }
    }
}

/// The checker.
#[derive(Debug)]
pub struct Lifetimes {
    // Whether the rules and the service are those that it knows.
    watches: bool,
    candidates: BTreeMap<Slot, BTreeMap<Digest, Batch>>,
    // In slots behind the last one.
    begun: Begun,
    slot: Slot,
    history: Digest,
    model: Model,
    ends: Ends,
}

impl Lifetimes {
    /// For a run in which it looks, or does not.
    #[must_use]
    pub fn new(watches: bool) -> Lifetimes {
        Lifetimes {
            watches,
            candidates: BTreeMap::new(),
            begun: Begun::new(),
            slot: Slot(0),
            history: Digest::ZERO,
            model: Model::default(),
            ends: Ends::default(),
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn ends(&self) -> Ends {
        self.ends
    }

    /// A disk holds these batches.
    pub fn logged(&mut self, records: &[Record]) {
        for record in records.iter().filter(|_| self.watches) {
            if let Some((slot, batch)) = record.batch()
                && slot > self.slot
            {
                let known = self.candidates.entry(slot).or_default();
                known.entry(batch.digest()).or_insert_with(|| batch.clone());
            }
        }
    }

    /// A replica began commands.
    pub fn began(&mut self, executions: &[Execution]) {
        let behind = executions.iter().filter(|one| self.watches && one.slot > self.slot);
        self.begun.extend(behind.map(|one| (one.slot, one.session, one.number)));
    }

    /// The batches from the slot behind the last one on that lead to this history.
    fn way(&self, slot: Slot, history: Digest) -> Option<Vec<Batch>> {
        let mut ways = vec![(self.history, Vec::new())];
        let mut at = self.slot;
        while at < slot {
            at = at.next();
            let batches = self.candidates.get(&at)?;
            let on = ways.iter().flat_map(|(before, way)| {
                batches.iter().map(|(digest, batch)| {
                    let mut way: Vec<Batch> = way.clone();
                    way.push(batch.clone());
                    (before.chain(at, *digest), way)
                })
            });
            ways = on.collect();
        }
        ways.into_iter().find(|(reached, _)| *reached == history).map(|(_, way)| way)
    }

    /// `replica` has executed up to a slot.
    pub fn executed<S: Service>(&mut self, replica: usize, machine: &Machine<S>) -> Check {
        let (slot, history) = (machine.slot(), machine.history());
        if !self.watches || slot <= self.slot {
            return Ok(());
        }
        // What nobody logged yet somebody who logs it tells later.
        let Some(way) = self.way(slot, history) else { return Ok(()) };
        let wrong = |what: String| Err(Broken::new(RULE, what));
        for (at, batch) in (self.slot.0 + 1..).map(Slot).zip(way) {
            if self.model.execute((at, &batch), &self.begun, &mut self.ends)
                && machine.versions().rules > 1
            {
                // Some of it may have been put off: what follows is not known any more.
                self.watches = false;
                return Ok(());
            }
            // What a client had asked for that is revoked by now is answered otherwise.
            self.model.put_off.retain(|key, _| machine.is_client(*key));
            if let Some((key, slots)) =
                self.model.put_off.iter().find(|(_, slots)| **slots > SLOTS_PUT_OFF)
            {
                let what = format!(
                    "slot {at}: all that {key:?} asks for was put off in {slots} slots that have frames of it"
                );
                return Err(Broken::new(SHARES, what));
            }
        }
        if machine.versions().rules < 2 && !self.model.put_off.is_empty() {
            return Err(Broken::new(
                SHARES,
                format!(
                    "up to slot {slot} nothing can have been put off, and something was not begun"
                ),
            ));
        }
        self.begun = self.begun.split_off(&(
            slot.next(),
            SessionId { client: PublicKey([0; 32]), nonce: 0 },
            0,
        ));
        (self.slot, self.history) = (slot, history);
        self.candidates = self.candidates.split_off(&slot.next());
        self.model.live.retain(|session, _| machine.is_client(session.client));
        if machine.time() != Time(self.model.time_ms) {
            return wrong(format!(
                "replica {replica}: {} is not {}",
                machine.time(),
                self.model.time_ms
            ));
        }
        let (due, ends) = (machine.due(), self.model.due_ms().map(Time));
        if due != ends {
            return wrong(format!(
                "replica {replica}: a session ends at {due:?} and not at {ends:?}"
            ));
        }
        let mut here = machine.sessions();
        if let Some(session) = here.find(|session| !self.model.live.contains_key(session)) {
            return wrong(format!(
                "replica {replica} has {session:?} behind slot {slot}, at {}: it had ended, or cannot have opened",
                machine.time()
            ));
        }
        let here: BTreeSet<SessionId> = machine.sessions().collect();
        match self.model.live.iter().find(|(session, _)| !here.contains(session)) {
            None => Ok(()),
            Some((session, life)) => wrong(format!(
                "replica {replica} has no {session:?} behind slot {slot}, at {}: renewed at {}, after {} ms in which the group stood still",
                machine.time(),
                life.renewed_ms,
                self.model.stood_ms
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use perdura_protocol::{ClusterId, Encode, PublicKey};

    const NOW: u64 = 1_000_000;

    fn session() -> SessionId {
        SessionId { client: PublicKey([1; 32]), nonce: NOW * limits::NONCES_PER_MS }
    }

    fn frame(acked_below: u64, number: u64, command: Command) -> Frame {
        let command = [command.to_bytes()];
        Frame::build(ClusterId([0; 16]), session(), acked_below, number, &command, None)
    }

    fn lives(frames: &[(u64, Frame)]) -> (bool, Ends) {
        let (mut model, mut ends) = (Model::default(), Ends::default());
        for (ms, frame) in frames {
            let batch = Batch::requests(Time(NOW + ms), vec![frame.clone()]);
            let all = (0..10).map(|number| (Slot(1), session(), number)).collect();
            model.execute((Slot(1), &batch), &all, &mut ends);
        }
        (model.live.contains_key(&session()), ends)
    }

    #[test]
    fn a_session_lives_as_the_rules_say() {
        let open = frame(0, 0, Command::Open);
        let other = frame(5, 5, Command::Service(Bytes::new()));
        let renew = |number| frame(0, limits::FIRST_RENEWAL + number, Command::Renew);
        assert!(lives(&[(0, open.clone())]).0);
        assert!(!lives(&[(60_001, open.clone())]).0, "its number is too old");
        assert!(lives(&[(0, open.clone()), (59_999, open.clone())]).0);
        assert!(!lives(&[(0, open.clone()), (60_000, open.clone())]).0);
        assert!(!lives(&[(0, open.clone()), (10, frame(0, 1, Command::Close))]).0);
        assert!(lives(&[(0, open.clone()), (50_000, renew(1)), (70_000, open.clone())]).0);
        let again =
            [(0, open.clone()), (50_000, renew(1)), (100_000, renew(1)), (111_000, open.clone())];
        assert!(!lives(&again).0, "the second does not count");
        let worked = [(0, open.clone()), (50_000, other.clone()), (109_000, other)];
        assert!(lives(&worked).0);
        let (still, ends) = lives(&[(0, open.clone()), (90_000, open.clone())]);
        assert!(still && ends.outages == 1, "nobody could renew it");
    }

    #[test]
    fn what_is_put_off_renews_nothing_and_happens_to_no_key_for_long() {
        let (mut model, mut ends) = (Model::default(), Ends::default());
        let mut execute = |slot, ms, frame: Frame, begun: &[u64]| {
            let batch = Batch::requests(Time(NOW + ms), vec![frame]);
            let other = SessionId { nonce: 1, ..session() };
            let told = [(Slot(slot), other, 1)];
            let of = begun.iter().map(|number| (Slot(slot), session(), *number));
            let begun = of.chain(told).collect();
            model.execute((Slot(slot), &batch), &begun, &mut ends);
            let slots = model.put_off.get(&session().client).copied().unwrap_or(0);
            (slots, model.live.contains_key(&session()))
        };
        let service = Command::Service(Bytes::new()).to_bytes();
        let two =
            Frame::build(ClusterId([0; 16]), session(), 1, 1, &[service.clone(), service], None);
        execute(1, 0, frame(0, 0, Command::Open), &[]);
        assert_eq!(execute(2, 30_000, two.clone(), &[1]), (0, true));
        assert_eq!(execute(3, 31_000, two.clone(), &[]), (1, true));
        assert_eq!(execute(4, 80_000, two.clone(), &[]), (2, true));
        // Nothing of it was begun since.
        assert_eq!(execute(5, 91_000, two, &[2]), (2, false));
    }
}
