//! Reads that are not ordered. One is answered after every slot was executed for which this replica had sent an Accept when the read came
//! (rule C2).
//!
//! Who reads takes turns by key, and what reads cost is bounded twice: what is answered before messages are looked at again, and, while
//! something is being ordered, what reads that are large take of the time. A client whose read waits for too long orders it, and is told to if it
//! has not yet: what nobody waits for any more is not read.
//!
//! Where the replica executes in a stage, reads are answered beside it, in the state of the view, if the service has that to give: what reads much
//! delays no batch then. Else the stage answers them between its batches.
//!
//! A read of the state after one slot ([`Message::ReadAt`](perdura_protocol::Message::ReadAt)) is answered by that alone, and before the other reads
//! of its key, as the state is soon gone. Where it is gone the read is refused; for a slot that comes soon it waits, and of a key only
//! [`TO_COME`] do. The others wait in the order of their slots.

use super::execution::Execution;
use super::waiting::{Capacity, Lines};
use super::{Node, Output, Peer, Stage};
use bytes::Bytes;
use perdura_agreement::Now;
use perdura_execution::{Done, Job, Meter, ReadState};
use perdura_protocol::limits::COMMAND_COST;
use perdura_protocol::message::Message;
use perdura_protocol::{Outcome, PublicKey, Slot, seeded};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Reads that wait for slots in agreement, and for their clients' turns; further ones are told to go
/// the ordered way.
pub const WAITING_READS: Capacity = Capacity { items: 8192, bytes: 32 * 1024 * 1024 };

/// Reads answered in a round; what arrived meanwhile comes first then.
const READS_AT_ONCE: usize = 256;

/// Reads that a stage is given at a time: it answers them before its next batch, which waits as long for them as a quarter of a GiB is read.
pub const READS_APART: usize = 16;

/// How many threads answer reads beside the stage at most: so many are under way, and states held for them. What waits for one waits here, where
/// keys take turns.
pub const READS_BESIDE: usize = 16;

/// What they may cost, in bytes read and answered; one more may exceed it.
const COST_AT_ONCE: u64 = 2 * 1024 * 1024;

/// A read that costs no more is not paced: the bound of a round is enough.
const SMALL: u64 = 64 * 1024;

/// What larger ones may cost in a millisecond while something is being ordered: a tenth of what a processor reads and answers in that time.
const PACE: u64 = 100 * 1024;

/// A read that has waited for so long is ordered by its client: that of `ClientConfig::fast_read_ms`.
const STALE_MS: u64 = 100;

/// The same of a service whose commands may take long: the client's `SLOW_READ_MS`.
const STALE_SLOW_MS: u64 = 2_000;

/// What one key may read at once beyond that.
const BURST: u64 = 1024 * 1024;

/// Reads of one key that wait for a slot of their own to come. Their client may have its answer by then, and may have been told of a slot that
/// never comes: they take no room from its other reads.
const TO_COME: usize = 256;

/// What a read asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    /// A state after its slot, which was there when it came.
    Exactly,
    /// A state after its slot, which is to come.
    ToCome,
    /// Any state that is not before its slot.
    AnyFrom,
}

#[derive(Debug)]
struct WaitingRead {
    after: Slot,
    wanted: Wanted,
    since_ms: u64,
    connection: u64,
    key: PublicKey,
    id: u64,
    command: Bytes,
}

/// The reads of a node.
pub(super) struct Reads {
    waiting: Lines<PublicKey, WaitingRead>,
    // How many of those wait for a slot of their own to come.
    to_come: BTreeMap<PublicKey, usize>,
    pace: Pace,
    // Those that the stage or a thread beside it was given, and how many ever.
    under_way: BTreeMap<u64, WaitingRead>,
    begun: u64,
    // Threads beside the stage.
    threads: usize,
    // What has waited for so long is told to go the ordered way.
    stale_ms: u64,
}

