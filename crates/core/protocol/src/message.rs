//! Every message between replicas and between clients and replicas.
//!
//! A message is a tag byte and its content; the transport carries its length. Who sent it is known
//! from the link, whose TLS handshake proved the sender's key; what others must be able to believe
//! later carries signatures of its own.

use crate::BootId;
use crate::attestation::Attested;
use crate::batch::Batch;
use crate::boots::{Announcement, Recalled};
use crate::codec::{Decode, DecodeError, Encode, Reader, encode_bytes, encode_list};
use crate::command::Outcome;
use crate::frame::Frame;
use crate::ids::{Digest, Slot, View};
use crate::keys::Signature;
use crate::limits;
use crate::statement::Certificate;
use crate::viewchange::{NewView, PrefixCertificate, ViewChange};
use crate::vitals::{Presence, Vitals};
use bytes::Bytes;

/// Over which of its two links to another replica a message goes, so that votes do not wait behind
/// megabytes. Each keeps its own order; between the two there is none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Lane {
    /// What agreement waits for, and everything else that is small.
    Agreement,
    /// What replicas that were away ask for, and what they are sent: states and decided batches.
    Transfer,
}

impl Lane {
    /// The lane of a message with these bytes, by its tag (FetchManifest, Manifest, FetchPiece, Piece,
    /// Fetch, Decisions), without decoding it. Locked batches stay with agreement: a view waits for them.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Lane {
        match bytes.first() {
            Some(13 | 14 | 19..=22) => Lane::Transfer,
            _ => Lane::Agreement,
        }
    }
}

/// A decided batch with the proof of its decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The slot.
    pub slot: Slot,
    /// The view of the Accepts.
    pub view: View,
    /// r > 0: a quorum of Accepts, or empty where a Prefix certificate covers the slot.
    pub accepts: Certificate,
    /// The batch.
    pub batch: Batch,
}

