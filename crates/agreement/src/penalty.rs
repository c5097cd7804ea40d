//! Who sends signatures that are not genuine pays for them.
//!
//! To verify a signature costs a thousand times what it costs to make one up. No correct peer sends
//! one that is not genuine, so whoever does is passed over for a while, which doubles each time:
//! what it makes others verify in vain is bounded by a constant number of signatures in all, and
//! nobody else is served later for it.

use perdura_protocol::message::Message;

/// First pause after a signature that is not genuine.
const FIRST_MS: u64 = 100;

/// Longest doubling of it: 51 s.
const DOUBLINGS: u32 = 9;

/// After as long without another one, all is forgotten.
const FORGIVEN_MS: u64 = 300_000;

/// One peer's record, for one kind of work.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Penalty {
    strikes: u32,
    until_ms: u64,
}

impl Penalty {
    /// Another signature of it was not genuine.
    pub fn strike(&mut self, now_ms: u64) {
        if self.forgiven(now_ms) {
            self.strikes = 0;
        }
        self.until_ms = now_ms + (FIRST_MS << self.strikes.min(DOUBLINGS));
        self.strikes = self.strikes.saturating_add(1);
    }

    /// Whether its work is passed over now.
    #[must_use]
    pub fn holds(&self, now_ms: u64) -> bool {
        self.strikes > 0 && now_ms < self.until_ms
    }

    /// Whether the record can be forgotten.
    #[must_use]
    pub fn forgiven(&self, now_ms: u64) -> bool {
        self.strikes == 0 || now_ms >= self.until_ms + FORGIVEN_MS
    }
}

/// View changes of one replica that are verified at once, and the time after which it may have
/// another one verified. A correct one sends one for each view, and repeats the newest.
const VIEW_CHANGES: u32 = 4;
const VIEW_CHANGE_PAUSE_MS: u64 = 50;

/// What a peer may still make this replica verify.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Trust {
    pub penalty: Penalty,
    // Fetches that it has not answered; decisions that nobody asked for are not verified.
    pub fetches: u8,
    view_changes: u32,
    view_changes_ms: u64,
}

impl Trust {
    /// Whether one more view change is to be verified.
    pub fn view_change(&mut self, now_ms: u64) -> bool {
        let paid = (now_ms.saturating_sub(self.view_changes_ms) / VIEW_CHANGE_PAUSE_MS) as u32;
        if paid > 0 {
            self.view_changes = self.view_changes.saturating_sub(paid);
            self.view_changes_ms = now_ms;
        }
        let due = self.view_changes < VIEW_CHANGES;
        self.view_changes += u32::from(due);
        due
    }
}

/// Whether a replica has to verify signatures for the message.
pub(crate) fn is_signed(message: &Message) -> bool {
    matches!(
        message,
        Message::Write { .. }
            | Message::Accept { .. }
            | Message::Prefix { .. }
            | Message::ViewChange(_)
            | Message::NewView(_)
            | Message::Decisions { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_are_forgiven() {
        let mut penalty = Penalty::default();
        assert!(!penalty.holds(0) && penalty.forgiven(0));
        let mut now_ms = 1_000;
        let mut verified = 0;
        while now_ms < 1_000 + 3_600_000 {
            if !penalty.holds(now_ms) {
                penalty.strike(now_ms);
                verified += 1;
            }
            now_ms += 1;
        }
        assert!(verified <= 10 + 3_600 / 51, "{verified} signatures in an hour");
        now_ms += FORGIVEN_MS + 51_200;
        assert!(penalty.forgiven(now_ms) && !penalty.holds(now_ms));
        penalty.strike(now_ms);
        assert!(penalty.holds(now_ms + 99) && !penalty.holds(now_ms + 100));
    }
}
