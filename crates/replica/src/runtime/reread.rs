//! Reading the newest checkpoint from the disk again while nothing is stored, all of it within an
//! interval (D7): what rots there would be noticed when it is needed, and then it is too late.

use super::checkpointer::Pace;
use super::keeper::{Completion, Completions};
use super::pace::Pacer;
use perdura_durability::{Again, CheckpointError, Checkpoints, FileDisk};
use std::time::{Duration, Instant};

/// Between two pieces at least, so that a few small ones cost nothing.
const LEAST_PAUSE: Duration = Duration::from_millis(20);

/// How much more is read than would be within the interval: pieces come and go meanwhile.
const HASTE: f64 = 1.25;

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
        self.owed = (self.owed + self.pieces_s() * time.as_secs_f64()).min(self.pieces as f64);
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

/// What one replica's thread does between two checkpoints.
pub(super) struct Reread {
    // None: never.
    turns: Option<Turns>,
    since: Instant,
    pacer: Pacer,
}

impl Reread {
    /// All of a checkpoint within `interval`; never if that is zero.
    pub fn new(interval: Duration) -> Reread {
        let turns = Some(Turns::new(interval)).filter(|_| !interval.is_zero());
        Reread { turns, since: Instant::now(), pacer: Pacer::new(0) }
    }

    /// How long a job may be waited for.
    pub fn wait(&self) -> Duration {
        let wait = self.turns.as_ref().and_then(Turns::wait);
        wait.map_or(Duration::MAX, |wait| wait.saturating_sub(self.since.elapsed()))
    }

    /// There is another checkpoint, or a pass begins.
    pub fn begin(&mut self, checkpoints: &mut Checkpoints<FileDisk>, completions: &Completions) {
        let Some(turns) = &mut self.turns else { return };
        turns.set_pieces(checkpoints.begin_reread().unwrap_or_else(|error| {
            report(&error, "the next one is written as a whole", completions);
            0
        }));
    }

    /// Time has passed: reads what is due of it.
    pub fn go_on(
        &mut self,
        checkpoints: &mut Checkpoints<FileDisk>,
        pace: &Pace,
        completions: &Completions,
    ) {
        let passed = self.since.elapsed();
        self.since = Instant::now();
        let Some(turns) = &mut self.turns else { return };
        turns.passed(passed);
        while !pace.called() {
            let Some(index) = self.turns.as_mut().and_then(Turns::take) else { break };
            if index == 0 {
                self.begin(checkpoints, completions);
            }
            match checkpoints.reread(index) {
                Ok(Again::Sound(bytes)) => pace.read(&mut self.pacer, bytes),
                Ok(Again::Damaged) => {}
                // It was the index that is damaged, and that was reported.
                Err(CheckpointError::Unknown { .. }) => break,
                Err(error) => report(&error, "the next one has this part anew", completions),
            }
        }
    }
}

fn report(error: &CheckpointError, remedy: &str, completions: &Completions) {
    tracing::warn!(
        "the stored checkpoint was read again: {error}; {remedy}, and until then this replica would \
         need the state from others if it had to start again: this disk loses data"
    );
    completions.push(Completion::CheckpointDamaged);
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_was_not_read_in_time_is_owed_but_not_more_than_once() {
        let mut turns = Turns::new(Duration::from_secs(10));
        turns.set_pieces(100);
        turns.passed(Duration::from_secs(4));
        assert_eq!(std::iter::from_fn(|| turns.take()).take(10).count(), 10);
        assert_eq!(turns.wait(), Some(LEAST_PAUSE));
        turns.passed(Duration::from_secs(1000));
        let rest: Vec<usize> = std::iter::from_fn(|| turns.take()).collect();
        assert_eq!((rest.len(), rest[0], rest[99]), (100, 10, 9));
        // A smaller state: from its start.
        turns.set_pieces(5);
        turns.passed(Duration::from_secs(2));
        assert_eq!(turns.take(), Some(0));
        turns.set_pieces(0);
        turns.passed(Duration::from_secs(2));
        assert_eq!((turns.take(), turns.wait()), (None, None));
    }
}
