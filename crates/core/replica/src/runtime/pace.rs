//! How fast a checkpoint is written, so that the flushes of the log do not suffer: at a fixed rate,
//! or for half of the time while the log's flushes take what they usually take, with pauses that
//! double while they take longer.
//!
//! And how fast a state is digested: all replicas digest each boundary's state, at the same time, and in most
//! cases nobody waits for it before the next boundary comes. So it is spread over a part of the time till then.
//!
//! Pure: times are arguments. [`FlushWatch`] is what the keeper and the checkpointer share of it, and
//! [`Rhythm`] what the digester and the checkpointer do.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A flush is slow that takes more than so many times as long as usual.
const SLOW: u32 = 2;

/// No flush is slow that takes less than this: below it, nobody would notice a pause.
const UNNOTICED: Duration = Duration::from_millis(2);

/// The first pause after a slow flush; the next one is twice as long.
const LEAST_PAUSE: Duration = Duration::from_millis(4);

/// The longest pause for a slow flush: with chunks of 1 MiB it leaves about 16 MB/s, so that a
/// checkpoint comes to an end on a disk that is slow for other reasons.
const MOST_PAUSE: Duration = Duration::from_millis(64);

/// In the usual time, a new flush counts for one in so many.
const WEIGHT: u32 = 8;

/// Digesting is spread over half the time between the last two boundaries, for the next one may come sooner,
/// and over so long at most: divergence is noticed and a log is freed only after it.
const SPREAD: Duration = Duration::from_secs(5);

/// After so much work there is a pause, and not before: to sleep and wake up costs as much as a tenth of that.
const WORK: Duration = Duration::from_micros(500);

/// A pause is at most so many times as long as the work before it.
const PAUSES: u32 = 9;

/// What the flushes of the log take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Flushes {
    count: u64,
    last: Duration,
    // While no checkpoint is written.
    usual: Option<Duration>,
    // For how long one has been under way that has not ended.
    pending: Duration,
}

impl Flushes {
    /// One took `took`; `alone` if no checkpoint was being written.
    pub fn note(&mut self, took: Duration, alone: bool) {
        self.count += 1;
        self.last = took;
        if alone {
            let usual = self.usual.map_or(took, |usual| (usual * (WEIGHT - 1) + took) / WEIGHT);
            self.usual = Some(usual);
        }
    }

    /// Whether the last one, or the one that is under way, is a slow one; one that ended by `seen`
    /// has had its pause.
    fn slow(&self, seen: u64) -> bool {
        let last = if self.count > seen { self.last } else { Duration::ZERO };
        self.usual.is_some_and(|usual| last.max(self.pending) > UNNOTICED.max(usual * SLOW))
    }
}

/// The pace of one checkpoint.
#[derive(Debug)]
pub(super) struct Pacer {
    // 0: as the log's flushes allow.
    bytes_per_s: u64,
    // At a fixed rate: when what was written so far may be there.
    due: Option<Instant>,
    seen: u64,
    pause: Duration,
    // Until when it was counted what the work took, and how much of it had no pause yet.
    since: Option<Instant>,
    worked: Duration,
}

impl Pacer {
    /// With a rate, or, if that is 0, as the log's flushes allow.
    pub fn new(bytes_per_s: u64) -> Pacer {
        Pacer {
            bytes_per_s,
            due: None,
            seen: 0,
            pause: Duration::ZERO,
            since: None,
            worked: Duration::ZERO,
        }
    }

