//! What a new view is bound to is as good as proposed, for everybody computes the same from its NewView.
//! So it is not sent again to those who hold it, and the others ask the leader for it.

use crate::machine::{Agreement, Effect, Mode, Now};
use crate::timing;
use perdura_protocol::message::Message;
use perdura_protocol::{Batch, Digest, Slot};

/// Batches asked for again at a time. What is on its way already costs the leader and the link once more.
const AGAIN_SLOTS: usize = 8;

impl Agreement {
    /// The view has just started. What others have delivered comes with its proof, and is asked for only
    /// if that does not come.
    pub(crate) fn begin_reproposals(&mut self, now: Now) {
        self.reproposals_asked = self.delivered_here();
        self.reproposals_asked_ms = now.monotonic_ms;
        self.take_reproposals(now);
        self.fetch_more(now);
    }

    /// Takes what is held as proposed as far as there is room for it, and asks for the rest: once, and again
    /// when nothing has come for a while.
    pub(crate) fn take_reproposals(&mut self, now: Now) {
        if self.mode != Mode::Started {
            return;
        }
        let bound = self.start.choices.range(self.prefix.slot.next()..);
        let open: Vec<(Slot, Digest)> = bound
            .filter(|(slot, _)| self.lacks_reproposal(**slot))
            .map(|(slot, digest)| (*slot, *digest))
            .collect();
        let mut missing = Vec::new();
        for (slot, digest) in open {
            if !self.lacks_reproposal(slot) {
                continue; // What came before it has brought the proof.
            }
            match self.reproposed_batch(slot, digest) {
                Some(batch) => self.on_propose(now, self.leader(), self.view, slot, batch),
                None => missing.push((slot, digest)),
            }
        }
        if !self.leads() {
            self.ask_for_reproposals(now, missing);
        }
    }

    fn ask_for_reproposals(&mut self, now: Now, mut missing: Vec<(Slot, Digest)>) {
        let (reach, asked) = (self.reach(), self.reproposals_asked);
        missing.retain(|(slot, _)| *slot <= reach);
        if now.monotonic_ms >= self.reproposals_asked_ms + timing::FETCH_MS {
            missing.truncate(AGAIN_SLOTS);
        } else {
            missing.retain(|(slot, _)| *slot > asked);
        }
        let Some((last, _)) = missing.last() else { return };
        (self.reproposals_asked, self.reproposals_asked_ms) = (asked.max(*last), now.monotonic_ms);
        self.marks.reproposals_asked_for += 1;
        let to = self.leader();
        self.effects.extend(missing.into_iter().map(|(slot, digest)| {
            let message = Message::FetchBatch { slot, digest };
            Effect::Send { to, message }
        }));
    }

    /// A batch has come that the view is bound to.
    pub(crate) fn on_reproposed_batch(&mut self, now: Now, slot: Slot, batch: Batch) {
        if self.mode == Mode::Started && self.lacks_reproposal(slot) {
            self.on_propose(now, self.leader(), self.view, slot, batch);
            if !self.lacks_reproposal(slot) {
                self.reproposals_asked_ms = now.monotonic_ms;
            }
        }
    }

    /// The batch, if it is here or null.
    pub(crate) fn reproposed_batch(&self, slot: Slot, digest: Digest) -> Option<Batch> {
        let null = Batch::null();
        if digest == null.digest() { Some(null) } else { self.held_batch(slot, digest).cloned() }
    }

    pub(crate) fn held_batch(&self, slot: Slot, digest: Digest) -> Option<&Batch> {
        let held = self.slots.get(&slot).and_then(|state| state.batch(digest));
        held.or_else(|| self.fetched.get(&digest))
    }

    /// Whether the slot is still to be proposed here. Who knows that it was decided votes no more on it, for it can
    /// prove that to whoever does not; unless it knows it from its own log alone, of which only the batch is left, or too few Accepts were genuine.
    fn lacks_reproposal(&self, slot: Slot) -> bool {
        let state = self.slots.get(&slot);
        let proposal = state.and_then(|state| state.proposal.as_ref());
        let decided = state.is_some_and(|state| state.decided.is_some());
        let proven = (decided || slot <= self.delivered) && !self.is_unproven(slot);
        !proven && proposal.is_none_or(|proposal| proposal.view != self.view)
    }

    /// Whether the slot is known to be decided, and nothing here would show that to others.
    pub(crate) fn is_unproven(&self, slot: Slot) -> bool {
        let decided = self.slots.get(&slot).and_then(|state| state.decided.as_ref());
        self.is_byzantine() && decided.is_some_and(|decided| decided.accepts.is_empty())
    }

    /// Whether the view is bound to a batch that is not here, and that nobody is known to have delivered.
    pub(crate) fn waits_for_reproposal(&self) -> bool {
        let (first, reach) = (self.delivered.max(self.delivered_here()).next(), self.reach());
        let mut bound = self.start.choices.range(first..).take_while(|(slot, _)| **slot <= reach);
        bound.any(|(slot, _)| self.lacks_reproposal(*slot))
    }
}
