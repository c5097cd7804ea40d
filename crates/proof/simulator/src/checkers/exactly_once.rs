//! Guards E4 and A1, second half: each (session, number) executes at most once, as the command
//! that its client sent under that number, inside the session's window, and gives the same reply on
//! every replica.

use crate::violation::{Broken, Check};
use crate::witness::Execution;
use bytes::Bytes;
use perdura_protocol::{Digest, SessionId, Slot, limits};
use std::collections::BTreeMap;

const RULE: &str = "ExactlyOnce (E4)";

/// A client sends a call under this number, and sent it under that before: a call that may have been
/// executed is not sent as another one (C1).
pub fn once(client: usize, before: Option<(SessionId, u64)>, number: (SessionId, u64)) -> Check {
    match before {
        Some(before) if before != number => {
            let what = format!("client {client} sends a call as {number:?} and as {before:?}");
            Err(Broken::new("OneNumber (C1)", what))
        }
        _ => Ok(()),
    }
}

/// The checker. It also knows the order in which everything was executed.
#[derive(Debug, Default)]
pub struct ExactlyOnce {
    // What every replica executes in a slot, in order.
    slots: BTreeMap<Slot, Vec<Execution>>,
    // Where each number was executed.
    places: BTreeMap<(SessionId, u64), (Slot, usize)>,
    // What clients sent.
    sent: BTreeMap<(SessionId, u64), Vec<Bytes>>,
    // The most that each client acknowledged.
    acknowledged: BTreeMap<SessionId, u64>,
    // Where each replica is within the slot that it executes.
    cursors: BTreeMap<usize, (Slot, usize)>,
}

impl ExactlyOnce {
    /// Whether a client sent something under this number before.
    #[must_use]
    pub fn was_sent(&self, session: SessionId, number: u64) -> bool {
        self.sent.contains_key(&(session, number))
    }

    /// A client sends `command`, a service command, under this number.
    pub fn sent(&mut self, session: SessionId, number: u64, command: Bytes) -> Check {
        let known = self.sent.entry((session, number)).or_default();
        if known.is_empty() {
            known.push(command);
            return Ok(());
        }
        if known[0] == command {
            return Ok(());
        }
        let what = format!("a client sent two commands under number {number} of {session:?}");
        Err(Broken::new(RULE, what))
    }

    /// A client sends a frame that acknowledges all numbers below this one.
    pub fn acknowledges(&mut self, session: SessionId, below: u64) {
        let known = self.acknowledged.entry(session).or_default();
        *known = below.max(*known);
    }

    /// The number below which a client has asked for nothing any more.
    #[must_use]
    pub fn acknowledged(&self, session: SessionId) -> u64 {
        self.acknowledged.get(&session).copied().unwrap_or_default()
    }

    /// A hostile client sends `command` under this number, perhaps beside others; one of them may
    /// be executed.
    pub fn may_be_sent(&mut self, session: SessionId, number: u64, command: Bytes) {
        let known = self.sent.entry((session, number)).or_default();
        if !known.contains(&command) {
            known.push(command);
        }
    }

    /// `replica` starts to execute anew, from its disk or from a transferred state.
    pub fn restarted(&mut self, replica: usize) {
        self.cursors.remove(&replica);
    }

    /// What another replica executed where this one is now, if any has come so far.
    #[must_use]
    pub fn known(&self, replica: usize, slot: Slot) -> Option<&Execution> {
        let index = match self.cursors.get(&replica) {
            Some((at, index)) if *at == slot => *index,
            _ => 0,
        };
        self.slots.get(&slot)?.get(index)
    }

