//! Lies about states, transfers, and to clients.

use crate::liar::{Liar, Speech};
use crate::memory::variant;
use bytes::Bytes;
use perdura_execution::{Entry, Manifest};
use perdura_protocol::boots::{HeldVote, Recalled};
use perdura_protocol::fields::Fields;
use perdura_protocol::message::{Message, StateCertificate};
use perdura_protocol::statement::StatementKind;
use perdura_protocol::vitals::{Condition, Echo, Vitals};
use perdura_protocol::{
    Certificate, Decode, Digest, Encode, Outcome, Reader, RefusalReason, Slot, Time, View,
};
use perdura_replica::node::Peer;

/// Just below what others wait for decisions, and the next piece of a state.
const TRICKLE_DECISIONS_MS: u64 = 440;
const TRICKLE_PIECES_MS: u64 = 900;

/// Whether a message carries what somebody who recovers asked for.
fn transfers(message: &Message) -> bool {
    matches!(
        message,
        Message::Decisions { .. }
            | Message::TooOld { .. }
            | Message::StateInfo { .. }
            | Message::Manifest { .. }
            | Message::Piece { .. }
            | Message::LockedBatch { .. }
    )
}

/// What a liar makes of a state that others fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tale {
    /// Nothing is whole.
    Damage,
    /// The manifest is genuine, its pieces are not.
    Pieces,
    /// A manifest of the genuine pieces, with another history.
    History,
    /// A manifest that names another last piece, which is there as well.
    Piece,
    /// A manifest as of a newer program, with a field that may not be passed over.
    Field,
    /// A manifest under newer rules of execution.
    Rules,
}

/// A manifest with a field that nobody knows; none where it has no fields.
fn with_field(manifest: &Bytes) -> Option<Bytes> {
    let mut reader = Reader::new(manifest.clone());
    let mut out = reader.take(8).ok()?.to_vec();
    let mut fields = Fields::decode(&mut reader).ok()?;
    fields.require("newer", &true);
    fields.encode(&mut out);
    let entries = reader.remaining();
    out.extend_from_slice(&reader.take(entries).ok()?);
    Some(out.into())
}

impl Liar {
    /// The same for all pieces of a state.
    fn tale(&self, slot: Slot) -> Tale {
        let tales =
            [Tale::Damage, Tale::Pieces, Tale::History, Tale::Piece, Tale::Field, Tale::Rules];
        *self.dice(View(0), slot).pick(&tales)
    }

    fn tale_digest(&self, slot: Slot) -> Digest {
        Digest(self.dice(View(1), slot).bytes32())
    }

    fn tale_piece(&self, slot: Slot) -> Bytes {
        Bytes::copy_from_slice(&self.tale_digest(slot).0)
    }

    /// The manifest that goes with the tale; none if it is the genuine one.
    fn other_manifest(&mut self, slot: Slot, manifest: &Bytes) -> Option<Bytes> {
        let tale = self.tale(slot);
        if tale == Tale::Damage {
            return Some(self.damaged(manifest));
        }
        let mut genuine = Manifest::read(manifest.clone()).ok()?;
        match tale {
            Tale::Damage | Tale::Pieces => None,
            Tale::History => {
                genuine.history = self.tale_digest(slot);
                Some(genuine.to_bytes())
            }
            Tale::Field => with_field(manifest),
            Tale::Rules => {
                genuine.versions.rules += 1;
                Some(genuine.to_bytes())
            }
            Tale::Piece => {
                let last = u32::try_from(genuine.entries().len() - 1).ok()?;
                self.memory.last_piece = Some((slot, last));
                // Its entry is the end of the manifest.
                let entry = Entry::of(&self.tale_piece(slot)).to_bytes();
                let mut other = manifest.to_vec();
                let at = other.len() - entry.len();
                other[at..].copy_from_slice(&entry);
                Some(other.into())
            }
        }
    }

    pub(crate) fn forge_checkpoints(&mut self, mut speech: Speech<'_>) {
        let mut message = speech.message.clone();
        match &mut message {
            Message::Checkpoint { slot, digest, .. } => {
                *digest = Digest(self.random.bytes32());
                if self.random.percent(20) {
                    *slot = Slot(slot.0 + 64);
                }
            }
            Message::Prefix { slot, history, .. } => {
                *history = Digest(self.random.bytes32());
                if self.random.percent(20) {
                    *slot = Slot(slot.0 + 64);
                }
            }
            Message::StateInfo { state, .. } => {
                let slot = Slot(state.as_ref().map_or(64, |state| state.slot.0 + 64));
                let digest = Digest(self.random.bytes32());
                let configuration = self.insider.configurations.last().map_or(0, |last| last.id);
                let kind = StatementKind::Checkpoint;
                let me = self.insider.me;
                let own = self.insider.sign(me, configuration, kind, View(0), slot, digest);
                let certificate = Certificate::new(
                    (0..self.insider.faults.n() as u8)
                        .map(|id| (perdura_protocol::ReplicaId(id), own))
                        .collect(),
                );
                *state = Some(StateCertificate { slot, digest, configuration, certificate });
            }
            _ => return speech.plainly(),
        }
        speech.instead(&self.insider.resign(message));
    }

