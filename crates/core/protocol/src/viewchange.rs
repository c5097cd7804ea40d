//! The evidence that carries decisions from one view into the next (docs/design.md, Agreement; PBFT's
//! view change with the certificate of prepared batches as "lock", Paxos' highest accepted value
//! when r = 0). How the choice is computed from it is `agreement`'s business.

use crate::codec::{Decode, DecodeError, Encode, Reader, encode_list};
use crate::ids::{Digest, ReplicaId, Slot, View};
use crate::keys::Signature;
use crate::limits;
use crate::statement::Certificate;

/// Proof that a history was delivered: r + 1 signed Prefix statements. Slot 0 needs none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrefixCertificate {
    /// Last slot of the prefix.
    pub slot: Slot,
    /// History hash at that slot.
    pub history: Digest,
    /// Number of the configuration that governs the slot, in which it is signed.
    pub configuration: u64,
    /// Signatures over (Prefix, view 0, slot, history).
    pub certificate: Certificate,
}

impl PrefixCertificate {
    /// The empty prefix, which needs no proof.
    #[must_use]
    pub fn genesis() -> PrefixCertificate {
        PrefixCertificate {
            slot: Slot(0),
            history: Digest::ZERO,
            configuration: 0,
            certificate: Certificate::default(),
        }
    }
}

/// The highest view in which a replica voted to accept a batch for a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The slot.
    pub slot: Slot,
    /// The view of the vote.
    pub view: View,
    /// The batch.
    pub digest: Digest,
    /// r > 0: a quorum of Writes of that view. r = 0: empty.
    pub writes: Certificate,
}

/// "I am done with views before `view`; above `prefix` I hold these locks."
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewChange {
    /// The view that is asked for.
    pub view: View,
    /// Who asks.
    pub sender: ReplicaId,
    /// Number of the configuration in which this is signed.
    pub configuration: u64,
    /// The highest certified prefix known to the sender.
    pub prefix: PrefixCertificate,
    /// Ascending by slot, all above the prefix.
    pub locks: Vec<Lock>,
    /// Over the digest of all of the above.
    pub signature: Signature,
}

/// "`view` starts from these."
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewView {
    /// The view that starts.
    pub view: View,
    /// Its leader.
    pub sender: ReplicaId,
    /// Number of the configuration in which this is signed.
    pub configuration: u64,
    /// A quorum of view changes for this view, ascending by sender.
    pub changes: Vec<ViewChange>,
    /// Over the digest of all of the above.
    pub signature: Signature,
}

impl ViewChange {
    /// View 8, sender 1, configuration 8, an empty prefix 52, no locks 4, signature 64.
    const LEAST_BYTES: usize = 137;

    fn encode_body(&self, out: &mut Vec<u8>) {
        self.view.encode(out);
        self.sender.encode(out);
        self.configuration.encode(out);
        self.prefix.encode(out);
        encode_list(&self.locks, out);
    }

    /// What the signature covers, as the digest of a statement.
    #[must_use]
    pub fn body_digest(&self) -> Digest {
        let mut out = Vec::new();
        self.encode_body(&mut out);
        Digest::of(&out)
    }
}

impl NewView {
    fn encode_body(&self, out: &mut Vec<u8>) {
        self.view.encode(out);
        self.sender.encode(out);
        self.configuration.encode(out);
        encode_list(&self.changes, out);
    }

    /// What the signature covers, as the digest of a statement.
    #[must_use]
    pub fn body_digest(&self) -> Digest {
        let mut out = Vec::new();
        self.encode_body(&mut out);
        Digest::of(&out)
    }
}

impl Encode for PrefixCertificate {
    fn encode(&self, out: &mut Vec<u8>) {
        self.slot.encode(out);
        self.history.encode(out);
        self.configuration.encode(out);
        self.certificate.encode(out);
    }
}

impl Decode for PrefixCertificate {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(PrefixCertificate {
            slot: Decode::decode(reader)?,
            history: Decode::decode(reader)?,
            configuration: Decode::decode(reader)?,
            certificate: Decode::decode(reader)?,
        })
    }
}

impl Encode for Lock {
    fn encode(&self, out: &mut Vec<u8>) {
        self.slot.encode(out);
        self.view.encode(out);
        self.digest.encode(out);
        self.writes.encode(out);
    }
}

impl Decode for Lock {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Lock {
            slot: Decode::decode(reader)?,
            view: Decode::decode(reader)?,
            digest: Decode::decode(reader)?,
            writes: Decode::decode(reader)?,
        })
    }
}

impl Encode for ViewChange {
    fn encode(&self, out: &mut Vec<u8>) {
        self.encode_body(out);
        self.signature.encode(out);
    }
}

impl Decode for ViewChange {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let change = ViewChange {
            view: Decode::decode(reader)?,
            sender: Decode::decode(reader)?,
            configuration: Decode::decode(reader)?,
            prefix: Decode::decode(reader)?,
            locks: reader.list("locks of a view change", limits::WINDOW as usize, 52)?,
            signature: Decode::decode(reader)?,
        };
        let ascending = change.locks.windows(2).all(|pair| pair[0].slot < pair[1].slot);
        if !ascending || change.locks.first().is_some_and(|l| l.slot <= change.prefix.slot) {
            return Err(DecodeError::NotCanonical("locks are not ascending above the prefix"));
        }
        Ok(change)
    }
}

impl Encode for NewView {
    fn encode(&self, out: &mut Vec<u8>) {
        self.encode_body(out);
        self.signature.encode(out);
    }
}

impl Decode for NewView {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let new_view = NewView {
            view: Decode::decode(reader)?,
            sender: Decode::decode(reader)?,
            configuration: Decode::decode(reader)?,
            changes: reader.list("view changes", limits::REPLICAS, ViewChange::LEAST_BYTES)?,
            signature: Decode::decode(reader)?,
        };
        if new_view.changes.windows(2).any(|pair| pair[0].sender >= pair[1].sender) {
            return Err(DecodeError::NotCanonical("view changes are not ascending by sender"));
        }
        Ok(new_view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the first view change of the largest group brings together, when nothing was proposed.
    #[test]
    fn a_new_view_of_least_view_changes_is_read_back() {
        let change = |sender| ViewChange {
            view: View(1),
            sender: ReplicaId(sender),
            configuration: 0,
            prefix: PrefixCertificate::genesis(),
            locks: Vec::new(),
            signature: Signature([7; 64]),
        };
        assert_eq!(change(0).to_bytes().len(), ViewChange::LEAST_BYTES);
        for changes in 1..=limits::REPLICAS as u8 {
            let new_view = NewView {
                view: View(1),
                sender: ReplicaId(1),
                configuration: 0,
                changes: (0..changes).map(change).collect(),
                signature: Signature([8; 64]),
            };
            assert_eq!(NewView::from_bytes(new_view.to_bytes()), Ok(new_view));
        }
    }
}