    /// `replica` executed this.
    pub fn executed(&mut self, replica: usize, execution: Execution) -> Check {
        let slot = execution.slot;
        let cursor = self.cursors.entry(replica).or_insert((slot, 0));
        if cursor.0 != slot {
            *cursor = (slot, 0);
        }
        let index = cursor.1;
        cursor.1 += 1;
        let acknowledged = self.acknowledged(execution.session);
        let order = self.slots.entry(slot).or_default();
        if let Some(known) = order.get(index) {
            if *known == execution {
                return Ok(());
            }
            let what = format!("replica {replica} executed {execution:?} where others {known:?}");
            return Err(Broken::new(RULE, what));
        }
        let number = (execution.session, execution.number);
        if !self.sent.get(&number).is_some_and(|sent| sent.contains(&execution.command)) {
            let what = format!("replica {replica} executed {execution:?}, which nobody sent");
            return Err(Broken::new(RULE, what));
        }
        if execution.number.saturating_sub(acknowledged) >= limits::SESSION_WINDOW {
            let what =
                format!("{execution:?} is beyond the window, which begins at {acknowledged}");
            return Err(Broken::new(RULE, what));
        }
        if let Some((before, _)) = self.places.insert(number, (slot, index)) {
            let what = format!("{execution:?} was executed before, in slot {before}");
            return Err(Broken::new(RULE, what));
        }
        order.push(execution);
        Ok(())
    }

    /// Everything that was executed, in order.
    pub fn order(&self) -> impl Iterator<Item = &Execution> {
        self.slots.values().flatten()
    }

    /// The slot in which a number was executed.
    #[must_use]
    pub fn slot_of(&self, session: SessionId, number: u64) -> Option<Slot> {
        self.places.get(&(session, number)).map(|(slot, _)| *slot)
    }

    /// The slot in which a number was executed, and its batch.
    #[must_use]
    pub fn place_of(&self, session: SessionId, number: u64) -> Option<(Slot, Digest)> {
        let (slot, index) = self.places.get(&(session, number))?;
        let execution = self.slots.get(slot)?.get(*index)?;
        Some((*slot, execution.batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::PublicKey;

    fn execution(slot: u64, number: u64, reply: &'static str) -> Execution {
        Execution {
            slot: Slot(slot),
            batch: Digest([1; 32]),
            session: SessionId { client: PublicKey([1; 32]), nonce: 1 },
            number,
            command: Bytes::from_static(b"c"),
            time: perdura_protocol::Time(0),
            ahead_ms: 0,
            state_bytes: 0,
            work: 0,
            cost: None,
            reply: Some(Ok(Bytes::from_static(reply.as_bytes()))),
        }
    }

    fn checker() -> ExactlyOnce {
        let mut checker = ExactlyOnce::default();
        let session = execution(1, 1, "").session;
        for number in 1..5 {
            checker.sent(session, number, Bytes::from_static(b"c")).unwrap();
        }
        checker
    }

    #[test]
    fn twice_is_once_too_often() {
        let mut checker = checker();
        checker.executed(0, execution(1, 1, "a")).unwrap();
        checker.executed(1, execution(1, 1, "a")).unwrap();
        assert!(checker.executed(0, execution(2, 1, "a")).is_err());
        assert!(checker.executed(1, execution(1, 1, "a")).is_err());
    }

    #[test]
    fn a_window_begins_with_what_is_not_acknowledged() {
        let mut checker = checker();
        let session = execution(1, 1, "").session;
        let (first, second) = (limits::SESSION_WINDOW, limits::SESSION_WINDOW + 1);
        for number in [first, second] {
            checker.may_be_sent(session, number, Bytes::from_static(b"c"));
        }
        assert!(checker.executed(0, execution(1, first, "a")).is_err());
        checker.acknowledges(session, 1);
        assert!(checker.executed(0, execution(2, first, "a")).is_ok());
        assert!(checker.executed(0, execution(3, second, "a")).is_err());
    }

    #[test]
    fn replies_are_equal_and_commands_were_sent() {
        let mut checker = checker();
        checker.executed(0, execution(1, 1, "a")).unwrap();
        assert!(checker.executed(1, execution(1, 1, "b")).is_err());
        assert!(checker.executed(0, execution(2, 9, "a")).is_err());
        let session = execution(1, 1, "").session;
        assert!(checker.sent(session, 1, Bytes::from_static(b"d")).is_err());
        assert_eq!(checker.slot_of(session, 1), Some(Slot(1)));
    }
}
