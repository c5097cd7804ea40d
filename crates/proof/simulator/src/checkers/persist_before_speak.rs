//! Guards A2 and D1: whatever leaves a replica that others may count on is on its disk at that
//! moment. Every outgoing message is held against the records whose write was reported as done,
//! and these against what is read back after each crash.
//!
//! | message | what is on disk |
//! |---|---|
//! | Accept | a Vote for this view, slot and batch |
//! | Propose, Write, ViewChange, NewView | a View not below its view |
//! | ViewChange | a Vote for each of its locks |
//! | Prefix | the decided batch of every slot of it, or a state after it |
//! | Checkpoint | that state; with sequential checkpoints that, or the same as with Prefix |
//! | Replies | the very batch in which the command was executed, or a state after it |
//! | Attested | the same as with Prefix: what is signed for other groups follows from all slots up to its own |

use super::agreement::Agreement;
use crate::violation::{Broken, Check};
use perdura_protocol::configuration::Schedule;
use perdura_protocol::{Digest, Message, Outcome, Record, RefusalReason, Slot, View};
use std::collections::BTreeSet;

const RULE: &str = "PersistBeforeSpeak (A2, D1)";
const LOST: &str = "Durability (D1, D4)";

/// What is on one disk.
#[derive(Clone, Debug, Default)]
struct Kept {
    view: Option<View>,
    votes: BTreeSet<(Slot, View, Digest)>,
    batches: BTreeSet<(Slot, Digest)>,
    states: BTreeSet<(Slot, Digest)>,
    checkpoint: Slot,
    truncated: Slot,
}

impl Kept {
    fn take(&mut self, record: &Record) {
        match record {
            Record::View(view) => self.view = self.view.max(Some(*view)),
            Record::Vote { view, slot, batch, .. } => {
                self.votes.insert((*slot, *view, batch.digest()));
                self.batches.insert((*slot, batch.digest()));
            }
            Record::Decision { slot, batch, .. } => {
                self.batches.insert((*slot, batch.digest()));
            }
            _ => {}
        }
    }

    fn has(&self, slot: Slot, batch: Digest) -> bool {
        slot <= self.checkpoint || self.batches.contains(&(slot, batch))
    }

    /// A slot up to this one whose decided batch is not there.
    fn missing(&self, slot: Slot, decided: &Agreement) -> Option<u64> {
        let has = |slot: Slot| self.has_decided(slot, decided.decided(slot));
        (self.checkpoint.0 + 1..=slot.0).find(|number| !has(Slot(*number)))
    }

    /// Whether the decided batch of a slot is there; any, where that is not known.
    fn has_decided(&self, slot: Slot, decided: Option<Digest>) -> bool {
        match decided {
            Some(batch) => self.has(slot, batch),
            None => {
                let all = (slot, Digest::ZERO)..=(slot, Digest([0xff; 32]));
                slot <= self.checkpoint || self.batches.range(all).next().is_some()
            }
        }
    }
}

/// The checker.
#[derive(Debug)]
pub struct PersistBeforeSpeak {
    replicas: Vec<Kept>,
    // Digests are signed by those too who do not store the state.
    sequential: bool,
}

impl PersistBeforeSpeak {
    /// For a group of `n` replicas with empty disks.
    #[must_use]
    pub fn new(n: usize, schedule: Schedule) -> PersistBeforeSpeak {
        let sequential = schedule == Schedule::Sequential;
        PersistBeforeSpeak { replicas: vec![Kept::default(); n], sequential }
    }

    /// The disk of `replica` has these records for good.
    pub fn appended(&mut self, replica: usize, records: &[Record]) {
        let kept = &mut self.replicas[replica];
        records.iter().for_each(|record| kept.take(record));
    }

    /// The disk of `replica` has this state for good.
    pub fn stored(&mut self, replica: usize, slot: Slot, digest: Digest) {
        let kept = &mut self.replicas[replica];
        kept.states.insert((slot, digest));
        kept.checkpoint = kept.checkpoint.max(slot);
    }

    /// `replica` lets go of its log up to `slot`.
    pub fn truncated(&mut self, replica: usize, slot: Slot) -> Check {
        let kept = &mut self.replicas[replica];
        if slot > kept.checkpoint {
            let what = format!(
                "replica {replica} cuts its log below slot {slot}; its newest state on disk is \
                 after slot {}",
                kept.checkpoint
            );
            return Err(Broken::new(LOST, what));
        }
        kept.truncated = kept.truncated.max(slot);
        Ok(())
    }

    /// The disk of `replica` is gone.
    pub fn wiped(&mut self, replica: usize) {
        self.replicas[replica] = Kept::default();
    }

    /// A damaged disk gave this, and the replica knows what is missing: nothing else counts as
    /// being there any more.
    pub fn reread(&mut self, replica: usize, records: &[Record], states: &[(Slot, Digest)]) {
        let kept = &mut self.replicas[replica];
        *kept = Kept { truncated: kept.truncated, ..Kept::default() };
        kept.states.extend(states);
        kept.checkpoint = states.iter().map(|(slot, _)| *slot).max().unwrap_or_default();
        records.iter().for_each(|record| kept.take(record));
    }

