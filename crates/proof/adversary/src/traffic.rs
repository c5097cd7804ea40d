//! Lies by traffic: silence, delay, repetition, noise, floods.

use crate::liar::{Liar, Speech};
use bytes::Bytes;
use perdura_protocol::message::Message;
use perdura_protocol::{
    Batch, ClusterId, Decode, Digest, Encode, Frame, ReplicaId, Slot, Time, View,
};
use perdura_replica::node::{Peer, Said};

/// How late a slow leader proposes, milliseconds: below the time-out of a request.
const BARELY_MS: u64 = 850;

/// Messages to each other replica, every 20 ms, of one that floods.
const FLOOD: usize = 12;

/// Frames in a proposal that nobody takes.
const UNTIMELY_BYTES: usize = 16 * 1024;

/// Questions of one that asks for the same again and again.
const BURST: usize = 400;

/// One frame of so many is never ordered by one that withholds some.
const WITHHELD_OF: u64 = 16;

/// Whether a frame is one of those that are never ordered, whoever brings it and however often.
pub(crate) fn withholds(message: &Message) -> bool {
    let (Message::Frame(frame) | Message::Overdue(frame)) = message else { return false };
    let name = frame.session.nonce ^ frame.first_number << 32;
    crate::random::mix(name).is_multiple_of(WITHHELD_OF)
}

impl Liar {
    /// Whether a frame is of the client that it does not want to serve.
    pub(crate) fn censors(&mut self, message: &Message) -> bool {
        let (Message::Frame(frame) | Message::Overdue(frame)) = message else { return false };
        let client = frame.session.client;
        *self.victim.get_or_insert(client) == client
    }

    pub(crate) fn keep_silent(&mut self, mut speech: Speech<'_>) {
        let name = match speech.peer {
            Peer::Replica(id) => u64::from(id.0),
            Peer::Client { connection, .. } => 100 + connection,
        };
        if crate::random::mix(self.mood_number ^ (name << 32)) & 1 == 0 {
            speech.plainly();
        }
    }

    pub(crate) fn lead_slowly(&mut self, mut speech: Speech<'_>) {
        match speech.message {
            Message::Propose { .. } => {
                let bytes = speech.bytes.clone();
                speech.after(BARELY_MS, bytes);
            }
            _ => speech.plainly(),
        }
    }

    pub(crate) fn replay(&mut self, mut speech: Speech<'_>) {
        speech.plainly();
        if self.random.percent(20) && speech.replica().is_some() {
            let index = self.random.below(self.memory.messages.len() as u64) as usize;
            let bytes = self.memory.messages[index].clone();
            let late = *self.random.pick(&[0, 10, 900, 5_000]);
            speech.after(late, bytes);
        }
    }

    pub(crate) fn sign_elsewhere(&mut self, mut speech: Speech<'_>) {
        if self.random.percent(50) {
            return speech.plainly();
        }
        let message = speech.message.clone();
        let elsewhere = if self.random.percent(50) {
            self.insider.resign_in(message, |configuration| configuration + 1)
        } else {
            let mut foreign = self.insider.clone();
            foreign.cluster = ClusterId([0xee; 16]);
            foreign.resign(message)
        };
        speech.instead(&elsewhere);
    }

    /// For a while all kinds of messages; for a while only Accepts, which are counted before anybody looks at them, of
    /// some slots to everybody or to some.
    pub(crate) fn sign_badly(&mut self, mut speech: Speech<'_>) {
        let mut message = speech.message.clone();
        let noise = self.noise();
        let mood = self.dice(View(3), Slot(self.mood_number)).below(3);
        let to = speech.replica();
        match &mut message {
            Message::Accept { view, slot, signature, .. } if mood > 0 => {
                let falsely = match mood {
                    1 => self.dice(*view, Slot(slot.0 / 4)).percent(50),
                    _ => to.is_some_and(|replica| self.other_half(*view, *slot, replica)),
                };
                if !falsely {
                    return speech.plainly();
                }
                *signature = noise;
            }
            _ if mood > 0 => return speech.plainly(),
            Message::Write { signature, .. }
            | Message::Accept { signature, .. }
            | Message::Prefix { signature, .. }
            | Message::Checkpoint { signature, .. }
                if self.random.percent(60) =>
            {
                *signature = noise;
            }
            Message::Attested(attested) if self.random.percent(60) => attested.signature = noise,
            Message::ViewChange(change) => change.signature = noise,
            Message::NewView(new_view) if self.random.percent(50) => new_view.signature = noise,
            Message::Frame(frame) => message = Message::Frame(unsigned(frame)),
            Message::Overdue(frame) => message = Message::Overdue(unsigned(frame)),
            _ => return speech.plainly(),
        }
        speech.instead(&message);
    }

