//! Guards E4: after a client's key was revoked, or the administrator's replaced, nothing more is executed in its name, and it has no
//! session any more.

use crate::violation::{Broken, Check};
use crate::witness::Execution;
use perdura_protocol::{PublicKey, SessionId, Slot};
use std::collections::BTreeMap;

const RULE: &str = "Revocation (E4)";

/// The checker.
#[derive(Debug, Default)]
pub struct Revocation {
    // A slot by which each key was revoked for certain.
    revoked: BTreeMap<PublicKey, Slot>,
}

impl Revocation {
    /// The administrator learned that this key is revoked; slots up to `last` were executed.
    pub fn revoked(&mut self, key: PublicKey, last: Slot) {
        self.revoked.entry(key).or_insert(last);
    }

    /// Whether a key is revoked for certain.
    #[must_use]
    pub fn is_revoked(&self, key: PublicKey) -> bool {
        self.revoked.contains_key(&key)
    }

    /// `replica` has these sessions behind a slot.
    pub fn holds(
        &self,
        replica: usize,
        slot: Slot,
        mut sessions: impl Iterator<Item = SessionId>,
    ) -> Check {
        let is_over = |session: &SessionId| {
            self.revoked.get(&session.client).is_some_and(|last| slot > *last)
        };
        match sessions.find(is_over) {
            None => Ok(()),
            Some(session) => {
                let what = format!("replica {replica} has {session:?} behind slot {slot}");
                Err(Broken::new(RULE, what))
            }
        }
    }

    /// `replica` executed this.
    pub fn executed(&self, replica: usize, execution: &Execution) -> Check {
        match self.revoked.get(&execution.session.client) {
            Some(last) if execution.slot > *last => {
                let what = format!(
                    "replica {replica} executed {execution:?}, whose client was revoked by slot \
                     {last}"
                );
                Err(Broken::new(RULE, what))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use perdura_protocol::Digest;

    #[test]
    fn a_revoked_client_executes_nothing() {
        let key = PublicKey([1; 32]);
        let mut checker = Revocation::default();
        let execution = |slot| Execution {
            slot: Slot(slot),
            batch: Digest::ZERO,
            session: SessionId { client: key, nonce: 1 },
            number: 1,
            command: Bytes::new(),
            time: perdura_protocol::Time(0),
            ahead_ms: 0,
            state_bytes: 0,
            work: 0,
            cost: None,
            reply: Some(Ok(Bytes::new())),
        };
        assert!(checker.executed(0, &execution(9)).is_ok());
        checker.revoked(key, Slot(8));
        assert!(checker.executed(0, &execution(8)).is_ok());
        assert!(checker.executed(0, &execution(9)).is_err());
        let session = SessionId { client: key, nonce: 1 };
        assert!(checker.holds(0, Slot(8), [session].into_iter()).is_ok());
        assert!(checker.holds(0, Slot(9), [session].into_iter()).is_err());
        let other = SessionId { client: PublicKey([2; 32]), nonce: 1 };
        assert!(checker.holds(0, Slot(9), [other].into_iter()).is_ok());
    }
}
