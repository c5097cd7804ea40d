//! Lies about slots: two batches, two votes, votes without grounds.

use crate::liar::{Liar, Speech};
use crate::random::Random;
use bytes::Bytes;
use perdura_protocol::message::Message;
use perdura_protocol::{Batch, Digest, Encode, Frame, Signature, Slot, View};
use perdura_replica::node::{Peer, Said};
use std::collections::BTreeSet;

/// So long genuine frames are on their way before forged ones are proposed under their numbers.
const KNOWN_MS: u64 = 10;

impl Liar {
    /// The vote of this message for the other batch of its slot.
    fn other_vote(&self, message: &Message) -> Option<Message> {
        let (Message::Write { view, slot, digest, .. }
        | Message::Accept { view, slot, digest, .. }) = message
        else {
            return None;
        };
        let fork = self.memory.forks.get(&(*view, *slot))?;
        let second = fork.second.digest();
        let other = if *digest == second { fork.first } else { second };
        let signature = Signature::NONE;
        let vote = match message {
            Message::Write { view, slot, .. } => {
                Message::Write { view: *view, slot: *slot, digest: other, signature }
            }
            _ => {
                let (view, slot) = (*view, *slot);
                Message::Accept { view, slot, digest: other, signature }
            }
        };
        Some(self.insider.resign(vote))
    }

    pub(crate) fn equivocate(&self, mut speech: Speech<'_>) {
        let Some(replica) = speech.replica() else { return speech.plainly() };
        match speech.message {
            Message::Propose { view, slot, decided, history, .. }
                if self.other_half(*view, *slot, replica) =>
            {
                match self.memory.forks.get(&(*view, *slot)) {
                    Some(fork) => speech.instead(&Message::Propose {
                        view: *view,
                        slot: *slot,
                        batch: fork.second.clone(),
                        decided: *decided,
                        history: *history,
                    }),
                    None => speech.plainly(),
                }
            }
            Message::Write { view, slot, .. } | Message::Accept { view, slot, .. }
                if self.other_half(*view, *slot, replica) =>
            {
                match self.other_vote(speech.message) {
                    Some(vote) => speech.instead(&vote),
                    None => speech.plainly(),
                }
            }
            // Another batch right behind the start of a view, for the slots that it binds: before those
            // who lack what was chosen have asked for it.
            Message::NewView(new_view) if self.other_half(new_view.view, Slot(0), replica) => {
                speech.plainly();
                let locks = new_view.changes.iter().flat_map(|change| &change.locks);
                let bound: BTreeSet<Slot> = locks.map(|lock| lock.slot).collect();
                for slot in bound {
                    let (view, batch) = (new_view.view, Batch::null());
                    let (decided, history) = (Slot(0), Digest::ZERO);
                    speech.instead(&Message::Propose { view, slot, batch, decided, history });
                }
            }
            // What a new view is bound to, sent to one who lacks it.
            Message::LockedBatch { slot, .. }
                if self.other_half(self.memory.view, *slot, replica) =>
            {
                let (view, slot, batch) = (self.memory.view, *slot, Batch::null());
                let (decided, history) = (Slot(0), Digest::ZERO);
                speech.instead(&Message::Propose { view, slot, batch, decided, history });
            }
            _ => speech.plainly(),
        }
    }

    pub(crate) fn vote_twice(&mut self, mut speech: Speech<'_>) {
        let other = self.other_vote(speech.message);
        let first = self.random.percent(50);
        if let Some(other) = &other
            && first
        {
            speech.instead(other);
        }
        speech.plainly();
        if let Some(other) = &other
            && !first
        {
            speech.instead(other);
        }
    }

    pub(crate) fn vote_wrongly(&mut self, mut speech: Speech<'_>) {
        let mut message = speech.message.clone();
        match &mut message {
            Message::Write { digest, .. } | Message::Accept { digest, .. }
                if self.random.percent(50) =>
            {
                *digest = self.some_digest();
                speech.instead(&self.insider.resign(message));
            }
            _ => speech.plainly(),
        }
    }

    /// A digest that was voted on somewhere, that of the null batch, or one of nothing.
    pub(crate) fn some_digest(&mut self) -> Digest {
        match self.random.below(4) {
            0 => Batch::null().digest(),
            1 => Digest(self.random.bytes32()),
            _ if self.memory.digests.is_empty() => Digest::ZERO,
            _ => {
                let index = self.random.below(self.memory.digests.len() as u64);
                self.memory.digests[index as usize]
            }
        }
    }