    /// After a crash `replica` read this: nothing that was reported as written is missing.
    pub fn reopened(
        &mut self,
        replica: usize,
        records: &[Record],
        states: &[(Slot, Digest)],
    ) -> Check {
        let before = self.replicas[replica].clone();
        self.reread(replica, records, states);
        let kept = &self.replicas[replica];
        let lost = |what: String| Err(Broken::new(LOST, format!("replica {replica} lost {what}")));
        if kept.checkpoint < before.checkpoint {
            return lost(format!("its state after slot {}", before.checkpoint));
        }
        // Everybody starts in view 0, whether that is written or not.
        if kept.view.unwrap_or_default() < before.view.unwrap_or_default() {
            return lost(format!("its view: {:?} was written, {:?} read", before.view, kept.view));
        }
        let needed = kept.checkpoint.max(before.truncated);
        for (slot, view, digest) in &before.votes {
            let gone = !kept.votes.contains(&(*slot, *view, *digest));
            // A later vote for the slot may stand in another file than one that was cut.
            if gone && *slot > needed {
                return lost(format!("its vote for {digest:?} in slot {slot}, view {view}"));
            }
        }
        if let Some((slot, batch)) = before.batches.iter().find(|(s, b)| !kept.has(*s, *b)) {
            return lost(format!("batch {batch:?} of slot {slot}"));
        }
        Ok(())
    }

    /// `replica` sends this.
    pub fn speaks(&self, replica: usize, message: &Message, decided: &Agreement) -> Check {
        let kept = &self.replicas[replica];
        let fail = |what: String| {
            Err(Broken::new(RULE, format!("replica {replica} says {what}, not on its disk")))
        };
        let missing = |slot: Slot| kept.missing(slot, decided);
        let in_view = |view: View, what: &str| match kept.view {
            Some(entered) if entered >= view => Ok(()),
            entered => fail(format!("{what} in view {view} (on disk: {entered:?})")),
        };
        match message {
            Message::Propose { view, .. } => in_view(*view, "Propose"),
            Message::Write { view, .. } => in_view(*view, "Write"),
            Message::NewView(new_view) => in_view(new_view.view, "NewView"),
            Message::Accept { view, slot, digest, .. } => {
                if kept.votes.contains(&(*slot, *view, *digest)) {
                    return Ok(());
                }
                fail(format!("Accept of {digest:?} in slot {slot}, view {view}"))
            }
            Message::ViewChange(change) => {
                in_view(change.view, "ViewChange")?;
                let missing = change
                    .locks
                    .iter()
                    .find(|lock| !kept.votes.contains(&(lock.slot, lock.view, lock.digest)));
                match missing {
                    None => Ok(()),
                    Some(lock) => fail(format!(
                        "in a ViewChange that it voted in slot {}, view {}",
                        lock.slot, lock.view
                    )),
                }
            }
            Message::Prefix { slot, .. } => match missing(*slot) {
                None => Ok(()),
                Some(missing) => fail(format!("Prefix {slot}, slot {missing} is")),
            },
            Message::Checkpoint { slot, digest, .. } => {
                let stored = kept.states.contains(&(*slot, *digest));
                if stored || (self.sequential && missing(*slot).is_none()) {
                    return Ok(());
                }
                fail(format!("Checkpoint {slot}"))
            }
            _ => Ok(()),
        }
    }

    /// `replica` signs for other groups what the command with this number gave in `slot`.
    pub fn attests(
        &self,
        replica: usize,
        number: u64,
        slot: Option<Slot>,
        decided: &Agreement,
    ) -> Check {
        let missing = slot.map(|slot| (slot, self.replicas[replica].missing(slot, decided)));
        let what = match missing {
            Some((_, None)) => return Ok(()),
            Some((slot, Some(missing))) => {
                format!("of slot {slot}, and the batch of slot {missing} is not on its disk")
            }
            None => "which is not executed".to_owned(),
        };
        Err(Broken::new(RULE, format!("replica {replica} attests number {number}, {what}")))
    }

