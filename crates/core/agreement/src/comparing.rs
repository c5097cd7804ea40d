//! Whether this replica may vote, as far as that depends on what it knows of its own past.

use crate::machine::{Agreement, Now};
use perdura_protocol::{Digest, Slot, View, seeded};

impl Agreement {
    /// Whether this replica may vote: it holds all that it could have promised before (D8), and has compared that with what
    /// others heard of it.
    #[must_use]
    pub fn voting(&self) -> bool {
        self.has_base() && !self.comparing
    }

    /// Whether it holds a certified prefix up to where it could have voted before.
    #[must_use]
    pub fn has_base(&self) -> bool {
        self.prefix.slot >= self.vote_after || seeded!(ReplacementVotesAtOnce)
    }

    /// Until [`Agreement::compared`] it says nothing that restricts a later vote: its data directory may be an
    /// old one.
    pub fn compare_first(&mut self) {
        self.comparing = true;
    }

    /// What it knows is no less than what enough others heard of it: it votes on what came meanwhile, too.
    pub fn compared(&mut self, now: Now) {
        self.comparing = false;
        self.advance_open(now);
    }

    /// Whether a vote in this view on this slot may still count for something here.
    #[must_use]
    pub fn is_open(&self, view: View, slot: Slot) -> bool {
        let near = view <= self.view && view.0 + 1 >= self.view.0;
        near && slot > self.prefix.slot && slot <= self.window_end()
    }

    /// Whether it voted for this batch once, as its signature shows, and knows nothing of that: of what was neither
    /// decided nor covered by a state since.
    #[must_use]
    pub fn has_forgotten(&self, view: View, slot: Slot, digest: Digest) -> bool {
        if slot <= self.delivered.max(self.vote_after) || self.awaiting_state {
            return false;
        }
        let Some(state) = self.slots.get(&slot) else { return true };
        let remembers = state.locked.as_ref().is_some_and(|locked| {
            locked.view > view || (locked.view == view && locked.batch.digest() == digest)
        });
        state.decided.is_none() && !remembers
    }
}
