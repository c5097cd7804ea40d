//! The threads that answer reads beside the stage.

use super::keeper::{Completion, Completions};
use super::{watch, worker};
use crate::node::{READS_BESIDE, ReadBeside};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What they are called among the threads that are watched, each otherwise.
const NAMES: [&str; READS_BESIDE] = [
    "reader 0",
    "reader 1",
    "reader 2",
    "reader 3",
    "reader 4",
    "reader 5",
    "reader 6",
    "reader 7",
    "reader 8",
    "reader 9",
    "reader 10",
    "reader 11",
    "reader 12",
    "reader 13",
    "reader 14",
    "reader 15",
];

/// How many there may be.
pub const MOST_THREADS: usize = READS_BESIDE;

/// How many there are if nobody says.
pub const THREADS: usize = 2;

/// The node has no more reads under way than there are threads. They end with this, each behind the read that it is at: nobody waits for that, as a
/// query may take for ever.
pub(super) struct Readers {
    reads: Sender<Box<ReadBeside>>,
    stops: Arc<AtomicBool>,
}

impl Readers {
    pub fn start(threads: usize, completions: &Completions) -> io::Result<Readers> {
        let (reads, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let stops = Arc::new(AtomicBool::new(false));
        for name in &NAMES[..threads.clamp(1, MOST_THREADS)] {
            let (queue, stops) = (Arc::clone(&queue), Arc::clone(&stops));
            let work = move |completions: &Completions| work(&queue, &stops, completions);
            worker::spawn(name, completions.clone(), work)?;
        }
        Ok(Readers { reads, stops })
    }

    pub fn send(&self, read: Box<ReadBeside>) {
        // Threads that are gone have reported their panic (`worker`).
        let _ = self.reads.send(read);
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::SeqCst);
    }
}

fn work(queue: &Mutex<Receiver<Box<ReadBeside>>>, stops: &AtomicBool, completions: &Completions) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(read) = next else { return };
        if stops.load(Ordering::SeqCst) {
            return;
        }
        let begun = Instant::now();
        let done = watch::at("answering a read", || read.answer());
        completions.push(Completion::Done { done, took: begun.elapsed() });
    }
}
