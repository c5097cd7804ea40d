//! The thread that digests states, so that who is writing one for long still signs others; while it
//! has none to digest, it scrubs: it holds what is in memory against the digests that it had when it
//! last changed (D7). What changes is digested at the next boundary anyway; what does not, a bit that
//! flipped in it would be served, and no boundary would tell.

use super::keeper::{Completion, Completions};
use super::pace::Rhythm;
use super::{watch, worker};
use perdura_execution::{Manifest, StateSnapshot};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A node has one state digested at a time, and one stored; one more is scrubbed at the start.
const QUEUE: usize = 8;

/// Between two parts of a scrub.
const PAUSE: Duration = Duration::from_millis(100);

/// What it is at.
const DIGESTING: &str = "digesting a state";

enum Job {
    Digest(StateSnapshot),
    Hold(StateSnapshot),
}

pub(super) struct Digester {
    jobs: Option<SyncSender<Job>>,
    rhythm: Rhythm,
    orders: Shared,
    thread: JoinHandle<()>,
}

/// What the event loop wants of the thread.
#[derive(Clone, Default)]
struct Shared(Arc<Signals>);

#[derive(Default)]
struct Signals {
    stops: AtomicBool,
    late: AtomicBool,
    queued: AtomicUsize,
}

impl Shared {
    fn stops(&self) -> bool {
        self.0.stops.load(Ordering::SeqCst)
    }

    /// Whether there is no time for pauses.
    fn hurried(&self) -> bool {
        let waiting = self.0.queued.load(Ordering::SeqCst) > 0;
        waiting || self.0.late.load(Ordering::SeqCst) || self.stops()
    }
}

impl Digester {
    /// One that scrubs each state within `scrub`; never if that is zero.
    pub fn start(
        scrub: Duration,
        rhythm: Rhythm,
        completions: Completions,
    ) -> std::io::Result<Digester> {
        let (jobs, queue) = sync_channel(QUEUE);
        let (orders, scrub) = (Shared::default(), Scrub { interval: scrub, next: 0 });
        let (given, beats) = (orders.clone(), rhythm.clone());
        let work =
            move |completions: &Completions| work(&queue, &given, &beats, scrub, completions);
        let thread = worker::spawn_patient("digester", completions, work)?;
        Ok(Digester { jobs: Some(jobs), rhythm, orders, thread })
    }

    /// One whose thread never does anything.
    #[cfg(test)]
    pub fn stuck() -> Digester {
        let thread = std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
        let (jobs, orders) = (Some(sync_channel(QUEUE).0), Shared::default());
        Digester { jobs, rhythm: Rhythm::default(), orders, thread }
    }

    /// Digests a state, and scrubs it until there is another one.
    pub fn digest(&self, snapshot: StateSnapshot) {
        self.rhythm.beat(Instant::now());
        self.send(Job::Digest(snapshot));
    }

    /// Scrubs a state until there is another one.
    pub fn hold(&self, snapshot: StateSnapshot) {
        self.send(Job::Hold(snapshot));
    }

    #[cfg(test)]
    pub fn is_hurried(&self) -> bool {
        self.orders.hurried()
    }

    /// Whether somebody waits for the digest of what is under way, or for its end.
    pub fn hurry(&self, late: bool) {
        self.orders.0.late.store(late, Ordering::SeqCst);
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            self.orders.0.queued.fetch_add(1, Ordering::SeqCst);
            // A thread that is gone has reported its panic (`worker`).
            let _ = jobs.send(job);
        }
    }

    /// Waits until what is queued is digested.
    pub fn stop(mut self) {
        self.orders.0.stops.store(true, Ordering::SeqCst);
        self.jobs = None;
        let _ = self.thread.join();
    }
}

/// The manifest of a state, digested at leisure unless somebody waits.
fn digest(snapshot: &StateSnapshot, rhythm: &Rhythm, orders: &Shared) -> Manifest {
    let mut spread = rhythm.spread(Instant::now(), snapshot.pieces());
    let step = || match spread.did(Instant::now()) {
        wait if !wait.is_zero() && !orders.hurried() => {
            watch::pausing(|| std::thread::sleep(wait));
            spread.go_on(Instant::now());
        }
        _ => worker::give_way(),
    };
    watch::at(DIGESTING, || snapshot.manifest_in_steps(step))
}

