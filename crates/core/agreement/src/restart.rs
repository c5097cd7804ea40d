//! What a log says after a crash: the agreed history, and what this replica promised.
//!
//! Decided is what a Delivered mark, a Decision or a certificate in the log proves: in one run from the
//! checkpoint on, and behind a batch that the log lost, for a window, where a Decision or Accepts prove a slot
//! by itself. Votes above that are promises only; they come back through the view change. Marks are written
//! lazily, so the log may know less than the replica did, never more.

use crate::slot::{Decided, Locked, SlotState};
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Batch, Certificate, Digest, Record, Slot, View, seeded};
use std::collections::BTreeMap;

/// Where a machine starts.
#[derive(Debug)]
pub struct Restart {
    pub(crate) view: View,
    pub(crate) blank: bool,
    pub(crate) vote_after: Slot,
    pub(crate) awaiting_state: bool,
    pub(crate) delivered: Slot,
    pub(crate) history: Digest,
    pub(crate) prefix: PrefixCertificate,
    pub(crate) slots: BTreeMap<Slot, SlotState>,
    // Delivered marks above what the log proves.
    pub(crate) marked: BTreeMap<Slot, Digest>,
    // Decisions in the log behind a batch that it lost.
    apart: BTreeMap<Slot, Decided>,
    replay: Vec<(Slot, Batch)>,
    older: Vec<(Slot, Digest, Digest)>,
}

#[derive(Default)]
struct Read {
    view: View,
    batches: BTreeMap<(Slot, Digest), Batch>,
    votes: BTreeMap<Slot, (View, Digest, Certificate)>,
    decisions: BTreeMap<Slot, (View, Digest, Certificate)>,
    marks: BTreeMap<Slot, Digest>,
    prefixes: BTreeMap<Slot, PrefixCertificate>,
}

impl Read {
    fn take(&mut self, record: Record) {
        match record {
            Record::View(view) => self.view = self.view.max(view),
            Record::Vote { view, slot, batch, writes } => {
                let digest = batch.digest();
                self.batches.insert((slot, digest), batch);
                let held = self.votes.get(&slot);
                if held.is_none_or(|held| held.0 <= view) {
                    self.votes.insert(slot, (view, digest, writes));
                }
            }
            Record::Decision { slot, view, batch, accepts } => {
                let digest = batch.digest();
                self.batches.insert((slot, digest), batch);
                self.decisions.insert(slot, (view, digest, accepts));
            }
            Record::Accepts { slot, view, digest, accepts } => {
                self.decisions.insert(slot, (view, digest, accepts));
            }
            Record::Delivered { slot, history } => {
                self.marks.insert(slot, history);
            }
            Record::Prefix(prefix) => {
                self.prefixes.insert(prefix.slot, prefix);
            }
            Record::Configuration(_)
            | Record::State(_)
            | Record::Boot { .. }
            | Record::Heard { .. } => {}
        }
    }

    /// The batch that is, or may be, decided for a slot, and whether the log proves it by itself.
    fn candidate(&self, slot: Slot) -> Option<(Decided, bool)> {
        if let Some((view, digest, accepts)) = self.decisions.get(&slot) {
            let batch = self.batches.get(&(slot, *digest))?.clone();
            return Some((Decided { view: *view, batch, accepts: accepts.clone() }, true));
        }
        let (view, digest, _) = self.votes.get(&slot)?;
        let batch = self.batches.get(&(slot, *digest))?.clone();
        Some((Decided { view: *view, batch, accepts: Certificate::default() }, false))
    }
}

impl Read {
    /// The decided batches up to a checkpoint that the log still holds, in runs from one Delivered
    /// mark to another, or to the checkpoint's history: laggards ask for them. Where a batch is lost
    /// others may have it, and lack what is on either side of it.
    fn older(&self, checkpoint: Slot, history: Digest) -> Vec<(Slot, Digest, Digest)> {
        let (mut proven, mut run) = (Vec::new(), Vec::new());
        let mut at: Option<Digest> = None;
        let first = self.marks.range(..checkpoint).next().map_or(checkpoint, |(slot, _)| *slot);
        // What comes before slot 1 is known without a mark.
        let first = if self.candidate(Slot(1)).is_some() { Slot(0) } else { first };
        for number in first.0..=checkpoint.0 {
            let slot = Slot(number);
            let mark =
                if slot == Slot(0) { Some(Digest::ZERO) } else { self.marks.get(&slot).copied() };
            let candidate = self.candidate(slot).map(|(decided, _)| decided.batch.digest());
            let next = at.zip(candidate).map(|(before, digest)| before.chain(slot, digest));
            let agrees = next.is_some() && mark.is_none_or(|mark| next == Some(mark));
            if let (true, Some(digest), Some(history)) = (agrees, candidate, next) {
                run.push((slot, digest, history));
                at = next;
            } else {
                // A gap, or a vote that was not what was decided: start over at the mark.
                run.clear();
                at = mark;
            }
            if mark.is_some() || (slot == checkpoint && at == Some(history)) {
                proven.append(&mut run);
            }
        }
        proven
    }
}

