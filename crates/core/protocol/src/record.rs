//! Log records. From them a restarted replica rebuilds both the agreed history and what it
//! promised (docs/design.md, Agreement).

use crate::batch::Batch;
use crate::boots::{Announcement, HeldVote};
use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::configuration::Configuration;
use crate::ids::{Digest, ReplicaId, Slot, View};
use crate::keys::PublicKey;
use crate::message::StateCertificate;
use crate::statement::Certificate;
use crate::viewchange::PrefixCertificate;

/// One log record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// "I entered this view" (or asked for it): no statement of an earlier view leaves any more.
    View(View),
    /// "I voted to accept this batch for this slot in this view." On disk before the Accept leaves
    /// (rule A2).
    Vote {
        /// The view of the vote.
        view: View,
        /// The slot.
        slot: Slot,
        /// The batch.
        batch: Batch,
        /// r > 0: the quorum of Writes that justifies the vote.
        writes: Certificate,
    },
    /// A decided batch for which this replica had not voted, with the proof of its decision.
    Decision {
        /// The slot.
        slot: Slot,
        /// The view of the Accepts.
        view: View,
        /// The batch.
        batch: Batch,
        /// r > 0: a quorum of Accepts; may be empty where a Prefix certificate covers the slot.
        accepts: Certificate,
    },
    /// The quorum of Accepts for a slot in whose log record only the vote stands. Written lazily.
    Accepts {
        /// The slot.
        slot: Slot,
        /// The view of the Accepts.
        view: View,
        /// The batch.
        digest: Digest,
        /// The signatures.
        accepts: Certificate,
    },
    /// All slots up to here are decided, and this is their history hash. Written lazily.
    Delivered {
        /// The last delivered slot.
        slot: Slot,
        /// History hash at that slot.
        history: Digest,
    },
    /// A certified prefix. Written lazily.
    Prefix(PrefixCertificate),
    /// A configuration that was ordered.
    Configuration(Configuration),
    /// A certified state. Written lazily; whoever stores that state can prove it to others by
    /// itself, also when those who certified it have lost it.
    State(StateCertificate),
    /// The newest boot that a replica announced, on disk before it is told so; its own before it announces it.
    Boot {
        /// Which replica.
        replica: ReplicaId,
        /// The key that signed it.
        key: PublicKey,
        /// What it said.
        announcement: Announcement,
    },
    /// The newest Accept that was heard of another replica. Written lazily.
    Heard {
        /// Which replica.
        replica: ReplicaId,
        /// Its key then.
        key: PublicKey,
        /// What it accepted.
        vote: HeldVote,
    },
}

impl Record {
    /// The slot whose promise would be lost with this record: the slot of a vote.
    #[must_use]
    pub fn voted_slot(&self) -> Option<Slot> {
        match self {
            Record::Vote { slot, .. } => Some(*slot),
            _ => None,
        }
    }

    /// The slot and batch that this record holds, if it holds one.
    #[must_use]
    pub fn batch(&self) -> Option<(Slot, &Batch)> {
        match self {
            Record::Vote { slot, batch, .. } | Record::Decision { slot, batch, .. } => {
                Some((*slot, batch))
            }
            _ => None,
        }
    }

    /// The highest slot that this record speaks of; a log file may be dropped when a durable
    /// checkpoint covers the highest slot in it.
    #[must_use]
    pub fn slot(&self) -> Option<Slot> {
        match self {
            Record::Vote { slot, .. }
            | Record::Decision { slot, .. }
            | Record::Accepts { slot, .. }
            | Record::Delivered { slot, .. } => Some(*slot),
            Record::Prefix(prefix) => Some(prefix.slot),
            Record::State(state) => Some(state.slot),
            Record::View(_)
            | Record::Configuration(_)
            | Record::Boot { .. }
            | Record::Heard { .. } => None,
        }
    }
}

impl Encode for Record {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Record::View(view) => {
                out.push(1);
                view.encode(out);
            }
            Record::Vote { view, slot, batch, writes } => {
                out.push(2);
                view.encode(out);
                slot.encode(out);
                writes.encode(out);
                batch.encode(out);
            }
            Record::Decision { slot, view, batch, accepts } => {
                out.push(3);
                slot.encode(out);
                view.encode(out);
                accepts.encode(out);
                batch.encode(out);
            }
            Record::Accepts { slot, view, digest, accepts } => {
                out.push(4);
                slot.encode(out);
                view.encode(out);
                digest.encode(out);
                accepts.encode(out);
            }
            Record::Delivered { slot, history } => {
                out.push(5);
                slot.encode(out);
                history.encode(out);
            }
            Record::Prefix(prefix) => {
                out.push(6);
                prefix.encode(out);
            }
            Record::Configuration(configuration) => {
                out.push(7);
                configuration.encode(out);
            }
            Record::State(state) => {
                out.push(8);
                state.encode(out);
            }
            Record::Boot { replica, key, announcement } => {
                out.push(9);
                replica.encode(out);
                key.encode(out);
                announcement.encode(out);
            }
            Record::Heard { replica, key, vote } => {
                out.push(10);
                replica.encode(out);
                key.encode(out);
                vote.encode(out);
            }
        }
    }
}

impl Decode for Record {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Record::View(Decode::decode(reader)?),
            2 => {
                let view = Decode::decode(reader)?;
                let slot = Decode::decode(reader)?;
                let writes = Decode::decode(reader)?;
                Record::Vote { view, slot, writes, batch: Decode::decode(reader)? }
            }
            3 => {
                let slot = Decode::decode(reader)?;
                let view = Decode::decode(reader)?;
                let accepts = Decode::decode(reader)?;
                Record::Decision { slot, view, accepts, batch: Decode::decode(reader)? }
            }
            4 => Record::Accepts {
                slot: Decode::decode(reader)?,
                view: Decode::decode(reader)?,
                digest: Decode::decode(reader)?,
                accepts: Decode::decode(reader)?,
            },
            5 => Record::Delivered {
                slot: Decode::decode(reader)?,
                history: Decode::decode(reader)?,
            },
            6 => Record::Prefix(Decode::decode(reader)?),
            7 => Record::Configuration(Decode::decode(reader)?),
            8 => Record::State(Decode::decode(reader)?),
            9 => Record::Boot {
                replica: Decode::decode(reader)?,
                key: Decode::decode(reader)?,
                announcement: Decode::decode(reader)?,
            },
            10 => Record::Heard {
                replica: Decode::decode(reader)?,
                key: Decode::decode(reader)?,
                vote: Decode::decode(reader)?,
            },
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}