/// m + 1 signed digests of the state after one slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateCertificate {
    /// The slot.
    pub slot: Slot,
    /// Digest of the state's manifest.
    pub digest: Digest,
    /// Number of the configuration in which the statements are signed.
    pub configuration: u64,
    /// Signatures over (Checkpoint, view 0, slot, digest).
    pub certificate: Certificate,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Client to leader, client to all after a time-out, replica to leader.
    Frame(Frame),
    /// r > 0, replica to leader: this frame was handed over before, and the leader passed it over.
    Overdue(Frame),
    /// Leader to active replicas. Carries what is decided so far (used when r = 0).
    Propose {
        /// The leader's view.
        view: View,
        /// The slot.
        slot: Slot,
        /// The batch.
        batch: Batch,
        /// All slots up to here are decided.
        decided: Slot,
        /// History hash at `decided`.
        history: Digest,
    },
    /// r > 0, all to all, batch in hand.
    Write {
        /// The view.
        view: View,
        /// The slot.
        slot: Slot,
        /// The batch.
        digest: Digest,
        /// Over (Write, view, slot, digest).
        signature: Signature,
    },
    /// Batch and vote are on the sender's disk. r > 0: to all, signed. r = 0: to the leader.
    Accept {
        /// The view.
        view: View,
        /// The slot.
        slot: Slot,
        /// The batch.
        digest: Digest,
        /// Over (Accept, view, slot, digest); [`Signature::NONE`] when r = 0.
        signature: Signature,
    },
    /// r = 0, leader to all when idle: everything up to `slot` is decided.
    Decided {
        /// The leader's view.
        view: View,
        /// The last decided slot.
        slot: Slot,
        /// History hash at that slot.
        history: Digest,
    },
    /// All to all every [`limits::PREFIX_INTERVAL`] delivered slots, with r > 0 every `depth` if that is less.
    Prefix {
        /// The slot.
        slot: Slot,
        /// History hash at that slot.
        history: Digest,
        /// Over (Prefix, view 0, slot, history).
        signature: Signature,
    },
    /// All to all, several times a second: the heartbeat, and the base of every retransmission.
    Status {
        /// The sender's view.
        view: View,
        /// Whether it waits for that view's NewView.
        changing: bool,
        /// Its last delivered slot.
        delivered: Slot,
    },
    /// "I want this view, for its predecessor's leader does not serve." Commits to nothing.
    Suspect {
        /// The view wanted.
        view: View,
    },
    /// Signed vote for a later view, with the sender's locks.
    ViewChange(Box<ViewChange>),
    /// The start of a view.
    NewView(Box<NewView>),
    /// "Send me this batch of one of your locks", or of what the view that you lead is bound to.
    FetchBatch {
        /// Its slot.
        slot: Slot,
        /// The batch.
        digest: Digest,
    },
    /// Answer to FetchBatch.
    LockedBatch {
        /// Its slot.
        slot: Slot,
        /// The batch.
        batch: Batch,
    },
    /// "Send me these decided batches, or the first of them."
    Fetch {
        /// The first slot wanted.
        from: Slot,
        /// The last one.
        to: Slot,
    },
    /// Answer to Fetch: consecutive decided batches, with proof for each or for the prefix that
    /// they end in or before.
    Decisions {
        /// Ascending without gaps.
        decisions: Vec<Decision>,
        /// A certified prefix that ends among them, or behind the last one.
        prefix: Option<PrefixCertificate>,
        /// The digests of the batches behind the last one up to there, at most
        /// [`limits::DECISIONS`]: with them the prefix proves what comes before. Without one, those up to where a
        /// prefix may be certified otherwise.
        between: Vec<Digest>,
    },
    /// Answer to Fetch when the slots wanted are no longer in the log.
    TooOld {
        /// The sender's newest stored checkpoint.
        checkpoint: Slot,
    },
    /// Signed digest of the state after a slot. With coordinated checkpoints the state is durable at
    /// the sender; with sequential ones what led to it is, and nothing is said of the state itself.
    Checkpoint {
        /// The slot.
        slot: Slot,
        /// Digest of the state's manifest.
        digest: Digest,
        /// Over (Checkpoint, view 0, slot, digest).
        signature: Signature,
    },
    /// "Which state can you send, and where are you?"
    StateQuery,
    /// Answer to StateQuery.
    StateInfo {
        /// Last delivered slot.
        delivered: Slot,
        /// Proof of the newest certified state that the sender stores.
        state: Option<StateCertificate>,
        /// The sender's certified prefix; at or above the state's slot.
        prefix: PrefixCertificate,
    },
    /// "Send me the manifest of the state after this slot."
    FetchManifest {
        /// The slot.
        slot: Slot,
    },
    /// Answer to FetchManifest; its digest is what was certified.
    Manifest {
        /// The slot.
        slot: Slot,
        /// The encoded manifest; empty if the sender no longer has that state.
        manifest: Bytes,
    },
    /// "Send me this piece of the state after this slot."
    FetchPiece {
        /// The slot.
        slot: Slot,
        /// Index in the manifest.
        index: u32,
    },
    /// Answer to FetchPiece.
    Piece {
        /// The slot.
        slot: Slot,
        /// Index in the manifest.
        index: u32,
        /// The encoded piece; empty if the sender no longer has that state.
        piece: Bytes,
    },
    /// All to all, once a second: how the sender is.
    Vitals(Box<Vitals>),
    /// On each link to a replica: "in this boot I am; what do you hold of me?"
    Compare(BootId),
    /// In which boot the sender takes part, once enough have compared.
    Announce(Announcement),
    /// Answer to both: what the sender holds of that replica.
    Recall(Box<Recalled>),
    /// Client to all: "replies of this session of mine go to this connection".
    Attach {
        /// The session's number.
        nonce: u64,
    },
    /// Replica to client, after Attach and when the leader changes: which view it is in.
    Welcome {
        /// The replica's view.
        view: View,
    },
    /// Client to n - u replicas, or to more: a read that is not ordered (rule C2).
    Read {
        /// Chosen by the client, echoed in the answer.
        id: u64,
        /// Encoded service command.
        command: Bytes,
    },
    /// Client to replicas that said that they keep states: a read of the state after one slot (rule C2).
    ReadAt {
        /// Chosen by the client, echoed in the answer.
        id: u64,
        /// The slot.
        slot: Slot,
        /// Encoded service command.
        command: Bytes,
    },
    /// Replica to client: answer to Read and ReadAt.
    ReadReply {
        /// As in the question.
        id: u64,
        /// The reply is of the state behind this slot: the last one that was executed, or that which was asked for.
        slot: Slot,
        /// The reply; `None` when the replica may not answer now (it recovers, or has not the state that was asked for) or the command is
        /// not a read.
        outcome: Option<Outcome>,
    },
    /// Replica to client: outcomes of ordered commands.
    Replies {
        /// The replica's view, so that the client knows the leader.
        view: View,
        /// The session's number.
        nonce: u64,
        /// By command number.
        outcomes: Vec<(u64, Outcome)>,
    },
    /// Replica to client, behind the Replies that it belongs to: what it attests of them to those outside of the group. Also when r = 0.
    Attested(Box<Attested>),
    /// Replica to client: the frame was not taken because queues are full; try again later.
    Busy {
        /// The session's number.
        nonce: u64,
        /// First number of the frame.
        first_number: u64,
    },
    /// Client to all: "who is there?"
    RollCall {
        /// Chosen by the client, echoed in the answer.
        nonce: [u8; 16],
    },
    /// Answer to RollCall.
    Present {
        /// How the replica is.
        presence: Presence,
        /// Over (Present, view 0, slot 0, digest of nonce and vitals), in the configuration named.
        signature: Signature,
    },
}

