//! The execution stage of a replica that executes apart from its event loop (docs/design.md, Execution stage): jobs go in, and each has an answer but those for a
//! machine that is not there any more. In which order they are done says [`JobQueue`]. Who drives a replica has it on a thread, or in virtual time.

mod queue;

pub use queue::JobQueue;

use crate::beside::ReadState;
use crate::cost::Meter;
use crate::executor::{ExecutedBatch, Executor};
use crate::machine::{Reply, Retry};
use crate::session::body_bytes;
use crate::view::News;
use bytes::Bytes;
use perdura_protocol::{Batch, Outcome, PublicKey, Slot, limits, seeded};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes of replies of a batch that leave the stage, in all and of one client key; those beyond are let go, for clients ask again.
const REPLIES_BYTES: usize = 128 * 1024 * 1024;
const CLIENT_REPLY_BYTES: usize = limits::SLOT_COST as usize;

/// What the stage is given.
pub enum Job {
    /// Its machine from now on: at the start, and when a state was received. It takes the place of all that waits.
    Take {
        /// Its number: those of the machines before are smaller.
        machine: u64,
        /// The machine.
        executor: Box<Executor>,
    },
    /// Execute a batch.
    Execute {
        /// On this machine; if the stage has another, it does nothing.
        machine: u64,
        /// The next slot.
        slot: Slot,
        /// What was decided for it.
        batch: Batch,
    },
    /// Answer a read in the state as it is then.
    Read {
        /// Of the read, for who asks.
        number: u64,
        /// Whose it is.
        key: PublicKey,
        /// An encoded [`perdura_protocol::Command`].
        command: Bytes,
    },
    /// Give the answers to commands whose numbers are all settled.
    Answer(Retry),
    /// Give the state as it is, and as it is after each batch up to this slot, for reads beside execution.
    Share {
        /// That of this machine; if the stage has another, it does nothing.
        machine: u64,
        /// The slot.
        through: Slot,
    },
}

impl Job {
    /// Whether it may be done before batches that wait. What does keeps its order: who reads is let in by a state that the stage has been given
    /// before, and would be answered by an older one if it overtook that (rule C2).
    #[must_use]
    pub fn may_overtake(&self) -> bool {
        !matches!(self, Job::Execute { .. })
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Job::Take { machine, executor } => {
                write!(f, "take machine {machine} at slot {}", executor.machine().slot())
            }
            Job::Execute { machine, slot, .. } => write!(f, "execute {slot} on {machine}"),
            Job::Read { number, .. } => write!(f, "read {number}"),
            Job::Answer(retry) => write!(f, "answer {retry:?}"),
            Job::Share { machine, through } => write!(f, "share up to {through} on {machine}"),
        }
    }
}

/// What a batch came to.
#[derive(Debug)]
pub struct StagedBatch {
    /// On this machine.
    pub machine: u64,
    /// What it came to.
    pub ran: ExecutedBatch,
    /// Its replies, in their order.
    pub replies: Vec<Reply>,
    /// Replies that were let go.
    pub let_go: u64,
    /// For a [`crate::View`] of the machine.
    pub news: News,
    /// The state after it, if that was asked for.
    pub shared: Option<ReadState>,
}

/// What a job came to.
#[derive(Debug)]
pub enum Done {
    /// A batch was executed.
    Executed(Box<StagedBatch>),
    /// A read was answered.
    Read {
        /// Its number.
        number: u64,
        /// The slot of the state.
        slot: Slot,
        /// As [`crate::Machine::query`].
        outcome: Option<Outcome>,
        /// What it cost besides its answer.
        cost: u64,
    },
    /// The state as it is, if its service has one to give.
    Shared {
        /// Of this machine.
        machine: u64,
        /// The state.
        state: Option<ReadState>,
    },
    /// The stage has a machine that it was given.
    Taken {
        /// Its number.
        machine: u64,
    },
    /// The answers to commands, those that are there: [`crate::Machine::answers`].
    Answered {
        /// What was asked.
        retry: Retry,
        /// Number and outcome.
        outcomes: Vec<(u64, Outcome)>,
    },
}

