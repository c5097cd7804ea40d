//! Reading the newest checkpoint from the disk again while nothing is stored, all of it within an
//! interval (D7): what rots there would be noticed when it is needed, and then it is too late.

use super::DataDisk;
use super::checkpointer::Pace;
use super::keeper::{Completion, Completions};
use super::pace::Pacer;
use perdura_durability::{Again, CheckpointError, Checkpoints};
use std::time::{Duration, Instant};

/// Between two pieces at least, so that a few small ones cost nothing.
const LEAST_PAUSE: Duration = Duration::from_millis(20);

/// How much more is read than would be within the interval: pieces come and go meanwhile.
const HASTE: f64 = 1.25;

/// What was not read while the thread was busy is made up for as far as it is this part of all at most.
const MOST_OWED: f64 = 0.125;

/// While checkpoints are stored one right after the other, so much is read after each.
const SLICE_BYTES: u64 = 4 * 1024 * 1024;

/// A pause is thought of after so many bytes.
const PACED_BYTES: u64 = 1024 * 1024;

/// What names a piece in the index and in the manifest, about.
const NAME_BYTES: u64 = 100;

/// A read that fails counts as one of so many.
const FAILED_BYTES: u64 = 64 * 1024;

/// Damage is told of as soon as it is found, and what more is found then as often as this.
const TOLD: Duration = Duration::from_secs(10);

/// Which piece is due when. Pure: times are arguments.
#[derive(Debug)]
struct Turns {
    interval: Duration,
    pieces: usize,
    next: usize,
    // Pieces that should have been read by now, and were not.
    owed: f64,
}

impl Turns {
    fn new(interval: Duration) -> Turns {
        Turns { interval, pieces: 0, next: 0, owed: 0.0 }
    }

    fn pieces_s(&self) -> f64 {
        HASTE * self.pieces as f64 / self.interval.as_secs_f64()
    }

    /// There are so many pieces now.
    fn set_pieces(&mut self, pieces: usize) {
        self.pieces = pieces;
        if self.next >= pieces {
            self.next = 0;
        }
    }

    fn passed(&mut self, time: Duration) {
        let most = (MOST_OWED * self.pieces as f64).max(1.0);
        self.owed = (self.owed + self.pieces_s() * time.as_secs_f64()).min(most);
    }

    /// The piece that is due.
    fn take(&mut self) -> Option<usize> {
        if self.owed < 1.0 || self.pieces == 0 {
            return None;
        }
        self.owed -= 1.0;
        let index = self.next;
        self.next = (index + 1) % self.pieces;
        Some(index)
    }

    /// Until one is due; none without pieces.
    fn wait(&self) -> Option<Duration> {
        if self.pieces == 0 {
            return None;
        }
        let left = Duration::try_from_secs_f64((1.0 - self.owed) / self.pieces_s());
        Some(left.unwrap_or_default().max(LEAST_PAUSE))
    }
}

/// What was found and is not told yet.
#[derive(Debug, Default)]
struct Damages {
    count: u64,
    first: Option<String>,
    told: Option<Instant>,
}

impl Damages {
    fn note(&mut self, error: &CheckpointError) {
        self.count += 1;
        self.first.get_or_insert_with(|| error.to_string());
    }

    /// How long what is not told may wait; none if there is nothing.
    fn wait(&self) -> Option<Duration> {
        let told = self.told.map_or(TOLD, |told| told.elapsed());
        (self.count > 0).then(|| TOLD.saturating_sub(told))
    }

    fn tell(&mut self, completions: &Completions) {
        if self.wait() != Some(Duration::ZERO) {
            return;
        }
        let first = self.first.take().unwrap_or_default();
        tracing::warn!(
            damages = self.count,
            "the newest checkpoint cannot be read as it was stored: {first}; the next one has this anew. \
             Until then this replica may need the state from others to start again. This disk loses data"
        );
        completions.push(Completion::CheckpointDamaged(self.count));
        *self = Damages { told: Some(Instant::now()), ..Damages::default() };
    }
}

/// What one replica's thread does between two checkpoints.
pub(super) struct Reread {
    // None: never.
    turns: Option<Turns>,
    since: Instant,
    damages: Damages,
    pacer: Pacer,
    unpaced_bytes: u64,
}

impl Reread {
    /// All of a checkpoint within `interval`; never if that is zero.
    pub fn new(interval: Duration, bytes_per_s: u64) -> Reread {
        Reread {
            turns: Some(Turns::new(interval)).filter(|_| !interval.is_zero()),
            since: Instant::now(),
            damages: Damages::default(),
            pacer: Pacer::new(bytes_per_s),
            unpaced_bytes: 0,
        }
    }

    /// How long a job may be waited for.
    pub fn wait(&self) -> Duration {
        let turn = self.turns.as_ref().and_then(Turns::wait);
        let turn = turn.map(|wait| wait.saturating_sub(self.since.elapsed()));
        turn.into_iter().chain(self.damages.wait()).min().unwrap_or(Duration::MAX)
    }

