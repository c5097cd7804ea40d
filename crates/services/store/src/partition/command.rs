//! What clients ask of a partition besides the commands of every store, and its encoding: a tag byte from 16 on, and the content.

use super::certificate::{Certificate, SignedMembers, StatementClaim};
use super::intent::{Intent, TransactionId};
use super::limits;
use super::locks::Touched;
use super::statement::{Signed, Statement};
use crate::plan::Seen;
use crate::{Operation, StoreCommand, Transaction};
use bytes::Bytes;
use perdura_protocol::codec::encode_list;
use perdura_protocol::{
    Decode, DecodeError, Digest, Encode, Map, PartitionId, PublicKey, Reader, SessionId, Slot,
    Time, seeded,
};

/// The keys and ranges that a transaction touches in a partition, and what it does with them.
/// Of a range all counts, however much of it would be given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted(pub(crate) Touched);

impl Wanted {
    /// Of these operations.
    #[must_use]
    pub fn by(operations: &[Operation]) -> Wanted {
        let transaction = Transaction { operations: operations.to_vec() };
        let seen = Seen::whole(&transaction);
        Wanted(Touched::of(&transaction, seen))
    }
}

impl Wanted {
    /// Whether there are ranges: of such a one it may be that less is needed than is waited for.
    #[must_use]
    pub fn has_ranges(&self) -> bool {
        !self.0.intervals.is_empty()
    }

    /// How many keys and ranges it names.
    pub(crate) fn keys(&self) -> usize {
        self.0.count()
    }

    /// Bytes of the keys that it names, with what tells their lengths.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// What the caller is known by who wants this.
    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.0.to_bytes())
    }

    /// Of a command of one key.
    pub(crate) fn of_key(key: &[u8], is_written: bool) -> Wanted {
        let mut touched = Touched::default();
        let keys = if is_written { &mut touched.writes } else { &mut touched.reads };
        keys.insert(Bytes::copy_from_slice(key));
        Wanted(touched)
    }

    /// Of a command of every store.
    #[must_use]
    pub fn by_command(command: &StoreCommand) -> Wanted {
        match command {
            StoreCommand::Get { key } => Wanted::of_key(key, false),
            StoreCommand::Put { key, .. } | StoreCommand::Delete { key } => {
                Wanted::of_key(key, true)
            }
            StoreCommand::Transaction(transaction) => Wanted::by(&transaction.operations),
        }
    }
}

