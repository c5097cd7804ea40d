//! What peers do wrong, for the log: a line for each kind in a second, however often it happens, so
//! that a liar does not fill the disk that the log goes to.

use crate::node::Peer;
use std::collections::BTreeMap;

/// Lines of one kind come not more often than this.
const PAUSE_MS: u64 = 1_000;

/// Kinds that are told apart, all peers together. A kind is what a program says and not what a
/// peer says, so there are few of each replica; clients share what room is left.
const KINDS: usize = 256;

/// What was said lately.
#[derive(Debug, Default)]
pub(super) struct MisbehaviourLog {
    said: BTreeMap<(Peer, String), Said>,
}

#[derive(Clone, Copy, Debug)]
struct Said {
    at_ms: u64,
    left_out: u64,
}

impl MisbehaviourLog {
    /// Whether a line is due, and how many were left out before it.
    pub fn note(&mut self, now_ms: u64, peer: Peer, what: &str) -> Option<u64> {
        let name = (peer, what.to_owned());
        if let Some(said) = self.said.get_mut(&name) {
            if now_ms < said.at_ms + PAUSE_MS {
                said.left_out += 1;
                return None;
            }
            let left_out = said.left_out;
            *said = Said { at_ms: now_ms, left_out: 0 };
            return Some(left_out);
        }
        if self.said.len() >= KINDS {
            self.said.retain(|_, said| now_ms < said.at_ms + PAUSE_MS);
        }
        if self.said.len() >= KINDS {
            return None;
        }
        self.said.insert(name, Said { at_ms: now_ms, left_out: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::ReplicaId;

    #[test]
    fn a_line_for_each_peer_kind_and_second_says_how_many_there_were() {
        let mut log = MisbehaviourLog::default();
        let [liar, other] = [1, 2].map(|id| Peer::Replica(ReplicaId(id)));
        let mut lines = 0;
        let mut counted = 0;
        for now_ms in 0..10_000 {
            // Ten in a millisecond.
            for _ in 0..10 {
                if let Some(left_out) = log.note(now_ms, liar, "OutOfRole") {
                    lines += 1;
                    counted += left_out + 1;
                }
            }
        }
        assert_eq!(lines, 10);
        assert_eq!(counted, 9 * 10_000 + 1);
        assert_eq!(log.note(10_000, liar, "BadSignature"), Some(0));
        assert_eq!(log.note(9_999, other, "OutOfRole"), Some(0));
        // Names without end take no memory, and are forgotten.
        for number in 0..10_000 {
            log.note(10_001, liar, &number.to_string());
        }
        assert_eq!(log.said.len(), KINDS);
        assert_eq!(log.note(11_001, other, "BadVote"), Some(0));
    }
}