impl Reads {
    /// Of a service whose commands may take long, or do not.
    pub fn new(takes_long: bool) -> Reads {
        Reads {
            waiting: Lines::new(WAITING_READS),
            to_come: BTreeMap::new(),
            pace: Pace::default(),
            under_way: BTreeMap::new(),
            begun: 0,
            threads: 2,
            stale_ms: if takes_long { STALE_SLOW_MS } else { STALE_MS },
        }
    }

    /// Divides the bounds of what waits by two to the power of `by`.
    pub fn shrink(&mut self, by: u32) {
        self.waiting.shrink(by);
    }

    /// Reads that wait, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        self.waiting.held()
    }

    /// Reads that are under way in the stage, or beside it.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Puts one in its place in the line of its key, or gives it back.
    fn line_up(&mut self, read: WaitingRead) -> Result<(), WaitingRead> {
        let (key, to_come) = (read.key, read.wanted == Wanted::ToCome);
        if to_come && self.to_come.get(&key).is_some_and(|waiting| *waiting >= TO_COME) {
            return Err(read);
        }
        let (bytes, turn) = (read.command.len(), read.turn());
        self.waiting.insert(key, read, bytes, |other| other.turn() <= turn)?;
        if to_come {
            *self.to_come.entry(key).or_default() += 1;
        }
        Ok(())
    }

    /// The next one that may be answered, or has waited for too long.
    fn next(&mut self, now: Now, room: &Room, all: bool) -> Option<WaitingRead> {
        let Reads { waiting, pace, under_way, stale_ms, .. } = self;
        let (key, read) = waiting.pop(|read| {
            let may = room.takes(read, of_key(under_way, read.key));
            read.is_stale(now, *stale_ms) || may && (all || pace.may(read.key))
        })?;
        if read.wanted == Wanted::ToCome
            && let Entry::Occupied(mut waiting) = self.to_come.entry(key)
        {
            *waiting.get_mut() -= 1;
            if *waiting.get() == 0 {
                waiting.remove();
            }
        }
        Some(read)
    }

    /// Whether a read may be answered now; with `all` whatever its client has read.
    fn may(&self, read: &WaitingRead, room: &Room, all: bool) -> bool {
        room.takes(read, of_key(&self.under_way, read.key)) && (all || self.pace.may(read.key))
    }
}

/// How many of the reads that are under way elsewhere are of a key.
fn of_key(under_way: &BTreeMap<u64, WaitingRead>, key: PublicKey) -> usize {
    under_way.values().filter(|read| read.key == key).count()
}

/// What reads may be answered now.
struct Room {
    // In the state after it.
    slot: Slot,
    left: usize,
    // Of one key, with those under way.
    of_key: usize,
}

impl Room {
    fn takes(&self, read: &WaitingRead, under_way: usize) -> bool {
        self.left > 0 && read.ready(self.slot) && under_way < self.of_key
    }
}

/// A read that is answered beside the stage, by whoever drives the node.
#[derive(Debug)]
pub struct ReadBeside {
    number: u64,
    key: PublicKey,
    command: Bytes,
    state: ReadState,
}

impl ReadBeside {
    /// Asks the service: as long as it takes, on any thread. To be given back as [`super::Input::Done`].
    #[must_use]
    pub fn answer(self) -> Done {
        let ReadBeside { number, key, command, state } = self;
        let meter = Meter::up_to(COMMAND_COST);
        let outcome = state.query_within(key, &command, &meter);
        Done::Read { number, slot: state.slot(), outcome, cost: meter.spent() }
    }
}

impl WaitingRead {
    /// Which is answered first of those of a key: the lowest.
    fn turn(&self) -> (bool, Slot) {
        (self.wanted != Wanted::Exactly, self.after)
    }

    /// Whether it is answered by the state after its slot alone.
    fn exactly(&self) -> bool {
        self.wanted != Wanted::AnyFrom
    }