/// A command of a partition. All but the last five are ordered: those are reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartitionCommand {
    /// Locks all that a part of a transaction needs, and votes on it. In the session that the intent names.
    Prepare {
        /// The transaction.
        intent: Intent,
        /// This partition's part; its digest is in the intent.
        operations: Vec<Operation>,
    },
    /// As [`PartitionCommand::Prepare`], of the participant that is asked last: all others have voted to commit. Its vote decides, so nothing of it
    /// is pending here.
    PrepareLast {
        /// The transaction; it changes something.
        intent: Intent,
        /// This partition's part.
        operations: Vec<Operation>,
        /// The vote of each other participant.
        votes: Vec<Certificate>,
    },
    /// Ends a pending transaction.
    Finish {
        /// Which.
        transaction: TransactionId,
        /// Its outcome.
        commit: bool,
        /// To commit: the vote of each other participant. To abort: one vote to abort. One that only reads is ended by its client without any.
        votes: Vec<Certificate>,
    },
    /// "Vote on this, if you have not": the vote that was given, or else a vote to abort.
    Resolve {
        /// The transaction.
        intent: Intent,
        /// Proof that another participant has had it pending for so long that others may end it. Needed where it is not known,
        /// from others than its client.
        expired: Option<Certificate>,
    },
    /// Whether it has been pending here for so long that others may end it.
    Expire {
        /// Which.
        transaction: TransactionId,
    },
    /// How far the transactions of a session are fenced off here. Its own client may raise that.
    Fence {
        /// The session in this partition.
        session: SessionId,
        /// No further transaction below this number of the client's will be prepared.
        below: u64,
    },
    /// Forgets transactions that are over wherever they took part.
    Forget {
        /// The session in this partition.
        session: SessionId,
        /// Of other participants.
        fences: Vec<Fence>,
    },
    /// Who the members of another group are.
    Members(SignedMembers),
    /// Ends a transaction whatever the votes are, where a participant is gone for good: the administrator's, in a session of his own, and in
    /// each participant that is left. Refused where the opposite was decided. Chosen wrongly it is the end of atomicity.
    Force {
        /// The transaction.
        intent: Intent,
        /// Its outcome.
        commit: bool,
    },
    /// A partition has ended for good: nothing more is prepared that names it, and nothing of it is waited for before a transaction is forgotten. The
    /// administrator's, in a session of his own, and in each partition that is left. There is no way back. From version 3 on.
    End {
        /// Which.
        partition: PartitionId,
    },
    /// Who waits for locks: whether he would get them now, and else a mark, his place in the lines for all that he wants. While it stands no lock is given to
    /// who comes later that is in the way of that. From version 3 on.
    Mark {
        /// What he waits for.
        wanted: Wanted,
        /// Whether he does; else he waits no longer.
        waits: bool,
    },
    /// The pending transactions behind one, oldest first. A read.
    Pending {
        /// The last one known: its time and identifier.
        after: Option<(Time, TransactionId)>,
    },
    /// The transactions behind one that are over and remembered, the first voted on first. A read.
    Over {
        /// The last one known: its time and identifier.
        after: Option<(Time, TransactionId)>,
    },
    /// What is known of a transaction. A read.
    Show {
        /// Which.
        transaction: TransactionId,
    },
    /// Who the members of a group are, as it is known here. A read.
    Roster {
        /// Which.
        partition: PartitionId,
    },
    /// Whether nothing that these operations read has been changed behind a slot, and nobody holds it to change it. A read that is never
    /// ordered: each replica goes by what it remembers.
    Validate {
        /// The slot.
        since: Slot,
        /// They only read.
        operations: Vec<Operation>,
    },
}

/// How far a session is fenced off in another partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fence {
    /// What says so.
    pub proof: Certificate,
    /// The session in that partition, with the same client.
    pub nonce: u64,
    /// Nothing of it below this number is pending, nor will be.
    pub below: u64,
    /// When it was signed.
    pub signed: Signed,
}

impl Fence {
    fn claims(&self, map: &Map, client: PublicKey) -> Option<Vec<StatementClaim>> {
        let session = SessionId { client, nonce: self.nonce };
        let statement = Statement::Fence { session, below: self.below, now: self.signed };
        self.proof.claims(map, &statement)
    }
}

impl Encode for Fence {
    fn encode(&self, out: &mut Vec<u8>) {
        self.proof.encode(out);
        self.nonce.encode(out);
        self.below.encode(out);
        self.signed.encode(out);
    }
}

impl Decode for Fence {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Fence {
            proof: Decode::decode(reader)?,
            nonce: Decode::decode(reader)?,
            below: Decode::decode(reader)?,
            signed: Decode::decode(reader)?,
        })
    }
}

/// Whether these bytes are a command of a partition under this version of the store, if they are any.
pub(crate) fn is_of_partition(command: &[u8], version: u16) -> bool {
    let last = if version < 3 { 29 } else { 31 };
    command.first().is_some_and(|tag| (16..=last).contains(tag))
}

