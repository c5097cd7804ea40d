//! The threads that work for an event loop.

use super::DataDisk;
use super::checkpointer::Checkpointer;
use super::digester::Digester;
use super::keeper::{Completions, Keeper};
use super::readers::Readers;
use super::reaper::Reaper;
use super::stage::StageThread;
use crate::node::ReadBeside;
use perdura_durability::{Checkpoints, Log};
use perdura_execution::Job;
use std::io;

/// See the module.
pub(super) struct Workers {
    pub keeper: Keeper,
    pub checkpointer: Checkpointer,
    pub digester: Digester,
    pub reaper: Reaper,
    /// From the first job on that the node has for it; and so those that answer reads beside it.
    pub stage: Option<StageThread>,
    pub readers: Option<Readers>,
    pub read_threads: usize,
}

impl Workers {
    /// Gives the stage a job.
    pub fn execute(&mut self, job: Job, completions: &Completions) -> io::Result<()> {
        let stage = match self.stage.take() {
            Some(stage) => stage,
            None => StageThread::start(completions.clone())?,
        };
        self.stage.insert(stage).send(job);
        Ok(())
    }

    /// Has a read answered.
    pub fn read(&mut self, read: Box<ReadBeside>, completions: &Completions) -> io::Result<()> {
        let readers = match self.readers.take() {
            Some(readers) => readers,
            None => Readers::start(self.read_threads, completions)?,
        };
        self.readers.insert(readers).send(read);
        Ok(())
    }

    /// What they gave back of the data directory, which they write no more; and the stage, if there is one, which begins nothing more. That is to
    /// be waited for when the directory is closed: a service that does not return keeps nothing from it.
    pub fn stop(
        self,
    ) -> (Option<Log<DataDisk>>, Option<Checkpoints<DataDisk>>, Option<StageThread>) {
        if let Some(stage) = &self.stage {
            stage.stop();
        }
        self.digester.stop();
        (self.keeper.stop(), self.checkpointer.stop(), self.stage)
    }
}
