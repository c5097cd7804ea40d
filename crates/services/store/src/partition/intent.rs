//! What a transaction over several partitions is, as each of them knows it.
//!
//! Its identifier is the hash of a canonical encoding of all that binds it: whose it is, which groups take part, and a digest
//! of each one's part of the operations. A participant is sent its own part and this, never the others' operations.

use super::limits;
use crate::Operation;
use perdura_protocol::codec::encode_list;
use perdura_protocol::{
    ClusterId, Decode, DecodeError, Digest, Encode, PartitionId, PublicKey, Reader, SessionId,
};
use std::fmt;
use std::str::FromStr;

/// Identifier of a transaction over several partitions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TransactionId(pub Digest);

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for TransactionId {
    type Err = DecodeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(TransactionId)
    }
}

impl Encode for TransactionId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for TransactionId {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Digest::decode(reader).map(TransactionId)
    }
}

/// A group that takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Participant {
    /// Which.
    pub partition: PartitionId,
    /// Number of the client's session there.
    pub nonce: u64,
    /// [`digest_of_part`] of its operations.
    pub part: Digest,
}

/// What binds a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Intent {
    /// The store's cluster.
    pub cluster: ClusterId,
    /// Version of its map.
    pub map: u32,
    /// Whose it is.
    pub client: PublicKey,
    /// The client's own number for it, below the last one there is.
    pub counter: u64,
    /// Whether it changes nothing: then the locks are the client's to give back, and nobody has to prove anything.
    pub read_only: bool,
    /// At least two, ascending by partition; at most [`limits::UPDATE_PARTICIPANTS`], or [`limits::READ_PARTICIPANTS`].
    pub participants: Vec<Participant>,
}

/// What stands for a participant's operations.
#[must_use]
pub fn digest_of_part(operations: &[Operation]) -> Digest {
    let mut out = b"perdura.part.v1".to_vec();
    encode_list(operations, &mut out);
    Digest::of(&out)
}

impl Intent {
    /// Its identifier.
    #[must_use]
    pub fn id(&self) -> TransactionId {
        let mut out = b"perdura.transaction.v1".to_vec();
        self.encode(&mut out);
        TransactionId(Digest::of(&out))
    }

    /// How this partition takes part, if it does.
    #[must_use]
    pub fn participant(&self, partition: PartitionId) -> Option<&Participant> {
        self.participants.iter().find(|one| one.partition == partition)
    }

    /// The client's session with this participant.
    #[must_use]
    pub fn session(&self, participant: &Participant) -> SessionId {
        SessionId { client: self.client, nonce: participant.nonce }
    }

    /// The others.
    pub fn others(&self, partition: PartitionId) -> impl Iterator<Item = &Participant> + Clone {
        self.participants.iter().filter(move |one| one.partition != partition)
    }
}

impl Encode for Participant {
    fn encode(&self, out: &mut Vec<u8>) {
        self.partition.encode(out);
        self.nonce.encode(out);
        self.part.encode(out);
    }
}

impl Decode for Participant {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Participant {
            partition: Decode::decode(reader)?,
            nonce: Decode::decode(reader)?,
            part: Decode::decode(reader)?,
        })
    }
}

impl Encode for Intent {
    fn encode(&self, out: &mut Vec<u8>) {
        self.cluster.encode(out);
        self.map.encode(out);
        self.client.encode(out);
        self.counter.encode(out);
        self.read_only.encode(out);
        encode_list(&self.participants, out);
    }
}

impl Decode for Intent {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (cluster, map) = (Decode::decode(reader)?, Decode::decode(reader)?);
        let (client, counter) = (Decode::decode(reader)?, Decode::decode(reader)?);
        let read_only = bool::decode(reader)?;
        let most = if read_only { limits::READ_PARTICIPANTS } else { limits::UPDATE_PARTICIPANTS };
        let participants: Vec<Participant> = reader.list("participants", most, 42)?;
        let ascending = |pair: &[Participant]| pair[0].partition < pair[1].partition;
        if counter == u64::MAX {
            return Err(DecodeError::NotCanonical("no fence is above the last number"));
        }
        if participants.len() < 2 || !participants.windows(2).all(ascending) {
            return Err(DecodeError::NotCanonical("participants are two at least, ascending"));
        }
        Ok(Intent { cluster, map, client, counter, read_only, participants })
    }
}