impl PartitionCommand {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            PartitionCommand::Pending { .. }
                | PartitionCommand::Over { .. }
                | PartitionCommand::Show { .. }
                | PartitionCommand::Roster { .. }
                | PartitionCommand::Validate { .. }
        )
    }

    /// The signatures that have to hold; none if it cannot be a command of a partition with this map.
    #[must_use]
    pub fn claims(&self, map: &Map) -> Option<Vec<StatementClaim>> {
        match self {
            PartitionCommand::Finish { transaction, commit, votes } => {
                claims_of_votes(votes, map, *transaction, *commit)
            }
            PartitionCommand::PrepareLast { intent, votes, .. } => {
                claims_of_votes(votes, map, intent.id(), true)
            }
            PartitionCommand::Resolve { intent, expired: Some(expired) } => {
                expired.claims(map, &Statement::Expired { transaction: intent.id() })
            }
            PartitionCommand::Forget { session, fences } => {
                let claims = fences.iter().map(|fence| fence.claims(map, session.client));
                claims.collect::<Option<Vec<_>>>().map(|claims| claims.concat())
            }
            PartitionCommand::Members(members) => members.claim(map).map(|claim| vec![claim]),
            PartitionCommand::Prepare { .. }
            | PartitionCommand::Resolve { expired: None, .. }
            | PartitionCommand::Expire { .. }
            | PartitionCommand::Fence { .. }
            | PartitionCommand::Force { .. }
            | PartitionCommand::End { .. }
            | PartitionCommand::Mark { .. }
            | PartitionCommand::Pending { .. }
            | PartitionCommand::Over { .. }
            | PartitionCommand::Show { .. }
            | PartitionCommand::Roster { .. }
            | PartitionCommand::Validate { .. } => Some(Vec::new()),
        }
    }

    /// The session of which it has to know whether it may still send anything.
    #[must_use]
    pub fn asks_about(&self, partition: PartitionId) -> Option<SessionId> {
        match self {
            PartitionCommand::Resolve { intent, .. } => {
                intent.participant(partition).map(|one| intent.session(one))
            }
            PartitionCommand::Fence { session, .. } | PartitionCommand::Forget { session, .. } => {
                Some(*session)
            }
            _ => None,
        }
    }
}

fn claims_of_votes(
    votes: &[Certificate],
    map: &Map,
    transaction: TransactionId,
    commit: bool,
) -> Option<Vec<StatementClaim>> {
    let statement = Statement::Vote { transaction, commit };
    let claims = votes.iter().map(|vote| vote.claims(map, &statement));
    claims.collect::<Option<Vec<_>>>().map(|claims| claims.concat())
}

fn encode_after(after: Option<(Time, TransactionId)>, out: &mut Vec<u8>) {
    after.is_some().encode(out);
    if let Some((since, transaction)) = after {
        since.encode(out);
        transaction.encode(out);
    }
}

fn decode_after(reader: &mut Reader) -> Result<Option<(Time, TransactionId)>, DecodeError> {
    Ok(match bool::decode(reader)? {
        true => Some((Decode::decode(reader)?, Decode::decode(reader)?)),
        false => None,
    })
}

impl Encode for PartitionCommand {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            PartitionCommand::Prepare { intent, operations } => {
                out.push(16);
                intent.encode(out);
                encode_list(operations, out);
            }
            PartitionCommand::Finish { transaction, commit, votes } => {
                out.push(17);
                transaction.encode(out);
                commit.encode(out);
                encode_list(votes, out);
            }
            PartitionCommand::Resolve { intent, expired } => {
                out.push(18);
                intent.encode(out);
                expired.encode(out);
            }
            PartitionCommand::Expire { transaction } => {
                out.push(19);
                transaction.encode(out);
            }
            PartitionCommand::Fence { session, below } => {
                out.push(20);
                session.encode(out);
                below.encode(out);
            }
            PartitionCommand::Forget { session, fences } => {
                out.push(21);
                session.encode(out);
                encode_list(fences, out);
            }
            PartitionCommand::Members(members) => {
                out.push(22);
                members.encode(out);
            }
            PartitionCommand::Pending { after } => {
                out.push(23);
                encode_after(*after, out);
            }
            PartitionCommand::Show { transaction } => {
                out.push(24);
                transaction.encode(out);
            }
            PartitionCommand::Force { intent, commit } => {
                out.push(25);
                intent.encode(out);
                commit.encode(out);
            }
            PartitionCommand::Roster { partition } => {
                out.push(26);
                partition.encode(out);
            }
            PartitionCommand::Over { after } => {
                out.push(27);
                encode_after(*after, out);
            }
            PartitionCommand::PrepareLast { intent, operations, votes } => {
                out.push(28);
                intent.encode(out);
                encode_list(operations, out);
                encode_list(votes, out);
            }
            PartitionCommand::Validate { since, operations } => {
                out.push(29);
                since.encode(out);
                encode_list(operations, out);
            }
            PartitionCommand::End { partition } => {
                out.push(30);
                partition.encode(out);
            }
            PartitionCommand::Mark { wanted, waits } => {
                out.push(31);
                wanted.0.encode(out);
                waits.encode(out);
            }
        }
    }
}

