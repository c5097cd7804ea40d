//! Where the machine of this replica is: here, where a batch is executed as it is delivered and the machine is looked at; or apart, in a stage
//! of which the node knows what came with the last batch that it heard of (docs/design.md, Execution stage).
//!
//! Invariants of a stage that is apart:
//! - whatever the node admits, answers and says of its state is of one slot, the view's, and never of a newer one that the stage may have
//!   come to: so no reply leaves before its log is durable (rule D1);
//! - a number that was delivered is in the index of what waits, or settled in the view, or not settled by its slot; so a retry is not ordered
//!   beside what it repeats.

use super::Output;
use super::beside::{Beside, copies};
use perdura_execution::{
    AnyService, Asked, ExecutedBatch, Executor, Job, Machine, Measure, News, ReadState, View,
    newest_versions,
};
use perdura_protocol::{
    Batch, Configuration, Digest, Frame, PublicKey, SessionId, Slot, Time, Versions, seeded,
};
use std::collections::{BTreeMap, VecDeque};

/// Where batches are executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecutionMode {
    /// In the node: for services whose commands take some microseconds.
    Inline,
    /// In a stage, which whoever drives the node has beside it.
    Apart,
}

impl ExecutionMode {
    /// All of them.
    pub const ALL: [ExecutionMode; 2] = [ExecutionMode::Inline, ExecutionMode::Apart];

    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ExecutionMode::Inline => "inline",
            ExecutionMode::Apart => "thread",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<ExecutionMode> {
        ExecutionMode::ALL.into_iter().find(|place| place.name() == name)
    }
}

/// A batch to execute.
#[derive(Debug)]
pub(super) struct Delivery {
    pub slot: Slot,
    pub batch: Batch,
    pub history: Digest,
    /// The position in the log at which it is logged here.
    pub logged_at: u64,
}

/// See the module.
pub(super) enum Execution {
    Here(Box<Executor>),
    Apart(Box<Apart>),
}

/// What is known of a stage.
pub(super) struct Apart {
    asked: Asked,
    // The number of its machine.
    machine: u64,
    view: View,
    // Whether the stage has it.
    taken: bool,
    // What is read beside the stage. None where the service has no states to give.
    beside: Option<Beside>,
    // What was read beside a stage that has another machine now.
    let_go: Vec<ReadState>,
    // Handed to it, and not heard of yet.
    waiting: VecDeque<Delivery>,
    // The frames in them: by the session and the first number, behind which number they end, and in how many batches they are. Of frames that
    // share numbers and are not the same some numbers may not be found: such are ordered again, and answered then.
    frames: BTreeMap<(SessionId, u64), (u64, usize)>,
}

impl Apart {
    /// Also the first job of the stage.
    fn new(machine: u64, executor: Executor, asked: Asked) -> (Apart, Output) {
        // The stage may be asking the service of the machine before: this one tells nobody of what it is asked here.
        let view = View::of(executor.machine());
        let shared = executor.machine().read_state();
        let beside = shared.is_some().then(Beside::default);
        let executor = Box::new(executor.with_asked(asked.clone()));
        let (waiting, frames) = (VecDeque::new(), BTreeMap::new());
        let taken = machine == 0;
        let let_go = Vec::new();
        let apart = Apart { asked, machine, view, taken, beside, let_go, waiting, frames };
        (apart, Output::Stage(Job::Take { machine, executor }))
    }

    /// Hands a batch to the stage.
    pub fn hand_over(&mut self, delivery: Delivery) -> Output {
        for frame in delivery.batch.frames() {
            let held = self.frames.entry((frame.session, frame.first_number)).or_default();
            *held = (held.0.max(frame.end_number()), held.1 + 1);
        }
        let (machine, slot, batch) = (self.machine, delivery.slot, delivery.batch.clone());
        self.waiting.push_back(delivery);
        Output::Stage(Job::Execute { machine, slot, batch })
    }

    /// The stage executed the first of what waits, on this machine; `None` if that is not the one in use.
    pub fn executed(
        &mut self,
        machine: u64,
        (ran, news): (&ExecutedBatch, News),
        shared: Option<ReadState>,
        now_ms: u64,
    ) -> Option<Delivery> {
        let delivery = self.waiting.pop_front_if(|_| machine == self.machine)?;
        for frame in delivery.batch.frames() {
            let name = (frame.session, frame.first_number);
            if let Some((_, times)) = self.frames.get_mut(&name) {
                *times -= 1;
                if *times == 0 {
                    self.frames.remove(&name);
                }
            }
        }
        self.view.follow(news);
        if let Some(beside) = &mut self.beside {
            let state_bytes = self.view.state_bytes();
            let copied = copies(&delivery.batch, ran, state_bytes);
            beside.executed(shared, (copied, state_bytes), now_ms);
        }
        Some(delivery)
    }

