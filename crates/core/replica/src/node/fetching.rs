//! The pieces of one state, from several seeders at once (Dura-SMaRt, USENIX ATC 2013,
//! figure 6: the work of sending is shared out among those who have the state).
//!
//! Each seeder is asked for as many pieces as it gives, and never owes more than a few. So one that is
//! slow on purpose costs what it owes and little more, however it keeps within the time-outs: when
//! nothing else is left to ask for, its pieces are asked for elsewhere too. Behind those that are asked
//! stands a reserve, the leader, for it has the most to do; from a single sender
//! ([`StateTransfer::SingleSender`]), all others.

use super::questions::QUESTIONS;
use super::transfer::Offer;
use bytes::Bytes;
use perdura_execution::Manifest;
use perdura_protocol::{Digest, ReplicaId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Pieces asked for at once of one seeder, at least ...
const LEAST_AT_ONCE: usize = 8;

/// ... at most, as many as it lets wait, less some that are asked for again ...
const MOST_AT_ONCE: usize = QUESTIONS * 3 / 4;

/// ... and so many that they come to this many bytes: enough to keep a link busy while the way to and fro
/// takes some tens of milliseconds, as it does where all have much to do, and a bounded memory at both ends.
const BYTES_AT_ONCE: usize = 2 << 20;

/// A seeder that owes pieces and gave none for this time is left out. It doubles when nobody else gave
/// any either, for what all of them send may come by one slow way ...
const ANSWER_MS: u64 = 1_000;

/// ... so many times: what was lost on the way is waited for as long.
const ANSWER_DOUBLINGS: u32 = 2;

/// What a seeder owes is asked for elsewhere when nothing else is left and it gave nothing for this time.
const OWED_MS: u64 = 200;

/// Pieces that are to come, of all seeders together, ...
const PACE_PIECES: usize = 64;

/// ... or bytes, where pieces are long, ...
const PACE_BYTES: usize = 4 << 20;

/// ... within this time, which doubles each time that it was too short, for the way may be slow and not
/// the seeders ...
const PACE_MS: u64 = 1_000;

/// ... so many times.
const PACE_DOUBLINGS: u32 = 6;

/// Whom a replica that was away asks for the state, and for the log above it. Each replica's own
/// choice: those that are asked answer alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StateTransfer {
    /// All that have what it needs: pieces of all of them at once, the log in turns.
    #[default]
    Collaborative,
    /// One, not the leader if there is another; the next one when that fails: the transfer that
    /// Dura-SMaRt measures the collaborative one against (USENIX ATC 2013, sections 2 and 5), PBFT's. For
    /// experiments only.
    SingleSender,
}

impl StateTransfer {
    /// All of them.
    pub const ALL: [StateTransfer; 2] = [StateTransfer::Collaborative, StateTransfer::SingleSender];

    /// As in configuration files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StateTransfer::Collaborative => "collaborative",
            StateTransfer::SingleSender => "single-sender",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<StateTransfer> {
        StateTransfer::ALL.into_iter().find(|transfer| transfer.name() == name)
    }
}

/// Who has the state.
struct Seeder {
    id: ReplicaId,
    // Asked for, and not given yet.
    owes: BTreeSet<u32>,
    // When it last owed one less, or began to owe, or the link to it broke.
    since_ms: u64,
    away: bool,
    // For how long it had owed what was lost on the way since it last gave something.
    owed_ms: u64,
    // Whether it was asked again for what it owes since then.
    reminded: bool,
}

/// How fast pieces come, over attempts: a state that arrives ends it.
#[derive(Clone, Copy, Default)]
pub(super) struct Pace {
    doublings: u32,
    answer_doublings: u32,
}

/// A state on its way.
pub(super) struct Fetching {
    pub offer: Offer,
    pub manifest: Manifest,
    // Those that are asked, then the reserve.
    seeders: Vec<Seeder>,
    active: usize,
    // As many are asked at least, if there are as many.
    least: usize,
    // Pieces that one seeder may owe.
    at_once: usize,
    pieces: Vec<Option<Bytes>>,
    // To be asked for; some may have come since they were asked for in vain.
    open: VecDeque<u32>,
    missing: usize,
    // Pieces and bytes that came since, against the pace.
    given: usize,
    given_bytes: usize,
    given_since_ms: u64,
    // When the last one came.
    progress_ms: u64,
}