impl Decode for PartitionCommand {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            16 => {
                let intent = Intent::decode(reader)?;
                let operations = reader.list("operations", crate::limits::OPERATIONS, 5)?;
                PartitionCommand::Prepare { intent, operations }
            }
            17 => PartitionCommand::Finish {
                transaction: Decode::decode(reader)?,
                commit: Decode::decode(reader)?,
                votes: reader.list("votes", limits::READ_PARTICIPANTS, 6)?,
            },
            18 => PartitionCommand::Resolve {
                intent: Decode::decode(reader)?,
                expired: Decode::decode(reader)?,
            },
            19 => PartitionCommand::Expire { transaction: Decode::decode(reader)? },
            20 => PartitionCommand::Fence {
                session: Decode::decode(reader)?,
                below: Decode::decode(reader)?,
            },
            21 => PartitionCommand::Forget {
                session: Decode::decode(reader)?,
                fences: reader.list("fences", limits::READ_PARTICIPANTS, 30)?,
            },
            22 => PartitionCommand::Members(Decode::decode(reader)?),
            23 => PartitionCommand::Pending { after: decode_after(reader)? },
            24 => PartitionCommand::Show { transaction: Decode::decode(reader)? },
            25 => PartitionCommand::Force {
                intent: Decode::decode(reader)?,
                commit: Decode::decode(reader)?,
            },
            26 => PartitionCommand::Roster { partition: Decode::decode(reader)? },
            27 => PartitionCommand::Over { after: decode_after(reader)? },
            28 => PartitionCommand::PrepareLast {
                intent: Decode::decode(reader)?,
                operations: reader.list("operations", crate::limits::OPERATIONS, 5)?,
                votes: reader.list("votes", limits::UPDATE_PARTICIPANTS, 6)?,
            },
            29 => PartitionCommand::Validate {
                since: Decode::decode(reader)?,
                operations: reader.list("operations", crate::limits::OPERATIONS, 5)?,
            },
            30 => PartitionCommand::End { partition: Decode::decode(reader)? },
            31 => PartitionCommand::Mark {
                wanted: Wanted(Decode::decode(reader)?),
                waits: Decode::decode(reader)?,
            },
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}

/// The signatures that have to hold for these bytes, a command, to be ordered; none if it is malformed. What has none is not read for that.
pub(crate) fn claims_of(command: &[u8], map: &Map) -> Option<Vec<StatementClaim>> {
    match command.first() {
        Some(17 | 28) if seeded!(VotesUnverified) => Some(Vec::new()),
        Some(17 | 18 | 21 | 22 | 28) => PartitionCommand::read(command).ok()?.claims(map),
        _ => Some(Vec::new()),
    }
}

/// The session that these bytes, a command, ask about ([`PartitionCommand::asks_about`]). What asks about none is not read for that.
pub(crate) fn asks_about(command: &[u8], partition: PartitionId) -> Option<SessionId> {
    match command.first() {
        Some(18 | 20 | 21) => PartitionCommand::read(command).ok()?.asks_about(partition),
        _ => None,
    }
}

impl PartitionCommand {
    /// The command that these bytes are, copied: nothing keeps the batch alive in which they came.
    pub(crate) fn read(bytes: &[u8]) -> Result<PartitionCommand, String> {
        let copy = bytes::Bytes::copy_from_slice(bytes);
        PartitionCommand::from_bytes(copy).map_err(|error| error.to_string())
    }
}
