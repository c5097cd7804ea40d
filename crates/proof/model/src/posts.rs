//! Messages on the network. What was sent once may arrive at any time later, any number of times,
//! or never: so the network is the set of all that was said, and says nothing about arrivals.

use crate::world::World;
use perdura_agreement::canonical;
use perdura_protocol::message::Message;
use perdura_protocol::statement::StatementKind;
use perdura_protocol::{Decode, Digest, Encode, ReplicaId, Slot, View};
use std::collections::HashMap;

/// Number of a message among all that are known.
pub type PostId = u32;

/// What one vote is about; votes about the same make a quorum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ballot {
    /// Write or Accept (as in a statement).
    pub accept: bool,
    /// The view.
    pub view: View,
    /// The slot.
    pub slot: Slot,
    /// The batch.
    pub digest: Digest,
}

impl Ballot {
    /// The kind of the signed statement.
    #[must_use]
    pub fn kind(&self) -> StatementKind {
        if self.accept { StatementKind::Accept } else { StatementKind::Write }
    }
}

/// A message with its ends.
#[derive(Clone, Debug)]
pub struct Post {
    /// Who sent it, as its link proves.
    pub from: ReplicaId,
    /// To whom; to all others if nobody is named.
    pub to: Option<ReplicaId>,
    /// What.
    pub message: Message,
    /// Number of the ballot, if it is a vote.
    pub ballot: Option<u32>,
    /// Number of the ballot of Accepts that it asks for, if it is a proposal.
    pub asks: Option<u32>,
}

/// All messages ever said, each once.
#[derive(Default)]
pub struct Posts {
    numbers: HashMap<Vec<u8>, PostId>,
    all: Vec<Post>,
    ballots: Vec<Ballot>,
}

impl Posts {
    /// The number of this message; the bytes travel through the codec as on a wire. `None` if they
    /// are refused there (only a liar's are).
    pub fn number(
        &mut self,
        world: &World,
        from: ReplicaId,
        to: Option<ReplicaId>,
        message: &Message,
    ) -> Option<PostId> {
        let mut key = vec![from.0, to.map_or(u8::MAX, |to| to.0)];
        if !world.scope.liars.contains(&from) {
            key.extend(canonical::message(world.scope.form, message));
        } else {
            message.encode(&mut key); // A liar's certificates may be short.
        }
        if let Some(number) = self.numbers.get(&key) {
            return Some(*number);
        }
        let message = Message::from_bytes(message.to_bytes()).ok()?;
        let ballot = ballot_of(&message).map(|ballot| self.ballot_number(ballot));
        let asks = asked_of(&message).map(|ballot| self.ballot_number(ballot));
        let number = self.all.len() as PostId;
        self.all.push(Post { from, to, message, ballot, asks });
        self.numbers.insert(key, number);
        Some(number)
    }

    fn ballot_number(&mut self, ballot: Ballot) -> u32 {
        let known = self.ballots.iter().position(|other| *other == ballot);
        known.unwrap_or_else(|| {
            self.ballots.push(ballot);
            self.ballots.len() - 1
        }) as u32
    }

    /// The message with this number.
    #[must_use]
    pub fn post(&self, number: PostId) -> &Post {
        &self.all[number as usize]
    }

    /// The ballot with this number.
    #[must_use]
    pub fn ballot(&self, number: u32) -> Ballot {
        self.ballots[number as usize]
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether nothing was said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

fn ballot_of(message: &Message) -> Option<Ballot> {
    match message {
        Message::Write { view, slot, digest, .. } => {
            Some(Ballot { accept: false, view: *view, slot: *slot, digest: *digest })
        }
        Message::Accept { view, slot, digest, .. } => {
            Some(Ballot { accept: true, view: *view, slot: *slot, digest: *digest })
        }
        _ => None,
    }
}

fn asked_of(message: &Message) -> Option<Ballot> {
    match message {
        Message::Propose { view, slot, batch, .. } => {
            Some(Ballot { accept: true, view: *view, slot: *slot, digest: batch.digest() })
        }
        _ => None,
    }
}
