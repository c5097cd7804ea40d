//! Small changes to single messages, signed as if they were meant.

use crate::liar::{Liar, Speech};
use crate::random::Random;
use perdura_protocol::message::Message;
use perdura_protocol::{Batch, Digest, Slot, Time, View};

/// Proposals in a hundred that are of another time for everybody.
const UNTIMELY: u64 = 5;

/// The same frames at a time that no clock shows, or just one that is a little off.
fn other_time(batch: &Batch, dice: &mut Random) -> Option<Batch> {
    let by = *dice.pick(&[10, 400, 900, 3_600_000]);
    let time = batch.time().0;
    let time = if dice.percent(60) { time + by } else { time.saturating_sub(by) };
    let frames = batch.frames().to_vec();
    (!frames.is_empty()).then(|| Batch::requests(Time(time), frames))
}

impl Liar {
    pub(crate) fn mutate(&mut self, mut speech: Speech<'_>) {
        if let Some(untimely) = self.untimely(speech.message) {
            return speech.instead(&untimely);
        }
        if self.random.percent(75) {
            return speech.plainly();
        }
        let mut message = speech.message.clone();
        if self.change(&mut message) {
            speech.instead(&self.insider.resign(message));
        }
        // Otherwise it is left out: an omission is a small change too.
        if self.random.percent(20) {
            speech.plainly();
        }
    }

    fn near_view(&mut self, view: &mut View) {
        let by = self.random.between(1, 2);
        view.0 = if self.random.percent(50) { view.0 + by } else { view.0.saturating_sub(by) };
    }

    fn near_slot(&mut self, slot: &mut Slot) {
        let by = *self.random.pick(&[1, 1, 2, 64, 5_000]);
        slot.0 = if self.random.percent(50) { slot.0 + by } else { slot.0.saturating_sub(by) };
    }

    /// Now and then a proposal is of another time, and nothing else is wrong with it: the same for
    /// everybody, or no quorum could believe it.
    fn untimely(&self, message: &Message) -> Option<Message> {
        let Message::Propose { view, slot, batch, decided, history } = message else {
            return None;
        };
        let mut dice = self.dice(*view, *slot);
        let batch = dice.percent(UNTIMELY).then(|| other_time(batch, &mut dice))??;
        let (view, slot, decided, history) = (*view, *slot, *decided, *history);
        Some(Message::Propose { view, slot, batch, decided, history })
    }

    /// Changes one field; false if the message is to be left out.
    fn change(&mut self, message: &mut Message) -> bool {
        let what = self.random.below(4);
        match message {
            Message::Propose { batch, .. } if self.random.percent(30) => {
                match other_time(batch, &mut self.random) {
                    Some(other) => *batch = other,
                    None => return false,
                }
            }
            Message::Propose { view, slot, batch, decided, history } => match what {
                0 => self.near_view(view),
                1 => self.near_slot(slot),
                2 => match crate::memory::variant(batch) {
                    Some(other) => *batch = other,
                    None => return false,
                },
                _ => {
                    self.near_slot(decided);
                    *history = self.some_digest();
                }
            },
            Message::Write { view, slot, digest, .. }
            | Message::Accept { view, slot, digest, .. } => match what {
                0 => self.near_view(view),
                1 => self.near_slot(slot),
                2 => *digest = self.some_digest(),
                _ => return false,
            },
            Message::Prefix { slot, history: digest, .. }
            | Message::Checkpoint { slot, digest, .. } => match what {
                0 | 1 => self.near_slot(slot),
                2 => *digest = self.some_digest(),
                _ => return false,
            },
            Message::Status { view, changing, delivered } => match what {
                0 => self.near_view(view),
                1 => *changing = !*changing,
                2 => self.near_slot(delivered),
                _ => return false,
            },
            Message::Suspect { view } => self.near_view(view),
            Message::ViewChange(change) => match what {
                0 => self.near_view(&mut change.view),
                1 => drop(change.locks.pop()),
                2 => match change.locks.last_mut() {
                    Some(lock) => self.near_view(&mut lock.view),
                    None => return false,
                },
                _ => change.configuration += 1,
            },
            Message::NewView(new_view) => match what {
                0 => self.near_view(&mut new_view.view),
                1 => drop(new_view.changes.pop()),
                2 => match new_view.changes.last_mut() {
                    Some(change) => drop(change.locks.pop()),
                    None => return false,
                },
                _ => new_view.configuration += 1,
            },
            Message::Decisions { decisions, prefix, between } => match what {
                0 => drop(decisions.pop()),
                1 if between.is_empty() => *prefix = None,
                1 => match between.last_mut() {
                    Some(digest) if self.random.percent(50) => *digest = Digest::of(&digest.0),
                    _ => drop(between.pop()),
                },
                2 => match decisions.last_mut() {
                    Some(decision) => self.near_view(&mut decision.view),
                    None => return false,
                },
                _ => return false,
            },
            Message::Welcome { view } | Message::Replies { view, .. } => self.near_view(view),
            Message::Fetch { from: slot, .. }
            | Message::TooOld { checkpoint: slot }
            | Message::FetchManifest { slot } => self.near_slot(slot),
            Message::StateInfo { delivered, state, .. } => match what {
                0 => self.near_slot(delivered),
                1 => *state = None,
                2 => match state {
                    Some(state) => self.near_slot(&mut state.slot),
                    None => return false,
                },
                _ => return false,
            },
            _ => return false,
        }
        true
    }
}
