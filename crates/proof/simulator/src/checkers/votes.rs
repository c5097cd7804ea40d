//! Guards A1, A2 and A4 at their root: every vote that leaves a correct replica is held against
//! all that it said before, across its restarts, whether or not harm came of it.
//!
//! | message | what has to hold |
//! |---|---|
//! | Propose, Write, Accept | no other batch for this slot and view; no view below one that it asked for; no slot beyond the pipeline's depth |
//! | Propose | no view up to the one in which it restarted |
//! | Write | none in a view up to that, unless its vote is on disk |
//! | Propose, Write, Accept | in a view above 0, one whose NewView it heard of or made, and what that chose for the slot |
//! | ViewChange | each vote on its disk above the prefix, or a later one for the slot |
//! | all of them | from a new incarnation only once it has executed up to its configuration |

use crate::violation::{Broken, Check};
use perdura_protocol::viewchange::{NewView, ViewChange};
use perdura_protocol::{Batch, Digest, Message, Record, Slot, View};
use std::collections::{BTreeMap, BTreeSet};

const RULE: &str = "VoteValidity (A1, A2)";
const PIPELINE: &str = "Pipeline (A4)";
const REPLACED: &str = "Replacement (D8)";

/// What a NewView binds, computed here from its view changes.
#[derive(Clone, Debug)]
struct Start {
    base: Slot,
    // Nobody has checked yet that these are close to the base.
    locks: BTreeMap<Slot, (View, Digest)>,
}

impl Start {
    fn of(new_view: &NewView) -> Start {
        let base = new_view.changes.iter().map(|change| change.prefix.slot).max();
        let base = base.unwrap_or_default();
        let mut locks: BTreeMap<Slot, (View, Digest)> = BTreeMap::new();
        for lock in new_view.changes.iter().flat_map(|change| &change.locks) {
            let held = locks.get(&lock.slot);
            if lock.slot > base && held.is_none_or(|(view, _)| *view < lock.view) {
                locks.insert(lock.slot, (lock.view, lock.digest));
            }
        }
        Start { base, locks }
    }

    /// Whether it chose something for a slot: a lock, or null below one.
    fn binds(&self, slot: Slot) -> bool {
        slot > self.base && self.locks.range(slot..).next().is_some()
    }

    fn permits(&self, slot: Slot, digest: Digest) -> bool {
        let chosen = || match self.locks.get(&slot) {
            Some((_, digest)) => *digest,
            None => Batch::null().digest(),
        };
        slot > self.base && (!self.binds(slot) || digest == chosen())
    }
}

/// What one replica said, and what it has to know of it.
#[derive(Clone, Debug, Default)]
struct Said {
    // By view and slot: proposals, Writes, Accepts.
    voted: [BTreeMap<(View, Slot), Digest>; 3],
    // Votes that ever were on its disk.
    kept: BTreeSet<(Slot, View, Digest)>,
    asked: View,
    restarted_in: Option<View>,
    starts: BTreeMap<View, Vec<Start>>,
    // Of a new incarnation: the first slot of its configuration.
    joins_at: Option<Slot>,
}

/// The checker.
#[derive(Debug)]
pub struct Votes {
    depth: u64,
    replicas: Vec<Said>,
}

impl Votes {
    /// For a group of `n` replicas that has never run.
    #[must_use]
    pub fn new(n: usize, depth: u64) -> Votes {
        Votes { depth, replicas: vec![Said::default(); n] }
    }

    /// `replica` starts on an empty disk; a new incarnation joins at a slot.
    pub fn formatted(&mut self, replica: usize, joins_at: Option<Slot>) {
        self.replicas[replica] = Said { joins_at, ..Said::default() };
    }

    /// The disk of `replica` has these records for good.
    pub fn appended(&mut self, replica: usize, records: &[Record]) {
        let said = &mut self.replicas[replica];
        for record in records {
            if let Record::Vote { view, slot, batch, .. } = record {
                said.kept.insert((*slot, *view, batch.digest()));
            }
        }
    }

    /// `replica` starts again from these records.
    pub fn restarted(&mut self, replica: usize, records: &[Record]) {
        let views = records.iter().filter_map(|record| match record {
            Record::View(view) => Some(*view),
            _ => None,
        });
        self.replicas[replica].restarted_in = views.max();
        self.appended(replica, records);
    }

    /// `replica` hears of a NewView, or makes one.
    pub fn heard(&mut self, replica: usize, new_view: &NewView) {
        let start = Start::of(new_view);
        self.replicas[replica].starts.entry(new_view.view).or_default().push(start);
    }

    /// Whether a NewView that `replica` heard of chose something for a slot.
    #[must_use]
    pub fn is_bound(&self, replica: usize, slot: Slot) -> bool {
        let mut starts = self.replicas[replica].starts.values().flatten();
        starts.any(|start| start.binds(slot))
    }