    fn ready(&self, executed: Slot) -> bool {
        self.after <= executed
    }

    fn is_stale(&self, now: Now, after_ms: u64) -> bool {
        now.monotonic_ms >= self.since_ms + after_ms
    }
}

/// What the large reads of clients cost lately.
#[derive(Debug, Default)]
struct Pace {
    owed: BTreeMap<PublicKey, u64>,
    since_ms: u64,
}

impl Pace {
    /// Time passes: what it is worth is shared by all who owe.
    fn tick(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(std::mem::replace(&mut self.since_ms, now_ms));
        if passed_ms > 0 && !self.owed.is_empty() {
            let paid = passed_ms.saturating_mul(PACE) / self.owed.len() as u64;
            self.owed.retain(|_, owed| {
                *owed = owed.saturating_sub(paid);
                *owed > 0
            });
        }
    }

    /// Whether a client may read more while others wait to be ordered.
    fn may(&self, key: PublicKey) -> bool {
        self.owed.get(&key).is_none_or(|owed| *owed < BURST)
    }

    fn charge(&mut self, key: PublicKey, cost: u64) {
        if cost > SMALL {
            *self.owed.entry(key).or_default() += cost;
        }
    }
}

impl Node {
    pub(super) fn on_read(
        &mut self,
        now: Now,
        (connection, key): (u64, PublicKey),
        id: u64,
        command: Bytes,
    ) {
        let accepted = self.agreement.highest_accepted();
        let after = if seeded!(FastReadAtOnce) { Slot(0) } else { accepted };
        let since_ms = now.monotonic_ms;
        let wanted = Wanted::AnyFrom;
        let read = WaitingRead { after, wanted, since_ms, connection, key, id, command };
        if !self.agreement.voting() {
            self.refuse_read(&read);
            return;
        }
        self.line_up_read(read);
    }

    fn line_up_read(&mut self, read: WaitingRead) {
        if let Err(refused) = self.reads.line_up(read) {
            self.counters.stage.reads_at_gone += u64::from(refused.exactly());
            self.refuse_read(&refused);
        }
    }

    /// A read of the state after one slot.
    pub(super) fn on_read_at(
        &mut self,
        now: Now,
        (connection, key): (u64, PublicKey),
        id: u64,
        (slot, command): (Slot, Bytes),
    ) {
        // Beyond what could be accepted by now it is far away, or a lie.
        let soon = self.agreement.highest_accepted().plus(self.parameters.depth);
        let wanted = match &self.execution {
            Execution::Apart(apart) if apart.reads_beside() && self.agreement.voting() => {
                match apart.state_after(slot) {
                    Some(_) => Some(Wanted::Exactly),
                    None => {
                        (self.execution.slot() <= slot && slot <= soon).then_some(Wanted::ToCome)
                    }
                }
            }
            Execution::Apart(_) | Execution::Here(_) => None,
        };
        let since_ms = now.monotonic_ms;
        let read =
            |wanted| WaitingRead { after: slot, wanted, since_ms, connection, key, id, command };
        match wanted {
            Some(wanted) => self.line_up_read(read(wanted)),
            None => {
                self.counters.stage.reads_at_gone += 1;
                self.refuse_read(&read(Wanted::Exactly));
            }
        }
    }

    /// In which state reads are answered now, and how many more.
    fn reads_now(&self) -> Room {
        let unshared = |slot, of_all: usize| {
            let left = of_all.saturating_sub(self.reads.under_way.len());
            Room { slot, left, of_key: usize::MAX }
        };
        match &self.execution {
            Execution::Here(executor) => unshared(executor.machine().slot(), usize::MAX),
            Execution::Apart(apart) if apart.reads_beside() => match apart.shared() {
                Some(state) => {
                    // Whose queries take long leaves a thread to others, where there are two.
                    let of_key = (self.reads.threads - 1).max(1);
                    Room { of_key, ..unshared(state.slot(), self.reads.threads) }
                }
                None => Room { slot: Slot(0), left: 0, of_key: 0 },
            },
            Execution::Apart(_) => unshared(self.execution.slot(), READS_APART),
        }
    }

