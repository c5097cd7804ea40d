//! Guards A6: whatever happens, what a replica holds stays within named bounds.

use crate::violation::{Broken, Check};
use perdura_agreement::pool::{
    CLIENT_POOL_BYTES, FORWARDED_BYTES, HANDED_BYTES, POOL_BYTES, SESSION_FRAMES,
};
use perdura_agreement::{ANSWER_BYTES, EARLY_BYTES, HELD_PROPOSAL_BYTES};
use perdura_protocol::{Slot, limits};
use perdura_replica::node::{
    ASKED_AGAIN, KEPT_STATES, MemoryHeld, NOTE_BYTES, NOTES, QUESTIONS, READS_APART, RECENT_BYTES,
    ROUTES, UNVERIFIED, WAITING_READS, WAITING_REPLIES,
};

/// Bytes that may wait for the disk of a simulated replica: less than a group decides while a slow
/// disk flushes.
pub const BACKLOG_BYTES: usize = 32 * 1024;

const RULE: &str = "BoundedMemory (A6)";

/// The checker.
#[derive(Clone, Copy, Debug)]
pub struct BoundedMemory {
    /// Slots in agreement at once.
    pub depth: u64,
    /// Replicas of the group.
    pub replicas: u64,
    /// Queues are smaller than on real machines by two to the power of this, so that simulated
    /// loads reach their bounds.
    pub shrunk: u32,
}

impl BoundedMemory {
    /// What a replica holds, each part against its bound.
    pub fn held(&self, replica: usize, held: MemoryHeld) -> Check {
        let slots = limits::WINDOW + 2 * self.depth;
        // The least distance between two.
        let prefixes = limits::PREFIX_INTERVAL.min(self.depth.max(8));
        let others = self.replicas as usize - 1;
        let agreement = held.agreement;
        let shrunk = |bytes: usize| (bytes >> self.shrunk) as u64;
        let bounds: [(&str, usize, u64); 28] = [
            ("slots", agreement.slots, slots),
            ("bytes of frames of clients", agreement.frame_bytes, shrunk(POOL_BYTES)),
            ("bytes of one client's frames", agreement.client_bytes, shrunk(CLIENT_POOL_BYTES)),
            ("frames of one session", agreement.session_frames, SESSION_FRAMES as u64),
            (
                "bytes of frames that replicas forwarded",
                agreement.forwarded_bytes,
                others as u64 * shrunk(FORWARDED_BYTES),
            ),
            // Each is at least as large as an empty frame; and what is gone may still be named.
            ("names of frames handed over", agreement.handed, (HANDED_BYTES / 128) as u64),
            // A slot's own proposal is taken whatever others hold.
            (
                "bytes of proposals",
                agreement.proposal_bytes,
                (HELD_PROPOSAL_BYTES + limits::BATCH_BYTES) as u64,
            ),
            (
                // Of each slot in agreement a vote, and of each replica what the view holds back.
                "messages for the disk",
                agreement.messages,
                4 * self.depth + 64 * self.replicas + slots / prefixes,
            ),
            ("view changes", agreement.view_changes, self.replicas),
            ("batches for a new view", agreement.fetched, limits::WINDOW),
            (
                "bytes of batches that came early",
                agreement.early_bytes,
                // Of each what comes next, and as much or a share of all after a state.
                (2 * others * ANSWER_BYTES + EARLY_BYTES) as u64,
            ),
            // Four of each that a window has.
            ("signed histories", agreement.prefixes, self.replicas * 4 * limits::WINDOW / prefixes),
            ("frames to verify", held.unverified.0, shrunk(UNVERIFIED.items)),
            ("bytes to verify", held.unverified.1, shrunk(UNVERIFIED.bytes)),
            ("reads", held.reads.0, shrunk(WAITING_READS.items)),
            ("bytes of reads", held.reads.1, shrunk(WAITING_READS.bytes)),
            ("kept states", held.kept_states, KEPT_STATES as u64),
            ("retries in the stage", held.retries.0, shrunk(ASKED_AGAIN.0)),
            ("retries of one key in the stage", held.retries.1, shrunk(ASKED_AGAIN.1).max(1)),
            ("reads in the stage", held.reads_apart, READS_APART as u64),
            ("reads beside the stage", held.reads_beside, 2),
            ("replies for the disk", held.replies, WAITING_REPLIES as u64),
            // What goes on until the pipeline stands: of each slot a vote and a decision, and notes, which also come where nothing is decided: of
            // each prefix that a laggard signs on its way. In a new view each slot above the certified prefix may be voted for again.
            (
                "bytes of records for the disk",
                held.backlog.0,
                (BACKLOG_BYTES + NOTES * NOTE_BYTES) as u64
                    + (agreement.slots as u64).max(self.depth + 1) * 2 * held.backlog.1 as u64,
            ),
            // The newest ones of a batch are kept whatever their size.
            (
                "bytes of replies for the disk",
                held.reply_bytes.0,
                (BACKLOG_BYTES + held.reply_bytes.1) as u64,
            ),
            ("questions", held.questions, (others * QUESTIONS) as u64),
            ("bytes of recent batches", held.recent_bytes, shrunk(RECENT_BYTES)),
            ("routes", held.routes, ROUTES as u64),
            ("penalties", held.penalties, limits::CLIENTS as u64 + 1 + self.replicas),
        ];
        for (name, held, bound) in bounds {
            if held as u64 > bound {
                let what = format!("replica {replica} holds {held} {name}, the bound is {bound}");
                return Err(Broken::new(RULE, what));
            }
        }
        Ok(())
    }

