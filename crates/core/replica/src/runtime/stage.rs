//! The thread that executes, where the event loop does not (`perdura_execution::ExecutionStage`).

use super::keeper::{Completion, Completions};
use super::{watch, worker};
use perdura_execution::{ExecutionStage, Job, JobQueue};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// The name of its thread among those that are watched.
pub(super) const EXECUTION: &str = "execution";

/// Its queue has no bound of its own: what waits in it the node counts, and bounds.
pub(super) struct StageThread {
    jobs: Sender<Job>,
    // What waits is done no more.
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl StageThread {
    pub fn start(completions: Completions) -> io::Result<StageThread> {
        let (jobs, queue) = channel();
        let stops = Arc::new(AtomicBool::new(false));
        let given = Arc::clone(&stops);
        let work = move |completions: &Completions| work(&queue, &given, completions);
        let thread = worker::spawn(EXECUTION, completions, work)?;
        Ok(StageThread { jobs, stops, thread })
    }

    pub fn send(&self, job: Job) {
        // A thread that is gone has reported its panic (`worker`).
        let _ = self.jobs.send(job);
    }

    /// It begins nothing more.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::SeqCst);
    }

    /// Waits until what it is at has ended.
    pub fn join(self) {
        self.stop();
        drop(self.jobs);
        // A panic was reported.
        let _ = self.thread.join();
    }
}

fn work(given: &Receiver<Job>, stops: &AtomicBool, completions: &Completions) {
    let (mut stage, mut queue) = (ExecutionStage::default(), JobQueue::default());
    loop {
        if queue.is_empty() {
            match given.recv() {
                Ok(job) => queue.push(job),
                Err(_) => return,
            }
        }
        given.try_iter().for_each(|job| queue.push(job));
        if stops.load(Ordering::SeqCst) {
            return;
        }
        let Some(job) = queue.pop() else { continue };
        let begun = Instant::now();
        let work = || stage.carry_out_telling(job, &mut watch::went_on);
        if let Some(done) = watch::at("executing", work) {
            completions.push(Completion::Done { done, took: begun.elapsed() });
        }
    }
}