    /// Writes and accepts at once what is proposed, and its sibling too.
    pub(crate) fn accept_hastily(&mut self, heard: &Message, out: &mut Vec<Said>) {
        let Message::Propose { view, slot, batch, .. } = heard else { return };
        let (view, slot) = (*view, *slot);
        let mut digests = vec![batch.digest()];
        if self.random.percent(30)
            && let Some(fork) = self.memory.forks.get(&(view, slot))
        {
            digests.push(fork.second.digest());
        }
        for digest in digests {
            let signature = Signature::NONE;
            let votes = [
                Message::Write { view, slot, digest, signature },
                Message::Accept { view, slot, digest, signature },
            ];
            for vote in votes {
                let bytes = self.insider.resign(vote).to_bytes();
                for other in self.insider.others() {
                    let peer = Peer::Replica(other);
                    out.push(Said { after_ms: 0, peer, bytes: bytes.clone() });
                }
            }
        }
    }

    /// Chance that is the same for everybody, and for all accomplices.
    pub(crate) fn dice(&self, view: View, slot: Slot) -> Random {
        Random::new(crate::random::mix(self.insider.coin ^ (view.0 << 32) ^ slot.0))
    }

    /// Proposes, and passes on, commands that no client signed.
    pub(crate) fn invent_frames(&mut self, mut speech: Speech<'_>) {
        match speech.message {
            Message::Propose { view, slot, batch, decided, history } => {
                // The same for everybody, or no quorum could believe it. All frames, or some: who
                // looks at a few only is to be caught as well.
                let mut dice = self.dice(*view, *slot);
                let (lies, some) = (dice.percent(40), dice.percent(50));
                let known = dice.percent(50);
                if batch.frames().is_empty() || !lies {
                    return speech.plainly();
                }
                // A genuine one of the past in front, which nobody holds any more.
                let past = if some { self.past_frame(batch, &mut dice) } else { None };
                // Often the last one alone.
                let last = batch.frames().len() - 1;
                let only_last = some && !known && dice.percent(50);
                let frames = batch.frames().iter().enumerate().map(|(index, frame)| {
                    let genuine = some && !known && dice.percent(50);
                    let genuine = if only_last { index < last } else { genuine };
                    if genuine { frame.clone() } else { self.forge_frame(frame, known, &mut dice) }
                });
                let frames = past.into_iter().chain(frames).collect();
                let (view, slot, decided, history) = (*view, *slot, *decided, *history);
                let forged = Batch::requests(batch.time(), frames);
                let propose = Message::Propose { view, slot, batch: forged, decided, history };
                if !known {
                    return speech.instead(&propose);
                }
                // First the genuine ones go round, so that everybody knows their names.
                for frame in batch.frames() {
                    speech.instead(&Message::Frame(frame.clone()));
                }
                speech.after(KNOWN_MS, propose.to_bytes());
            }
            Message::Frame(frame) | Message::Overdue(frame) => {
                let mut dice = Random::new(self.random.next());
                let forged = self.forge_frame(frame, false, &mut dice);
                speech.instead(&Message::Frame(forged));
            }
            _ => speech.plainly(),
        }
    }

    /// A frame that came before this batch, or nothing half of the time.
    fn past_frame(&self, batch: &Batch, dice: &mut Random) -> Option<Frame> {
        let known = &self.memory.frames;
        let (at, wanted) = (dice.below((known.len() as u64 / 2).max(1)) as usize, dice.percent(50));
        let frame = known.get(at).filter(|frame| wanted && !batch.frames().contains(frame));
        frame.cloned()
    }

    /// The commands of a frame under the next number, in another order, or other ones in their
    /// place, under a signature of the liar.
    fn forge_frame(&self, frame: &Frame, under_its_number: bool, dice: &mut Random) -> Frame {
        let mut commands: Vec<Bytes> = frame.commands().collect();
        let mut number = frame.first_number;
        if commands.len() > 1 {
            commands.reverse();
        } else if !under_its_number && dice.percent(50) {
            number += 1;
        } else {
            let known = &self.memory.frames;
            let from = dice.below(known.len().max(1) as u64) as usize;
            let mut others = known.iter().skip(from).chain(known.iter().take(from));
            if let Some(other) = others.find(|other| other != &frame) {
                commands = other.commands().collect();
            }
        }
        let key = self.insider.keys.first().map(|(_, key)| key);
        let (session, acked) = (frame.session, frame.acked_below);
        Frame::build(self.insider.cluster, session, acked, number, &commands, key)
    }
}