    /// There is another checkpoint, or a pass begins.
    pub fn begin(&mut self, checkpoints: &mut Checkpoints<DataDisk>) {
        self.pass_time();
        let Some(turns) = &mut self.turns else { return };
        let pieces = checkpoints.begin_reread().unwrap_or_else(|error| {
            self.damages.note(&error);
            0
        });
        turns.set_pieces(pieces);
        self.unpaced_bytes += NAME_BYTES * pieces as u64;
    }

    fn pass_time(&mut self) {
        let passed = self.since.elapsed();
        self.since += passed;
        if let Some(turns) = &mut self.turns {
            turns.passed(passed);
        }
    }

    /// A checkpoint was stored, and others may wait: reads a little of what is due.
    pub fn slice(
        &mut self,
        checkpoints: &mut Checkpoints<DataDisk>,
        pace: &Pace,
        completions: &Completions,
    ) {
        self.begin(checkpoints);
        self.read(checkpoints, pace, |pace, bytes| bytes < SLICE_BYTES && !pace.stops());
        self.damages.tell(completions);
    }

    /// Time has passed, and nothing is to be stored: reads what is due.
    pub fn go_on(
        &mut self,
        checkpoints: &mut Checkpoints<DataDisk>,
        pace: &Pace,
        completions: &Completions,
    ) {
        self.pass_time();
        self.read(checkpoints, pace, |pace, _| !pace.called());
        self.damages.tell(completions);
    }

    fn read(
        &mut self,
        checkpoints: &mut Checkpoints<DataDisk>,
        pace: &Pace,
        may: impl Fn(&Pace, u64) -> bool,
    ) {
        let mut bytes = 0;
        while may(pace, bytes) {
            let Some(index) = self.turns.as_mut().and_then(Turns::take) else { break };
            if index == 0 {
                self.begin(checkpoints);
            }
            let read = match pace.reading(|| checkpoints.reread(index)) {
                Ok(Again::Sound(read)) => read,
                Ok(Again::Damaged) => continue,
                // It was the index that is damaged, and that is noted.
                Err(CheckpointError::Unknown { .. }) => break,
                Err(error) => {
                    self.damages.note(&error);
                    FAILED_BYTES
                }
            };
            bytes += read;
            self.unpaced_bytes += read;
            if self.unpaced_bytes >= PACED_BYTES {
                pace.read(&mut self.pacer, std::mem::take(&mut self.unpaced_bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn each_piece_is_read_within_the_interval_and_not_much_more_often() {
        for (interval_s, pieces) in [(3600, 20_000), (3600, 1), (5, 1000), (1, 7), (30 * 86_400, 3)]
        {
            let mut turns = Turns::new(Duration::from_secs(interval_s));
            assert_eq!(turns.wait(), None);
            turns.set_pieces(pieces);
            let (mut now, mut reads) = (Duration::ZERO, vec![0; pieces]);
            while now < Duration::from_secs(interval_s) {
                let wait = turns.wait().unwrap();
                now += wait;
                turns.passed(wait);
                while let Some(index) = turns.take() {
                    reads[index] += 1;
                }
            }
            assert!(reads.iter().all(|reads| (1..=2).contains(reads)), "{interval_s} {reads:?}");
        }
    }

    #[test]
    fn what_was_not_read_in_time_is_owed_but_only_an_eighth_at_once() {
        let mut turns = Turns::new(Duration::from_secs(10));
        turns.set_pieces(100);
        turns.passed(Duration::from_secs(1));
        let due = |turns: &mut Turns| std::iter::from_fn(|| turns.take()).collect::<Vec<_>>();
        assert_eq!(due(&mut turns), (0..12).collect::<Vec<_>>());
        assert_eq!(turns.wait(), Some(Duration::from_millis(40)));
        turns.passed(Duration::from_secs(1000));
        assert_eq!(turns.wait(), Some(LEAST_PAUSE));
        assert_eq!(due(&mut turns), (12..24).collect::<Vec<_>>());
        // A smaller state: from its start.
        turns.set_pieces(5);
        turns.passed(Duration::from_secs(2));
        assert_eq!(due(&mut turns), [0]);
        turns.set_pieces(0);
        turns.passed(Duration::from_secs(2));
        assert_eq!((turns.take(), turns.wait()), (None, None));
    }

    #[test]
    fn damage_is_told_at_once_and_what_follows_together() {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let completions = Completions::new(waker);
        let mut damages = Damages::default();
        let error = CheckpointError::Poisoned;
        assert_eq!(damages.wait(), None);
        damages.note(&error);
        assert_eq!(damages.wait(), Some(Duration::ZERO));
        damages.tell(&completions);
        for _ in 0..1000 {
            damages.note(&error);
            damages.tell(&completions);
        }
        assert!(damages.wait().is_some_and(|wait| wait <= TOLD));
        damages.told = Instant::now().checked_sub(TOLD);
        damages.tell(&completions);
        let told = completions.take();
        assert!(matches!(
            told[..],
            [Completion::CheckpointDamaged(1), Completion::CheckpointDamaged(1000)]
        ));
    }
}
