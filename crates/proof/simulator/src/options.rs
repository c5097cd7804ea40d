//! What a run is asked for; whatever is left open is drawn from the seed.

use crate::overrides::Overrides;
use perdura_adversary::{Attack, Strategy};
use perdura_protocol::configuration::{Durability, Schedule};
use perdura_protocol::{Faults, Scheme};
use perdura_replica::node::StateTransfer;
use std::fmt;

/// What the run may do to the group, and what it asks of it in return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// At most `u` replicas have failed at a time: calls are answered all the while.
    Liveness,
    /// Any number of replicas crashes, all at once too: nothing wrong is ever said, nothing that
    /// was acknowledged is forgotten, and once all is well again the group goes on.
    Safety,
}

impl Mode {
    /// As on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Liveness => "liveness",
            Mode::Safety => "safety",
        }
    }

    /// As on the command line.
    #[must_use]
    pub fn parse(text: &str) -> Option<Mode> {
        [Mode::Liveness, Mode::Safety].into_iter().find(|mode| mode.as_str() == text)
    }
}

/// A run. Two runs with equal options are equal, byte for byte.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimulationOptions {
    /// Decides everything.
    pub seed: u64,
    /// Delivered messages, disk completions and timers with consequences before the faults stop.
    pub steps: u64,
    /// Fault bounds of the group.
    pub faults: Option<Faults>,
    /// Liveness or safety.
    pub mode: Option<Mode>,
    /// How statements are signed.
    pub scheme: Option<Scheme>,
    /// How replicas log.
    pub durability: Option<Durability>,
    /// Who stores which checkpoint; else drawn.
    pub schedule: Option<Schedule>,
    /// Whom a replica that was away asks for the state; else drawn.
    pub state_transfer: Option<StateTransfer>,
    /// How replicas lie, one strategy for each liar.
    pub liars: Option<Vec<Strategy>>,
    /// How clients attack, one attack for each hostile client.
    pub attacks: Option<Vec<Attack>>,
    /// What the group runs.
    pub service: Option<ServiceKind>,
    /// Of a store that has several partitions, how many; else drawn.
    pub partitions: Option<usize>,
    /// What the run leaves out of what it would be.
    pub overrides: Overrides,
}

/// Name of a scheme on the command line.
#[must_use]
pub fn scheme_name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Ed25519 => "ed25519",
        Scheme::KeyedHash => "keyed-hash",
    }
}

/// The scheme with a name.
#[must_use]
pub fn parse_scheme(text: &str) -> Option<Scheme> {
    [Scheme::Ed25519, Scheme::KeyedHash].into_iter().find(|scheme| scheme_name(*scheme) == text)
}

/// A service that simulated groups run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceKind {
    /// The key-value store.
    KeyValue,
    /// The tuple spaces.
    TupleSpaces,
    /// A store of several partitions: a group for each, and clients of all of them.
    Partitions,
    /// A service of somebody else's ([`crate::Guest`]), which no command line names.
    Guest,
}

/// Name of a service on the command line, and of its group.
#[must_use]
pub fn service_name(service: ServiceKind) -> &'static str {
    match service {
        ServiceKind::KeyValue => "kv",
        ServiceKind::TupleSpaces => "tuples",
        ServiceKind::Partitions => "partitions",
        ServiceKind::Guest => "guest",
    }
}

/// The service with a name.
#[must_use]
pub fn parse_service(text: &str) -> Option<ServiceKind> {
    let all = [ServiceKind::KeyValue, ServiceKind::TupleSpaces, ServiceKind::Partitions];
    all.into_iter().find(|service| service_name(*service) == text)
}

impl SimulationOptions {
    /// All but seed and steps left to the seed.
    #[must_use]
    pub fn new(seed: u64, steps: u64) -> SimulationOptions {
        SimulationOptions {
            seed,
            steps,
            faults: None,
            mode: None,
            scheme: None,
            durability: None,
            schedule: None,
            state_transfer: None,
            liars: None,
            attacks: None,
            service: None,
            partitions: None,
            overrides: Overrides::default(),
        }
    }
}

/// The command line that repeats the run.
impl fmt::Display for SimulationOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "perdura-lab simulate --seed {} --steps {}", self.seed, self.steps)?;
        if let Some(faults) = self.faults {
            write!(f, " --faults {},{}", faults.u(), faults.r())?;
        }
        if let Some(mode) = self.mode {
            write!(f, " --mode {}", mode.as_str())?;
        }
        if let Some(scheme) = self.scheme {
            write!(f, " --signatures {}", scheme_name(scheme))?;
        }
        if let Some(durability) = self.durability {
            write!(f, " --durability {}", durability.name())?;
        }
        if let Some(schedule) = self.schedule {
            write!(f, " --schedule {}", schedule.name())?;
        }
        if let Some(state_transfer) = self.state_transfer {
            write!(f, " --state-transfer {}", state_transfer.name())?;
        }
        if let Some(liars) = &self.liars {
            write!(f, " --liars {}", names(liars.iter().map(|liar| liar.name())))?;
        }
        if let Some(attacks) = &self.attacks {
            write!(f, " --attacks {}", names(attacks.iter().map(|attack| attack.name())))?;
        }
        if let Some(service) = self.service {
            write!(f, " --service {}", service_name(service))?;
        }
        if let Some(partitions) = self.partitions {
            write!(f, " --partitions {partitions}")?;
        }
        if let Some(bug) = perdura_protocol::seeded::Bug::active() {
            write!(f, " --bug {}", bug.name())?;
        }
        write!(f, "{}", self.overrides)
    }
}

/// Names as on the command line: separated by commas; `none` if there are none.
fn names(names: impl Iterator<Item = &'static str>) -> String {
    let joined = names.collect::<Vec<_>>().join(",");
    if joined.is_empty() { "none".to_owned() } else { joined }
}
