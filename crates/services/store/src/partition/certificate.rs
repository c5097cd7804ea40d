//! Proof of another partition's statement, and who its members are.
//!
//! Whether the signatures hold *under the keys named here* is a question about these bytes alone, and is answered before a command is
//! ordered. Whether the keys named are those of the group's members as this partition knows them is a question about the state, and
//! is answered when the command is executed.

use super::statement::Statement;
use perdura_protocol::codec::{encode_count, encode_list};
use perdura_protocol::keys::Claim;
use perdura_protocol::statement::{STATEMENT_BYTES, StatementKind};
use perdura_protocol::{
    Attestation, Context, Decode, DecodeError, Digest, Encode, Map, PartitionId, PublicKey, Reader,
    SecretKey, Signature, Slot, View, limits,
};

/// A signature to verify.
pub type StatementClaim = Claim<[u8; STATEMENT_BYTES]>;

/// r + 1 attestations of one statement by members of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// Whose statement.
    pub partition: PartitionId,
    /// Exactly r + 1, of one configuration, ascending by replica; each with the key under which its signature holds.
    pub signers: Vec<(PublicKey, Attestation)>,
}

impl Certificate {
    /// What is to be verified for it to prove `statement`; none if it proves nothing, whatever the signatures are.
    #[must_use]
    pub fn claims(&self, map: &Map, statement: &Statement) -> Option<Vec<StatementClaim>> {
        let group = map.group(self.partition)?;
        let first = &self.signers.first()?.1;
        let ascending = self.signers.windows(2).all(|pair| pair[0].1.signer < pair[1].1.signer);
        let together = self.signers.iter().all(|(_, one)| one.configuration == first.configuration);
        if self.signers.len() != group.faults.reply_quorum() || !ascending || !together {
            return None;
        }
        let leaf = statement.to_bytes();
        self.signers.iter().map(|(key, one)| one.claim(group.id, &leaf, *key)).collect()
    }

    /// Whether those who signed are members as the record has them.
    #[must_use]
    pub fn is_by(&self, members: &Members) -> bool {
        self.partition == members.partition
            && self.signers.iter().all(|(key, one)| {
                one.configuration == members.configuration
                    && members.keys.get(one.signer.index()) == Some(key)
            })
    }
}

impl Encode for Certificate {
    fn encode(&self, out: &mut Vec<u8>) {
        self.partition.encode(out);
        encode_count(self.signers.len(), out);
        for (key, attestation) in &self.signers {
            key.encode(out);
            attestation.encode(out);
        }
    }
}

impl Decode for Certificate {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let partition = Decode::decode(reader)?;
        let count = reader.count("signers of a certificate", limits::REPLICAS, 32 + 85)?;
        let mut signers = Vec::with_capacity(count);
        for _ in 0..count {
            signers.push((Decode::decode(reader)?, Decode::decode(reader)?));
        }
        Ok(Certificate { partition, signers })
    }
}

/// Who the members of a partition's group are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Members {
    /// Which.
    pub partition: PartitionId,
    /// Number of the configuration: a newer record has a larger one.
    pub configuration: u64,
    /// By replica id.
    pub keys: Vec<PublicKey>,
}

impl Members {
    /// What the administrator signs. None if the group could not have these members.
    fn message(&self, map: &Map) -> Option<[u8; STATEMENT_BYTES]> {
        let group = map.group(self.partition)?;
        if self.keys.len() != group.faults.n() {
            return None;
        }
        let mut out = b"perdura.members.v1".to_vec();
        self.encode(&mut out);
        let context = Context { cluster: group.id, configuration: self.configuration };
        Some(context.statement(StatementKind::Members, View(0), Slot(0), Digest::of(&out)))
    }

    /// With the administrator's word for it. None if the group could not have these members.
    #[must_use]
    pub fn signed(self, map: &Map, administrator: &SecretKey) -> Option<SignedMembers> {
        let signature = administrator.sign(&self.message(map)?);
        Some(SignedMembers { members: self, administrator: administrator.public(), signature })
    }
}

/// Who the members of a group are, by the administrator's word. Anybody may pass it on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignedMembers {
    /// They.
    pub members: Members,
    /// Whose word that is.
    pub administrator: PublicKey,
    /// His signature.
    pub signature: Signature,
}

impl SignedMembers {
    /// What is to be verified. None if the group could not have these members.
    #[must_use]
    pub fn claim(&self, map: &Map) -> Option<StatementClaim> {
        let message = self.members.message(map)?;
        Some(Claim { key: self.administrator, message, signature: self.signature })
    }
}

impl Encode for SignedMembers {
    fn encode(&self, out: &mut Vec<u8>) {
        self.members.encode(out);
        self.administrator.encode(out);
        self.signature.encode(out);
    }
}

impl Decode for SignedMembers {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(SignedMembers {
            members: Decode::decode(reader)?,
            administrator: Decode::decode(reader)?,
            signature: Decode::decode(reader)?,
        })
    }
}

impl Encode for Members {
    fn encode(&self, out: &mut Vec<u8>) {
        self.partition.encode(out);
        self.configuration.encode(out);
        encode_list(&self.keys, out);
    }
}

impl Decode for Members {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Members {
            partition: Decode::decode(reader)?,
            configuration: Decode::decode(reader)?,
            keys: reader.list("members of a group", limits::REPLICAS, 32)?,
        })
    }
}
