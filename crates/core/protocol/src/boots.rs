//! What replicas keep of each other's starts (docs/design.md, Boots).

use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::ids::{BootId, Digest, Slot, View};
use crate::keys::Signature;

impl BootId {
    /// What is signed of it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&[b"perdura.boot.v1", &self.number.to_le_bytes()[..], &self.nonce[..]].concat())
    }
}

/// "This is the boot in which I take part." Said once others have compared what they held before with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// The boot.
    pub boot: BootId,
    /// Number of the configuration in which it is signed.
    pub configuration: u64,
    /// Over (Boot, view 0, slot 0, digest of the boot).
    pub signature: Signature,
}

impl Encode for Announcement {
    fn encode(&self, out: &mut Vec<u8>) {
        self.boot.encode(out);
        self.configuration.encode(out);
        self.signature.encode(out);
    }
}

impl Decode for Announcement {
    fn decode(reader: &mut Reader) -> Result<Announcement, DecodeError> {
        Ok(Announcement {
            boot: Decode::decode(reader)?,
            configuration: Decode::decode(reader)?,
            signature: Decode::decode(reader)?,
        })
    }
}

/// An Accept that was heard of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldVote {
    /// The view.
    pub view: View,
    /// The slot.
    pub slot: Slot,
    /// The batch.
    pub digest: Digest,
    /// Number of the configuration in which it was signed.
    pub configuration: u64,
    /// Over (Accept, view, slot, digest), by whom it is of; not verified by who holds it.
    pub signature: Signature,
}

impl Encode for HeldVote {
    fn encode(&self, out: &mut Vec<u8>) {
        self.view.encode(out);
        self.slot.encode(out);
        self.digest.encode(out);
        self.configuration.encode(out);
        self.signature.encode(out);
    }
}

impl Decode for HeldVote {
    fn decode(reader: &mut Reader) -> Result<HeldVote, DecodeError> {
        Ok(HeldVote {
            view: Decode::decode(reader)?,
            slot: Decode::decode(reader)?,
            digest: Decode::decode(reader)?,
            configuration: Decode::decode(reader)?,
            signature: Decode::decode(reader)?,
        })
    }
}

/// What is held of a replica, for that one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recalled {
    /// In which boot it asked.
    pub asked: BootId,
    /// Its newest announcement, on the disk of whom holds it; none if there was none.
    pub announcement: Option<Announcement>,
    /// In answer to an announcement: the one in whose place it came, if there was another.
    pub replaced: Option<Announcement>,
    /// The newest vote that was heard of it; none if none was.
    pub vote: Option<HeldVote>,
}

impl Encode for Recalled {
    fn encode(&self, out: &mut Vec<u8>) {
        self.asked.encode(out);
        self.announcement.encode(out);
        self.replaced.encode(out);
        self.vote.encode(out);
    }
}

impl Decode for Recalled {
    fn decode(reader: &mut Reader) -> Result<Recalled, DecodeError> {
        Ok(Recalled {
            asked: Decode::decode(reader)?,
            announcement: Decode::decode(reader)?,
            replaced: Decode::decode(reader)?,
            vote: Decode::decode(reader)?,
        })
    }
}
