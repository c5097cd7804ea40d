//! What a partition answers, and its encoding: a tag byte from 16 on, and the content.

use super::certificate::SignedMembers;
use super::intent::{Intent, TransactionId};
use super::limits;
use super::statement::{Signed, Statement};
use crate::OperationResult;
use bytes::Bytes;
use perdura_protocol::codec::encode_list;
use perdura_protocol::{Decode, DecodeError, Encode, PartitionId, Reader, SessionId, Time};

/// The answer to a [`super::PartitionCommand`] that was not refused, or to a command of every store that was in the way of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartitionReply {
    /// The vote on a transaction, final. Signed by replicas as [`Statement::Vote`] if it says so.
    Voted {
        /// On which.
        transaction: TransactionId,
        /// Whether others need proof of it.
        attested: bool,
        /// The vote.
        vote: Vote,
        /// Of a vote to commit, the result of each operation of the part; none where it was given before.
        results: Option<Vec<OperationResult>>,
    },
    /// Nothing is known of it here.
    Unknown {
        /// Which.
        transaction: TransactionId,
    },
    /// It is over.
    Finished {
        /// Which.
        transaction: TransactionId,
        /// How it ended.
        committed: bool,
    },
    /// It has been pending for so long that others may end it; signed as [`Statement::Expired`].
    Expired {
        /// Which.
        transaction: TransactionId,
    },
    /// It is pending, and for some time nobody but its client may end it.
    Young {
        /// Which.
        transaction: TransactionId,
        /// For so long, milliseconds.
        left_ms: u64,
    },
    /// How far a session is fenced off; signed as [`Statement::Fence`].
    Fenced {
        /// Which.
        session: SessionId,
        /// Up to this number of its client's transactions.
        below: u64,
        /// When.
        now: Signed,
    },
    /// So many transactions were forgotten.
    Forgotten {
        /// How many.
        count: u32,
    },
    /// The newest configuration of a group that is known here.
    Known {
        /// Whose.
        partition: PartitionId,
        /// Its number.
        configuration: u64,
    },
    /// A certificate is not by the newest members that are known here: nothing was changed. Its group's members have to sign again, or who
    /// they are has to be made known here first.
    Outdated {
        /// Whose certificate.
        partition: PartitionId,
        /// The newest configuration that is known here.
        configuration: u64,
    },
    /// What is pending, or what is over, as it was asked for, the first voted on first; and whether there is more.
    Pending {
        /// They.
        transactions: Vec<Waiting>,
        /// Whether there are more behind the last one.
        more: bool,
        /// The clock now.
        now: Time,
    },
    /// What is known of a transaction.
    Shown {
        /// Since when, on the partition's clock.
        since: Time,
        /// The clock now.
        now: Time,
        /// What binds it.
        intent: Intent,
        /// The vote.
        vote: Vote,
        /// How it ended, if it is not pending.
        committed: Option<bool>,
    },
    /// Who the members of a group are, as it is known here.
    Roster {
        /// Which group.
        partition: PartitionId,
        /// None: its first members, as the map has them.
        newest: Option<SignedMembers>,
    },
    /// A transaction over several partitions holds what a command of this one alone needs: nothing was done.
    Blocked(Blocker),
    /// This partition takes another one for ended, for good.
    Ended {
        /// Which.
        partition: PartitionId,
    },
    /// The answer to [`PartitionCommand::Mark`](super::PartitionCommand::Mark).
    Marked {
        /// Whether he would get what he wants who asked.
        way: Way,
    },
    /// The answer to [`PartitionCommand::Validate`](super::PartitionCommand::Validate), where nobody is in the way.
    Validated {
        /// Nothing was changed. Else something was, or it is not known.
        holds: bool,
    },
}

impl Reason {
    /// As it is kept: who was in the way is told once.
    pub(crate) fn kept(&self) -> Reason {
        match self {
            Reason::Conflict(Blocker::Transaction { .. }) => Reason::Conflict(Blocker::Other),
            Reason::Unreachable { partition, .. } => {
                Reason::Unreachable { partition: *partition, oldest: Blocker::Other }
            }
            reason => reason.clone(),
        }
    }
}