    pub(crate) fn garble(&mut self, mut speech: Speech<'_>) {
        if self.random.percent(80) {
            return speech.plainly();
        }
        let mut bytes = speech.bytes.to_vec();
        let at = self.random.below(bytes.len() as u64) as usize;
        match self.random.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_slice(&self.random.bytes32()),
            2 => bytes[at] = bytes[at].wrapping_add(1 + self.random.below(255) as u8),
            _ => {
                bytes = (0..self.random.below(200)).map(|_| self.random.next() as u8).collect();
            }
        }
        speech.after(0, bytes.into());
    }

    /// Questions, junk votes, old messages, and frames, to everybody.
    pub(crate) fn flood(&mut self, out: &mut Vec<Said>) {
        if self.random.percent(2) {
            self.ask_at_once(out);
        }
        let untimely = self.untimely_proposal();
        for other in self.insider.others() {
            let proposal = untimely.clone().into_iter();
            out.extend(proposal.map(|bytes| Said {
                after_ms: 0,
                peer: Peer::Replica(other),
                bytes,
            }));
            for _ in 0..FLOOD {
                if let Some(bytes) = self.flotsam() {
                    out.push(Said { after_ms: 0, peer: Peer::Replica(other), bytes });
                }
            }
        }
    }

    /// As leader: a proposal that nobody takes, for its time is wrong, with many genuine frames.
    fn untimely_proposal(&self) -> Option<Bytes> {
        let view = self.memory.view;
        if view.leader(self.insider.faults.n()) != self.insider.me {
            return None;
        }
        let mut bytes = 0;
        let small = |frame: &&Frame| {
            bytes += frame.raw().len();
            bytes < UNTIMELY_BYTES
        };
        let frames: Vec<Frame> = self.memory.frames.iter().take_while(small).cloned().collect();
        if frames.is_empty() {
            return None;
        }
        let (slot, batch) = (self.memory.slot.next(), Batch::requests(Time(1), frames));
        let (decided, history) = (Slot(0), Digest::ZERO);
        Some(Message::Propose { view, slot, batch, decided, history }.to_bytes())
    }

    /// One question, very often, to one of the others.
    fn ask_at_once(&mut self, out: &mut Vec<Said>) {
        let others: Vec<ReplicaId> = self.insider.others().collect();
        let peer = Peer::Replica(*self.random.pick(&others));
        let slot = Slot(self.random.below(self.memory.slot.0 + 1));
        let question = match self.random.below(3) {
            0 => Message::StateQuery,
            1 => Message::FetchManifest { slot },
            _ => Message::FetchPiece { slot, index: 0 },
        };
        let bytes = question.to_bytes();
        out.extend((0..BURST).map(|_| Said { after_ms: 0, peer, bytes: bytes.clone() }));
    }

    fn flotsam(&mut self) -> Option<Bytes> {
        let near = self.random.below(200);
        // About slots long past, present, and far ahead.
        let slot = match self.random.below(4) {
            0 => Slot(near),
            1 => Slot(self.memory.slot.0 + 10 * near),
            2 => Slot(self.random.next()),
            _ => Slot(self.memory.slot.0 + near / 10),
        };
        let view = self.memory.view;
        let message = match self.random.below(9) {
            0 => Message::Fetch { from: slot, to: Slot(u64::MAX) },
            1 => Message::StateQuery,
            2 => Message::FetchPiece { slot: Slot(64), index: near as u32 },
            3 => Message::FetchManifest { slot: Slot(64) },
            4 => Message::FetchBatch { slot, digest: self.some_digest() },
            5 => {
                let (digest, signature) = (self.some_digest(), self.noise());
                Message::Write { view, slot, digest, signature }
            }
            6 => {
                let (digest, signature) = (Digest(self.random.bytes32()), self.noise());
                Message::Accept { view, slot, digest, signature }
            }
            7 => {
                let index = self.random.below(self.memory.frames.len().max(1) as u64) as usize;
                let frame = unsigned(self.memory.frames.get(index)?);
                if index.is_multiple_of(2) {
                    Message::Frame(frame)
                } else {
                    Message::Overdue(frame)
                }
            }
            _ => {
                let index = self.random.below(self.memory.messages.len().max(1) as u64) as usize;
                return self.memory.messages.get(index).cloned();
            }
        };
        Some(message.to_bytes())
    }
}

/// The frame with a signature that is not its client's.
fn unsigned(frame: &Frame) -> Frame {
    let mut raw = frame.raw().to_vec();
    let last = raw.len() - 1;
    raw[last] ^= 0x55;
    Frame::from_bytes(raw.into()).unwrap_or_else(|_| frame.clone())
}

/// The replicas of a group, for those who are none of them.
pub(crate) fn everybody(n: usize) -> impl Iterator<Item = ReplicaId> {
    (0..n as u8).map(ReplicaId)
}