impl Restart {
    /// A replica that starts for the first time.
    #[must_use]
    pub fn blank() -> Restart {
        Restart {
            view: View(0),
            blank: true,
            vote_after: Slot(0),
            awaiting_state: false,
            delivered: Slot(0),
            history: Digest::ZERO,
            prefix: PrefixCertificate::genesis(),
            slots: BTreeMap::new(),
            marked: BTreeMap::new(),
            apart: BTreeMap::new(),
            replay: Vec::new(),
            older: Vec::new(),
        }
    }

    /// Reads the log of one of `n` replicas whose checkpoint ends in `slot` with `history`.
    /// `vote_after` is where a new incarnation may vote from (0 for others).
    #[must_use]
    pub fn from_log(
        n: usize,
        slot: Slot,
        history: Digest,
        records: Vec<Record>,
        vote_after: Slot,
    ) -> Restart {
        let mut read = Read::default();
        for record in records {
            read.take(record);
        }
        let mut restart = Restart { blank: false, ..Restart::blank() };
        restart.view = read.view;
        restart.delivered = slot;
        restart.history = history;
        restart.older = read.older(slot, history);
        let decided = restart.replay_decided(&read);
        restart.keep_slots(n, &read, decided);
        restart.keep_older(n, &read);
        // Without a certified prefix up to the checkpoint this replica cannot say what it voted
        // for below; it votes again once peers certify that far (see the module `views`).
        restart.vote_after =
            vote_after.max(if restart.prefix.slot < slot && !restart.complete(&read, slot) {
                slot
            } else {
                Slot(0)
            });
        restart.marked = read.marks.split_off(&restart.delivered.next());
        restart
    }

    /// Of a new incarnation without a state: it knows the members of its own configuration, not
    /// those from whose state slot 1 was executed, and so executes nothing before it has fetched
    /// one.
    #[must_use]
    pub fn awaiting_state(self) -> Restart {
        Restart { awaiting_state: true, ..self }
    }

    /// Whether every slot between the prefix and the checkpoint has its record, with the batch: Accepts
    /// alone are noted of a slot that was voted for, and the vote is not there any more.
    fn complete(&self, read: &Read, checkpoint: Slot) -> bool {
        let mut slots = self.prefix.slot.0 + 1..=checkpoint.0;
        slots.all(|number| read.candidate(Slot(number)).is_some())
    }

    fn replay_decided(&mut self, read: &Read) -> BTreeMap<Slot, Decided> {
        let mut decided = BTreeMap::new();
        let mut pending: Vec<(Slot, Decided, Digest)> = Vec::new();
        let mut slot = self.delivered.next();
        let mut history = self.history;
        while let Some((candidate, proven)) = read.candidate(slot) {
            history = history.chain(slot, candidate.batch.digest());
            pending.push((slot, candidate, history));
            // A mark proves the run before it; a proof by itself extends a proven run.
            let marked = read.marks.get(&slot).is_some_and(|mark| *mark == history);
            if marked || (proven && pending.len() == 1) {
                for (slot, candidate, history) in pending.drain(..) {
                    self.replay.push((slot, candidate.batch.clone()));
                    self.delivered = slot;
                    self.history = history;
                    decided.insert(slot, candidate);
                }
            }
            slot = slot.next();
        }
        decided
    }

    fn keep_slots(&mut self, n: usize, read: &Read, mut decided: BTreeMap<Slot, Decided>) {
        let certified = read.prefixes.range(..=self.delivered).next_back();
        if let Some((_, prefix)) = certified {
            self.prefix = prefix.clone();
        }
        for (slot, (view, digest, writes)) in read.votes.range(self.prefix.slot.next()..) {
            if seeded!(ForgottenLocks) {
                continue;
            }
            let Some(batch) = read.batches.get(&(*slot, *digest)) else { continue };
            let mut state = SlotState::new(n, 0);
            state.locked = Some(Locked {
                view: *view,
                batch: batch.clone(),
                writes: writes.clone(),
                sequence: 0,
            });
            self.slots.insert(*slot, state);
        }
        // Behind a batch that is lost no run proves what follows, but Accepts do by themselves.
        let apart = read.decisions.range(self.delivered.next()..);
        let apart = apart.filter_map(|(slot, _)| Some((*slot, read.candidate(*slot)?.0)));
        self.apart = apart.collect();
        let above = decided.split_off(&self.prefix.slot.next());
        for (slot, decision) in above {
            let state = self.slots.entry(slot).or_insert_with(|| SlotState::new(n, 0));
            state.decided = Some(decision);
        }
    }