impl PartitionReply {
    /// Whether these bytes are such an answer, and not one that every store gives.
    #[must_use]
    pub fn is_one(reply: &[u8]) -> bool {
        reply.first().is_some_and(|tag| *tag >= VOTED)
    }
}

/// A transaction that was voted on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Since when, on the partition's clock.
    pub since: Time,
    /// What binds it.
    pub intent: Intent,
}

/// A partition's vote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Vote {
    /// All that it needs is locked.
    Commit,
    /// It cannot be.
    Abort(Reason),
}

/// Why a partition votes to abort.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// An operation of its part failed: a comparison, an insert of a present key, a write of an absent one.
    Failed {
        /// Its index in the part.
        operation: u32,
    },
    /// Somebody holds what it needs.
    Conflict(Blocker),
    /// Its client has too many transactions pending here.
    Cap {
        /// How many it may have.
        pending: u32,
    },
    /// There is no room for what it writes, or for what is kept of it.
    Room,
    /// It reads more than a reply holds, or would take more work than a command may ([`perdura_execution::TooCostly`]).
    TooMuch,
    /// A key of it is another partition's, or its map has another version.
    Map,
    /// Its number is below the session's fence.
    Fenced,
    /// Nothing is heard from another participant.
    Unreachable {
        /// Which.
        partition: PartitionId,
        /// What has been pending on it for longest: whoever can end it has heard from it.
        oldest: Blocker,
    },
    /// It was ended before its part came.
    Resolved,
    /// It writes, and was said to only read.
    Writes,
}

/// What is in the way of who waits for locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Way {
    /// Nothing.
    Free,
    /// A transaction.
    Held {
        /// Which.
        blocker: Blocker,
        /// When it is worth while to ask again, milliseconds.
        again_ms: u64,
    },
    /// Nobody holds it, but one who has waited before is to have it first.
    Marked {
        /// The same.
        again_ms: u64,
    },
}

/// Who holds what is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Blocker {
    /// Many ranges are being read.
    Ranges,
    /// A transaction.
    Transaction {
        /// What binds it: enough to end it.
        intent: Box<Intent>,
        /// How long it has been pending, milliseconds.
        pending_ms: u64,
    },
    /// A transaction, of which no more was kept.
    Other,
}

impl PartitionReply {
    /// The statement that these bytes, a reply, make to those outside of the group.
    #[must_use]
    pub fn statement(reply: &[u8]) -> Option<Statement> {
        let (tag, content) = reply.split_first()?;
        let transaction = || {
            let bytes: &[u8; 32] = content.first_chunk()?;
            Some(TransactionId(perdura_protocol::Digest(*bytes)))
        };
        match *tag {
            VOTED => {
                let (attested, vote) = (*content.get(32)?, *content.get(33)?);
                let (transaction, commit) = (transaction()?, vote == COMMIT);
                (attested == 1).then_some(Statement::Vote { transaction, commit })
            }
            EXPIRED => Some(Statement::Expired { transaction: transaction()? }),
            FENCED => {
                let content = Bytes::copy_from_slice(content.get(..56)?);
                let mut reader = Reader::new(content);
                let session = SessionId::decode(&mut reader).ok()?;
                let below = u64::decode(&mut reader).ok()?;
                let now = Signed::decode(&mut reader).ok()?;
                Some(Statement::Fence { session, below, now })
            }
            _ => None,
        }
    }

    /// [`PartitionReply::statement`], encoded: what replicas sign.
    #[must_use]
    pub fn leaf(reply: &[u8]) -> Option<Bytes> {
        PartitionReply::statement(reply).map(|statement| statement.to_bytes())
    }
}

const VOTED: u8 = 16;
const EXPIRED: u8 = 19;
const FENCED: u8 = 21;
const COMMIT: u8 = 0;