    /// Whether reads are answered beside the stage.
    pub fn reads_beside(&self) -> bool {
        self.beside.is_some()
    }

    /// The state of the view, if it is shared.
    pub fn shared(&self) -> Option<&ReadState> {
        self.beside.as_ref()?.shared()
    }

    /// The state after a slot, if it is the view's and shared, or kept.
    pub fn state_after(&self, slot: Slot) -> Option<&ReadState> {
        self.beside.as_ref()?.state_after(slot)
    }

    /// States that are kept besides that of the view.
    pub fn kept_states(&self) -> usize {
        self.beside.as_ref().map_or(0, Beside::kept)
    }

    /// Time passes.
    pub fn tick(&mut self, now_ms: u64) {
        if let Some(beside) = &mut self.beside {
            beside.tick(now_ms);
        }
    }

    /// States that were read and are not kept any more.
    pub fn take_let_go(&mut self) -> Vec<ReadState> {
        let mut let_go = std::mem::take(&mut self.let_go);
        let_go.extend(self.beside.as_mut().map(Beside::take_let_go).unwrap_or_default());
        let_go
    }

    /// There are reads: the stage is told to share states for as long as a pipeline has `depth` slots twice, unless that was done lately.
    pub fn share(&mut self, depth: u64) -> Option<Output> {
        let (machine, slot) = (self.machine, self.view.slot());
        let through = self.beside.as_mut()?.share(slot, depth)?;
        Some(Output::Stage(Job::Share { machine, through }))
    }

    /// The stage shares the state of this machine as it is, which is that of the view: what it executed before has been heard of.
    pub fn shares(&mut self, machine: u64, state: Option<ReadState>) {
        match (&mut self.beside, state) {
            _ if machine != self.machine => {}
            (Some(beside), Some(state)) => beside.shares(state),
            // It has none to give any more.
            (beside, None) => {
                self.let_go.extend(beside.take().map(Beside::end).unwrap_or_default())
            }
            (None, Some(_)) => {}
        }
    }

    pub fn administrator(&self) -> PublicKey {
        self.view.administrator()
    }

    /// The stage has this machine.
    pub fn took(&mut self, machine: u64) {
        self.taken |= machine == self.machine;
    }

    /// Batches that wait for the stage, or are in it, and their bytes.
    pub fn waiting(&self) -> (usize, usize) {
        let bytes = self.waiting.iter().map(|delivery| delivery.batch.raw().len()).sum();
        (self.waiting.len(), bytes)
    }

    /// Whether a number is decided and will be executed.
    fn awaits(&self, session: SessionId, number: u64) -> bool {
        let before = self.frames.range((session, 0)..=(session, number)).next_back();
        before.is_some_and(|(_, (end, _))| number < *end)
    }
}

impl Execution {
    pub fn new(place: ExecutionMode, executor: Executor) -> (Execution, Option<Output>) {
        match place {
            ExecutionMode::Inline => (Execution::Here(Box::new(executor)), None),
            ExecutionMode::Apart => {
                let asked = executor.machine().asked().clone();
                let (apart, output) = Apart::new(0, executor, asked);
                (Execution::Apart(Box::new(apart)), Some(output))
            }
        }
    }

    /// A received state takes the machine's place. The one that was here is given back, or what the stage is told.
    pub fn replace(&mut self, executor: Executor) -> Replaced {
        match self {
            Execution::Here(here) => {
                let executor = executor.with_asked(here.machine().asked().clone());
                Replaced::Here(std::mem::replace(here, Box::new(executor)))
            }
            Execution::Apart(apart) => {
                let (mut newer, output) =
                    Apart::new(apart.machine + 1, executor, apart.asked.clone());
                let ended = apart.beside.take().map(Beside::end);
                newer.let_go.extend(ended.unwrap_or_default());
                **apart = newer;
                Replaced::Apart(output)
            }
        }
    }

    /// States that were read and are not kept any more.
    pub fn take_let_go(&mut self) -> Vec<ReadState> {
        match self {
            Execution::Here(_) => Vec::new(),
            Execution::Apart(apart) => apart.take_let_go(),
        }
    }

    pub fn reads_beside(&self) -> bool {
        matches!(self, Execution::Apart(apart) if apart.reads_beside())
    }

    /// States that are kept besides that of the view.
    pub fn kept_states(&self) -> usize {
        match self {
            Execution::Here(_) => 0,
            Execution::Apart(apart) => apart.kept_states(),
        }
    }

    /// Time passes.
    pub fn tick(&mut self, now_ms: u64) {
        if let Execution::Apart(apart) = self {
            apart.tick(now_ms);
        }
    }

    pub fn is_apart(&self) -> bool {
        matches!(self, Execution::Apart(_))
    }

    /// Batches that were delivered to a stage and are not executed, as far as is known, and their bytes.
    pub fn waiting(&self) -> (usize, usize) {
        match self {
            Execution::Here(_) => (0, 0),
            Execution::Apart(apart) => apart.waiting(),
        }
    }