    pub(crate) fn boast(&mut self, mut speech: Speech<'_>) {
        let far = *self.random.pick(&[1, 64, 1_000, 1 << 40]);
        let mut message = speech.message.clone();
        match &mut message {
            Message::Status { view, changing, delivered } => match self.random.below(4) {
                0 => delivered.0 += far,
                1 => delivered.0 = delivered.0.saturating_sub(far),
                2 => *changing = !*changing,
                _ => view.0 += far,
            },
            Message::StateInfo { delivered, .. } => delivered.0 += far,
            Message::Vitals(vitals) => self.misreport(vitals),
            Message::Announce(announcement) => {
                announcement.boot.number = announcement.boot.number.wrapping_add(far);
                if self.random.percent(50) {
                    message = self.insider.resign(message);
                }
            }
            Message::Recall(recalled) => match self.random.below(4) {
                // What was genuine once.
                3 => {
                    if let Peer::Replica(to) = speech.peer {
                        let first = self.memory.recalled.entry(to);
                        let first = first.or_insert_with(|| (**recalled).clone()).clone();
                        **recalled = Recalled { asked: recalled.asked, ..first };
                    }
                }
                0 => {
                    recalled.announcement.iter_mut().for_each(|held| held.boot.number += far);
                }
                1 => recalled.announcement.iter_mut().for_each(|held| held.boot.nonce = [7; 16]),
                // A vote that was never given.
                _ => {
                    let (view, slot) = (View(far), Slot(far));
                    let (digest, signature) = (Digest(self.random.bytes32()), self.noise());
                    let configuration = 0;
                    recalled.vote = Some(HeldVote { view, slot, digest, configuration, signature });
                }
            },
            Message::TooOld { checkpoint } => checkpoint.0 += far,
            Message::Decisions { decisions, .. } if self.random.percent(50) => {
                let checkpoint = decisions.first().map_or(Slot(far), |first| first.slot);
                message = Message::TooOld { checkpoint };
            }
            _ => return speech.plainly(),
        }
        speech.instead(&message);
    }

    /// Of its clock, its links, its disk and its peers.
    fn misreport(&mut self, vitals: &mut Vitals) {
        let off_ms = *self.random.pick(&[-3_600_000, -700, 700, 3_600_000, i64::MIN]);
        match self.random.below(5) {
            0 | 1 => vitals.wall = Time(vitals.wall.0.saturating_add_signed(off_ms)),
            2 => {
                let (sent_ms, held_ms) = (self.random.next(), self.random.next());
                vitals.answers = Some(Echo { sent_ms, held_ms });
            }
            3 => {
                vitals.flush_ms = *self.random.pick(&[0, 60_000, u32::MAX]);
                vitals.stalled_ms = *self.random.pick(&[0, 1, 60_000, u32::MAX]);
                vitals.trip_ms = *self.random.pick(&[0, 60_000, u32::MAX]);
            }
            _ => {
                vitals.hears = *self.random.pick(&[0, u32::MAX]);
                vitals.condition = *self.random.pick(&[Condition::Recovering, Condition::Active]);
            }
        }
    }

    /// One bit of some bytes flipped, or an end cut off.
    fn damaged(&mut self, bytes: &Bytes) -> Bytes {
        if bytes.is_empty() {
            return Bytes::from_static(b"?");
        }
        let mut damaged = bytes.to_vec();
        let at = self.random.below(bytes.len() as u64) as usize;
        if self.random.percent(70) {
            damaged[at] ^= 1 << self.random.below(8);
        } else {
            damaged.truncate(at);
        }
        damaged.into()
    }

    pub(crate) fn corrupt_transfer(&mut self, mut speech: Speech<'_>) {
        let mut message = speech.message.clone();
        match &mut message {
            Message::Manifest { slot, manifest } => match self.other_manifest(*slot, manifest) {
                Some(other) => *manifest = other,
                None => return speech.plainly(),
            },
            Message::Piece { slot, index, piece } => match self.tale(*slot) {
                Tale::History | Tale::Field | Tale::Rules => return speech.plainly(),
                Tale::Piece if self.memory.last_piece == Some((*slot, *index)) => {
                    *piece = self.tale_piece(*slot);
                }
                Tale::Piece => return speech.plainly(),
                Tale::Damage | Tale::Pieces => {
                    if self.random.percent(80) {
                        *piece = self.damaged(piece);
                    } else {
                        *index += 1;
                    }
                }
            },
            Message::LockedBatch { batch, .. } => {
                if let Some(other) = variant(batch) {
                    *batch = other;
                }
            }
            Message::Decisions { decisions, prefix, .. } => {
                self.spoil_decisions(decisions, prefix);
            }
            _ => return speech.plainly(),
        }
        speech.instead(&message);
        if self.random.percent(20) {
            speech.plainly();
        }
    }