impl Encode for PartitionReply {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            PartitionReply::Voted { transaction, attested, vote, results } => {
                out.push(VOTED);
                transaction.encode(out);
                attested.encode(out);
                vote.encode(out);
                results.is_some().encode(out);
                results.iter().for_each(|results| encode_list(results, out));
            }
            PartitionReply::Unknown { transaction } => {
                out.push(17);
                transaction.encode(out);
            }
            PartitionReply::Finished { transaction, committed } => {
                out.push(18);
                transaction.encode(out);
                committed.encode(out);
            }
            PartitionReply::Expired { transaction } => {
                out.push(EXPIRED);
                transaction.encode(out);
            }
            PartitionReply::Young { transaction, left_ms } => {
                out.push(20);
                transaction.encode(out);
                left_ms.encode(out);
            }
            PartitionReply::Fenced { session, below, now } => {
                out.push(FENCED);
                session.encode(out);
                below.encode(out);
                now.encode(out);
            }
            PartitionReply::Forgotten { count } => {
                out.push(22);
                count.encode(out);
            }
            PartitionReply::Known { partition, configuration } => {
                out.push(23);
                partition.encode(out);
                configuration.encode(out);
            }
            PartitionReply::Outdated { partition, configuration } => {
                out.push(24);
                partition.encode(out);
                configuration.encode(out);
            }
            PartitionReply::Pending { transactions, more, now } => {
                out.push(25);
                encode_list(transactions, out);
                more.encode(out);
                now.encode(out);
            }
            PartitionReply::Shown { since, now, intent, vote, committed } => {
                out.push(26);
                since.encode(out);
                now.encode(out);
                intent.encode(out);
                vote.encode(out);
                committed.map_or(0u8, |committed| 1 + u8::from(committed)).encode(out);
            }
            PartitionReply::Blocked(blocker) => {
                out.push(27);
                blocker.encode(out);
            }
            PartitionReply::Roster { partition, newest } => {
                out.push(28);
                partition.encode(out);
                newest.encode(out);
            }
            PartitionReply::Validated { holds } => {
                out.push(29);
                holds.encode(out);
            }
            PartitionReply::Ended { partition } => {
                out.push(30);
                partition.encode(out);
            }
            PartitionReply::Marked { way } => {
                out.push(31);
                way.encode(out);
            }
        }
    }
}

impl Decode for PartitionReply {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            VOTED => {
                let (transaction, attested) = (Decode::decode(reader)?, Decode::decode(reader)?);
                let vote = Vote::decode(reader)?;
                let results = match bool::decode(reader)? {
                    true => Some(reader.list("results of a part", crate::limits::OPERATIONS, 1)?),
                    false => None,
                };
                PartitionReply::Voted { transaction, attested, vote, results }
            }
            17 => PartitionReply::Unknown { transaction: Decode::decode(reader)? },
            18 => PartitionReply::Finished {
                transaction: Decode::decode(reader)?,
                committed: Decode::decode(reader)?,
            },
            EXPIRED => PartitionReply::Expired { transaction: Decode::decode(reader)? },
            20 => PartitionReply::Young {
                transaction: Decode::decode(reader)?,
                left_ms: Decode::decode(reader)?,
            },
            FENCED => PartitionReply::Fenced {
                session: Decode::decode(reader)?,
                below: Decode::decode(reader)?,
                now: Decode::decode(reader)?,
            },
            22 => PartitionReply::Forgotten { count: Decode::decode(reader)? },
            23 => PartitionReply::Known {
                partition: Decode::decode(reader)?,
                configuration: Decode::decode(reader)?,
            },
            24 => PartitionReply::Outdated {
                partition: Decode::decode(reader)?,
                configuration: Decode::decode(reader)?,
            },
            25 => PartitionReply::Pending {
                transactions: reader.list("transactions", limits::LISTED as usize, 100)?,
                more: Decode::decode(reader)?,
                now: Decode::decode(reader)?,
            },
            26 => PartitionReply::Shown {
                since: Decode::decode(reader)?,
                now: Decode::decode(reader)?,
                intent: Decode::decode(reader)?,
                vote: Decode::decode(reader)?,
                committed: match u8::decode(reader)? {
                    0 => None,
                    1 => Some(false),
                    2 => Some(true),
                    tag => return Err(DecodeError::UnknownTag(tag)),
                },
            },
            27 => PartitionReply::Blocked(Decode::decode(reader)?),
            28 => PartitionReply::Roster {
                partition: Decode::decode(reader)?,
                newest: Decode::decode(reader)?,
            },
            29 => PartitionReply::Validated { holds: Decode::decode(reader)? },
            30 => PartitionReply::Ended { partition: Decode::decode(reader)? },
            31 => PartitionReply::Marked { way: Decode::decode(reader)? },
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}

