//! Why there is no outcome.

use perdura_client::CallError;
use perdura_protocol::PartitionId;
use perdura_store::CommandError;

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
    /// A group did not carry out what it was asked for. If that is a refusal nothing happened.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The deadline passed while others had what it needs. Nothing happened.
    #[error(
        "the deadline passed while other transactions held what it needs ({tries} tries); nothing happened"
    )]
    Conflict {
        /// How often it was tried.
        tries: u32,
    },
    /// A partition did not vote for it. Nothing happened.
    #[error("partition {} did not vote for it: {why}; nothing happened", partition.0)]
    Refused {
        /// Which.
        partition: PartitionId,
        /// Why, in words.
        why: String,
    },
    /// It committed, and what it read is not kept any more.
    #[error("it was carried out, and what it read is not kept any more")]
    ResultsGone,
    /// A group gave an answer that fits no question.
    #[error("a group gave an answer that fits no question; do all run the same version?")]
    Nonsense,
}

impl TransactionError {
    /// Whether it is certain that nothing happened, and that nothing will.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            TransactionError::Call(error) => error.is_refusal(),
            TransactionError::ResultsGone | TransactionError::Nonsense => false,
            TransactionError::Invalid(_)
            | TransactionError::Participants { .. }
            | TransactionError::Conflict { .. }
            | TransactionError::Refused { .. } => true,
        }
    }
}