impl Encode for Decision {
    fn encode(&self, out: &mut Vec<u8>) {
        self.slot.encode(out);
        self.view.encode(out);
        self.accepts.encode(out);
        self.batch.encode(out);
    }
}

impl Decode for Decision {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Decision {
            slot: Decode::decode(reader)?,
            view: Decode::decode(reader)?,
            accepts: Decode::decode(reader)?,
            batch: Decode::decode(reader)?,
        })
    }
}

impl Encode for StateCertificate {
    fn encode(&self, out: &mut Vec<u8>) {
        self.slot.encode(out);
        self.digest.encode(out);
        self.configuration.encode(out);
        self.certificate.encode(out);
    }
}

impl Decode for StateCertificate {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(StateCertificate {
            slot: Decode::decode(reader)?,
            digest: Decode::decode(reader)?,
            configuration: Decode::decode(reader)?,
            certificate: Decode::decode(reader)?,
        })
    }
}

impl Encode for (u64, Outcome) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl Decode for (u64, Outcome) {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok((Decode::decode(reader)?, Decode::decode(reader)?))
    }
}

/// Writes the tag and the fields of a message, in order.
macro_rules! put {
    ($out:expr, $tag:expr $(, $field:expr)*) => {{
        $out.push($tag);
        $($field.encode($out);)*
    }};
}

