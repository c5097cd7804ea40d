//! What commands cost, and what a slot may (docs/design.md, Cost; version 2 of the core's rules).
//!
//! The unit is a byte that is read from the state or answered; a step of other work counts for as many bytes as take as long. What a command's
//! own bytes stand for is not charged: batches bound that. The sum is a function of state, context and command, so it is the same on
//! all replicas, restored ones included.
//!
//! Invariants, under version 2:
//! - a slot costs at most [`SLOT_COST`] and one command of each client key with frames in its batch, beside what is never put off;
//! - what one key may spend depends on how many keys have frames in the batch, and on nothing else that others do;
//! - the first command of a key in a slot is begun, whatever it costs and whatever it was given again before;
//! - behind a command that is put off nothing of its session is begun in the slot, but for what is never put off, and the lowest number that is
//!   not acknowledged: so an order in which a leader puts frames keeps no session from going on.

use perdura_protocol::limits::{COMMAND_COST, FRAME_BYTES, SLOT_COST};
use perdura_protocol::{Batch, PublicKey, SessionId, seeded};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of replies that a session keeps, beyond which nothing of it is begun but the lowest number that is not acknowledged: with one largest
/// reply more they fit [`perdura_protocol::limits::SESSION_REPLY_BYTES`], so that none is dropped. Where that number comes last, after a largest
/// one, the oldest may be.
pub const SESSION_BODIES: usize = 3 * 1024 * 1024;

/// The most that is counted where there is no bound, so that sums of it overflow nowhere.
const MOST_COUNTED: u64 = 1 << 40;

/// Counts what a command or a read costs while the service is at it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meter {
    spent: Cell<u64>,
    most: u64,
}

/// A command is about to cost more than it may ([`COMMAND_COST`]). It has to be refused, with nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the command would take more work than one may ({COMMAND_COST} bytes read and answered, or what takes as long); ask for less at once"
)]
pub struct TooCostly;

impl From<TooCostly> for String {
    fn from(error: TooCostly) -> String {
        error.to_string()
    }
}

impl Meter {
    /// For a command that may cost so much.
    #[must_use]
    pub const fn up_to(most: u64) -> Meter {
        Meter { spent: Cell::new(0), most }
    }

    /// Only counts.
    #[must_use]
    pub const fn without_limit() -> Meter {
        Meter::up_to(u64::MAX)
    }

    /// The command reads so many bytes of the state, or does something else that takes as long: called before it does, or while.
    ///
    /// # Errors
    /// When that is more than it may.
    pub fn charge(&self, bytes: usize) -> Result<(), TooCostly> {
        let spent = self.spent.get().saturating_add(bytes as u64);
        // What is refused has not been done, so no more than one step of it counts.
        self.spent.set(spent.min(self.most.saturating_add(FRAME_BYTES as u64)).min(MOST_COUNTED));
        if spent > self.most { Err(TooCostly) } else { Ok(()) }
    }

    /// Whether there is a bound.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.most < u64::MAX
    }

    /// What it may still cost.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.most.saturating_sub(self.spent.get())
    }

    /// What it cost until now.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent.get()
    }
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::without_limit()
    }
}

/// What a command cost beside what its own bytes stand for.
pub(crate) fn beyond(command: &[u8], metered: u64, answer: usize) -> u64 {
    (metered + answer as u64).saturating_sub(command.len() as u64)
}

/// What a client key has used of a slot.
#[derive(Clone, Copy, Default, Debug)]
struct Used {
    cost: u64,
    // Something of it was begun.
    begun: bool,
    // Commands that were not.
    put_off: u64,
}

/// What the commands of one slot have cost.
#[derive(Debug)]
pub(crate) struct Spending {
    // Of each key; everything, under rules that know no budget.
    share: u64,
    by_key: BTreeMap<PublicKey, Used>,
    put_off: BTreeSet<SessionId>,
}

impl Spending {
    /// Of a slot with this batch, if it has a budget.
    pub(crate) fn of(batch: &Batch, bounded: bool) -> Spending {
        let mut share = u64::MAX;
        if bounded {
            let keys: BTreeSet<&PublicKey> =
                batch.frames().iter().map(|frame| &frame.session.client).collect();
            share = SLOT_COST / keys.len().max(1) as u64;
        }
        Spending { share, by_key: BTreeMap::new(), put_off: BTreeSet::new() }
    }

    /// What a session may still begin, to be given back by [`Spending::close`].
    pub(crate) fn open(&self, session: SessionId) -> Account {
        let used = self.by_key.get(&session.client).copied().unwrap_or_default();
        let mut share = self.share;
        if seeded!(OthersSpend) && self.share < u64::MAX {
            let all: u64 = self.by_key.values().map(|used| used.cost).sum();
            share = share.saturating_sub(all - used.cost);
        }
        Account { session, share, used, put_off: self.put_off.contains(&session) }
    }

    /// A frame was executed.
    pub(crate) fn close(&mut self, account: Account) {
        let Account { session, used, put_off, .. } = account;
        if used.cost > 0 || used.begun || used.put_off > 0 {
            self.by_key.insert(session.client, used);
        }
        if put_off {
            self.put_off.insert(session);
        }
    }

    /// What each key spent, and how many of its commands were put off.
    pub(crate) fn finish(self) -> (BTreeMap<PublicKey, u64>, BTreeMap<PublicKey, u64>) {
        let of = |what: fn(&Used) -> u64| {
            let used = self.by_key.iter().map(|(key, used)| (*key, what(used)));
            used.filter(|(_, count)| *count > 0).collect()
        };
        (of(|used| used.cost), of(|used| used.put_off))
    }
}