fn work(
    queue: &Receiver<Job>,
    orders: &Shared,
    rhythm: &Rhythm,
    scrub: Scrub,
    completions: &Completions,
) {
    let mut scrub = Some(scrub).filter(|scrub| !scrub.interval.is_zero());
    let mut held: Option<(StateSnapshot, Manifest)> = None;
    let mut scrubbed = Instant::now();
    loop {
        let pause = if held.is_some() { PAUSE } else { Duration::MAX };
        let job = queue.recv_timeout(pause);
        if job.is_ok() {
            orders.0.queued.fetch_sub(1, Ordering::SeqCst);
        }
        let state = match job {
            Ok(Job::Digest(snapshot)) => {
                let manifest = digest(&snapshot, rhythm, orders);
                if !completions.takes(&manifest) {
                    return;
                }
                let digest = manifest.digest();
                let digested = Completion::StateDigested { manifest: manifest.clone(), digest };
                completions.push(digested);
                Some((snapshot, manifest))
            }
            Ok(Job::Hold(snapshot)) if scrub.is_some() && !orders.stops() => {
                let manifest =
                    watch::at(DIGESTING, || snapshot.manifest_in_steps(worker::give_way));
                Some((snapshot, manifest))
            }
            Ok(Job::Hold(_)) | Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Some(running) = &mut scrub else { continue };
        held = state.or(held);
        if let Some((snapshot, manifest)) = held.as_ref().filter(|_| scrubbed.elapsed() >= PAUSE) {
            let verify = |index| {
                worker::give_way();
                manifest.verify(index, &snapshot.piece(index))
            };
            let (passed, pieces) = (scrubbed.elapsed(), snapshot.pieces());
            let done = watch::at("holding the state against its digests", || {
                running.go_on(passed, pieces, verify)
            });
            scrubbed = Instant::now();
            if let Err(index) = done {
                completions.push(Completion::StateDamaged(format!(
                    "piece {index} of the state in memory is not what it was when it last changed"
                )));
                (scrub, held) = (None, None);
            }
        }
    }
}

/// Where a scrub is.
struct Scrub {
    interval: Duration,
    next: usize,
}

impl Scrub {
    /// Verifies as many of `pieces` pieces as are due when the last ones were verified `since` ago: all
    /// of them within the interval, and a quarter more, for pieces come and go meanwhile. Or says
    /// which one is damaged.
    fn go_on(
        &mut self,
        since: Duration,
        pieces: usize,
        mut verify: impl FnMut(usize) -> bool,
    ) -> Result<(), usize> {
        let part = 1.25 * since.as_secs_f64() / self.interval.as_secs_f64();
        let due = (pieces as f64 * part).ceil() as usize;
        for _ in 0..due.clamp(1, pieces) {
            let index = self.next % pieces;
            if !verify(index) {
                return Err(index);
            }
            self.next = index + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pieces_are_verified_within_the_interval_however_long_the_pauses() {
        for (interval_ms, pause_ms, pieces) in
            [(3_600_000, 100, 100_000), (1000, 400, 7), (50, 900, 9)]
        {
            let mut scrub = Scrub { interval: Duration::from_millis(interval_ms), next: 3 };
            let (mut seen, mut most) = (vec![false; pieces], 0);
            for _ in 0..interval_ms.div_ceil(pause_ms) {
                let before = seen.iter().filter(|seen| **seen).count();
                let verify = |index: usize| std::mem::replace(&mut seen[index], true) | true;
                scrub.go_on(Duration::from_millis(pause_ms), pieces, verify).unwrap();
                most = most.max(seen.iter().filter(|seen| **seen).count() - before);
            }
            assert!(seen.iter().all(|seen| *seen), "{interval_ms} {pause_ms} {pieces}");
            let even = (1.25 * pieces as f64 * pause_ms as f64 / interval_ms as f64).ceil();
            assert!(most as f64 <= even, "{most} at once");
        }
    }

    #[test]
    fn what_is_damaged_is_named_also_when_pieces_come_and_go() {
        let mut scrub = Scrub { interval: Duration::from_secs(1), next: 90 };
        let since = Duration::from_millis(100);
        assert_eq!(scrub.go_on(since, 10, |index| index != 0), Err(0));
        scrub.next = 8;
        let mut seen = Vec::new();
        let found = scrub.go_on(since, 40, |index| {
            seen.push(index);
            index != 11
        });
        assert_eq!((found, seen), (Err(11), vec![8, 9, 10, 11]));
    }
}