    /// Batches that are delivered and not executed, and their bytes, of a replica that has executed up to a slot: a pipeline of them, or what its own
    /// log, which ended there at the start, has behind a state that it had to receive.
    pub fn apply_queue(
        &self,
        replica: usize,
        (batches, bytes): (usize, usize),
        (executed, log_ends): (Slot, Slot),
    ) -> Check {
        let most = self.depth.max(log_ends.0.saturating_sub(executed.0));
        if batches as u64 <= most && bytes as u64 <= most * limits::BATCH_BYTES as u64 {
            return Ok(());
        }
        let what = format!(
            "replica {replica} holds {batches} batches to execute behind slot {executed}, {bytes} bytes, the bound is {most} batches"
        );
        Err(Broken::new(RULE, what))
    }

    /// The client with most has so many live sessions, and so many remembered numbers of them, under a version of the core's rules.
    pub fn sessions(&self, replica: usize, rules: u16, (live, nonces): (usize, usize)) -> Check {
        let (most, remembered) = match rules {
            0 => (limits::FIRST_SESSIONS_PER_CLIENT, limits::FIRST_NONCES_PER_CLIENT),
            _ => (limits::SESSIONS_PER_CLIENT, limits::NONCES_PER_CLIENT),
        };
        if live <= most && nonces <= remembered {
            return Ok(());
        }
        let what = format!("replica {replica} keeps {live} sessions of a client, {nonces} numbers");
        Err(Broken::new(RULE, what))
    }

    /// Bytes of cached replies of the session and of the client that have most.
    pub fn cached(&self, replica: usize, (session, client): (usize, usize)) -> Check {
        if session <= limits::SESSION_REPLY_BYTES && client <= limits::CLIENT_REPLY_BYTES {
            return Ok(());
        }
        let what =
            format!("replica {replica} caches {session} bytes of a session, {client} of a client");
        Err(Broken::new(RULE, what))
    }

