//! The thread that executes, where the event loop does not (`perdura_execution::ExecutionStage`).

use super::keeper::{Completion, Completions};
use super::{watch, worker};
use perdura_execution::{ExecutionStage, Job};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// The name of its thread among those that are watched.
pub(super) const EXECUTION: &str = "execution";

/// Its queue has no bound of its own: what waits in it the node counts, and bounds.
pub(super) struct StageThread {
    jobs: Sender<Job>,
    orders: Arc<Orders>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Orders {
    // What waits is done no more.
    stops: AtomicBool,
    // The number of the newest machine: what waits for those before is passed over.
    newest: AtomicU64,
}

impl StageThread {
    pub fn start(completions: Completions) -> io::Result<StageThread> {
        let (jobs, queue) = channel();
        let orders = Arc::new(Orders::default());
        let given = Arc::clone(&orders);
        let work = move |completions: &Completions| work(&queue, &given, completions);
        let thread = worker::spawn(EXECUTION, completions, work)?;
        Ok(StageThread { jobs, orders, thread })
    }

    pub fn send(&self, job: Job) {
        if let Job::Take { machine, .. } = &job {
            self.orders.newest.store(*machine, Ordering::SeqCst);
        }
        // A thread that is gone has reported its panic (`worker`).
        let _ = self.jobs.send(job);
    }

    /// It begins nothing more.
    pub fn stop(&self) {
        self.orders.stops.store(true, Ordering::SeqCst);
    }

    /// Waits until what it is at has ended.
    pub fn join(self) {
        self.stop();
        drop(self.jobs);
        // A panic was reported.
        let _ = self.thread.join();
    }
}

fn work(queue: &Receiver<Job>, orders: &Orders, completions: &Completions) {
    let mut stage = ExecutionStage::default();
    // Those that may be done before the others.
    let (mut first, mut others) = (VecDeque::new(), VecDeque::new());
    loop {
        let awaited = match first.is_empty() && others.is_empty() {
            true => match queue.recv() {
                Ok(job) => Some(job),
                Err(_) => return,
            },
            false => None,
        };
        for job in awaited.into_iter().chain(queue.try_iter()) {
            if job.may_overtake() { first.push_back(job) } else { others.push_back(job) }
        }
        let Some(job) = first.pop_front().or_else(|| others.pop_front()) else { continue };
        if orders.stops.load(Ordering::SeqCst) {
            return;
        }
        let newest = orders.newest.load(Ordering::SeqCst);
        if matches!(job, Job::Execute { machine, .. } if machine < newest) {
            continue;
        }
        let begun = Instant::now();
        let work = || stage.carry_out_telling(job, &mut watch::went_on);
        if let Some(done) = watch::at("executing", work) {
            completions.push(Completion::Done { done, took: begun.elapsed() });
        }
    }
}