impl Encode for Waiting {
    fn encode(&self, out: &mut Vec<u8>) {
        self.since.encode(out);
        self.intent.encode(out);
    }
}

impl Decode for Waiting {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Waiting { since: Decode::decode(reader)?, intent: Decode::decode(reader)? })
    }
}

impl Encode for Vote {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Vote::Commit => out.push(COMMIT),
            Vote::Abort(reason) => {
                out.push(1);
                reason.encode(out);
            }
        }
    }
}

impl Decode for Vote {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            COMMIT => Ok(Vote::Commit),
            1 => Reason::decode(reader).map(Vote::Abort),
            tag => Err(DecodeError::UnknownTag(tag)),
        }
    }
}

impl Encode for Reason {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reason::Failed { operation } => {
                out.push(0);
                operation.encode(out);
            }
            Reason::Conflict(blocker) => {
                out.push(1);
                blocker.encode(out);
            }
            Reason::Cap { pending } => {
                out.push(2);
                pending.encode(out);
            }
            Reason::Room => out.push(3),
            Reason::TooMuch => out.push(4),
            Reason::Map => out.push(5),
            Reason::Fenced => out.push(6),
            Reason::Unreachable { partition, oldest } => {
                out.push(7);
                partition.encode(out);
                oldest.encode(out);
            }
            Reason::Resolved => out.push(8),
            Reason::Writes => out.push(9),
        }
    }
}

impl Decode for Reason {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            0 => Reason::Failed { operation: Decode::decode(reader)? },
            1 => Reason::Conflict(Decode::decode(reader)?),
            2 => Reason::Cap { pending: Decode::decode(reader)? },
            3 => Reason::Room,
            4 => Reason::TooMuch,
            5 => Reason::Map,
            6 => Reason::Fenced,
            7 => Reason::Unreachable {
                partition: Decode::decode(reader)?,
                oldest: Decode::decode(reader)?,
            },
            8 => Reason::Resolved,
            9 => Reason::Writes,
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}

impl Encode for Way {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Way::Free => out.push(0),
            Way::Held { blocker, again_ms } => {
                out.push(1);
                blocker.encode(out);
                again_ms.encode(out);
            }
            Way::Marked { again_ms } => {
                out.push(2);
                again_ms.encode(out);
            }
        }
    }
}

impl Decode for Way {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(Way::Free),
            1 => Ok(Way::Held {
                blocker: Decode::decode(reader)?,
                again_ms: Decode::decode(reader)?,
            }),
            2 => Ok(Way::Marked { again_ms: Decode::decode(reader)? }),
            tag => Err(DecodeError::UnknownTag(tag)),
        }
    }
}

impl Encode for Blocker {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Blocker::Ranges => out.push(0),
            Blocker::Transaction { intent, pending_ms } => {
                out.push(1);
                intent.encode(out);
                pending_ms.encode(out);
            }
            Blocker::Other => out.push(2),
        }
    }
}

impl Decode for Blocker {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            0 => Blocker::Ranges,
            1 => Blocker::Transaction {
                intent: Box::new(Decode::decode(reader)?),
                pending_ms: Decode::decode(reader)?,
            },
            2 => Blocker::Other,
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}