    /// `furthest` is the last slot about which `replica`, which has delivered up to `delivered`,
    /// holds anything.
    pub fn window(&self, replica: usize, furthest: Slot, delivered: Slot) -> Check {
        if furthest <= delivered.plus(limits::WINDOW) {
            return Ok(());
        }
        let what = format!(
            "replica {replica} holds something about slot {furthest} and has delivered {delivered}"
        );
        Err(Broken::new(RULE, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_too_much() {
        let checker = BoundedMemory { depth: 8, replicas: 4, shrunk: 0 };
        let mut held = MemoryHeld::default();
        held.agreement.slots = 1040;
        assert!(checker.held(0, held).is_ok());
        held.agreement.slots += 1;
        assert!(checker.held(0, held).is_err());
        let mut held = MemoryHeld::default();
        held.agreement.frame_bytes = POOL_BYTES + 1;
        assert!(checker.held(0, held).is_err());
        let mut held = MemoryHeld::default();
        held.agreement.forwarded_bytes = 3 * FORWARDED_BYTES + 1;
        assert!(checker.held(0, held).is_err());
        let held = MemoryHeld { unverified: (UNVERIFIED.items + 1, 0), ..MemoryHeld::default() };
        assert!(checker.held(0, held).is_err());
        let notes = NOTES * NOTE_BYTES;
        let held = MemoryHeld {
            backlog: (BACKLOG_BYTES + notes + 18 * 7 + 1, 7),
            ..MemoryHeld::default()
        };
        assert!(checker.held(0, held).is_err());
        let held = MemoryHeld { questions: 3 * QUESTIONS + 1, ..MemoryHeld::default() };
        assert!(checker.held(0, held).is_err());
        for (most, one_more) in [
            (
                MemoryHeld { retries: ASKED_AGAIN, ..MemoryHeld::default() },
                MemoryHeld { retries: (ASKED_AGAIN.0, ASKED_AGAIN.1 + 1), ..MemoryHeld::default() },
            ),
            (
                MemoryHeld { reads_apart: READS_APART, reads_beside: 2, ..MemoryHeld::default() },
                MemoryHeld { reads_apart: READS_APART + 1, ..MemoryHeld::default() },
            ),
            (
                MemoryHeld { reads_beside: 2, ..MemoryHeld::default() },
                MemoryHeld { reads_beside: 3, ..MemoryHeld::default() },
            ),
        ] {
            assert!(checker.held(0, most).is_ok() && checker.held(0, one_more).is_err());
        }
        let apply_queue = |count, log_ends| {
            checker.apply_queue(0, (count, 7), (Slot(100), Slot(log_ends))).is_ok()
        };
        assert!(apply_queue(8, 100) && !apply_queue(9, 100) && !apply_queue(9, 7));
        assert!(apply_queue(20, 120) && !apply_queue(21, 120), "its own log has them");
        let bytes = 8 * limits::BATCH_BYTES + 1;
        assert!(checker.apply_queue(0, (8, bytes), (Slot(100), Slot(0))).is_err());
        let small = BoundedMemory { shrunk: 8, ..checker };
        let mut held = MemoryHeld::default();
        held.agreement.client_bytes = (CLIENT_POOL_BYTES >> 8) + 1;
        assert!(checker.held(0, held).is_ok() && small.held(0, held).is_err());
        let mut held = MemoryHeld::default();
        held.agreement.view_changes = 5;
        assert!(checker.held(0, held).is_err());
        assert!(checker.cached(0, (limits::SESSION_REPLY_BYTES, 0)).is_ok());
        assert!(checker.cached(0, (limits::SESSION_REPLY_BYTES + 1, 0)).is_err());
        assert!(checker.cached(0, (0, limits::CLIENT_REPLY_BYTES + 1)).is_err());
        for (rules, most) in
            [(0, limits::FIRST_SESSIONS_PER_CLIENT), (1, limits::SESSIONS_PER_CLIENT)]
        {
            assert!(checker.sessions(0, rules, (most, 1)).is_ok());
            assert!(checker.sessions(0, rules, (most + 1, 1)).is_err());
        }
    }
}
