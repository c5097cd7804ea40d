//! The thread that digests states, so that who is writing one for long still signs others; while it
//! has none to digest, it scrubs: it holds what is in memory against the digests that it had when it
//! last changed (D7). What changes is digested at the next boundary anyway; what does not, a bit that
//! flipped in it would be served, and no boundary would tell.

use super::keeper::{Completion, Completions};
use super::worker;
use perdura_execution::{Manifest, StateSnapshot};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A node has one state digested at a time, and one stored; one more is scrubbed at the start.
const QUEUE: usize = 8;

/// Between two parts of a scrub.
const PAUSE: Duration = Duration::from_millis(100);

enum Job {
    Digest(StateSnapshot),
    Hold(StateSnapshot),
}

pub(super) struct Digester {
    jobs: Option<SyncSender<Job>>,
    thread: JoinHandle<()>,
}

impl Digester {
    /// One that scrubs each state within `scrub`; never if that is zero.
    pub fn start(scrub: Duration, completions: Completions) -> std::io::Result<Digester> {
        let (jobs, queue) = sync_channel(QUEUE);
        let work = move |completions: &Completions| work(&queue, scrub, completions);
        let thread = worker::spawn("digester", completions, work)?;
        Ok(Digester { jobs: Some(jobs), thread })
    }

    /// One whose thread never does anything.
    #[cfg(test)]
    pub fn stuck() -> Digester {
        let thread = std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
        Digester { jobs: Some(sync_channel(QUEUE).0), thread }
    }

    /// Digests a state, and scrubs it until there is another one.
    pub fn digest(&self, snapshot: StateSnapshot) {
        self.send(Job::Digest(snapshot));
    }

    /// Scrubs a state until there is another one.
    pub fn hold(&self, snapshot: StateSnapshot) {
        self.send(Job::Hold(snapshot));
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // A thread that is gone has reported its panic (`worker`).
            let _ = jobs.send(job);
        }
    }

    /// Waits until what is queued is digested.
    pub fn stop(mut self) {
        self.jobs = None;
        let _ = self.thread.join();
    }
}

fn work(queue: &Receiver<Job>, interval: Duration, completions: &Completions) {
    let mut scrub = Scrub::new(interval);
    loop {
        let pause = if scrub.has_work() { PAUSE } else { Duration::MAX };
        let snapshot = match queue.recv_timeout(pause) {
            Ok(Job::Digest(snapshot)) => {
                let manifest = snapshot.manifest();
                let digest = manifest.digest();
                let digested = Completion::StateDigested { manifest: manifest.clone(), digest };
                completions.push(digested);
                scrub.hold(snapshot, manifest);
                continue;
            }
            Ok(Job::Hold(snapshot)) => snapshot,
            Err(RecvTimeoutError::Timeout) => {
                if let Err(index) = scrub.go_on() {
                    completions.push(Completion::StateDamaged(format!(
                        "piece {index} of the state in memory is not what it was when it last changed"
                    )));
                    scrub = Scrub::new(Duration::ZERO);
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if !scrub.is_off() {
            let manifest = snapshot.manifest();
            scrub.hold(snapshot, manifest);
        }
    }
}

/// Where a scrub is.
struct Scrub {
    interval: Duration,
    state: Option<(StateSnapshot, Manifest)>,
    next: usize,
}

impl Scrub {
    fn new(interval: Duration) -> Scrub {
        Scrub { interval, state: None, next: 0 }
    }

    fn is_off(&self) -> bool {
        self.interval.is_zero()
    }

    fn has_work(&self) -> bool {
        self.state.is_some()
    }

    /// Goes on in this state where it was in another one.
    fn hold(&mut self, snapshot: StateSnapshot, manifest: Manifest) {
        if !self.is_off() {
            self.state = Some((snapshot, manifest));
        }
    }

    /// As many pieces as it takes to be through with all of them in time; or which one is damaged.
    fn go_on(&mut self) -> Result<(), usize> {
        let Some((snapshot, manifest)) = &self.state else { return Ok(()) };
        let pieces = snapshot.pieces();
        // Somewhat more, for pieces come and go meanwhile.
        let rounds = (self.interval.as_millis() * 4 / 5 / PAUSE.as_millis()).max(1);
        for _ in 0..pieces.div_ceil(rounds as usize) {
            let index = self.next % pieces;
            if !manifest.verify(index, &snapshot.piece(index)) {
                return Err(index);
            }
            self.next = index + 1;
        }
        Ok(())
    }
}