/// One session's view of it.
#[derive(Debug)]
pub(crate) struct Account {
    session: SessionId,
    share: u64,
    used: Used,
    // A command of the session was put off in this slot.
    put_off: bool,
}

impl Account {
    /// Whether there is a budget at all.
    pub(crate) fn is_bounded(&self) -> bool {
        self.share < u64::MAX
    }

    /// Whether a command more may be begun that can be put off; `lowest` if it is the first one that the client has no outcome of.
    pub(crate) fn may_begin(&self, lowest: bool) -> bool {
        let first = !self.used.begun && !seeded!(OthersSpend);
        let has_share = first || self.used.cost < self.share || seeded!(ShareIgnored);
        (lowest || !self.put_off) && has_share
    }

    /// One was put off, so what follows it is.
    pub(crate) fn put_off(&mut self) {
        self.put_off = true;
        self.used.put_off += 1;
    }

    /// One was begun, and cost this.
    pub(crate) fn begun(&mut self, cost: u64) {
        self.used.begun = true;
        self.given_again(cost);
    }

    /// A reply was given again, which cost this.
    pub(crate) fn given_again(&mut self, cost: u64) {
        self.used.cost = self.used.cost.saturating_add(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::{ClusterId, Command, Encode, Frame, Time};

    fn session(client: u8, nonce: u64) -> SessionId {
        SessionId { client: PublicKey([client; 32]), nonce }
    }

    fn batch(sessions: &[SessionId]) -> Batch {
        let frame = |session: &SessionId| {
            Frame::build(ClusterId([1; 16]), *session, 0, 1, &[Command::Renew.to_bytes()], None)
        };
        Batch::requests(Time(1), sessions.iter().map(frame).collect())
    }

    /// How many commands of this cost are begun in a frame.
    fn begun(spending: &mut Spending, of: SessionId, cost: u64) -> u64 {
        let mut account = spending.open(of);
        let mut count = 0;
        while account.may_begin(false) {
            account.begun(cost);
            count += 1;
        }
        account.put_off();
        spending.close(account);
        count
    }

    #[test]
    fn a_slot_costs_its_budget_and_one_command_of_each_key_at_most() {
        let three = [session(1, 1), session(1, 2), session(2, 1), session(3, 1)];
        let mut spending = Spending::of(&batch(&three), true);
        let large = SLOT_COST / 2;
        assert_eq!(begun(&mut spending, three[0], large), 1);
        // The same key in another session has nothing left; another key has its first whatever others did.
        assert_eq!(begun(&mut spending, three[1], 1), 0);
        assert_eq!(begun(&mut spending, three[2], COMMAND_COST), 1);
        assert_eq!(begun(&mut spending, three[3], SLOT_COST / 3 / 8), 9);
        let (spent, put_off) = spending.finish();
        assert_eq!((spent.len(), put_off[&session(1, 1).client]), (3, 2));
        assert!(spent.values().sum::<u64>() <= SLOT_COST + 3 * COMMAND_COST);
    }

    #[test]
    fn what_follows_is_put_off_in_the_session_alone() {
        let two = [session(1, 1), session(1, 2)];
        let mut spending = Spending::of(&batch(&two), true);
        let mut account = spending.open(two[0]);
        account.put_off();
        spending.close(account);
        assert!(!spending.open(two[0]).may_begin(false) && spending.open(two[1]).may_begin(false));
        // A leader may put frames in any order: what all others of the session wait for goes on.
        assert!(spending.open(two[0]).may_begin(true));
    }

    #[test]
    fn what_was_given_again_keeps_no_first_command_back() {
        let one = session(1, 1);
        let mut spending = Spending::of(&batch(&[one]), true);
        let mut account = spending.open(one);
        account.given_again(2 * SLOT_COST);
        assert!(account.may_begin(false));
        account.begun(0);
        assert!(!account.may_begin(false) && !account.may_begin(true));
        spending.close(account);
        assert!(!spending.open(session(1, 2)).may_begin(true));
    }

    #[test]
    fn without_a_budget_everything_is_begun_and_counted() {
        let one = session(1, 1);
        let mut spending = Spending::of(&batch(&[one]), false);
        for _ in 0..4 {
            let mut account = spending.open(one);
            assert!(account.may_begin(false) && !account.is_bounded());
            account.begun(SLOT_COST);
            spending.close(account);
        }
        assert_eq!(spending.finish().0[&one.client], 4 * SLOT_COST);
    }

    #[test]
    fn a_meter_says_when_it_is_too_much() {
        let meter = Meter::up_to(100);
        assert_eq!(
            (meter.charge(100), meter.charge(1), meter.spent()),
            (Ok(()), Err(TooCostly), 101)
        );
        // Whatever a service charges, sums of what many cost are numbers.
        for _ in 0..3 {
            assert_eq!(meter.charge(usize::MAX), Err(TooCostly));
        }
        assert_eq!(meter.spent(), 100 + FRAME_BYTES as u64);
        let meter = Meter::without_limit();
        assert_eq!((meter.charge(usize::MAX), meter.spent()), (Ok(()), MOST_COUNTED));
        assert_eq!(beyond(&[0; 30], 20, 5), 0);
        assert_eq!(beyond(&[0; 30], 20, 35), 25);
    }
}