    /// `bytes` were written by `now`, after a pause of what this said last: how long to wait
    /// before the next ones.
    pub fn wrote(&mut self, now: Instant, bytes: u64, flushes: Flushes) -> Duration {
        if self.bytes_per_s == 0 {
            // As long as what was written took: the disk and the processors are the log's for half of the time.
            let since = self.since.replace(now).unwrap_or(now);
            self.worked += now.saturating_duration_since(since);
            let rest = if self.worked < WORK { Duration::ZERO } else { self.worked };
            let pause = self.adapt(flushes).max(rest.min(MOST_PAUSE));
            if !pause.is_zero() {
                self.worked = Duration::ZERO;
            }
            return pause;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        // A disk that was slower than the rate does not make up for it.
        let due = self.due.map_or(now, |due| due.max(now)) + takes;
        self.due = Some(due);
        due - now
    }

    /// The pause is over, however long it was.
    pub fn go_on(&mut self, now: Instant) {
        self.since = Some(now);
    }

    fn adapt(&mut self, flushes: Flushes) -> Duration {
        let slow = flushes.slow(self.seen);
        self.seen = flushes.count;
        self.pause = if slow {
            (self.pause * 2).clamp(LEAST_PAUSE, MOST_PAUSE)
        } else {
            let shorter = self.pause / 2;
            if shorter < LEAST_PAUSE { Duration::ZERO } else { shorter }
        };
        self.pause
    }
}

/// What the keeper tells the checkpointer.
#[derive(Clone, Default)]
pub(super) struct FlushWatch(Arc<Mutex<Watched>>);

#[derive(Default)]
struct Watched {
    flushes: Flushes,
    begun: Option<Instant>,
    checkpoint: bool,
}

impl FlushWatch {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log is being flushed.
    pub fn begin(&self, now: Instant) {
        self.watched().begun = Some(now);
    }

    /// What was begun has ended.
    pub fn end(&self, now: Instant) {
        let mut watched = self.watched();
        let alone = !watched.checkpoint;
        if let Some(begun) = watched.begun.take() {
            watched.flushes.note(now.saturating_duration_since(begun), alone);
        }
    }

    /// A checkpoint is being written, or not any more.
    pub fn set_checkpoint(&self, written: bool) {
        self.watched().checkpoint = written;
    }

    /// What flushes took so far.
    pub fn flushes(&self, now: Instant) -> Flushes {
        let watched = self.watched();
        let pending =
            watched.begun.map_or(Duration::ZERO, |begun| now.saturating_duration_since(begun));
        Flushes { pending, ..watched.flushes }
    }
}

/// When states were given to be digested.
#[derive(Clone, Default)]
pub(super) struct Rhythm(Arc<Mutex<Beats>>);

#[derive(Default)]
struct Beats {
    last: Option<Instant>,
    between: Duration,
}

impl Rhythm {
    fn beats(&self) -> MutexGuard<'_, Beats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A state is to be digested.
    pub fn beat(&self, now: Instant) {
        let mut beats = self.beats();
        let last = beats.last.replace(now);
        beats.between = last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
    }

    /// Time between the last two of them.
    #[cfg(test)]
    pub fn between(&self) -> Duration {
        self.beats().between
    }

    /// For digesting a state of so many pieces from now on; at once while there was one boundary only.
    pub fn spread(&self, now: Instant, pieces: usize) -> Spread {
        let within = (self.beats().between / 2).min(SPREAD);
        Spread { begun: now, since: now, within, pieces, done: 0 }
    }
}

/// A work of many pieces that is to take some time.
pub(super) struct Spread {
    begun: Instant,
    // The end of the last pause.
    since: Instant,
    within: Duration,
    pieces: usize,
    done: usize,
}

impl Spread {
    /// One more piece was done by `now`: how long to wait before the next one. Not to be ahead of the time
    /// there is, though never so long that it would not have paid: many pieces take no time at all, for
    /// nothing has changed in them.
    pub fn did(&mut self, now: Instant) -> Duration {
        self.done += 1;
        let worked = now.saturating_duration_since(self.since);
        let part = self.done as f64 / self.pieces.max(self.done) as f64;
        let passed = now.saturating_duration_since(self.begun);
        let ahead = self.within.mul_f64(part).saturating_sub(passed);
        if worked < WORK || ahead < WORK {
            return Duration::ZERO;
        }
        ahead.min(worked * PAUSES)
    }

