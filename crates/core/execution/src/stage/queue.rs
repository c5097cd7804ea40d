//! What waits for the execution stage, in the order in which it is done: the same on a thread and in virtual time. What is taken from it is under way,
//! and nothing that comes later changes that.
//!
//! - Jobs of a kind keep their order.
//! - What may overtake ([`Job::may_overtake`]) goes before the batches that wait.
//! - A machine takes the place of all batches for those before it: they are dropped.

use super::Job;
use perdura_protocol::seeded;
use std::collections::VecDeque;

/// See the module. It has no bound of its own: what waits the node counts, and bounds.
#[derive(Debug, Default)]
pub struct JobQueue {
    // Those that may overtake the others.
    first: VecDeque<Job>,
    batches: VecDeque<Job>,
    // The number of the newest machine that was ever put here.
    newest: u64,
}

impl JobQueue {
    /// Puts a job behind those of its kind.
    pub fn push(&mut self, job: Job) {
        if let Job::Take { machine, .. } = &job {
            self.newest = self.newest.max(*machine);
            let newest = self.newest;
            self.batches.retain(|waiting| !is_before(waiting, newest));
        }
        if seeded!(ReadOvertakesState) && matches!(job, Job::Read { .. }) {
            let takes = |waiting: &Job| matches!(waiting, Job::Take { .. });
            let at = self.first.iter().position(takes).unwrap_or(self.first.len());
            self.first.insert(at, job);
        } else if job.may_overtake() {
            self.first.push_back(job);
        } else if !is_before(&job, self.newest) {
            self.batches.push_back(job);
        }
    }

    /// Takes the job that is done next.
    pub fn pop(&mut self) -> Option<Job> {
        self.first.pop_front().or_else(|| self.batches.pop_front())
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.batches.is_empty()
    }
}

/// Whether a batch is for a machine before this one.
fn is_before(job: &Job, newest: u64) -> bool {
    matches!(job, Job::Execute { machine, .. } if *machine < newest)
}
