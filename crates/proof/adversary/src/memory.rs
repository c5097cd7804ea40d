//! What a liar remembers of what it heard and said. Bounded: it runs beside others.

use bytes::Bytes;
use perdura_protocol::boots::Recalled;
use perdura_protocol::message::Message;
use perdura_protocol::viewchange::{PrefixCertificate, ViewChange};
use perdura_protocol::{Batch, Digest, Frame, Outcome, ReplicaId, Signature, Slot, View};
use std::collections::{BTreeMap, VecDeque};

/// Messages, frames and digests remembered.
const REMEMBERED: usize = 256;

/// Two batches for one slot of a view.
#[derive(Clone, Debug)]
pub struct Fork {
    /// The batch that the replica itself believes in.
    pub first: Digest,
    /// The other one.
    pub second: Batch,
}

/// What it remembers.
#[derive(Debug, Default)]
pub struct Memory {
    /// Slots for which there are two batches.
    pub forks: BTreeMap<(View, Slot), Fork>,
    /// Digests that were voted on.
    pub digests: VecDeque<Digest>,
    /// Messages, as bytes.
    pub messages: VecDeque<Bytes>,
    /// Clients' frames.
    pub frames: VecDeque<Frame>,
    /// View changes by view and sender; its own too.
    pub changes: BTreeMap<(View, ReplicaId), ViewChange>,
    /// Reads that wait for their answer, by the client's number for them.
    pub asked: BTreeMap<u64, Bytes>,
    /// What it first gave back to each of its boots and votes.
    pub recalled: BTreeMap<ReplicaId, Recalled>,
    /// First answers to reads.
    pub answers: BTreeMap<Bytes, Outcome>,
    /// Outcomes that clients were told.
    pub outcomes: VecDeque<Outcome>,
    /// The highest view heard of.
    pub view: View,
    /// The highest slot that was proposed.
    pub slot: Slot,
    /// Of the state whose manifest it forged last: the slot, and the number of the last piece.
    pub last_piece: Option<(Slot, u32)>,
    /// What was last proposed for a slot.
    pub batches: BTreeMap<Slot, Batch>,
    /// The last prefix that it handed out.
    pub handed: Slot,
    /// Where each replica says that it is.
    pub delivered: BTreeMap<ReplicaId, Slot>,
    /// Certified prefixes.
    pub prefixes: BTreeMap<Slot, PrefixCertificate>,
    /// Genuine Writes, by what they are for.
    pub writes: BTreeMap<(View, Slot, Digest), BTreeMap<ReplicaId, Signature>>,
}

fn push<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() >= REMEMBERED {
        queue.pop_front();
    }
    queue.push_back(item);
}

fn bound<K: Ord + Clone, V>(map: &mut BTreeMap<K, V>) {
    if map.len() > REMEMBERED {
        map.pop_first();
    }
}

impl Memory {
    /// Takes note of a message that was heard from a replica, or that the liar's own wants to say.
    pub fn note(&mut self, from: Option<ReplicaId>, message: &Message, bytes: &Bytes) {
        push(&mut self.messages, bytes.clone());
        match message {
            Message::Frame(frame) | Message::Overdue(frame) => {
                push(&mut self.frames, frame.clone());
            }
            Message::Propose { view, slot, batch, .. } => {
                push(&mut self.digests, batch.digest());
                if let Some(second) = variant(batch) {
                    let fork = Fork { first: batch.digest(), second };
                    self.forks.entry((*view, *slot)).or_insert(fork);
                    bound(&mut self.forks);
                }
                self.batches.insert(*slot, batch.clone());
                bound(&mut self.batches);
                self.view = self.view.max(*view);
                self.slot = self.slot.max(*slot);
            }
            Message::Write { view, slot, digest, signature } => {
                if let Some(from) = from {
                    let known = self.writes.entry((*view, *slot, *digest)).or_default();
                    known.insert(from, *signature);
                    bound(&mut self.writes);
                }
            }
            Message::Decisions { prefix: Some(prefix), .. } | Message::StateInfo { prefix, .. } => {
                self.note_prefix(prefix);
            }
            Message::ViewChange(change) => {
                self.note_prefix(&change.prefix);
                self.changes.insert((change.view, change.sender), (**change).clone());
                bound(&mut self.changes);
            }
            Message::Status { delivered, .. } => {
                if let Some(from) = from {
                    self.delivered.insert(from, *delivered);
                }
            }
            Message::NewView(new_view) => self.view = self.view.max(new_view.view),
            Message::Read { id, command } | Message::ReadAt { id, command, .. } => {
                self.asked.insert(*id, command.clone());
                bound(&mut self.asked);
            }
            Message::ReadReply { id, outcome: Some(outcome), .. } => {
                if let Some(command) = self.asked.get(id) {
                    self.answers.entry(command.clone()).or_insert_with(|| outcome.clone());
                    bound(&mut self.answers);
                }
                push(&mut self.outcomes, outcome.clone());
            }
            Message::Replies { outcomes, .. } => {
                for (_, outcome) in outcomes.iter().take(4) {
                    push(&mut self.outcomes, outcome.clone());
                }
            }
            _ => {}
        }
    }

    fn note_prefix(&mut self, prefix: &PrefixCertificate) {
        self.prefixes.entry(prefix.slot).or_insert_with(|| prefix.clone());
        bound(&mut self.prefixes);
    }
}

/// Another valid batch of the same frames, the same one for all liars; there is none for a null
/// batch.
pub fn variant(batch: &Batch) -> Option<Batch> {
    let frames = batch.frames();
    match frames {
        [] => None,
        [only] => {
            let later = perdura_protocol::Time(batch.time().0 + 1);
            Some(Batch::requests(later, vec![only.clone()]))
        }
        [rest @ .., _] if batch.time().0.is_multiple_of(2) => {
            Some(Batch::requests(batch.time(), rest.to_vec()))
        }
        _ => {
            let reversed = frames.iter().rev().cloned().collect();
            Some(Batch::requests(batch.time(), reversed))
        }
    }
}
