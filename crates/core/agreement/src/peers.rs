//! What a replica knows about each of the others.

use crate::timing;
use perdura_protocol::{Slot, View};

/// What is known about a peer from its Status messages.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct PeerStatus {
    pub view: View,
    pub changing: bool,
    pub delivered: Slot,
    pub wanted: View,
    pub connected: bool,
    /// Status in a row that showed no progress.
    pub stalled: u32,
    /// When its Status was last answered with more than nothing.
    pub answered_ms: u64,
    /// When it was last cut off, or behind by more than what is on its way.
    pub lagged_ms: Option<u64>,
    /// Whether it was cut off, and has not kept up for some time since.
    pub returning: bool,
    /// Whether its disk hangs.
    pub hangs: bool,
    /// Since when it waits for a view after the one that works here.
    pub left_ms: Option<u64>,
    /// How often it was followed there.
    pub followed: u32,
}

impl PeerStatus {
    /// Of one that nothing was heard of yet.
    pub fn unknown(now_ms: u64) -> PeerStatus {
        PeerStatus { lagged_ms: Some(now_ms), returning: true, ..PeerStatus::default() }
    }

    /// Whether it has been there, and at the end of the log, for some time. Who has just come back still has to
    /// catch up when it is to lead, and all wait for it.
    pub fn keeps_up(&self, now_ms: u64) -> bool {
        self.lagged_ms.is_none_or(|last| now_ms > last + timing::RETURNED_MS)
    }

    /// Whether it has waited for a later view for so long that it is followed there.
    pub fn is_followed(&self, now_ms: u64) -> bool {
        let timeout = timing::FOLLOW_MS << self.followed.min(timing::FOLLOW_DOUBLINGS);
        self.left_ms.is_some_and(|since| now_ms > since + timeout)
    }

    /// It is back, or was followed, or went away.
    pub fn end_leave(&mut self, now_ms: u64) {
        self.followed += u32::from(self.is_followed(now_ms));
        self.left_ms = None;
    }
}
