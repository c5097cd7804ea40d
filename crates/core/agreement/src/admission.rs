//! The machine's door for client frames, and what it holds.

use crate::machine::{Agreement, Now};
use crate::pool::{Admission, FrameKey, Source};
use perdura_protocol::Frame;

/// What the machine holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HeldMemory {
    /// Slots about which something is known.
    pub slots: usize,
    /// Bytes of waiting frames that clients sent here.
    pub frame_bytes: usize,
    /// Of these, of the client that has most.
    pub client_bytes: usize,
    /// Waiting frames of the session that has most.
    pub session_frames: usize,
    /// Bytes of waiting frames that replicas forwarded.
    pub forwarded_bytes: usize,
    /// Names of frames that were handed to the leader.
    pub handed: usize,
    /// Bytes of proposals that are not decided.
    pub proposal_bytes: usize,
    /// Messages that wait for the disk.
    pub messages: usize,
    /// View changes of replicas.
    pub view_changes: usize,
    /// Batches that a new view takes up and that were not here.
    pub fetched: usize,
    /// Bytes of decided batches that came before what precedes them.
    pub early_bytes: usize,
    /// Slots up to which replicas have signed the history and no certificate is known.
    pub prefixes: usize,
}

impl Agreement {
    /// Divides the bounds of what waits to be ordered by two to the power of `by`: so that a
    /// simulation reaches them.
    pub fn shrink_pool(&mut self, by: u32) {
        self.pool.shrink(by);
    }

    /// Offers a client's frame whose signature is verified.
    pub fn on_frame(&mut self, now: Now, frame: Frame, source: Source) -> Admission {
        self.pool.offer(frame, source, now.monotonic_ms)
    }

    /// Whether a frame would be kept, if it is genuine and nothing changes before it is offered.
    #[must_use]
    pub fn has_room(&self, frame: &Frame, source: Source) -> bool {
        self.pool.has_room(frame, source)
    }

    /// Frames that had to make room for those of other clients since the last call; their clients
    /// should try again later.
    pub fn displaced(&mut self) -> Vec<FrameKey> {
        self.pool.displaced()
    }

    /// Drops waiting frames that `keep` says are of no use any more.
    pub fn retain_frames(&mut self, keep: impl FnMut(&Frame) -> bool) {
        self.pool.retain(keep);
    }

    /// Whether exactly this frame waits here, its signature verified.
    #[must_use]
    pub fn holds_frame(&self, frame: &Frame) -> bool {
        self.pool.holds(frame)
    }

    /// Drops some of the waiting frames that `keep` says are of no use any more; call after call
    /// all of them are looked at.
    pub fn retain_some_frames(&mut self, most: usize, keep: impl FnMut(&Frame) -> bool) {
        self.pool.retain_some(most, keep);
    }

    /// What this machine holds, for metrics and for the check that memory stays bounded (A6).
    #[must_use]
    pub fn held(&self) -> HeldMemory {
        let (frame_bytes, forwarded_bytes) = self.pool.held_bytes();
        let (client_bytes, session_frames) = self.pool.most_held();
        HeldMemory {
            slots: self.slots.len(),
            frame_bytes,
            client_bytes,
            session_frames,
            forwarded_bytes,
            handed: self.demand.held(),
            proposal_bytes: self.held_proposal_bytes,
            messages: self.held.len(),
            view_changes: self.changes.len(),
            fetched: self.fetched.len(),
            early_bytes: self.fetches.held_bytes(),
            prefixes: self.prefix_votes.len(),
        }
    }
}