    /// `replica` sends these outcomes of a session; `place` knows the slots that they come from, and
    /// their batches.
    pub fn replies(
        &self,
        replica: usize,
        outcomes: &[(u64, Outcome)],
        place: impl Fn(u64) -> Option<(Slot, Option<Digest>)>,
    ) -> Check {
        let kept = &self.replicas[replica];
        for (number, outcome) in outcomes {
            let final_outcome = matches!(
                outcome,
                Outcome::Service(_)
                    | Outcome::Waited { .. }
                    | Outcome::Refused(RefusalReason::Service(_))
            );
            if !final_outcome {
                continue;
            }
            let Some((slot, batch)) = place(*number) else {
                let what = format!("replica {replica} replies to number {number}: not executed");
                return Err(Broken::new(RULE, what));
            };
            if !kept.has_decided(slot, batch) {
                let what = format!(
                    "replica {replica} replies to number {number} of slot {slot}, whose batch is \
                     not on its disk"
                );
                return Err(Broken::new(RULE, what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::{Batch, Certificate, Signature, Time};

    fn accept(view: u64) -> Message {
        let digest = Batch::null().digest();
        Message::Accept { view: View(view), slot: Slot(3), digest, signature: Signature::NONE }
    }

    fn vote(view: u64) -> Record {
        let writes = Certificate::default();
        Record::Vote { view: View(view), slot: Slot(3), batch: Batch::null(), writes }
    }

    #[test]
    fn a_vote_is_on_disk_before_it_leaves() {
        let mut checker = PersistBeforeSpeak::new(3, Schedule::Coordinated);
        assert!(checker.says(1, &accept(2)).is_err());
        checker.appended(1, &[vote(2)]);
        assert!(checker.says(1, &accept(2)).is_ok());
        assert!(checker.says(1, &accept(3)).is_err());
        assert!(checker.says(0, &accept(2)).is_err());
    }

    #[test]
    fn a_view_is_on_disk_before_anything_is_said_in_it() {
        let mut checker = PersistBeforeSpeak::new(3, Schedule::Coordinated);
        let write = Message::Write {
            view: View(1),
            slot: Slot(1),
            digest: Digest::ZERO,
            signature: Signature::NONE,
        };
        assert!(checker.says(0, &write).is_err());
        checker.appended(0, &[Record::View(View(1))]);
        assert!(checker.says(0, &write).is_ok());
    }

    #[test]
    fn all_that_a_statement_follows_from_is_on_disk_before_it_leaves() {
        let mut checker = PersistBeforeSpeak::new(3, Schedule::Coordinated);
        let decided = Agreement::default();
        let attests = |checker: &PersistBeforeSpeak, slot| checker.attests(1, 7, slot, &decided);
        let of_slot = |number: u64| {
            let (writes, batch) = (Certificate::default(), Batch::null());
            Record::Vote { view: View(0), slot: Slot(number), batch, writes }
        };
        checker.appended(1, &[of_slot(1), of_slot(3)]);
        assert!(attests(&checker, Some(Slot(1))).is_ok());
        // Ahead of a batch that is missing, and what nobody has executed.
        assert!(attests(&checker, Some(Slot(3))).is_err() && attests(&checker, None).is_err());
        checker.appended(1, &[of_slot(2)]);
        assert!(attests(&checker, Some(Slot(3))).is_ok());
        checker.stored(1, Slot(64), Digest::ZERO);
        assert!(attests(&checker, Some(Slot(64))).is_ok());
    }

    #[test]
    fn what_was_written_is_read_back() {
        let mut checker = PersistBeforeSpeak::new(3, Schedule::Coordinated);
        checker.appended(0, &[Record::View(View(1)), vote(1)]);
        assert!(checker.reopened(0, &[Record::View(View(1)), vote(1)], &[]).is_ok());
        assert!(checker.clone_for_test().reopened(0, &[Record::View(View(1))], &[]).is_err());
        assert!(checker.reopened(0, &[vote(1)], &[]).is_err());
    }

    #[test]
    fn the_log_is_cut_below_a_state_on_disk_only() {
        let mut checker = PersistBeforeSpeak::new(3, Schedule::Coordinated);
        assert!(checker.truncated(0, Slot(64)).is_err());
        checker.stored(0, Slot(64), Digest::ZERO);
        assert!(checker.truncated(0, Slot(64)).is_ok());
    }

    #[test]
    fn another_batch_of_the_slot_is_not_the_one_decided() {
        let mut checker = PersistBeforeSpeak::new(3, Schedule::Coordinated);
        let mut decided = Agreement::default();
        let tick = |time: u64| Batch::tick(Time(time));
        let logs = |batch: Batch| Record::Decision {
            slot: Slot(1),
            view: View(0),
            batch,
            accepts: Certificate::default(),
        };
        let history = Digest::ZERO.chain(Slot(1), tick(2).digest());
        decided.logged(&[logs(tick(2))]);
        decided.executed(0, Slot(1), history).unwrap();
        let prefix = Message::Prefix { slot: Slot(1), history, signature: Signature::NONE };
        checker.appended(0, &[logs(tick(1))]);
        assert!(checker.speaks(0, &prefix, &decided).is_err());
        checker.appended(0, &[logs(tick(2))]);
        assert!(checker.speaks(0, &prefix, &decided).is_ok());
        assert!(checker.clone_for_test().reopened(0, &[logs(tick(1))], &[]).is_err());
        assert!(checker.reopened(0, &[logs(tick(1)), logs(tick(2))], &[]).is_ok());
    }

    impl PersistBeforeSpeak {
        fn says(&self, replica: usize, message: &Message) -> Check {
            self.speaks(replica, message, &Agreement::default())
        }

        fn clone_for_test(&self) -> PersistBeforeSpeak {
            PersistBeforeSpeak { replicas: self.replicas.clone(), sequential: self.sequential }
        }
    }
}