    /// Whether reads of the state after one slot are answered here.
    #[must_use]
    pub fn keeps_states(&self) -> bool {
        self.execution.reads_beside()
    }

    /// So many threads answer reads beside a stage, 1 to [`READS_BESIDE`]; two if nobody says.
    pub fn set_read_threads(&mut self, threads: usize) {
        self.reads.threads = threads.clamp(1, READS_BESIDE);
    }

    pub(super) fn answer_reads(&mut self, now: Now) {
        let too_early = seeded!(ReadBeforeOrdered) && self.execution.is_apart();
        let stale_ms = self.reads.stale_ms;
        self.reads.pace.tick(now.monotonic_ms);
        let all = !self.agreement.is_ordering();
        let (mut cost, any) = (0, !self.reads.waiting.is_empty());
        for _ in 0..READS_AT_ONCE {
            if self.is_full() || cost >= COST_AT_ONCE {
                break;
            }
            let mut room = self.reads_now();
            if too_early {
                room.slot = self.agreement.delivered();
            }
            let Some(read) = self.reads.next(now, &room, all) else { break };
            if read.is_stale(now, stale_ms) {
                self.refuse_read(&read);
            } else {
                cost += self.answer_read(read);
            }
        }
        if any && let Execution::Apart(apart) = &mut self.execution {
            let share = apart.share(self.parameters.depth);
            self.outputs.extend(share);
        }
    }

    /// Answers one, or has it answered; what it cost until now.
    fn answer_read(&mut self, read: WaitingRead) -> u64 {
        let executor = match &self.execution {
            Execution::Here(executor) => executor,
            Execution::Apart(apart) => {
                let state = match read.exactly() {
                    true => apart.state_after(read.after),
                    false => apart.shared(),
                };
                let state = state.cloned();
                self.counters.stage.reads_at += u64::from(read.exactly() && state.is_some());
                if read.exactly() && state.is_none() {
                    self.counters.stage.reads_at_gone += 1;
                    self.refuse_read(&read);
                    return 0;
                }
                self.reads.begun += 1;
                let (number, key) = (self.reads.begun, read.key);
                let command = read.command.clone();
                self.reads.under_way.insert(number, read);
                self.outputs.push_back(match state {
                    Some(state) => {
                        Output::Read(Box::new(ReadBeside { number, key, command, state }))
                    }
                    None => Output::Stage(Job::Read { number, key, command }),
                });
                return 0;
            }
        };
        let before = self.stages.enter(Stage::Execute);
        let meter = Meter::up_to(COMMAND_COST);
        let outcome = executor.machine().query_within(read.key, &read.command, &meter);
        self.stages.go_back(before);
        self.conclude_read(&read, self.execution.slot(), outcome, meter.spent())
    }

    /// The stage answered a read, in the state after a slot.
    pub(super) fn on_read_apart(
        &mut self,
        number: u64,
        slot: Slot,
        outcome: Option<Outcome>,
        cost: u64,
    ) {
        if let Some(read) = self.reads.under_way.remove(&number) {
            self.conclude_read(&read, slot, outcome, cost);
        }
    }

    fn conclude_read(
        &mut self,
        read: &WaitingRead,
        slot: Slot,
        outcome: Option<Outcome>,
        spent: u64,
    ) -> u64 {
        let before = self.stages.enter(Stage::Reply);
        self.counters.reads += 1;
        let cost = spent + outcome.as_ref().map_or(0, super::egress::size_of_outcome) as u64;
        self.reply_read(read, slot, outcome);
        self.stages.go_back(before);
        self.reads.pace.charge(read.key, cost);
        cost
    }