/// See the module.
#[derive(Default)]
pub struct ExecutionStage {
    has: Option<Has>,
    // The bounds of replies are smaller by two to the power of this.
    shrunk: u32,
}

struct Has {
    machine: u64,
    executor: Box<Executor>,
    // Up to which slot it gives the state after each batch.
    shares: Slot,
}

impl ExecutionStage {
    /// What it executes on, once it has a machine.
    #[must_use]
    pub fn executor(&self) -> Option<&Executor> {
        self.has.as_ref().map(|has| &*has.executor)
    }

    /// Divides the bounds of a batch's replies by two to the power of `by`. For simulations: few clients reach bounds that are made for
    /// thousands only so.
    pub fn shrink(&mut self, by: u32) {
        self.shrunk = by;
    }

    /// The same, for tests that damage it.
    #[doc(hidden)]
    pub fn executor_mut(&mut self) -> Option<&mut Executor> {
        self.has.as_mut().map(|has| &mut *has.executor)
    }

    /// Does one job. A machine that another takes the place of is freed here.
    ///
    /// # Panics
    /// As [`Executor::execute`]; the stage is good for nothing then.
    pub fn carry_out(&mut self, job: Job) -> Option<Done> {
        self.carry_out_telling(job, &mut || ())
    }

    /// The same, which says with each reply that it went on.
    ///
    /// # Panics
    /// As [`ExecutionStage::carry_out`].
    pub fn carry_out_telling(&mut self, job: Job, went_on: &mut dyn FnMut()) -> Option<Done> {
        if let Job::Take { machine, executor } = job {
            self.has = Some(Has { machine, executor, shares: Slot(0) });
            return Some(Done::Taken { machine });
        }
        let bounds = (REPLIES_BYTES >> self.shrunk, CLIENT_REPLY_BYTES >> self.shrunk);
        let Has { machine: number, executor, shares } = self.has.as_mut()?;
        let done = match job {
            Job::Take { .. } => None,
            Job::Execute { machine, slot, batch } => (machine == *number).then(|| {
                let share = slot <= *shares;
                let before = share && seeded!(SharesBefore);
                let before = before.then(|| executor.machine().read_state()).flatten();
                let mut ran = execute(executor, (machine, slot, &batch), bounds, went_on);
                if share {
                    let state = executor.machine().read_state();
                    ran.shared = before.map(|before| before.named(slot)).or(state);
                }
                Done::Executed(Box::new(ran))
            }),
            Job::Share { machine, through } => (machine == *number).then(|| {
                *shares = through;
                Done::Shared { machine, state: executor.machine().read_state() }
            }),
            Job::Read { number, key, command } => {
                let (machine, meter) = (executor.machine(), Meter::up_to(limits::COMMAND_COST));
                let outcome = machine.query_within(key, &command, &meter);
                Some(Done::Read { number, slot: machine.slot(), outcome, cost: meter.spent() })
            }
            Job::Answer(retry) => {
                let outcomes = executor.machine().answers(&retry).unwrap_or_default();
                Some(Done::Answered { retry, outcomes })
            }
        };
        if let Some(Done::Executed(batch)) = &done
            && batch.ran.executed.outdated.is_some()
        {
            // It goes on under rules that this program does not know.
            self.has = None;
        }
        done
    }
}

fn execute(
    executor: &mut Executor,
    (machine, slot, batch): (u64, Slot, &Batch),
    (most, most_of_client): (usize, usize),
    went_on: &mut dyn FnMut(),
) -> StagedBatch {
    let (mut replies, mut bytes, mut let_go) = (Vec::new(), 0, 0);
    let mut by_client: BTreeMap<PublicKey, usize> = BTreeMap::new();
    let (ran, news) = executor.execute_telling(slot, batch, &mut |reply| {
        went_on();
        let size = body_bytes(&reply.outcome);
        let of_client = by_client.entry(reply.session.client).or_default();
        if bytes + size > most || *of_client + size > most_of_client {
            let_go += 1;
        } else {
            bytes += size;
            *of_client += size;
            replies.push(reply);
        }
    });
    StagedBatch { machine, ran, replies, let_go, news, shared: None }
}
