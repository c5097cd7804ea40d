//! Replicas that execute in a stage of their own, which takes its time for each job. What is in it when its process ends is gone.

use super::{Event, World};
use perdura_execution::{AnyService, Done, ExecutionStage, Job, JobQueue, Machine};
use perdura_replica::node::{Input, ReadBeside};

/// The stage of a process, and what waits for it.
#[derive(Default)]
pub struct Stage {
    stage: ExecutionStage,
    under_way: Option<Job>,
    waiting: JobQueue,
    took_us: u64,
}

impl Stage {
    /// One that has its machine. Its bounds are smaller than real ones by two to the power of `shrunk`.
    pub(crate) fn with(first: Job, shrunk: u32) -> Stage {
        let mut stage = Stage::default();
        stage.stage.shrink(shrunk);
        stage.stage.carry_out(first);
        stage
    }

    /// What it executed.
    pub(crate) fn machine(&self) -> &Machine<AnyService> {
        self.stage.executor().expect("a stage begins with a machine").machine()
    }

    /// The same, for what flips bits in it.
    pub(crate) fn machine_mut(&mut self) -> &mut Machine<AnyService> {
        self.stage.executor_mut().expect("a stage begins with a machine").machine_mut()
    }

    /// One job more; true if it is under way, for there was none.
    fn add(&mut self, job: Job) -> bool {
        self.waiting.push(job);
        self.under_way.is_none() && self.begin()
    }

    /// Begins what is next, if anything waits.
    fn begin(&mut self) -> bool {
        self.under_way = self.waiting.pop();
        self.under_way.is_some()
    }

    /// Does the job that is under way.
    fn work(&mut self) -> Option<Done> {
        let job = self.under_way.take()?;
        self.stage.carry_out(job)
    }
}

impl World {
    /// A job for the stage of a replica.
    pub(crate) fn give_job(&mut self, replica: usize, job: Job) {
        let process = self.replicas[replica].process.as_mut();
        let stage = process.and_then(|process| process.stage.as_mut());
        if stage.is_some_and(|stage| stage.add(job)) {
            self.schedule_stage(replica);
        }
    }

    fn schedule_stage(&mut self, replica: usize) {
        let usual_us = self.plan.stages.get(replica).copied().flatten().unwrap_or(0);
        let took_us = self.disk_random.below(2 * usual_us + 1);
        let here = &mut self.replicas[replica];
        let life = here.life;
        if let Some(stage) = here.process.as_mut().and_then(|process| process.stage.as_mut()) {
            stage.took_us = took_us;
        }
        self.push(took_us, Event::Worked { replica, life });
    }

    /// A read that is answered beside the stage of a replica, whatever that is at.
    pub(crate) fn give_read(&mut self, replica: usize, read: Box<ReadBeside>) {
        let usual_us = self.plan.stages.get(replica).copied().flatten().unwrap_or(0);
        let took_us = self.disk_random.below(4 * usual_us + 1);
        let life = self.replicas[replica].life;
        self.push(took_us, Event::ReadBeside { replica, life, read });
    }

    pub(crate) fn on_read_beside(&mut self, replica: usize, read: ReadBeside) {
        self.step();
        self.trace.event([13, replica as u64, 0, self.now_us], &[]);
        let done = read.answer();
        self.trace.line(self.now_us, format_args!("r{replica}: {} beside", told(&done)));
        self.input(replica, Input::Done { done, took_us: 0 });
    }

    pub(crate) fn on_worked(&mut self, replica: usize) {
        self.step();
        self.trace.event([12, replica as u64, 0, self.now_us], &[]);
        let (mut done, mut took_us) = (None, 0);
        self.work(replica, |process| {
            let Some(stage) = &mut process.stage else { return };
            took_us = stage.took_us;
            done = stage.work();
        });
        self.witness(replica);
        let Some(process) = &mut self.replicas[replica].process else { return };
        if process.stage.as_mut().is_some_and(Stage::begin) {
            self.schedule_stage(replica);
        }
        if let Some(done) = done {
            self.trace.line(self.now_us, format_args!("r{replica}: {}", told(&done)));
            self.input(replica, Input::Done { done, took_us });
        }
    }
}

fn told(done: &Done) -> String {
    match done {
        Done::Executed(batch) => {
            format!("executed {} on machine {}", batch.ran.slot, batch.machine)
        }
        Done::Read { number, slot, .. } => format!("answered read {number} after slot {slot}"),
        Done::Taken { machine } => format!("has machine {machine}"),
        Done::Shared { machine, state } => {
            format!("shares the state of machine {machine}: {}", state.is_some())
        }
        Done::Answered { retry, .. } => format!("answered {:?} again", retry.session),
    }
}