    /// Takes up what was decided behind a lost batch, for `n` replicas. Of a replica that had been away that may
    /// be the whole log: what lies more than a window ahead is asked for again (A6).
    pub(crate) fn within(mut self, n: usize, window: u64) -> Restart {
        let reach = self.delivered.plus(window);
        let apart = std::mem::take(&mut self.apart);
        for (slot, decided) in apart.into_iter().take_while(|(slot, _)| *slot <= reach) {
            let state = self.slots.entry(slot).or_insert_with(|| SlotState::new(n, 0));
            state.decided = Some(decided);
        }
        self
    }

    /// Above the prefix, what the state is made of was decided too, and perhaps nobody else can show it.
    fn keep_older(&mut self, n: usize, read: &Read) {
        for (slot, digest, _) in self.older.iter().filter(|older| older.0 > self.prefix.slot) {
            let candidate = read.candidate(*slot).map(|(decided, _)| decided);
            if let Some(decided) = candidate.filter(|one| one.batch.digest() == *digest) {
                let state = self.slots.entry(*slot).or_insert_with(|| SlotState::new(n, 0));
                state.decided = Some(decided);
            }
        }
    }

    /// The batches to execute on top of the checkpoint, ascending; taken once.
    pub fn take_replay(&mut self) -> Vec<(Slot, Batch)> {
        std::mem::take(&mut self.replay)
    }

    /// Slots up to the checkpoint that the log still holds, each with the digest of its batch and the history with
    /// it; taken once.
    pub fn take_older(&mut self) -> Vec<(Slot, Digest, Digest)> {
        std::mem::take(&mut self.older)
    }

    /// The last slot that the log proves decided.
    #[must_use]
    pub fn delivered(&self) -> Slot {
        self.delivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::Time;

    /// The log of a replica whose state reaches to slot 2. It begins behind the vote in slot 1, whose
    /// file has rotted, with the Accepts that decided that slot, or with the whole decision.
    fn restart_behind_a_vote(with_batch: bool) -> Restart {
        let (first, second) = (Batch::tick(Time(1)), Batch::tick(Time(2)));
        let history = Digest::ZERO.chain(Slot(1), first.digest()).chain(Slot(2), second.digest());
        let (view, slot, accepts) = (View(0), Slot(1), Certificate::default());
        let decided = if with_batch {
            Record::Decision { slot, view, batch: first, accepts }
        } else {
            Record::Accepts { slot, view, digest: first.digest(), accepts }
        };
        let (batch, writes) = (second, Certificate::default());
        let vote = Record::Vote { view, slot: Slot(2), batch, writes };
        Restart::from_log(4, Slot(2), history, vec![decided, vote], Slot(0))
    }

    #[test]
    fn accepts_without_their_batch_show_that_a_vote_is_lost() {
        assert_eq!(restart_behind_a_vote(false).vote_after, Slot(2));
        assert_eq!(restart_behind_a_vote(true).vote_after, Slot(0), "it did not vote there");
    }

    #[test]
    fn what_lies_on_either_side_of_a_lost_batch_still_serves_laggards() {
        let batch = |slot: Slot| Batch::tick(Time(slot.0));
        let (mut history, mut records) = (Digest::ZERO, Vec::new());
        for slot in (1..=7).map(Slot) {
            history = history.chain(slot, batch(slot).digest());
            let (view, batch, writes) = (View(0), batch(slot), Certificate::default());
            if slot != Slot(4) {
                records.push(Record::Vote { view, slot, batch, writes });
            }
            if [1, 2, 5].contains(&slot.0) {
                records.push(Record::Delivered { slot, history });
            }
        }
        let served = |history: Digest| {
            let mut restart = Restart::from_log(4, Slot(7), history, records.clone(), Slot(0));
            restart.take_older().into_iter().map(|(slot, ..)| slot.0).collect::<Vec<u64>>()
        };
        // Slot 3: no mark says that what it voted for was decided. Slot 5: its mark says no more
        // than what comes before slot 6.
        assert_eq!(served(history), [1, 2, 6, 7]);
        assert_eq!(served(Digest::ZERO), [1, 2], "not what the state was made of");
    }
}