    /// The pause is over.
    pub fn go_on(&mut self, now: Instant) {
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MIB: u64 = 1024 * 1024;

    #[test]
    fn a_rate_is_kept_and_lost_time_is_not_made_up_for() {
        let start = Instant::now();
        let mut pacer = Pacer::new(10 * MIB);
        let none = Flushes::default();
        assert_eq!(pacer.wrote(start, MIB, none), 100 * MS);
        // It was woken late, by 30 ms, and is told to wait for the rest.
        assert_eq!(pacer.wrote(start + 30 * MS, MIB, none), 170 * MS);
        // The disk took a second for the next chunk.
        assert_eq!(pacer.wrote(start + 1000 * MS, MIB, none), 100 * MS);
        assert_eq!(pacer.wrote(start + 1100 * MS, MIB / 2, none), 50 * MS);
    }

    #[test]
    fn pauses_double_while_flushes_are_slow_and_go_when_they_are_not() {
        let now = Instant::now();
        let mut flushes = Flushes::default();
        for _ in 0..20 {
            flushes.note(5 * MS, true);
        }
        let mut pacer = Pacer::new(0);
        assert_eq!(pacer.wrote(now, MIB, flushes), Duration::ZERO, "nothing is slow");
        let mut pauses = Vec::new();
        for _ in 0..6 {
            flushes.note(11 * MS, false);
            pauses.push(pacer.wrote(now, MIB, flushes).as_millis());
        }
        assert_eq!(pauses, [4, 8, 16, 32, 64, 64]);
        // Nothing is logged any more, so nobody is in its way.
        let pauses: Vec<u128> =
            (0..6).map(|_| pacer.wrote(now, MIB, flushes).as_millis()).collect();
        assert_eq!(pauses, [32, 16, 8, 4, 0, 0]);
        flushes.note(9 * MS, false);
        assert_eq!(pacer.wrote(now, MIB, flushes), Duration::ZERO, "not twice the usual");
    }

    #[test]
    fn the_disk_is_left_alone_for_half_of_the_time() {
        let (mut now, mut flushes) = (Instant::now(), Flushes::default());
        flushes.note(MS, true);
        let mut pacer = Pacer::new(0);
        let mut pause = |took_ms: u32, flushes| {
            now += took_ms * MS;
            let pause = pacer.wrote(now, MIB, flushes);
            // It is woken late, which is nobody's work.
            now += pause + 7 * MS;
            pacer.go_on(now);
            pause.as_millis()
        };
        assert_eq!(
            [5, 2, 3, 0, 40, 900, 1].map(|took| pause(took, flushes)),
            [0, 2, 3, 0, 40, 64, 1]
        );
        // A flush was slow.
        flushes.note(5 * MS, false);
        assert_eq!(pause(2, flushes), 4);
        flushes.note(5 * MS, false);
        assert_eq!(pause(2, flushes), 8);
        assert_eq!(pause(2, flushes), 4, "none since");
        assert_eq!(pause(20, flushes), 20);
    }

    #[test]
    fn small_pieces_have_a_pause_together() {
        let (mut now, flushes) = (Instant::now(), Flushes::default());
        let mut pacer = Pacer::new(0);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let pause = pacer.wrote(now, 1000, flushes);
            pauses.push(pause.as_micros());
            now += pause;
            pacer.go_on(now);
            now += MS / 5;
        }
        assert_eq!(pauses, [0, 0, 0, 600, 0, 0, 600, 0, 0]);
    }

    #[test]
    fn a_flush_that_does_not_end_is_a_slow_one() {
        let (watch, start) = (FlushWatch::default(), Instant::now());
        let flush = |from: Duration, to: Duration| {
            watch.begin(start + from);
            watch.end(start + to);
        };
        flush(Duration::ZERO, 3 * MS);
        watch.set_checkpoint(true);
        let mut pacer = Pacer::new(0);
        watch.begin(start + 10 * MS);
        let mut pause = |ms: u32| {
            let now = start + ms * MS;
            let pause = pacer.wrote(now, MIB, watch.flushes(now));
            pacer.go_on(now + pause);
            pause.as_millis()
        };
        assert_eq!([16, 17, 21, 29].map(&mut pause), [0, 4, 8, 16]);
        watch.end(start + 44 * MS);
        assert_eq!([45, 77, 93, 101].map(&mut pause), [32, 16, 8, 4]);
    }