    /// Whether a machine was given to the stage that it does not have yet: no further one is made, for each is as large as the state.
    pub fn takes_another(&self) -> bool {
        matches!(self, Execution::Apart(apart) if !apart.taken)
    }

    /// The machine, where it is here.
    pub fn machine(&self) -> Option<&Machine<AnyService>> {
        match self {
            Execution::Here(executor) => Some(executor.machine()),
            Execution::Apart(_) => None,
        }
    }

    pub fn asked(&self) -> &Asked {
        match self {
            Execution::Here(executor) => executor.machine().asked(),
            Execution::Apart(apart) => &apart.asked,
        }
    }

    pub fn slot(&self) -> Slot {
        match self {
            Execution::Here(executor) => executor.machine().slot(),
            Execution::Apart(apart) => apart.view.slot(),
        }
    }

    pub fn due(&self) -> Option<Time> {
        match self {
            Execution::Here(executor) => executor.machine().due(),
            Execution::Apart(apart) => apart.view.due(),
        }
    }

    pub fn administrator(&self) -> PublicKey {
        match self {
            Execution::Here(executor) => executor.machine().administrator(),
            Execution::Apart(apart) => apart.view.administrator(),
        }
    }

    pub fn is_client(&self, key: PublicKey) -> bool {
        match self {
            Execution::Here(executor) => executor.machine().is_client(key),
            Execution::Apart(apart) => apart.view.is_client(key),
        }
    }

    pub fn configurations(&self) -> &[Configuration] {
        match self {
            Execution::Here(executor) => executor.machine().configurations(),
            Execution::Apart(apart) => apart.view.configurations(),
        }
    }

    pub fn versions(&self) -> Versions {
        match self {
            Execution::Here(executor) => executor.machine().versions(),
            Execution::Apart(apart) => apart.view.versions(),
        }
    }

    pub fn newest_versions(&self) -> Versions {
        match self {
            Execution::Here(executor) => newest_versions(executor.machine().service()),
            Execution::Apart(apart) => apart.view.newest_versions(),
        }
    }

    pub fn state_bytes(&self) -> u64 {
        match self {
            Execution::Here(executor) => executor.machine().state_bytes(),
            Execution::Apart(apart) => apart.view.state_bytes(),
        }
    }

    pub fn state_limit_bytes(&self) -> u64 {
        match self {
            Execution::Here(executor) => executor.machine().state_limit_bytes(),
            Execution::Apart(apart) => apart.view.state_limit_bytes(),
        }
    }

    pub fn measures(&self) -> Vec<Measure> {
        match self {
            Execution::Here(executor) => executor.machine().measures(),
            Execution::Apart(apart) => apart.view.measures().to_vec(),
        }
    }

    pub fn session_count(&self) -> usize {
        match self {
            Execution::Here(executor) => executor.machine().session_count(),
            Execution::Apart(apart) => apart.view.session_count(),
        }
    }

    fn is_settled(&self, session: SessionId, number: u64) -> bool {
        match self {
            Execution::Here(executor) => executor.machine().is_settled(session, number),
            Execution::Apart(apart) => apart.view.is_settled(session, number),
        }
    }

    /// Whether a number needs to be ordered no more: it was executed, or was decided and will be.
    fn is_ordered(&self, session: SessionId, number: u64) -> bool {
        let decided = match self {
            Execution::Here(_) => false,
            Execution::Apart(apart) => apart.awaits(session, number),
        };
        decided || self.is_settled(session, number)
    }

    /// Whether a frame is still to be ordered: its client is registered, and it waits for some answer.
    pub fn is_open(&self, frame: &Frame) -> bool {
        let mut numbers = frame.first_number..frame.end_number();
        self.is_client(frame.session.client)
            && numbers.any(|number| !self.is_ordered(frame.session, number))
    }

    /// Whether something of a frame is decided and will be executed, and nothing of it has to be ordered.
    pub fn is_awaited(&self, frame: &Frame) -> bool {
        let Execution::Apart(apart) = self else { return false };
        if seeded!(DecidedForgotten) {
            return false;
        }
        let mut numbers =
            (frame.first_number..frame.end_number()).map(|number| (frame.session, number));
        let decided = numbers.clone().any(|(session, number)| apart.awaits(session, number));
        decided && numbers.all(|(session, number)| self.is_ordered(session, number))
    }

    /// Whether all of a frame was executed, so that the machine has its answers.
    pub fn has_settled(&self, frame: &Frame) -> bool {
        let mut numbers = frame.first_number..frame.end_number();
        numbers.all(|number| self.is_settled(frame.session, number))
    }
}

/// What became of the machine whose place another has.
pub(super) enum Replaced {
    Here(Box<Executor>),
    Apart(Output),
}
