//! The machine of a replica, and where its boundaries are: all that changes when a batch is executed, in one place.
//!
//! A boundary is a slot at which every replica digests its state: after so many slots or bytes of batches, which depend on how large the
//! state was at the boundary before, after so much work or time ([`Parameters::boundary`]), and before a new configuration starts (rule D8).
//! All count alike, so all agree on where it is, and the snapshot is taken there and nowhere else (rule D7).

use crate::asked::Asked;
use crate::boxed::AnyService;
use crate::machine::{Executed, Machine, Reply};
use crate::snapshot::StateSnapshot;
use crate::view::{News, Touched};
use perdura_protocol::configuration::{Configuration, Interval, Parameters};
use perdura_protocol::{Batch, Digest, Slot, Time, seeded};

/// The rules under which what commands cost makes a boundary due.
const COSTS_COUNT: u16 = 3;

/// A slot at which every replica digests its state.
#[derive(Debug)]
pub struct Boundary {
    /// All replicas store the state, whosever turn it is.
    pub forced: bool,
    /// Its number, where checkpoints go round among the replicas.
    pub turn: Option<u64>,
    /// The state after its slot.
    pub snapshot: StateSnapshot,
}

/// What the execution of a batch came to.
#[derive(Debug)]
pub struct ExecutedBatch {
    /// Its slot.
    pub slot: Slot,
    /// The history with it.
    pub history: Digest,
    /// What the machine says of it; without the replies, which were given as they were made.
    pub executed: Executed,
    /// The slot is a boundary.
    pub boundary: Option<Boundary>,
}

/// What came since the last boundary.
#[derive(Default)]
struct Since {
    slots: u64,
    bytes: u64,
    cost: u64,
    // The agreed time of its first slot.
    from: Option<Time>,
}

impl Since {
    fn is_due(&self, now: Time, due: &Interval) -> bool {
        let ms = now.0.saturating_sub(self.from.unwrap_or(now).0);
        self.slots >= due.slots
            || self.bytes >= due.bytes
            || self.cost >= due.cost
            || due.time.is_some_and(|(due, slots)| ms >= due && self.slots >= slots)
    }
}

/// See the module.
pub struct Executor {
    machine: Machine<AnyService>,
    parameters: Parameters,
    since: Since,
    due: Interval,
    // The last slot before a configuration that was ordered.
    forced: Option<Slot>,
    replays: bool,
    // Always none, but for a seeded mistake.
    late: Option<Boundary>,
}

/// The last slot before a configuration begins.
fn before(configuration: &Configuration) -> Slot {
    configuration.from_slot.previous()
}

impl Executor {
    /// One that has executed nothing.
    #[must_use]
    pub fn first(parameters: &Parameters, machine: Machine<AnyService>) -> Executor {
        Executor::with_due(parameters, machine, parameters.boundary(0))
    }

    /// One whose machine is the state of a boundary.
    #[must_use]
    pub fn at_boundary(parameters: &Parameters, machine: Machine<AnyService>) -> Executor {
        let due = parameters.boundary(machine.state_bytes());
        Executor::with_due(parameters, machine, due)
    }

    fn with_due(parameters: &Parameters, machine: Machine<AnyService>, due: Interval) -> Executor {
        let latest = machine.configurations().last();
        let pending = latest.filter(|latest| latest.from_slot > machine.slot().next());
        let (forced, parameters) = (pending.map(before), parameters.clone());
        let since = Since::default();
        Executor { machine, parameters, since, due, forced, replays: false, late: None }
    }

    /// The same, which tells there what its service is being asked.
    #[must_use]
    pub fn with_asked(self, asked: Asked) -> Executor {
        Executor { machine: self.machine.with_asked(asked), ..self }
    }

    /// Whether what is executed now was executed before, and comes from the log.
    pub fn set_replays(&mut self, replays: bool) {
        self.replays = replays;
    }

    /// The state as it is.
    #[must_use]
    pub fn machine(&self) -> &Machine<AnyService> {
        &self.machine
    }

    /// The machine, for tests that damage it.
    #[doc(hidden)]
    pub fn machine_mut(&mut self) -> &mut Machine<AnyService> {
        &mut self.machine
    }

    /// Executes the batch that was decided for the next slot, and gives each reply as it is made.
    ///
    /// # Panics
    /// As [`Machine::execute`].
    pub fn execute(
        &mut self,
        slot: Slot,
        batch: &Batch,
        give: &mut dyn FnMut(Reply),
    ) -> ExecutedBatch {
        let executed = self.machine.execute_to(slot, batch, give);
        self.conclude(slot, batch, executed)
    }

    /// The same, with what a view of the machine has to know.
    ///
    /// # Panics
    /// As [`Machine::execute`].
    pub fn execute_telling(
        &mut self,
        slot: Slot,
        batch: &Batch,
        give: &mut dyn FnMut(Reply),
    ) -> (ExecutedBatch, News) {
        let mut touched = Touched::default();
        batch.frames().iter().for_each(|frame| touched.frame(frame));
        let executed = self.machine.execute_to(slot, batch, &mut |reply| {
            touched.number(reply.session, reply.number);
            give(reply);
        });
        executed.ended.iter().for_each(|session| touched.session(*session));
        let mut ran = self.conclude(slot, batch, executed);
        if seeded!(SnapshotOfLaterSlot) {
            let late = std::mem::replace(&mut self.late, ran.boundary.take());
            let snapshot = self.machine.snapshot();
            ran.boundary = late.map(|boundary| Boundary { snapshot, ..boundary });
        }
        (ran, News::of(&self.machine, touched))
    }

    fn conclude(&mut self, slot: Slot, batch: &Batch, executed: Executed) -> ExecutedBatch {
        let history = self.machine.history();
        if executed.outdated.is_some() {
            return ExecutedBatch { slot, history, executed, boundary: None };
        }
        if let Some(configuration) = &executed.new_configuration {
            // It may be this slot, with a depth of one.
            let forgotten = seeded!(NoForcedCheckpoint) && !self.replays;
            self.forced = Some(before(configuration)).filter(|_| !forgotten);
        }
        let cost = executed.costs.values().sum();
        let boundary = self.count(slot, batch.raw().len() as u64, cost);
        let boundary = boundary.filter(|_| !(seeded!(BoundaryForgotten) && self.replays));
        let boundary = boundary.map(|forced| self.take(forced));
        ExecutedBatch { slot, history, executed, boundary }
    }

    /// A slot was executed that had so many bytes, and commands that cost so much. If it is a boundary, whether it is a forced one.
    fn count(&mut self, slot: Slot, bytes: u64, cost: u64) -> Option<bool> {
        let now = self.machine.time();
        self.since.slots += 1;
        self.since.bytes += bytes;
        if self.machine.versions().rules >= COSTS_COUNT {
            self.since.cost = self.since.cost.saturating_add(cost);
        }
        self.since.from.get_or_insert(now);
        let forced = self.forced.take_if(|forced| *forced == slot).is_some();
        let due = self.since.is_due(now, &self.due) || forced;
        if due {
            self.since = Since::default();
            self.due = self.parameters.boundary(self.machine.state_bytes());
        }
        due.then_some(forced)
    }

    fn take(&mut self, forced: bool) -> Boundary {
        let turn = self.machine.pass_boundary();
        Boundary { forced, turn, snapshot: self.machine.snapshot() }
    }
}
