//! What happened, as a fingerprint of everything and, if wanted, as lines to read.

use crate::random::mix;
use perdura_protocol::{Decode, Message};
use std::fmt::Arguments;
use std::io::Write;

/// The trace of a run.
pub struct Trace {
    fingerprint: u64,
    writer: Option<Box<dyn Write>>,
}

impl Trace {
    /// With lines to `writer`, if there is one. What cannot be written is dropped.
    #[must_use]
    pub fn new(writer: Option<Box<dyn Write>>) -> Trace {
        Trace { fingerprint: 0, writer }
    }

    /// Whether lines are wanted.
    #[must_use]
    pub fn on(&self) -> bool {
        self.writer.is_some()
    }

    /// Takes an event into the fingerprint.
    pub fn event(&mut self, words: [u64; 4], bytes: &[u8]) {
        let mut hash = self.fingerprint;
        for word in words {
            hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(word))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29);
        }
        for byte in chunks.remainder() {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        self.fingerprint = mix(hash);
    }

    /// Writes a line.
    pub fn line(&mut self, at_us: u64, text: Arguments<'_>) {
        if let Some(writer) = &mut self.writer {
            let _ = writeln!(writer, "{:>8}.{:03} {text}", at_us / 1000, at_us % 1000);
        }
    }

    /// All lines are where they are wanted.
    pub fn flush(&mut self) {
        if let Some(writer) = &mut self.writer {
            let _ = writer.flush();
        }
    }

    /// The hash of all that happened.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

/// A message in a few words.
#[must_use]
pub fn summary(bytes: &bytes::Bytes) -> String {
    let Ok(message) = Message::from_bytes(bytes.clone()) else {
        return format!("{} undecodable bytes", bytes.len());
    };
    match message {
        Message::Frame(frame) => {
            format!("Frame {}..{}", frame.first_number, frame.end_number())
        }
        Message::Overdue(frame) => {
            format!("Overdue {}..{}", frame.first_number, frame.end_number())
        }
        Message::Propose { view, slot, batch, decided, .. } => format!(
            "Propose view {view} slot {slot} {:?} ({:?}, {} frames), decided {decided}",
            batch.digest(),
            batch.kind(),
            batch.frames().len()
        ),
        Message::Write { view, slot, digest, .. } => {
            format!("Write view {view} slot {slot} {digest:?}")
        }
        Message::Accept { view, slot, digest, .. } => {
            format!("Accept view {view} slot {slot} {digest:?}")
        }
        Message::Prefix { slot, history, .. } => format!("Prefix slot {slot} {history:?}"),
        Message::ViewChange(change) => format!(
            "ViewChange view {} in configuration {}, prefix {}, {} locks",
            change.view,
            change.configuration,
            change.prefix.slot,
            change.locks.len()
        ),
        Message::NewView(new_view) => format!(
            "NewView view {} in configuration {} from {} changes",
            new_view.view,
            new_view.configuration,
            new_view.changes.len()
        ),
        Message::LockedBatch { slot, batch } => format!("LockedBatch {slot} {:?}", batch.digest()),
        Message::Decisions { decisions, prefix, .. } => format!(
            "Decisions {:?}..{:?}, prefix {:?}",
            decisions.first().map(|decision| decision.slot),
            decisions.last().map(|decision| decision.slot),
            prefix.map(|prefix| prefix.slot)
        ),
        Message::Checkpoint { slot, digest, .. } => format!("Checkpoint slot {slot} {digest:?}"),
        Message::StateInfo { delivered, state, prefix } => format!(
            "StateInfo delivered {delivered}, state {:?}, prefix {}",
            state.map(|state| state.slot),
            prefix.slot
        ),
        Message::Manifest { slot, manifest } => format!("Manifest {slot}, {} B", manifest.len()),
        Message::Piece { slot, index, piece } => {
            format!("Piece {slot}/{index}, {} B", piece.len())
        }
        Message::Replies { view, outcomes, .. } => {
            let numbers: Vec<u64> = outcomes.iter().map(|(number, _)| *number).collect();
            format!("Replies view {view} numbers {numbers:?}")
        }
        Message::ReadReply { id, slot, outcome } => {
            format!(
                "ReadReply {id} slot {slot} {}",
                if outcome.is_some() { "answered" } else { "not now" }
            )
        }
        Message::Read { id, .. } => format!("Read {id}"),
        Message::ReadAt { id, slot, .. } => format!("ReadAt {id} slot {slot}"),
        other => format!("{other:?}"),
    }
}
