//! A service in simulated groups: whole replicas and their clients on virtual time, with all that may go wrong.

use crate::check::{Step, encoded};
use crate::random::Random;
use crate::run::{Panicked, caught};
use crate::words::{self, InWords, debug_as_display};
use perdura_execution::AnyService;
use perdura_protocol::Faults;
use perdura_simulator::{
    Drawn, Guest, SimulationOptions, SimulationReport, pass_over_stumbles, simulate_guest,
};
use perdura_typed::{Service, Typed};
use std::any::Any;
use std::fmt::{self, Debug};
use std::io::Write;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Once};

/// Steps of a run, if nothing else is said.
const STEPS: u64 = 5_000;

/// Gives something that does not hold.
type Holds<S> = dyn Fn(&S) -> Result<(), String> + Send + Sync;

/// Chooses what a client asks for.
type Draw<S> = dyn Fn(&mut Random) -> Step<S> + Send + Sync;

/// Runs of a service in simulated groups, which [`simulate`] begins to describe.
#[must_use]
pub struct Simulation<S: Service> {
    draw: Arc<Draw<S>>,
    holds: Vec<Arc<Holds<S>>>,
    faults: Option<Faults>,
    steps: u64,
}

/// What a simulation did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Runs.
    pub runs: u64,
    /// Commands and queries that were answered.
    pub answered: u64,
    /// Of these, queries that were answered without being ordered.
    pub unordered: u64,
    /// Commands and queries that the service refused, or that were never sent.
    pub refused: u64,
    /// Of which nobody can tell what became.
    pub indeterminate: u64,
    /// Batches that were decided.
    pub slots: u64,
    /// Crashes, broken links, failing disks and whatever else went wrong.
    pub faults: u64,
    /// Lies that replicas told.
    pub lies: u64,
}

/// A run in which something went wrong that must not.
#[derive(Clone, PartialEq, Eq)]
pub struct Broken {
    /// Which promise was broken.
    pub rule: &'static str,
    /// What happened.
    pub what: String,
    /// The seed of the run.
    pub seed: u64,
    /// The step at which it was seen; what is judged when all has happened has the run's last one.
    pub step: u64,
    /// Whether the same seed, run again, ended in the same way: else the service, or what draws its commands, looks at something that it was not
    /// given. None if it was not run again.
    pub repeats: Option<bool>,
}

/// What is broken where replicas of a service differ.
const DIFFERING: [&str; 3] =
    ["Determinism of the service", "Replicated service", "EqualStates (D7)"];

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Broken { rule, what, seed, step, repeats } = self;
        write!(f, "seed {seed}, step {step}: {rule}: {what}")?;
        f.write_str(match repeats {
            Some(false) => {
                "; run again, this seed ended otherwise: the service, or what draws its commands, looks at something that it was not given, as a clock, \
                 chance, or the order of a hash map"
            }
            Some(true) if DIFFERING.contains(rule) => {
                "; this seed ends in the same way each time: is a part of its state not named in `parts`, or a field of one skipped, so that a replica \
                 that was restored lacks it?"
            }
            _ => "",
        })
    }
}

debug_as_display!(Broken);

/// Runs a service in simulated groups: replicas with their logs and checkpoints, clients that ask for what `draw` chooses, and what a seed
/// draws of all that may go wrong (crashes, lost and damaged disks, networks that lose, delay and split, clocks that jump, replicas and clients that
/// lie). What is held against it:
///
/// - what the group promises: nothing that was acknowledged is lost, each command is carried out once, all replicas have the same state,
///   the group goes on;
/// - run again alone, with the same commands in the agreed order, the service gives the replies that clients were told;
/// - an answer is of a state that has all that was answered before it was asked for;
/// - what [`Simulation::invariant`] says of each state.
///
/// A run follows from its seed, as long as the service is deterministic and `draw` chooses by its argument alone. Of two equal commands of one client
/// the second is asked for when the first has ended. Commands of a version of the service that is not in force yet are refused.
///
/// ```text
/// simulate::<Ledger>(|random| Step::Command(Command::Deposit { to: "a".into(), amount: random.below(100) }))
///     .invariant(|ledger| if ledger.total() == ledger.sum() { Ok(()) } else { Err("money is lost".into()) })
///     .run(0..20)?;
/// ```
pub fn simulate<S: Service>(
    draw: impl Fn(&mut Random) -> Step<S> + Send + Sync + 'static,
) -> Simulation<S> {
    Simulation { draw: Arc::new(draw), holds: Vec::new(), faults: None, steps: STEPS }
}

