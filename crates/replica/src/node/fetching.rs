//! Of whom a replica that was away asks the pieces of a state.
//!
//! Seeders give pieces in turns. A turn ends when it has brought its pieces, or after its time; the
//! next one is that of the seeder that has had least time. So one that is slow on purpose costs its
//! share of the time, however it keeps within the limits. From a single sender
//! ([`StateTransfer::SingleSender`]) there is one turn: it ends when the sender fails.

use super::transfer::Offer;
use bytes::Bytes;
use perdura_execution::Manifest;
use perdura_protocol::{Digest, ReplicaId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Pieces after which a turn ends: many times what is on the way, for the next seeder starts anew.
const TURN_PIECES: usize = 64;

/// A turn ends after this time in any case; it doubles each time that it was too short, for the way
/// may be slow and not the seeder ...
const TURN_MS: u64 = 1_000;

/// ... so many times.
pub(super) const TURN_DOUBLINGS: u32 = 6;

/// Whom a replica that was away asks for the state, and for the log above it. Each replica's own
/// choice: those that are asked answer alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StateTransfer {
    /// All that have what it needs, in turns.
    #[default]
    InTurns,
    /// One, not the leader if there is another; the next one when that fails: the transfer that
    /// Dura-SMaRt measures the collaborative one against (USENIX ATC 2013, sections 2 and 5), PBFT's. For
    /// experiments only.
    SingleSender,
}

impl StateTransfer {
    /// All of them.
    pub const ALL: [StateTransfer; 2] = [StateTransfer::InTurns, StateTransfer::SingleSender];

    /// As in configuration files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StateTransfer::InTurns => "in-turns",
            StateTransfer::SingleSender => "single-sender",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<StateTransfer> {
        StateTransfer::ALL.into_iter().find(|transfer| transfer.name() == name)
    }
}

/// Who has the state, and how long it was asked for pieces of it.
pub(super) struct Seeder {
    pub id: ReplicaId,
    spent_ms: u64,
}

/// The pieces of one state, and whose turn it is.
pub(super) struct Fetching {
    pub offer: Offer,
    // Not empty.
    pub seeders: Vec<Seeder>,
    pub manifest: Manifest,
    pub pieces: Vec<Option<Bytes>>,
    // In this turn, and not here yet.
    pub asked: BTreeSet<u32>,
    // To be asked for; some may have come since they were asked for in vain.
    open: VecDeque<u32>,
    pub missing: usize,
    how: StateTransfer,
    turn: usize,
    turn_since_ms: u64,
    // Pieces that came in this turn.
    given: usize,
    pub progress_ms: u64,
}

impl Fetching {
    /// `kept` holds pieces that came for another state.
    pub fn new(
        offer: Offer,
        seeders: Vec<ReplicaId>,
        manifest: Manifest,
        kept: &BTreeMap<Digest, Bytes>,
        how: StateTransfer,
        now_ms: u64,
    ) -> Fetching {
        let count = manifest.entries().len();
        let pieces: Vec<Option<Bytes>> =
            manifest.entries().iter().map(|entry| kept.get(&entry.digest).cloned()).collect();
        Fetching {
            offer,
            seeders: seeders.into_iter().map(|id| Seeder { id, spent_ms: 0 }).collect(),
            manifest,
            missing: pieces.iter().filter(|piece| piece.is_none()).count(),
            pieces,
            asked: BTreeSet::new(),
            open: (0..count as u32).collect(),
            how,
            turn: 0,
            turn_since_ms: now_ms,
            given: 0,
            progress_ms: now_ms,
        }
    }

    /// Who is asked now.
    pub fn seeder(&self) -> Option<ReplicaId> {
        self.seeders.get(self.turn).map(|seeder| seeder.id)
    }

    /// The next piece to ask for.
    pub fn next_open(&mut self) -> Option<u32> {
        let pieces = &self.pieces;
        let place = self.open.iter().position(|index| pieces[*index as usize].is_none())?;
        self.open.drain(..=place).next_back()
    }

    /// A verified piece has come. After many of them it is the next seeder's turn.
    pub fn take(&mut self, index: u32, piece: Bytes, now_ms: u64) {
        self.asked.remove(&index);
        self.pieces[index as usize] = Some(piece);
        self.missing -= 1;
        self.given += 1;
        self.progress_ms = now_ms;
        if self.given >= TURN_PIECES && self.how == StateTransfer::InTurns {
            self.end_turn(now_ms);
        }
    }

    /// Whether the turn takes too long, where so many were too short.
    pub fn is_long(&self, short_turns: u32, now_ms: u64) -> bool {
        let turn_ms = TURN_MS << short_turns;
        self.how == StateTransfer::InTurns && now_ms >= self.turn_since_ms + turn_ms
    }

    /// The turn of whoever has had least time; what the last one still owes is asked for again
    /// when nothing else is left, for most of it is on the way.
    pub fn end_turn(&mut self, now_ms: u64) {
        if let Some(seeder) = self.seeders.get_mut(self.turn) {
            seeder.spent_ms += now_ms.saturating_sub(self.turn_since_ms).max(1);
        }
        self.open.extend(std::mem::take(&mut self.asked));
        self.turn_since_ms = now_ms;
        self.given = 0;
        self.begin_turn();
    }

    pub fn begin_turn(&mut self) {
        let next = self.seeders.iter().enumerate().min_by_key(|(_, seeder)| seeder.spent_ms);
        self.turn = next.map_or(0, |(index, _)| index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_have_names() {
        for transfer in StateTransfer::ALL {
            assert_eq!(StateTransfer::parse(transfer.name()), Some(transfer));
        }
        assert_eq!(StateTransfer::parse("all"), None);
        assert_eq!(StateTransfer::default().name(), "in-turns");
    }
}