impl Encode for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Frame(frame) => put!(out, 1, frame),
            Message::Propose { view, slot, batch, decided, history } => {
                put!(out, 2, view, slot, decided, history, batch);
            }
            Message::Write { view, slot, digest, signature } => {
                put!(out, 3, view, slot, digest, signature);
            }
            Message::Accept { view, slot, digest, signature } => {
                put!(out, 4, view, slot, digest, signature);
            }
            Message::Decided { view, slot, history } => put!(out, 5, view, slot, history),
            Message::Prefix { slot, history, signature } => {
                put!(out, 6, slot, history, signature);
            }
            Message::Status { view, changing, delivered } => {
                put!(out, 7, view, changing, delivered);
            }
            Message::Suspect { view } => put!(out, 8, view),
            Message::ViewChange(change) => put!(out, 9, change),
            Message::NewView(new_view) => put!(out, 10, new_view),
            Message::FetchBatch { slot, digest } => put!(out, 11, slot, digest),
            Message::LockedBatch { slot, batch } => put!(out, 12, slot, batch),
            Message::Fetch { from, to } => put!(out, 13, from, to),
            Message::Decisions { decisions, prefix, between } => {
                out.push(14);
                encode_list(decisions, out);
                prefix.encode(out);
                encode_list(between, out);
            }
            Message::TooOld { checkpoint } => put!(out, 15, checkpoint),
            Message::Checkpoint { slot, digest, signature } => {
                put!(out, 16, slot, digest, signature);
            }
            Message::StateQuery => out.push(17),
            Message::StateInfo { delivered, state, prefix } => {
                put!(out, 18, delivered, state, prefix);
            }
            Message::FetchManifest { slot } => put!(out, 19, slot),
            Message::Manifest { slot, manifest } => {
                put!(out, 20, slot);
                encode_bytes(manifest, out);
            }
            Message::FetchPiece { slot, index } => put!(out, 21, slot, index),
            Message::Piece { slot, index, piece } => {
                put!(out, 22, slot, index);
                encode_bytes(piece, out);
            }
            Message::Overdue(frame) => put!(out, 23, frame),
            Message::Vitals(vitals) => put!(out, 24, vitals),
            Message::Compare(boot) => put!(out, 40, boot),
            Message::Announce(announcement) => put!(out, 25, announcement),
            Message::Recall(recalled) => put!(out, 26, recalled),
            Message::Attach { nonce } => put!(out, 32, nonce),
            Message::Welcome { view } => put!(out, 33, view),
            Message::Read { id, command } => {
                put!(out, 34, id);
                encode_bytes(command, out);
            }
            Message::ReadAt { id, slot, command } => {
                put!(out, 42, id, slot);
                encode_bytes(command, out);
            }
            Message::ReadReply { id, slot, outcome } => put!(out, 35, id, slot, outcome),
            Message::Replies { view, nonce, outcomes } => {
                put!(out, 36, view, nonce);
                encode_list(outcomes, out);
            }
            Message::Busy { nonce, first_number } => put!(out, 37, nonce, first_number),
            Message::RollCall { nonce } => put!(out, 38, nonce),
            Message::Present { presence, signature } => put!(out, 39, presence, signature),
            Message::Attested(attested) => put!(out, 41, attested),
        }
    }
}

/// Reads the fields of a message, in order.
macro_rules! get {
    ($reader:expr, $name:ident { $($field:ident),* }) => {{
        $(let $field = Decode::decode($reader)?;)*
        Message::$name { $($field),* }
    }};
}

