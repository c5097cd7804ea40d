//! What a partition says to the others, through clients: each is the leaf of an attestation ([`perdura_protocol::attestation`]).

use super::intent::TransactionId;
use perdura_protocol::{Decode, DecodeError, Encode, Reader, SessionId, Time};

/// When a partition signed something. In one word; so partitions of both kinds read each other's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signed {
    /// On its clock, which stands still while its group does: under versions 1 and 2 of the store.
    Clock(Time),
    /// In agreed time, which outages do not shift. Before version 3 it is read as a time that is far ahead.
    Agreed(Time),
}

/// Set in what is agreed time.
const IS_AGREED: u64 = 1 << 63;

impl Encode for Signed {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Signed::Clock(Time(at)) => (at & !IS_AGREED).encode(out),
            Signed::Agreed(Time(at)) => (at | IS_AGREED).encode(out),
        }
    }
}

impl Decode for Signed {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let word = u64::decode(reader)?;
        let at = Time(word & !IS_AGREED);
        Ok(if word == at.0 { Signed::Clock(at) } else { Signed::Agreed(at) })
    }
}

/// A statement about the state of a partition, which r + 1 of its replicas have to sign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Statement {
    /// "This is our vote, for good."
    Vote {
        /// On what.
        transaction: TransactionId,
        /// To commit, or to abort.
        commit: bool,
    },
    /// "It has been pending here for so long that others may end it."
    Expired {
        /// Which.
        transaction: TransactionId,
    },
    /// "Nothing of this session below this number is pending here, and none of it will be."
    Fence {
        /// The client's session in this partition.
        session: SessionId,
        /// In the client's numbers of transactions.
        below: u64,
        /// When.
        now: Signed,
    },
}

impl Encode for Statement {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Statement::Vote { transaction, commit } => {
                out.push(1);
                transaction.encode(out);
                commit.encode(out);
            }
            Statement::Expired { transaction } => {
                out.push(2);
                transaction.encode(out);
            }
            Statement::Fence { session, below, now } => {
                out.push(3);
                session.encode(out);
                below.encode(out);
                now.encode(out);
            }
        }
    }
}