    /// `replica`, which has executed up to `executed`, says this.
    pub fn speaks(&mut self, replica: usize, message: &Message, executed: Slot) -> Check {
        let said = &mut self.replicas[replica];
        let result = match message {
            Message::Propose { view, slot, batch, .. } => said
                .proposes(*view)
                .and_then(|()| said.bound(*view, *slot, batch.digest()))
                .and_then(|()| said.vote(0, *view, *slot, batch.digest())),
            Message::Write { view, slot, digest, .. } => said
                .writes(*view, *slot, *digest)
                .and_then(|()| said.bound(*view, *slot, *digest))
                .and_then(|()| said.vote(1, *view, *slot, *digest)),
            Message::Accept { view, slot, digest, .. } => {
                said.bound(*view, *slot, *digest).and_then(|()| said.vote(2, *view, *slot, *digest))
            }
            Message::ViewChange(change) => {
                said.asked = said.asked.max(change.view);
                said.carries(change)
            }
            Message::NewView(new_view) => {
                said.starts.entry(new_view.view).or_default().push(Start::of(new_view));
                Ok(())
            }
            _ => return Ok(()),
        };
        let named = |rule, what| Broken::new(rule, format!("replica {replica} {what}"));
        result.map_err(|what| named(RULE, what))?;
        if said.joins_at.is_some_and(|first| executed.next() < first) {
            let what = format!("votes at slot {executed}, and joins at {:?}", said.joins_at);
            return Err(named(REPLACED, what));
        }
        let (view, slot) = match message {
            Message::Propose { view, slot, .. }
            | Message::Write { view, slot, .. }
            | Message::Accept { view, slot, .. } => (*view, *slot),
            _ => return Ok(()),
        };
        // A vote from before a restart may be repeated before all that had been executed then is
        // executed again.
        let repeated = said.restarted_in.is_some_and(|restarted| view <= restarted);
        if repeated || slot <= executed.plus(self.depth) {
            return Ok(());
        }
        let what = format!("votes on slot {slot} and has executed {executed}");
        Err(named(PIPELINE, what))
    }
}

impl Said {
    fn vote(&mut self, kind: usize, view: View, slot: Slot, digest: Digest) -> Result<(), String> {
        let name = ["proposes", "writes", "accepts"][kind];
        if view < self.asked {
            return Err(format!("{name} in view {view} and has asked for view {}", self.asked));
        }
        let before = *self.voted[kind].entry((view, slot)).or_insert(digest);
        if before != digest {
            let what = format!("{digest:?} in slot {slot}, view {view}, and {before:?} before");
            return Err(format!("{name} {what}"));
        }
        Ok(())
    }

    fn proposes(&self, view: View) -> Result<(), String> {
        match self.restarted_in {
            Some(restarted) if view <= restarted => {
                Err(format!("proposes in view {view} and restarted in view {restarted}"))
            }
            _ => Ok(()),
        }
    }

    fn writes(&self, view: View, slot: Slot, digest: Digest) -> Result<(), String> {
        let free = self.restarted_in.is_none_or(|restarted| view > restarted);
        if free || self.kept.contains(&(slot, view, digest)) {
            return Ok(());
        }
        Err(format!("writes {digest:?} in slot {slot}, view {view}, in which it restarted"))
    }

    fn bound(&self, view: View, slot: Slot, digest: Digest) -> Result<(), String> {
        if view == View(0) {
            return Ok(());
        }
        let Some(starts) = self.starts.get(&view) else {
            return Err(format!("votes in view {view}, of whose start it never heard"));
        };
        if starts.iter().any(|start| start.permits(slot, digest)) {
            return Ok(());
        }
        Err(format!("votes for {digest:?} in slot {slot}, against the choice of view {view}"))
    }

