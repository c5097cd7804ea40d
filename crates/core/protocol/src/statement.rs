//! What a signature covers. Every statement binds (domain, cluster id, configuration, view, slot,
//! kind, digest) in a fixed layout of 101 bytes, so that no signature serves twice (rule A3).

use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::ids::{ClusterId, Digest, ReplicaId, Slot, View};
use crate::keys::Signature;
use crate::limits;

/// The cluster and configuration in which something is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// The cluster.
    pub cluster: ClusterId,
    /// The configuration's number; it grows by one with each replaced incarnation.
    pub configuration: u64,
}

/// What kind of thing is stated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum StatementKind {
    /// "I was proposed this batch for this slot in this view, and no other."
    Write = 1,
    /// "I hold this batch and my vote for it on disk."
    Accept = 2,
    /// "I have delivered this prefix; its history hash is this."
    Prefix = 3,
    /// "My state after this slot has this digest, and is durable here."
    Checkpoint = 4,
    /// "I am done with earlier views; this is what I accepted."
    ViewChange = 5,
    /// "This view starts from these view changes."
    NewView = 6,
    /// A client's frame of commands.
    Frame = 7,
    /// "I am there", for a client that asked.
    Present = 8,
    /// "This is the boot in which I am."
    Boot = 9,
    /// "These statements, under one root, hold of my group's state."
    Attested = 10,
    /// The administrator's: "so the keys of this store are spread over its groups."
    Map = 11,
    /// The administrator's: "these are the members of a partition's group in that configuration."
    Members = 12,
}

/// Bytes of an encoded statement.
pub const STATEMENT_BYTES: usize = 20 + 16 + 8 + 1 + 8 + 8 + 32;

impl Context {
    /// The bytes to sign.
    #[must_use]
    pub fn statement(
        self,
        kind: StatementKind,
        view: View,
        slot: Slot,
        digest: Digest,
    ) -> [u8; STATEMENT_BYTES] {
        let mut out = [0u8; STATEMENT_BYTES];
        out[..20].copy_from_slice(b"perdura.statement.v1");
        out[20..36].copy_from_slice(&self.cluster.0);
        out[36..44].copy_from_slice(&self.configuration.to_le_bytes());
        out[44] = kind as u8;
        let view = if crate::seeded!(ViewNotBound) { View(0) } else { view };
        let slot = if crate::seeded!(SlotNotBound) { Slot(0) } else { slot };
        out[45..53].copy_from_slice(&view.0.to_le_bytes());
        out[53..61].copy_from_slice(&slot.0.to_le_bytes());
        out[61..].copy_from_slice(&digest.0);
        out
    }
}

/// Signatures of distinct replicas over one statement, ascending by replica. Whether they are
/// enough, and genuine, is for the verifier to say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Certificate(Vec<(ReplicaId, Signature)>);

impl Certificate {
    /// Sorts by replica and drops all but the first signature of each.
    #[must_use]
    pub fn new(mut signatures: Vec<(ReplicaId, Signature)>) -> Certificate {
        signatures.sort_by_key(|(id, _)| *id);
        signatures.dedup_by_key(|(id, _)| *id);
        Certificate(signatures)
    }

    /// The signatures, ascending by replica.
    #[must_use]
    pub fn signatures(&self) -> &[(ReplicaId, Signature)] {
        &self.0
    }

    /// Number of signers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nobody signed (as under r = 0, where links attest).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Encode for (ReplicaId, Signature) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl Decode for (ReplicaId, Signature) {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok((ReplicaId::decode(reader)?, Signature::decode(reader)?))
    }
}

impl Encode for Certificate {
    fn encode(&self, out: &mut Vec<u8>) {
        crate::codec::encode_list(&self.0, out);
    }
}

impl Decode for Certificate {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let signatures: Vec<(ReplicaId, Signature)> =
            reader.list("signatures of a certificate", limits::REPLICAS, 65)?;
        let ascending = |pair: &[(ReplicaId, Signature)]| pair[0].0 < pair[1].0;
        if !signatures.windows(2).all(ascending) && !crate::seeded!(DuplicateSigners) {
            return Err(DecodeError::NotCanonical("signers are not ascending"));
        }
        Ok(Certificate(signatures))
    }
}