impl Fetching {
    /// Of `seeders` the first `active` are asked, at least `least` at any time; `kept` holds pieces that
    /// came for another state.
    pub fn new(
        offer: Offer,
        manifest: Manifest,
        (seeders, active, least): (Vec<ReplicaId>, usize, usize),
        kept: &BTreeMap<Digest, Bytes>,
        now_ms: u64,
    ) -> Fetching {
        let entries = manifest.entries();
        let bytes: usize = entries.iter().map(|entry| entry.length as usize).sum();
        let mean = bytes / entries.len().max(1);
        let pieces: Vec<Option<Bytes>> =
            entries.iter().map(|entry| kept.get(&entry.digest).cloned()).collect();
        let seeder = |id| Seeder {
            id,
            owes: BTreeSet::new(),
            since_ms: now_ms,
            away: false,
            owed_ms: 0,
            reminded: false,
        };
        let seeders: Vec<Seeder> = seeders.into_iter().map(seeder).collect();
        Fetching {
            offer,
            active: active.max(least).min(seeders.len()),
            least,
            at_once: (BYTES_AT_ONCE / mean.max(1)).clamp(LEAST_AT_ONCE, MOST_AT_ONCE),
            seeders,
            open: (0..entries.len() as u32).collect(),
            missing: pieces.iter().filter(|piece| piece.is_none()).count(),
            manifest,
            pieces,
            given: 0,
            given_bytes: 0,
            given_since_ms: now_ms,
            progress_ms: now_ms,
        }
    }

    fn begin_pace(&mut self, now_ms: u64) {
        (self.given, self.given_bytes, self.given_since_ms) = (0, 0, now_ms);
    }

    pub fn complete(&self) -> bool {
        self.missing == 0
    }

    /// Who is left.
    pub fn seeders(&self) -> impl Iterator<Item = ReplicaId> {
        self.seeders.iter().map(|seeder| seeder.id)
    }

    /// Whether a piece is missing.
    pub fn lacks(&self, index: u32) -> bool {
        self.pieces.get(index as usize).is_some_and(Option::is_none)
    }

    /// Whether a replica was asked for a piece that has not come.
    pub fn owes(&self, from: ReplicaId, index: u32) -> bool {
        self.seeders.iter().any(|seeder| seeder.id == from && seeder.owes.contains(&index))
    }

    /// The pieces that came, with their digests.
    pub fn into_pieces(self) -> (Offer, Manifest, Vec<Option<Bytes>>) {
        (self.offer, self.manifest, self.pieces)
    }

    /// What to ask whom for now.
    pub fn asks(&mut self, now_ms: u64) -> Vec<(ReplicaId, u32)> {
        let mut asks = Vec::new();
        let most = self.at_once;
        // In turns, so that few pieces are shared out as well as many.
        for _ in 0..most {
            for place in 0..self.active {
                let seeder = &self.seeders[place];
                if !seeder.away
                    && seeder.owes.len() < most
                    && let Some(index) = self.next_open()
                {
                    asks.push(self.ask(place, index, now_ms));
                }
            }
        }
        for place in 0..self.active {
            if !self.seeders[place].away && self.seeders[place].owes.is_empty() {
                for index in self.overdue(now_ms) {
                    asks.push(self.ask(place, index, now_ms));
                }
            }
        }
        asks
    }

    fn ask(&mut self, place: usize, index: u32, now_ms: u64) -> (ReplicaId, u32) {
        let seeder = &mut self.seeders[place];
        if seeder.owes.is_empty() {
            seeder.since_ms = now_ms.saturating_sub(seeder.owed_ms);
            seeder.reminded = false;
        }
        seeder.owes.insert(index);
        (seeder.id, index)
    }

    fn next_open(&mut self) -> Option<u32> {
        let pieces = &self.pieces;
        let place = self.open.iter().position(|index| pieces[*index as usize].is_none())?;
        self.open.drain(..=place).next_back()
    }

    /// What the one who owes it gives too slowly.
    fn overdue(&self, now_ms: u64) -> Vec<u32> {
        let slow = |seeder: &&Seeder| now_ms >= seeder.since_ms + OWED_MS;
        let quick: BTreeSet<u32> = (self.seeders.iter().filter(|seeder| !slow(seeder)))
            .flat_map(|seeder| seeder.owes.iter().copied())
            .collect();
        let owed = self.seeders.iter().filter(slow).flat_map(|seeder| seeder.owes.iter().copied());
        let owed: BTreeSet<u32> = owed.filter(|index| !quick.contains(index)).collect();
        owed.into_iter().take(LEAST_AT_ONCE).collect()
    }