    /// Votes of the view asked for may have been cast by the time that the question leaves.
    fn carries(&self, change: &ViewChange) -> Result<(), String> {
        let first = change.prefix.slot.next();
        for (slot, view, digest) in self.kept.range((first, View(0), Digest::ZERO)..) {
            let carried = change.locks.iter().any(|lock| {
                lock.slot == *slot
                    && (lock.view > *view || (lock.view == *view && lock.digest == *digest))
            });
            if !carried && *view < change.view {
                return Err(format!(
                    "asks for a view without its vote for {digest:?} in slot {slot}, view {view}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::viewchange::{Lock, PrefixCertificate};
    use perdura_protocol::{Certificate, ReplicaId, Signature};

    fn write(view: u64, slot: u64, digest: u8) -> Message {
        let (view, slot, digest) = (View(view), Slot(slot), Digest([digest; 32]));
        Message::Write { view, slot, digest, signature: Signature::NONE }
    }

    fn change(view: u64, locks: Vec<Lock>) -> ViewChange {
        ViewChange {
            view: View(view),
            sender: ReplicaId(0),
            configuration: 0,
            prefix: PrefixCertificate::genesis(),
            locks,
            signature: Signature::NONE,
        }
    }

    fn lock(slot: u64, view: u64, digest: Digest) -> Lock {
        Lock { slot: Slot(slot), view: View(view), digest, writes: Certificate::default() }
    }

    fn kept(slot: u64, view: u64) -> Record {
        let (writes, batch) = (Certificate::default(), Batch::null());
        Record::Vote { view: View(view), slot: Slot(slot), batch, writes }
    }

    /// Replica 0 hears of the starts of these views, which choose nothing.
    fn started(votes: &mut Votes, views: impl IntoIterator<Item = u64>) {
        for view in views.into_iter().map(View) {
            let (sender, changes, signature) = (ReplicaId(0), Vec::new(), Signature::NONE);
            votes.heard(0, &NewView { view, sender, configuration: 0, changes, signature });
        }
    }

    #[test]
    fn a_vote_needs_the_start_of_its_view() {
        let mut votes = Votes::new(1, 8);
        assert!(votes.speaks(0, &write(0, 3, 1), Slot(0)).is_ok());
        assert!(votes.speaks(0, &write(1, 3, 1), Slot(0)).is_err());
        started(&mut votes, [1]);
        assert!(votes.speaks(0, &write(1, 3, 1), Slot(0)).is_ok());
    }

    #[test]
    fn one_vote_in_a_view_across_restarts() {
        let mut votes = Votes::new(1, 8);
        started(&mut votes, 1..=4);
        assert!(votes.speaks(0, &write(1, 3, 1), Slot(0)).is_ok());
        assert!(votes.speaks(0, &write(2, 3, 2), Slot(0)).is_ok());
        assert!(votes.speaks(0, &write(2, 9, 2), Slot(0)).is_err());
        votes.restarted(0, &[Record::View(View(3))]);
        assert!(votes.speaks(0, &write(3, 4, 1), Slot(0)).is_err());
        assert!(votes.speaks(0, &write(4, 4, 1), Slot(0)).is_ok());
        assert!(votes.speaks(0, &write(2, 3, 1), Slot(0)).is_err());
    }

    #[test]
    fn votes_on_disk_are_carried_into_the_next_view() {
        let mut votes = Votes::new(1, 8);
        votes.appended(0, &[kept(3, 1)]);
        let null = Batch::null().digest();
        let asks = |locks| Message::ViewChange(Box::new(change(2, locks)));
        assert!(votes.speaks(0, &asks(vec![lock(3, 1, null)]), Slot(0)).is_ok());
        assert!(votes.speaks(0, &asks(vec![]), Slot(0)).is_err());
        assert!(votes.speaks(0, &asks(vec![lock(3, 1, Digest::ZERO)]), Slot(0)).is_err());
        // And that view is the end of all before it.
        assert!(votes.speaks(0, &write(1, 4, 1), Slot(0)).is_err());
    }

    #[test]
    fn the_highest_lock_binds() {
        let mut votes = Votes::new(1, 8);
        let changes = vec![
            change(5, vec![lock(2, 3, Digest([3; 32]))]),
            change(5, vec![lock(2, 4, Digest([4; 32]))]),
        ];
        let (view, sender, signature) = (View(5), ReplicaId(0), Signature::NONE);
        votes.heard(0, &NewView { view, sender, configuration: 0, changes, signature });
        assert!(votes.speaks(0, &write(5, 2, 3), Slot(0)).is_err());
        assert!(votes.speaks(0, &write(5, 2, 4), Slot(0)).is_ok());
        assert!(votes.speaks(0, &write(5, 1, 4), Slot(0)).is_err());
        assert!(votes.speaks(0, &write(5, 3, 9), Slot(0)).is_ok());
    }

    /// What a liar makes up is heard before anybody has checked it.
    #[test]
    fn a_lock_far_away_costs_nothing() {
        let mut votes = Votes::new(1, 8);
        let changes = vec![change(5, vec![lock(u64::MAX, 3, Digest([3; 32]))])];
        let (view, sender, signature) = (View(5), ReplicaId(0), Signature::NONE);
        votes.heard(0, &NewView { view, sender, configuration: 0, changes, signature });
        assert!(votes.is_bound(0, Slot(1 << 50)));
        assert!(votes.speaks(0, &write(5, 1, 4), Slot(0)).is_err());
        assert!(
            votes
                .speaks(
                    0,
                    &Message::Write {
                        digest: Batch::null().digest(),
                        view,
                        slot: Slot(1),
                        signature
                    },
                    Slot(0)
                )
                .is_ok()
        );
    }

    #[test]
    fn a_new_incarnation_waits_for_its_configuration() {
        let mut votes = Votes::new(1, 8);
        votes.formatted(0, Some(Slot(20)));
        started(&mut votes, [1]);
        assert!(votes.speaks(0, &write(1, 20, 1), Slot(18)).is_err());
        assert!(votes.speaks(0, &write(1, 20, 1), Slot(19)).is_ok());
    }
}
