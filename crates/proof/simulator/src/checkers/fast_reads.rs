//! Guards C2: a read that is not ordered is answered by a state in which every slot was executed for which its replica had sent an Accept when the
//! read came, and which is not older than the one that the replica had executed by then; or by the state after the one slot that it asks for.

use crate::violation::{Broken, Check};
use perdura_protocol::{PublicKey, Slot};
use std::collections::BTreeMap;

const RULE: &str = "FastReads (C2)";

/// A read: whose it is, over which connection it came, its number there.
pub type Read = (PublicKey, u64, u64);

#[derive(Clone, Debug, Default)]
struct Here {
    accepted: Slot,
    waiting: BTreeMap<Read, Behind>,
}

/// By which state a read is answered.
#[derive(Clone, Copy, Debug)]
enum Behind {
    /// After this slot, or a later one.
    Least(Slot),
    /// After this one.
    Exactly(Slot),
}

/// The checker.
#[derive(Debug)]
pub struct FastReads(Vec<Here>);

impl FastReads {
    /// For a group of `n`.
    #[must_use]
    pub fn new(n: usize) -> FastReads {
        FastReads(vec![Here::default(); n])
    }

    /// A process starts.
    pub fn started(&mut self, replica: usize) {
        self.0[replica] = Here::default();
    }

    /// A correct replica sends an Accept.
    pub fn accepts(&mut self, replica: usize, slot: Slot) {
        let accepted = &mut self.0[replica].accepted;
        *accepted = slot.max(*accepted);
    }

    /// A read comes to a correct replica, which has executed up to a slot. One that came before waits for what it waited for then.
    pub fn comes(&mut self, replica: usize, read: Read, executed: Slot) {
        let Here { accepted, waiting } = &mut self.0[replica];
        waiting.entry(read).or_insert(Behind::Least(executed.max(*accepted)));
    }

    /// One of the state after a slot comes to a correct replica.
    pub fn comes_for(&mut self, replica: usize, read: Read, slot: Slot) {
        self.0[replica].waiting.entry(read).or_insert(Behind::Exactly(slot));
    }

    /// A correct replica answers a read by the state after a slot, or says nothing of it.
    pub fn answers(&mut self, replica: usize, read: Read, by: Option<Slot>) -> Check {
        let (Some(behind), Some(slot)) = (self.0[replica].waiting.remove(&read), by) else {
            return Ok(());
        };
        let what = match behind {
            Behind::Least(least) if slot < least => format!(
                "replica {replica} answers a read by its state after slot {slot}; when it came, that replica had executed, or sent Accepts, \
                 up to slot {least}"
            ),
            Behind::Exactly(asked) if slot != asked => format!(
                "replica {replica} answers a read of the state after slot {asked} by that after slot {slot}"
            ),
            _ => return Ok(()),
        };
        Err(Broken::new(RULE, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(number: u64) -> Read {
        (PublicKey([1; 32]), 7, number)
    }

    #[test]
    fn a_read_waits_for_what_was_accepted_when_it_came() {
        let mut reads = FastReads::new(2);
        reads.accepts(0, Slot(5));
        reads.accepts(0, Slot(4));
        reads.comes(0, read(1), Slot(3));
        reads.accepts(0, Slot(9));
        assert!(reads.answers(0, read(1), Some(Slot(5))).is_ok());
        reads.comes(0, read(2), Slot(3));
        assert!(reads.answers(0, read(2), Some(Slot(8))).is_err());
        // It is of another replica, or another process.
        reads.comes(1, read(3), Slot(3));
        assert!(reads.answers(1, read(3), Some(Slot(3))).is_ok());
        reads.started(0);
        reads.comes(0, read(4), Slot(3));
        assert!(reads.answers(0, read(4), Some(Slot(3))).is_ok());
    }

    #[test]
    fn a_read_is_not_answered_by_an_older_state_than_was_there() {
        let mut reads = FastReads::new(1);
        reads.comes(0, read(1), Slot(20));
        reads.comes(0, read(1), Slot(30));
        assert!(reads.answers(0, read(1), Some(Slot(20))).is_ok(), "it came twice");
        reads.comes(0, read(2), Slot(20));
        assert!(reads.answers(0, read(2), Some(Slot(19))).is_err());
        reads.comes(0, read(3), Slot(20));
        assert!(reads.answers(0, read(3), None).is_ok(), "it has to be ordered");
    }

    #[test]
    fn a_read_of_one_slot_is_answered_by_no_other() {
        let mut reads = FastReads::new(1);
        for (number, by, holds) in
            [(1, Some(7), true), (2, Some(8), false), (3, Some(6), false), (4, None, true)]
        {
            reads.comes_for(0, read(number), Slot(7));
            assert_eq!(reads.answers(0, read(number), by.map(Slot)).is_ok(), holds, "{number}");
        }
    }
}