    #[test]
    fn the_usual_is_that_without_a_checkpoint_and_small_times_do_not_count() {
        let now = Instant::now();
        let mut flushes = Flushes::default();
        flushes.note(MS / 10, true);
        for _ in 0..100 {
            flushes.note(90 * MS, false);
        }
        assert_eq!(flushes.usual, Some(MS / 10));
        assert!(Pacer::new(0).wrote(now, MIB, flushes) > Duration::ZERO);
        flushes.note(MS, false);
        assert_eq!(Pacer::new(0).wrote(now, MIB, flushes), Duration::ZERO, "ten times nothing");
        // What is usual follows a disk that became slower.
        for _ in 0..50 {
            flushes.note(90 * MS, true);
        }
        assert_eq!(Pacer::new(0).wrote(now, MIB, flushes), Duration::ZERO);
        let mut unknown = Flushes::default();
        unknown.note(900 * MS, false);
        assert_eq!(Pacer::new(0).wrote(now, MIB, unknown), Duration::ZERO, "nothing is usual yet");
    }

    /// Digests pieces that take so long each; how long it takes, and the pauses.
    fn digested(rhythm: &Rhythm, pieces: &[Duration]) -> (Duration, usize) {
        let begun = Instant::now();
        let mut spread = rhythm.spread(begun, pieces.len());
        let (mut now, mut pauses) = (begun, 0);
        for piece in pieces {
            now += *piece;
            let wait = spread.did(now);
            if !wait.is_zero() {
                assert!(wait >= WORK && wait <= PAUSES * 2 * WORK, "{wait:?}");
                pauses += 1;
                now += wait;
                spread.go_on(now);
            }
        }
        (now - begun, pauses)
    }

    fn rhythm(between: Duration) -> Rhythm {
        let (rhythm, begun) = (Rhythm::default(), Instant::now());
        rhythm.beat(begun);
        rhythm.beat(begun + between);
        rhythm
    }

    #[test]
    fn digesting_is_spread_over_half_the_time_between_boundaries() {
        let pieces = |count| vec![MS / 10; count];
        let first = Rhythm::default();
        assert_eq!(digested(&first, &pieces(1_000)), (100 * MS, 0), "nothing is known");
        first.beat(Instant::now());
        assert_eq!(digested(&first, &pieces(1_000)), (100 * MS, 0), "one boundary is no rhythm");
        for (between_ms, count, least_ms, most_ms) in [
            (600, 1_000, 299, 300),
            (8_000, 20_000, 3_999, 4_000),
            // The next one may come sooner, or somebody may wait for it.
            (3_600_000, 40_000, 4_999, 5_000),
            // It is soon done: a tenth of the time is work.
            (3_600_000, 1_000, 990, 1_000),
            // There is no time left: as fast as it goes.
            (10, 1_000, 100, 100),
        ] {
            let (took, pauses) = digested(&rhythm(between_ms * MS), &pieces(count));
            let expected = least_ms * MS..=most_ms * MS;
            assert!(expected.contains(&took), "{between_ms} {count}: {took:?}");
            assert!(pauses <= count / 5, "{between_ms} {count}: {pauses} pauses");
        }
    }

    #[test]
    fn what_has_not_changed_takes_no_time() {
        let unchanged = vec![Duration::from_nanos(200); 20_000];
        let (took, pauses) = digested(&rhythm(10_000 * MS), &unchanged);
        assert!(took <= 40 * MS && pauses <= 8, "{took:?} {pauses}");
        // All that changed is at the end.
        let late = [unchanged, vec![MS / 10; 2_000]].concat();
        let (took, _) = digested(&rhythm(10_000 * MS), &late);
        assert!((1_900 * MS..2_100 * MS).contains(&took), "{took:?}");
    }
}