impl<S> Simulation<S>
where
    S: Service,
    S::Command: Debug,
    S::Query: Debug,
    S::Reply: Debug,
{
    /// This holds in the first state, and after each command; else it gives in words what does not.
    pub fn invariant(
        mut self,
        holds: impl Fn(&S) -> Result<(), String> + Send + Sync + 'static,
    ) -> Simulation<S> {
        self.holds.push(Arc::new(holds));
        self
    }

    /// The groups bear these faults; else each seed draws them.
    pub fn faults(self, faults: Faults) -> Simulation<S> {
        Simulation { faults: Some(faults), ..self }
    }

    /// A run has so many steps: messages that arrive, writes that are done, time-outs. 5,000 if nothing is said, which is some hundred commands.
    pub fn steps(self, steps: u64) -> Simulation<S> {
        Simulation { steps, ..self }
    }

    /// Runs each of these seeds to its end.
    ///
    /// # Errors
    /// The first run in which something is broken.
    pub fn run(&self, seeds: Range<u64>) -> Result<Summary, Box<Broken>> {
        let mut summary = Summary::default();
        for seed in seeds {
            let report = self.run_one(seed, None).map_err(|mut broken| {
                let again = self.run_one(seed, None);
                broken.repeats = Some(again.is_err_and(|again| again == broken));
                broken
            })?;
            summary.add(&report);
        }
        Ok(summary)
    }

    /// Runs one seed, and writes down what happens, line by line.
    ///
    /// # Errors
    /// What is broken in it.
    pub fn trace(&self, seed: u64, to: Box<dyn Write>) -> Result<Summary, Box<Broken>> {
        let mut summary = Summary::default();
        summary.add(&self.run_one(seed, Some(to))?);
        Ok(summary)
    }

    fn run_one(
        &self,
        seed: u64,
        to: Option<Box<dyn Write>>,
    ) -> Result<SimulationReport, Box<Broken>> {
        // What liars' replicas stumble over is no news.
        static ONCE: Once = Once::new();
        ONCE.call_once(pass_over_stumbles);
        let options =
            SimulationOptions { faults: self.faults, ..SimulationOptions::new(seed, self.steps) };
        let guest = Played { draw: self.draw.clone(), holds: self.holds.clone(), of: PhantomData };
        simulate_guest(&options, Arc::new(guest), to).map_err(|violation| {
            let (rule, step) = (violation.rule, violation.step);
            Box::new(Broken { rule, what: violation.what, seed, step, repeats: None })
        })
    }
}

impl Summary {
    fn add(&mut self, report: &SimulationReport) {
        self.runs += 1;
        self.answered += report.calls.ok;
        self.unordered += report.calls.fast_reads;
        self.refused += report.calls.refused;
        self.indeterminate += report.calls.indeterminate;
        self.slots += report.slots;
        self.faults += report.faults.values().sum::<u64>();
        self.lies += report.lies.values().sum::<u64>();
    }
}

/// A service as simulated groups run it.
struct Played<S: Service> {
    draw: Arc<Draw<S>>,
    holds: Vec<Arc<Holds<S>>>,
    of: PhantomData<fn() -> S>,
}

impl<S> Guest for Played<S>
where
    S: Service,
    S::Command: Debug,
    S::Query: Debug,
    S::Reply: Debug,
{
    fn make(&self, state_limit_bytes: u64) -> AnyService {
        Box::new(Typed::<S>::new(state_limit_bytes))
    }

    fn draw(&self, random: &mut perdura_simulator::Random) -> Drawn {
        let mut random = Random::new(random.next());
        let drawn = caught(|| encoded::<S>(&(self.draw)(&mut random)));
        match drawn {
            Ok(Ok(sent)) => Drawn { command: sent.bytes, is_read: !sent.is_command },
            Ok(Err(fault)) => panic!("what was drawn cannot be sent: {fault}"),
            Err(Panicked(words)) => panic!("what draws commands panicked: {words}"),
        }
    }

    fn holds(&self, service: &dyn perdura_execution::Service) -> Result<(), String> {
        let service: &dyn Any = service;
        let typed: &Typed<S> = service.downcast_ref().expect("it was made here");
        caught(|| typed.look(|state| self.holds.iter().try_for_each(|holds| holds(state))))
            .unwrap_or_else(|Panicked(words)| Err(format!("the invariant panicked: {words}")))
    }

    fn show(&self, command: &[u8]) -> String {
        S::asked(command).unwrap_or_else(|| words::of_bytes(command))
    }

    fn show_reply(&self, reply: &[u8]) -> String {
        S::answered(reply).unwrap_or_else(|| words::of_bytes(reply))
    }
}