    /// A piece that was missing, and is what the manifest says.
    pub fn take(&mut self, now_ms: u64, index: u32, piece: Bytes) {
        // Whoever was asked too, and sends it in vain, has its time as well.
        for seeder in &mut self.seeders {
            if seeder.owes.remove(&index) {
                (seeder.since_ms, seeder.owed_ms, seeder.reminded) = (now_ms, 0, false);
            }
        }
        self.progress_ms = now_ms;
        self.given += 1;
        self.given_bytes += piece.len();
        self.pieces[index as usize] = Some(piece);
        self.missing -= 1;
        if self.given >= PACE_PIECES || self.given_bytes >= PACE_BYTES {
            self.begin_pace(now_ms);
        }
    }

    /// Pieces that nobody owes are open again.
    fn open_again(&mut self, owed: BTreeSet<u32>) {
        let elsewhere = |index: &u32| self.seeders.iter().any(|one| one.owes.contains(index));
        let open: Vec<u32> = owed.into_iter().filter(|index| !elsewhere(index)).collect();
        self.open.extend(open);
    }

    /// The link to a replica broke, and what was on it is lost, or it is there again.
    pub fn on_link(&mut self, now_ms: u64, id: ReplicaId, up: bool) {
        let Some(seeder) = self.seeders.iter_mut().find(|seeder| seeder.id == id) else { return };
        (seeder.away, seeder.since_ms, seeder.owed_ms) = (!up, now_ms, 0);
        let owed = std::mem::take(&mut seeder.owes);
        self.open_again(owed);
    }

    /// What a replica was asked for and what it sent is lost, though it is there: what it owes is open
    /// again, for itself as well. Its time goes on: else one that has its link break before it is over, and
    /// is asked before others, would owe the last pieces for ever.
    pub fn on_lost(&mut self, now_ms: u64, id: ReplicaId) {
        let Some(seeder) = self.seeders.iter_mut().find(|seeder| seeder.id == id) else { return };
        if !seeder.owes.is_empty() {
            seeder.owed_ms = now_ms.saturating_sub(seeder.since_ms);
        }
        let owed = std::mem::take(&mut seeder.owes);
        self.open_again(owed);
    }

    /// Goes on without a seeder; what it owes is asked for elsewhere.
    pub fn drop_seeder(&mut self, now_ms: u64, id: ReplicaId) {
        self.begin_pace(now_ms);
        let Some(place) = self.seeders.iter().position(|seeder| seeder.id == id) else { return };
        let gone = self.seeders.remove(place);
        self.active -= usize::from(place < self.active);
        self.active = self.active.max(self.least).min(self.seeders.len());
        self.open_again(gone.owes);
    }

    /// Who owes pieces and gives none, or is away.
    pub fn silent(&self, now_ms: u64, pace: &mut Pace) -> Option<ReplicaId> {
        let timeout_ms = ANSWER_MS << pace.answer_doublings;
        let late = |seeder: &&Seeder| {
            (seeder.away || !seeder.owes.is_empty()) && now_ms >= seeder.since_ms + timeout_ms
        };
        let silent = self.seeders.iter().find(late)?;
        if self.progress_ms <= silent.since_ms {
            pace.answer_doublings = (pace.answer_doublings + 1).min(ANSWER_DOUBLINGS);
        }
        Some(silent.id)
    }

    /// What to ask for once more, of the same: half of a seeder's time is over, and a single message that was
    /// lost is no reason to begin anew where nobody else has this state.
    pub fn reminders(&mut self, now_ms: u64, pace: &Pace) -> Vec<(ReplicaId, u32)> {
        let timeout_ms = (ANSWER_MS << pace.answer_doublings) / 2;
        let mut asks = Vec::new();
        for seeder in &mut self.seeders {
            if !seeder.away && !seeder.reminded && now_ms >= seeder.since_ms + timeout_ms {
                seeder.reminded = !seeder.owes.is_empty();
                let owed = seeder.owes.iter().take(LEAST_AT_ONCE);
                asks.extend(owed.map(|index| (seeder.id, *index)));
            }
        }
        asks
    }

    /// Whether pieces come too slowly; then one of the reserve is asked too.
    pub fn lags(&mut self, now_ms: u64, pace: &mut Pace) -> bool {
        if now_ms < self.given_since_ms + (PACE_MS << pace.doublings) {
            return false;
        }
        pace.doublings = (pace.doublings + 1).min(PACE_DOUBLINGS);
        self.begin_pace(now_ms);
        self.active = (self.active + 1).min(self.seeders.len());
        true
    }
}

#[cfg(test)]
mod tests;