    fn reply_read(&mut self, read: &WaitingRead, slot: Slot, outcome: Option<Outcome>) {
        let peer = Peer::Client { connection: read.connection, key: read.key };
        self.send(&[peer], &Message::ReadReply { id: read.id, slot, outcome });
    }

    /// A read goes the ordered way.
    fn refuse_read(&mut self, read: &WaitingRead) {
        self.reply_read(read, self.execution.slot(), None);
    }

    /// Whether a read could be answered at once.
    pub(super) fn has_reads(&self) -> bool {
        let room = self.reads_now();
        let all = !self.agreement.is_ordering();
        self.reads.waiting.any_first(|read| self.reads.may(read, &room, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(wanted: Wanted, after: u64, id: u64) -> WaitingRead {
        let key = PublicKey([1; 32]);
        let after = Slot(after);
        WaitingRead { after, wanted, since_ms: 0, connection: 1, key, id, command: Bytes::new() }
    }

    #[test]
    fn whose_state_is_there_goes_before_the_others_of_its_key_and_these_by_their_slots() {
        let mut reads = Reads::new(true);
        let all = [
            read(Wanted::AnyFrom, 7, 1),
            read(Wanted::AnyFrom, 5, 2),
            read(Wanted::ToCome, 6, 3),
            read(Wanted::Exactly, 9, 4),
            read(Wanted::AnyFrom, 5, 5),
            read(Wanted::Exactly, 8, 6),
        ];
        for one in all {
            assert!(reads.line_up(one).is_ok());
        }
        let now = Now { monotonic_ms: 1, wall: perdura_protocol::Time(0) };
        let room = Room { slot: Slot(9), left: 9, of_key: 9 };
        let order: Vec<u64> =
            std::iter::from_fn(|| reads.next(now, &room, true)).map(|read| read.id).collect();
        assert_eq!(order, [6, 4, 2, 5, 3, 1]);
    }

    #[test]
    fn slots_that_never_come_take_no_room_from_a_clients_other_reads() {
        let mut reads = Reads::new(true);
        let mut waiting = 0;
        while reads.line_up(read(Wanted::ToCome, 100, waiting)).is_ok() {
            waiting += 1;
        }
        assert_eq!(waiting as usize, TO_COME);
        assert!(reads.line_up(read(Wanted::AnyFrom, 5, 1_000)).is_ok());
        let room = Room { slot: Slot(5), left: 9, of_key: 9 };
        let at = |monotonic_ms| Now { monotonic_ms, wall: perdura_protocol::Time(0) };
        assert_eq!(reads.next(at(1), &room, true).map(|read| read.id), Some(1_000));
        assert!(reads.next(at(1), &room, true).is_none());
        // They go when they are stale, and others may come.
        assert_eq!(reads.next(at(STALE_SLOW_MS), &room, true).map(|read| read.id), Some(0));
        assert!(reads.line_up(read(Wanted::ToCome, 100, 0)).is_ok());
        assert!(reads.line_up(read(Wanted::ToCome, 100, 0)).is_err());
        while reads.next(at(2 * STALE_SLOW_MS), &room, true).is_some() {}
        assert!(reads.to_come.is_empty());
    }

    #[test]
    fn large_reads_are_paced_by_key_and_small_ones_are_not() {
        let mut pace = Pace::default();
        let [one, other] = [1, 2].map(|name| PublicKey([name; 32]));
        pace.tick(1_000);
        for _ in 0..10_000 {
            pace.charge(one, SMALL);
        }
        assert!(pace.may(one));
        pace.charge(one, 8 * BURST);
        assert!(!pace.may(one) && pace.may(other));
        // 8 MiB at a tenth of the time.
        pace.tick(1_070);
        assert!(!pace.may(one));
        pace.tick(1_080);
        assert!(pace.may(one));
        pace.tick(2_000);
        assert!(pace.owed.is_empty());
    }
}