impl Decode for Message {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Message::Frame(Decode::decode(reader)?),
            2 => get!(reader, Propose { view, slot, decided, history, batch }),
            3 => get!(reader, Write { view, slot, digest, signature }),
            4 => get!(reader, Accept { view, slot, digest, signature }),
            5 => get!(reader, Decided { view, slot, history }),
            6 => get!(reader, Prefix { slot, history, signature }),
            7 => get!(reader, Status { view, changing, delivered }),
            8 => get!(reader, Suspect { view }),
            9 => Message::ViewChange(Box::new(Decode::decode(reader)?)),
            10 => Message::NewView(Box::new(Decode::decode(reader)?)),
            11 => get!(reader, FetchBatch { slot, digest }),
            12 => get!(reader, LockedBatch { slot, batch }),
            13 => get!(reader, Fetch { from, to }),
            14 => {
                let decisions = reader.list("decisions", limits::DECISIONS, 37)?;
                let prefix = Decode::decode(reader)?;
                let between = reader.list("digests between", limits::DECISIONS, 32)?;
                Message::Decisions { decisions, prefix, between }
            }
            15 => get!(reader, TooOld { checkpoint }),
            16 => get!(reader, Checkpoint { slot, digest, signature }),
            17 => Message::StateQuery,
            18 => get!(reader, StateInfo { delivered, state, prefix }),
            19 => get!(reader, FetchManifest { slot }),
            20 => Message::Manifest {
                slot: Decode::decode(reader)?,
                manifest: reader.bytes("manifest", limits::MANIFEST_BYTES)?,
            },
            21 => get!(reader, FetchPiece { slot, index }),
            22 => Message::Piece {
                slot: Decode::decode(reader)?,
                index: Decode::decode(reader)?,
                piece: reader.bytes("piece", limits::PIECE_BYTES)?,
            },
            23 => Message::Overdue(Decode::decode(reader)?),
            24 => Message::Vitals(Box::new(Decode::decode(reader)?)),
            40 => Message::Compare(Decode::decode(reader)?),
            25 => Message::Announce(Decode::decode(reader)?),
            26 => Message::Recall(Box::new(Decode::decode(reader)?)),
            32 => get!(reader, Attach { nonce }),
            33 => get!(reader, Welcome { view }),
            34 => Message::Read {
                id: Decode::decode(reader)?,
                command: reader.bytes("command", limits::COMMAND_BYTES)?,
            },
            35 => get!(reader, ReadReply { id, slot, outcome }),
            36 => Message::Replies {
                view: Decode::decode(reader)?,
                nonce: Decode::decode(reader)?,
                outcomes: reader.list("outcomes", limits::SESSION_WINDOW as usize, 9)?,
            },
            37 => get!(reader, Busy { nonce, first_number }),
            38 => get!(reader, RollCall { nonce }),
            39 => get!(reader, Present { presence, signature }),
            42 => Message::ReadAt {
                id: Decode::decode(reader)?,
                slot: Decode::decode(reader)?,
                command: reader.bytes("command", limits::COMMAND_BYTES)?,
            },
            41 => Message::Attested(Box::new(Decode::decode(reader)?)),
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}

impl Message {
    /// Whether these bytes, if they are a message, bring batches to a replica or start a view
    /// (Propose, NewView, LockedBatch, Decisions): what their tag says, without decoding them.
    #[must_use]
    pub fn brings_batches_or_view(bytes: &[u8]) -> bool {
        matches!(bytes.first(), Some(2 | 10 | 12 | 14))
    }

    /// Whether these bytes, if they are a message, say where a replica is (Status): what their tag says.
    #[must_use]
    pub fn is_status(bytes: &[u8]) -> bool {
        bytes.first() == Some(&7)
    }

    /// Whether they are a vote (Accept).
    #[must_use]
    pub fn is_accept(bytes: &[u8]) -> bool {
        bytes.first() == Some(&4)
    }

    /// Whether they ask for something to be read that is not ordered (Read, ReadAt).
    #[must_use]
    pub fn is_read(bytes: &[u8]) -> bool {
        matches!(bytes.first(), Some(34 | 42))
    }

    /// Whether they say what is held of a replica (Recall).
    #[must_use]
    pub fn is_recall(bytes: &[u8]) -> bool {
        bytes.first() == Some(&26)
    }

