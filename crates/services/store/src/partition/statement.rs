//! What a partition says to the others, through clients: each is the leaf of an attestation ([`perdura_protocol::attestation`]).

use super::intent::TransactionId;
use perdura_protocol::{Encode, SessionId, Time};

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
    /// "Nothing of this session below this number is pending here at this time, and none of it will be."
    Fence {
        /// The client's session in this partition.
        session: SessionId,
        /// In the client's numbers of transactions.
        below: u64,
        /// The partition's clock.
        now: Time,
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