    pub(crate) fn slow_transfer(&mut self, mut speech: Speech<'_>) {
        if !transfers(speech.message) {
            return speech.plainly();
        }
        // Some keep to it, for who is only sometimes slow is soon left behind.
        if (self.insider.coin ^ u64::from(self.insider.me.0)) & 1 == 1 {
            return self.trickle(speech);
        }
        let bytes = speech.bytes.clone();
        match self.random.below(4) {
            0 => {}
            1 => {
                speech.after(0, bytes.clone());
                speech.after(5, bytes.clone());
                speech.after(700, bytes);
            }
            _ => {
                let late = self.random.between(300, 1_200);
                speech.after(late, bytes);
            }
        }
    }

    /// As little and as late as leaves others waiting for more.
    fn trickle(&mut self, mut speech: Speech<'_>) {
        let mut message = speech.message.clone();
        match &mut message {
            Message::Decisions { decisions, prefix, between } => {
                decisions.truncate(1);
                *prefix = None;
                between.clear();
                speech.after(TRICKLE_DECISIONS_MS, message.to_bytes());
            }
            Message::Manifest { .. } | Message::Piece { .. } => {
                let due_ms = self.now_ms.max(self.trickled_ms + TRICKLE_PIECES_MS);
                self.trickled_ms = due_ms;
                speech.after(due_ms - self.now_ms, message.to_bytes());
            }
            _ => speech.plainly(),
        }
    }

    fn false_outcome(&mut self, true_one: &Outcome) -> Outcome {
        match self.random.below(5) {
            0 => Outcome::Refused(RefusalReason::UnknownClient),
            1 => Outcome::NoSession,
            2 => Outcome::TooOld,
            3 if !self.memory.outcomes.is_empty() => {
                let index = self.random.below(self.memory.outcomes.len() as u64);
                self.memory.outcomes[index as usize].clone()
            }
            _ => match true_one {
                Outcome::Service(reply) => Outcome::Service(self.damaged(reply)),
                _ => Outcome::Opened,
            },
        }
    }

    pub(crate) fn reply_falsely(&mut self, mut speech: Speech<'_>) {
        if self.insider.statements.is_some() {
            if let Message::Attested(attested) = speech.message {
                return self.attest_wrongly(speech, attested);
            }
            if self.random.percent(50) && self.state_the_opposite(&mut speech) {
                return;
            }
        }
        let mut message = speech.message.clone();
        match &mut message {
            Message::Replies { view, nonce, outcomes } => {
                for (_, outcome) in outcomes.iter_mut() {
                    *outcome = self.false_outcome(outcome);
                }
                if self.random.percent(10) {
                    view.0 += 7;
                }
                if self.random.percent(5) {
                    let first_number = outcomes.first().map_or(0, |(number, _)| *number);
                    message = Message::Busy { nonce: *nonce, first_number };
                }
            }
            Message::ReadReply { outcome: Some(outcome), slot, .. } => {
                if self.random.percent(50) {
                    *outcome = self.false_outcome(outcome);
                }
                // What was changed since then would not count. Of what is asked for by its slot another one would not.
                match self.random.below(8) {
                    0 => slot.0 = u64::MAX - self.random.below(2),
                    1..4 => {
                        slot.0 = slot.0.saturating_add(self.random.below(40)).saturating_sub(10);
                    }
                    _ => {}
                }
            }
            Message::Welcome { view } => view.0 += self.random.below(3),
            _ => return speech.plainly(),
        }
        speech.instead(&message);
    }

    pub(crate) fn answer_from_memory(&mut self, mut speech: Speech<'_>) {
        match speech.message {
            Message::ReadReply { id, slot, .. } => {
                let old =
                    self.memory.asked.get(id).and_then(|asked| self.memory.answers.get(asked));
                match old {
                    Some(outcome) => {
                        let (id, slot, outcome) = (*id, *slot, Some(outcome.clone()));
                        speech.instead(&Message::ReadReply { id, slot, outcome });
                    }
                    None => speech.plainly(),
                }
            }
            Message::Replies { nonce, view, outcomes } if self.random.percent(30) => {
                // The results of one command under the number of another.
                let mut shifted = outcomes.clone();
                if let Some((_, outcome)) = shifted.first_mut()
                    && let Some(old) = self.memory.outcomes.front()
                {
                    *outcome = old.clone();
                }
                let (view, nonce) = (*view, *nonce);
                speech.after(0, Message::Replies { view, nonce, outcomes: shifted }.to_bytes());
            }
            _ => speech.plainly(),
        }
    }
}
