//! The threads that answer reads beside the stage.

use super::keeper::{Completion, Completions};
use super::{watch, worker};
use crate::node::ReadBeside;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What they are called among the threads that are watched.
const READS: &str = "reads";

/// How many there may be.
pub const MOST_THREADS: usize = 64;

/// How many there are if nobody says.
pub const THREADS: usize = 2;

/// Their queue has no bound of its own: the node counts what is under way. They end with it, each behind the read that it is at.
pub(super) struct Readers {
    reads: Sender<ReadBeside>,
}

impl Readers {
    pub fn start(threads: usize, completions: &Completions) -> io::Result<Readers> {
        let (reads, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..threads.clamp(1, MOST_THREADS) {
            let queue = Arc::clone(&queue);
            let work = move |completions: &Completions| work(&queue, completions);
            worker::spawn(READS, completions.clone(), work)?;
        }
        Ok(Readers { reads })
    }

    pub fn send(&self, read: ReadBeside) {
        // Threads that are gone have reported their panic (`worker`).
        let _ = self.reads.send(read);
    }
}

fn work(queue: &Mutex<Receiver<ReadBeside>>, completions: &Completions) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(read) = next else { return };
        let begun = Instant::now();
        let done = watch::at("answering a read", || read.answer());
        completions.push(Completion::Done { done, took: begun.elapsed() });
    }
}
