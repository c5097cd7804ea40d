//! Why there is no outcome.

use perdura_client::CallError;
use perdura_protocol::{PartitionId, PublicKey};
use perdura_store::CommandError;
use perdura_store::partition::{Blocker, TransactionId};
use std::fmt;

/// Why a partition does not vote for a transaction, where trying it again soon is of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Cause {
    /// The client has too many transactions pending there.
    #[error(
        "{pending} transactions of this client are pending there, and it may have no more: others had to end some that it left"
    )]
    Cap {
        /// How many it may have.
        pending: u32,
    },
    /// There is no room for what it writes, or for what is kept of it.
    #[error(
        "there is no room for what it writes, or for what is kept of it; delete something first"
    )]
    Room,
    /// It reads more than a reply holds, or would take more work than a command may.
    #[error(
        "it reads more than a reply holds, or would take more work than a command may; ask for less at once"
    )]
    TooMuch,
    /// The client's map of the partitions is not the partition's.
    #[error(
        "its keys are not there by the map that the partition has; take the cluster's newest cluster.toml"
    )]
    Map,
    /// It writes, and was said to only read.
    #[error("it writes, and was said to only read")]
    Writes,
    /// It did not answer in time, and others were not asked for that.
    #[error("it did not answer in time")]
    Silent,
    /// Nothing is heard of another partition that takes part.
    #[error("nothing is heard of partition {}, which takes part", partition.0)]
    Unreachable {
        /// Which.
        partition: PartitionId,
    },
}

/// A transaction that was in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Which; `perdura txn show` shows it.
    pub transaction: TransactionId,
    /// Whose.
    pub client: PublicKey,
    /// Where it waits for its end: a partition that did not answer who tried to end it.
    pub waits_for: Option<PartitionId>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transaction {} of client {}", self.transaction, self.client)?;
        self.waits_for.map_or(Ok(()), |partition| {
            write!(f, ", which waits for partition {}, and that does not answer", partition.0)
        })
    }
}

/// The last one of them, for a message.
struct Last<'a>(&'a Option<Holder>);

impl fmt::Display for Last<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |holder| write!(f, ", the last time {holder}"))
    }
}

impl Holder {
    pub(crate) fn of(blocker: &Blocker) -> Option<Holder> {
        match blocker {
            Blocker::Transaction { intent, .. } => {
                Some(Holder { transaction: intent.id(), client: intent.client, waits_for: None })
            }
            Blocker::Ranges | Blocker::Other => None,
        }
    }
}

/// A transaction without an outcome.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransactionError {
    /// It is beyond the store's limits.
    #[error(transparent)]
    Invalid(#[from] CommandError),
    /// It touches too many partitions.
    #[error(
        "a transaction of this kind has parts in at most {most} partitions, this one in {found}"
    )]
    Participants {
        /// How many it touches.
        found: usize,
        /// How many it may.
        most: usize,
    },
    /// There is no such partition.
    #[error("there is no partition {partition}: there are {partitions}, from 0 on", partition = partition.0)]
    NoPartition {
        /// Which.
        partition: PartitionId,
        /// How many there are.
        partitions: usize,
    },
    /// A group did not carry out what it was asked for. If that is a refusal nothing happened.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The deadline passed while others had what it needs. Nothing happened.
    #[error(
        "the deadline passed while others held what it needs, or were to have it first ({tries} tries{}); nothing happened",
        Last(with)
    )]
    Conflict {
        /// How often it was tried.
        tries: u32,
        /// Who was in the way last, if that is known.
        with: Option<Holder>,
    },
    /// A partition did not vote for it. Nothing happened.
    #[error("partition {} did not vote for it: {cause}; nothing happened", partition.0)]
    Refused {
        /// Which.
        partition: PartitionId,
        /// Why.
        cause: Cause,
    },
    /// A group gave an answer that fits no question.
    #[error("a group gave an answer that fits no question; do all run the same version?")]
    UnexpectedReply,
}

impl TransactionError {
    /// Whether it is certain that nothing happened, and that nothing will. Else nobody can tell.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            TransactionError::Call(error) => error.is_refusal(),
            TransactionError::UnexpectedReply => false,
            TransactionError::Invalid(_)
            | TransactionError::Participants { .. }
            | TransactionError::NoPartition { .. }
            | TransactionError::Conflict { .. }
            | TransactionError::Refused { .. } => true,
        }
    }
}
