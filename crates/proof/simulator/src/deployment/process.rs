//! A client process: tasks that share a desk, each taken up when what it waits for is there. Tasks that can go on do so in the order of
//! their numbers, so that equal runs are equal.

use super::desk::{Running, SharedDesk, lock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

/// Tasks that can go on.
type Ready = Arc<Mutex<BTreeSet<u64>>>;

struct Wakes {
    task: u64,
    ready: Ready,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).insert(self.task);
    }
}

/// What runs now.
pub(crate) struct Process {
    pub desk: SharedDesk,
    tasks: BTreeMap<u64, Running>,
    ready: Ready,
    begun: u64,
    /// Tasks of the workload that have not ended; those that they began aside.
    pub busy: BTreeSet<u64>,
}

impl Process {
    pub fn new(desk: SharedDesk) -> Process {
        let (tasks, ready) = Default::default();
        Process { desk, tasks, ready, begun: 0, busy: BTreeSet::new() }
    }

    /// Adds a task.
    pub fn begin(&mut self, task: Running) -> u64 {
        self.begun += 1;
        self.tasks.insert(self.begun, task);
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).insert(self.begun);
        self.begun
    }

    /// Lets all tasks go on that can. Whether any did.
    pub fn work(&mut self) -> bool {
        let mut worked = false;
        loop {
            let next = self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
            let Some(number) = next else { return worked };
            worked = true;
            let Some(mut task) = self.tasks.remove(&number) else { continue };
            lock(&self.desk).at_work = number;
            let waker = Waker::from(Arc::new(Wakes { task: number, ready: self.ready.clone() }));
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                drop(task);
                self.busy.remove(&number);
                lock(&self.desk).operations.remove(&number);
            } else {
                self.tasks.insert(number, task);
            }
            let spawned = lock(&self.desk).take_spawned();
            spawned.into_iter().for_each(|task| {
                self.begin(task);
            });
        }
    }

    /// When a timer is due, microseconds.
    pub fn due_us(&self) -> Option<u64> {
        lock(&self.desk).due_ms().map(|ms| ms * 1_000)
    }
}