    /// Whether a client may send this.
    #[must_use]
    pub fn from_client(&self) -> bool {
        matches!(
            self,
            Message::Frame(_)
                | Message::Attach { .. }
                | Message::Read { .. }
                | Message::ReadAt { .. }
                | Message::RollCall { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ReplicaId, Time};

    #[test]
    fn the_tag_tells_what_brings_batches_or_a_view() {
        let batch = || Batch::tick(Time(7));
        let (view, slot, digest) = (View(1), Slot(2), Digest::ZERO);
        let decision = Decision { slot, view, accepts: Certificate::default(), batch: batch() };
        let (sender, changes, signature) = (ReplicaId(0), Vec::new(), Signature::NONE);
        let new_view = NewView { view, sender, configuration: 0, changes, signature };
        let boot = crate::BootId { number: 1, nonce: [0; 16] };
        let announcement = Announcement { boot, configuration: 0, signature };
        let asked = announcement.boot;
        let recalled =
            Recalled { asked, announcement: Some(announcement), replaced: None, vote: None };
        let messages = [
            (Message::Propose { view, slot, batch: batch(), decided: slot, history: digest }, true),
            (Message::NewView(Box::new(new_view)), true),
            (Message::LockedBatch { slot, batch: batch() }, true),
            (Message::Decisions { decisions: vec![decision], prefix: None, between: vec![] }, true),
            (Message::Write { view, slot, digest, signature }, false),
            (Message::Accept { view, slot, digest, signature }, false),
            (Message::Decided { view, slot, history: digest }, false),
            (Message::Prefix { slot, history: digest, signature }, false),
            (Message::Status { view, changing: false, delivered: slot }, false),
            (Message::StateQuery, false),
            (Message::Read { id: 1, command: Bytes::from_static(b"read") }, false),
            (Message::ReadAt { id: 1, slot, command: Bytes::from_static(b"read") }, false),
            (Message::Recall(Box::new(recalled)), false),
        ];
        for (message, brings) in messages {
            let bytes = message.to_bytes();
            assert_eq!(Message::brings_batches_or_view(&bytes), brings, "{message:?}");
            let is_status = matches!(message, Message::Status { .. });
            assert_eq!(Message::is_status(&bytes), is_status, "{message:?}");
            let is_accept = matches!(message, Message::Accept { .. });
            assert_eq!(Message::is_accept(&bytes), is_accept, "{message:?}");
            let is_read = matches!(message, Message::Read { .. } | Message::ReadAt { .. });
            assert_eq!(Message::is_read(&bytes), is_read, "{message:?}");
            let is_recall = matches!(message, Message::Recall(_));
            assert_eq!(Message::is_recall(&bytes), is_recall, "{message:?}");
        }
        assert!(!Message::brings_batches_or_view(&[]));
    }

    #[test]
    fn what_belongs_to_a_transfer_has_a_lane_of_its_own() {
        let (view, slot, digest) = (View(1), Slot(2), Digest::ZERO);
        let batch = || Batch::tick(Time(7));
        let decision = Decision { slot, view, accepts: Certificate::default(), batch: batch() };
        let (signature, bytes) = (Signature::NONE, Bytes::from_static(b"bytes"));
        let prefix = PrefixCertificate::genesis();
        let transfer = [
            Message::Fetch { from: slot, to: slot },
            Message::Decisions { decisions: vec![decision], prefix: None, between: vec![] },
            Message::FetchManifest { slot },
            Message::Manifest { slot, manifest: bytes.clone() },
            Message::FetchPiece { slot, index: 1 },
            Message::Piece { slot, index: 1, piece: bytes },
        ];
        let agreement = [
            Message::Propose { view, slot, batch: batch(), decided: slot, history: digest },
            Message::Write { view, slot, digest, signature },
            Message::Accept { view, slot, digest, signature },
            Message::Decided { view, slot, history: digest },
            Message::Prefix { slot, history: digest, signature },
            Message::Status { view, changing: false, delivered: slot },
            Message::Suspect { view },
            Message::FetchBatch { slot, digest },
            Message::LockedBatch { slot, batch: batch() },
            Message::TooOld { checkpoint: slot },
            Message::Checkpoint { slot, digest, signature },
            Message::StateQuery,
            Message::StateInfo { delivered: slot, state: None, prefix },
        ];
        let lane = |message: &Message| Lane::of(&message.to_bytes());
        assert!(transfer.iter().all(|message| lane(message) == Lane::Transfer));
        assert!(agreement.iter().all(|message| lane(message) == Lane::Agreement));
        assert_eq!(Lane::of(&[]), Lane::Agreement);
    }
}
