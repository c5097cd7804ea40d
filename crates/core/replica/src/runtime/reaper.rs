//! The thread in which states are freed that are needed no more.

use super::keeper::Completions;
use super::worker;
use crate::node::Gone;
use std::sync::mpsc::{Sender, channel};

/// Its queue has no bound of its own: what waits in it is what the node held, and few states at once.
pub(super) struct Reaper(Sender<Gone>);

impl Reaper {
    pub fn start(completions: Completions) -> std::io::Result<Reaper> {
        let (states, queue) = channel();
        // Nobody waits for its end: it ends when it has freed what was given to it, or with the process.
        worker::spawn_patient("reaper", completions, move |_| queue.into_iter().for_each(drop))?;
        Ok(Reaper(states))
    }

    pub fn take(&self, states: Gone) {
        // A thread that is gone has reported its panic (`worker`).
        let _ = self.0.send(states);
    }
}
