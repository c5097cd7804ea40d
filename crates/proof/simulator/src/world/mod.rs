//! The world: virtual time, the queue of events, and the stations.
//!
//! Events are ordered by (microsecond, number). A *step* is a delivered message, a disk
//! completion, or a timer that had a consequence. Files: [`replica`] and [`network`] are what
//! there is; `boot` starts and stops processes, `driver` carries out what a node wants, `keeper`
//! does its disk work, `clients` drives clients, `workload` is what they ask (of tuple spaces: `spaces`,
//! `holders` and `lockers`, with `client_faults`), `timeouts` how long they wait, `chaos` what goes
//! wrong (with `promise`, `strikes`, `partitions`, `silences`, `outage`, `damage`, `wrong_disk` and `clock`), `replacement` brings in
//! new incarnations, `ending` heals everything and judges, `liars` (with `stumble`) and `hostile` are the
//! Byzantine ones; `by_hand` is what scenarios do, and `of_store` what a group does that is a partition of a store
//! (`deployment`).

mod boot;
mod bulk;
pub(crate) mod by_hand;
mod careless;
mod chaos;
mod client_faults;
mod clients;
mod clock;
mod damage;
mod driver;
mod ending;
mod guest;
mod holders;
mod hostile;
mod keeper;
mod liars;
mod links;
mod lockers;
pub mod network;
mod of_store;
mod oracles;
mod orders;
mod outage;
mod partitions;
mod promise;
mod queue;
mod replacement;
pub mod replica;
mod rot;
mod sight;
mod silences;
mod spaces;
mod stages;
mod strikes;
mod stumble;
mod timeouts;
mod trace;
mod workload;
mod wrong_disk;

use crate::checkers::Checkers;
use crate::deployment;
use crate::guest::Guest;
use crate::options::{Mode, ServiceKind, SimulationOptions, service_name};
use crate::plan::Plan;
use crate::random::Random;
use crate::report::{FaultKind, Mark, SimulationReport};
use crate::violation::{Broken, Check, Violation};
use bytes::Bytes;
use chaos::Chaos;
pub(crate) use chaos::is_drawn;
use clients::{CallRecord, Client};
use clock::Clock;
use ending::Ending;
use hostile::Hostile;
use network::Network;
pub use of_store::STATEMENTS;
pub(crate) use of_store::{Keys, OfStore};
use orders::Orders;
use perdura_client::{CallResult, Refusal};
use perdura_execution::{Genesis, Manifest};
use perdura_protocol::configuration::{Configuration, Member, Parameters};
use perdura_protocol::message::Lane;
use perdura_protocol::{Digest, Message, PublicKey, ReplicaId, SecretKey, Slot, View};
use perdura_replica::node::ReadBeside;
use queue::Queue;
use replacement::Replacement;
use replica::{Armed, Memory, Replica};
use silences::Silence;
use std::collections::VecDeque;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use trace::Trace;

pub use ending::History;
pub use hostile::writing;
pub use stumble::pass_over_stumbles;

/// When virtual time starts, microseconds.
const START_US: u64 = 1_000_000;

/// Longest time between two rounds of a replica, microseconds (a node asks for 20 ms).
const TICK_US: u64 = 20_000;

/// Limit of a state.
const STATE_LIMIT_BYTES: u64 = 1 << 30;

/// Events whose consequences a run may have beyond its steps: a run that does not end is a bug.
const EVENTS_AT_MOST: u64 = 50_000_000;

/// What happens next.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message arrives.
    Message { from: usize, to: usize, lane: Lane, epoch: u64, bytes: Bytes },
    /// The keeper's write is done.
    Flushed { replica: usize, life: u64 },
    /// A state is stored.
    StateStored { replica: usize, life: u64 },
    /// The word of a state's digest.
    StateDigested { replica: usize, life: u64, manifest: Manifest },
    /// The stage of a replica did a job.
    Worked { replica: usize, life: u64 },
    /// A read beside the stage of a replica is answered.
    ReadBeside { replica: usize, life: u64, read: Box<ReadBeside> },
    /// The word of a restored state.
    StateRestored { replica: usize, life: u64 },
    /// Batches were read from the log.
    Read { replica: usize, life: u64, to: ReplicaId, wanted: Vec<(Slot, Digest)> },
    /// A liar says something late.
    Late { replica: usize, to: usize, bytes: Bytes },
    /// A hostile client attacks.
    Attack { hostile: usize },
    /// A replica lets time pass.
    Tick { replica: usize, life: u64 },
    /// A round that was kept open ends.
    Round { replica: usize, life: u64 },
    /// Two stations try to connect.
    Connect { a: usize, b: usize },
    /// A station learns that its link broke.
    LinkDown { at: usize, peer: usize, epoch: u64 },
    /// A replica learns that the lane of transfers to another one broke.
    TransfersDown { at: usize, peer: usize, epoch: u64 },
    /// Two replicas have their lane of transfers again.
    TransfersUp { a: usize, b: usize, epoch: u64 },
    /// A client lets time pass.
    ClientTick { client: usize, life: u64 },
    /// A caller makes its next call.
    Call { client: usize, life: u64, caller: usize },
    /// Something goes wrong.
    Fault,
    /// Something goes wrong with a client.
    ClientFault,
    /// A write arrives at what a lock protects.
    FencedWrite { client: usize, lock: String, token: u64 },
    /// A partition, slowness or another disruption ends.
    Heal(usize),
    /// Flapping links go, or come back.
    Flap(usize),
    /// A process starts.
    Start { replica: usize },
    /// The administrator looks again.
    Administer,
    /// He orders something of his own.
    Order,
    /// Whether the end has come.
    Look,
    /// Whether calls wait for too long.
    Watch,
}

/// One run.
pub struct World {
    pub(crate) options: SimulationOptions,
    pub(crate) plan: Plan,
    pub(crate) parameters: Parameters,
    pub(crate) random: Random,
    pub(crate) disk_random: Random,
    pub(crate) client_random: Random,
    pub(crate) now_us: u64,
    stamp: u64,
    stepped_us: u64,
    queue: Queue,
    pub(crate) network: Network,
    pub(crate) silences: Vec<Silence>,
    pub(crate) replicas: Vec<Replica>,
    // The administrator is the last.
    pub(crate) clients: Vec<Client>,
    // Clients that attack; their stations come after the administrator's.
    pub(crate) hostile: Vec<Hostile>,
    pub(crate) calls: Vec<CallRecord>,
    pub(crate) chaos: Chaos,
    pub(crate) replacement: Option<Replacement>,
    pub(crate) orders: Orders,
    // The key of a hostile client that is being revoked.
    pub(crate) revoking: Option<PublicKey>,
    pub(crate) ending: Ending,
    // When a replica failed last.
    pub(crate) disturbed_us: u64,
    // When agreement last waited for somebody's stage, which has to come to what others have executed.
    pub(crate) stage_awaited_us: u64,
    pub(crate) checkers: Checkers,
    pub(crate) report: SimulationReport,
    pub(crate) trace: Trace,
    /// Whether replicas start and clients call only when they are told to (scenarios).
    pub(crate) by_hand: bool,
    pub(crate) hand: by_hand::Hand,
    // When a clock was set right last.
    pub(crate) clock_mended_us: u64,
    // Outputs since the last tick.
    pub(crate) outputs: u64,
    // What correct replicas said last and is noted where it is heard: bytes and message.
    spoken: VecDeque<(Bytes, Message)>,
    broken: Option<Broken>,
    /// Of a group that is a partition of a store: what it shares with the others.
    pub(crate) of_store: Option<OfStore>,
    /// The service, if it is somebody else's.
    pub(crate) guest: Option<Arc<dyn Guest>>,
    // Of clients of all partitions: calls that ended and sessions that are open, by client and caller, and processes that die.
    pub(crate) answered: Vec<(usize, usize, CallResult)>,
    pub(crate) sessions: Vec<(usize, usize, Result<u64, Refusal>)>,
    pub(crate) dying: Vec<usize>,
}

/// Runs the options to their end.
///
/// # Errors
/// The first rule that was broken, with the command that repeats the run.
pub fn simulate(options: &SimulationOptions) -> Result<SimulationReport, Box<Violation>> {
    simulate_traced(options, None)
}

/// As [`simulate`], with a line for everything that happens.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_traced(
    options: &SimulationOptions,
    writer: Option<Box<dyn Write>>,
) -> Result<SimulationReport, Box<Violation>> {
    if options.service == Some(ServiceKind::Partitions) {
        return deployment::run(options, writer);
    }
    let mut world = World::new(options, Plan::draw(options), writer);
    world.guarded(World::run)
}

/// As [`simulate`], with what the clients did and saw, for a judge from elsewhere.
pub fn simulate_with_history(
    options: &SimulationOptions,
) -> (Result<SimulationReport, Box<Violation>>, History) {
    let mut world = World::new(options, Plan::draw(options), None);
    let result = world.guarded(World::run);
    (result, world.history())
}

impl World {
    /// A group that has not started yet.
    #[must_use]
    pub fn new(options: &SimulationOptions, plan: Plan, writer: Option<Box<dyn Write>>) -> World {
        World::with(options, plan, writer, None, None)
    }

    /// One whose group runs somebody else's service.
    pub(crate) fn of_guest(
        options: &SimulationOptions,
        plan: Plan,
        writer: Option<Box<dyn Write>>,
        guest: Arc<dyn Guest>,
    ) -> World {
        World::with(options, plan, writer, None, Some(guest))
    }

    /// The same, which may be one of several.
    pub(crate) fn with(
        options: &SimulationOptions,
        plan: Plan,
        writer: Option<Box<dyn Write>>,
        of_store: Option<OfStore>,
        guest: Option<Arc<dyn Guest>>,
    ) -> World {
        let random = Random::new(options.seed);
        let n = plan.faults.n();
        let stations = n + plan.workload.clients + 1 + plan.attacks.len();
        let mut keys = Keys::draw(options, &plan);
        if let Some(store) = &of_store {
            store.replace(&mut keys);
        }
        let Keys { replicas: replica_keys, clients: client_keys, cluster } = keys;
        let administrator = client_keys[plan.workload.clients].public();
        let state_limit_bytes =
            of_store.as_ref().map_or(STATE_LIMIT_BYTES, |store| store.state_limit_bytes);
        let parameters = Parameters {
            cluster,
            faults: plan.faults,
            durability: plan.durability,
            depth: plan.depth,
            checkpoint_interval: plan.checkpoint_interval,
            checkpoint_bytes: plan.checkpoint_bytes,
            checkpoint_stretch: plan.checkpoint_stretch,
            checkpoint_ms: plan.checkpoint_ms,
            max_skew_ms: 500,
            state_limit_bytes,
            schedule: plan.schedule,
            service: perdura_protocol::ServiceName::literal(service_name(plan.service)),
            versions: plan.versions,
            administrator,
            map: None,
        };
        let members: Vec<Member> =
            replica_keys.iter().map(|key| Member { key: key.public(), incarnation: 0 }).collect();
        let hostile_keys: Vec<SecretKey> = {
            let mut keys = random.fork("hostile");
            plan.attacks.iter().map(|_| SecretKey::from_seed(plan.scheme, keys.bytes32())).collect()
        };
        let clients = (0..plan.workload.clients)
            .map(|index| (format!("client-{index}"), client_keys[index].public()))
            .chain(
                hostile_keys
                    .iter()
                    .enumerate()
                    .map(|(index, key)| (format!("hostile-{index}"), key.public())),
            )
            .collect();
        let configuration = Configuration { id: 0, from_slot: Slot(0), members };
        let genesis = Genesis { configuration, clients };
        let mut clocks = random.fork("clocks");
        let replicas = replica_keys
            .into_iter()
            .map(|key| Replica {
                disk: perdura_durability::MemoryDisk::new(),
                clock: Clock::draw(&mut clocks, plan.drift),
                life: 0,
                incarnation: 0,
                joins_at: None,
                key,
                genesis: genesis.clone(),
                process: None,
                starting: false,
                replaced: false,
                away: false,
                paused_until_us: 0,
                slow_us: 0,
                hangs: false,
                slow_round_us: 0,
                cuts: 0,
                armed: Armed::default(),
                liar: None,
                looked_us: 0,
                looked_view: View(u64::MAX),
                memory: Memory::default(),
                sick: None,
                hurt: None,
                rot: None,
                reread_us: 0,
                unread: false,
                doomed: false,
                copied: None,
                gaps: Vec::new(),
                copied_gaps: Vec::new(),
                forgot: false,
                just_forgot: false,
                barred: false,
                has_boots: true,
                newer: None,
            })
            .collect();
        let victims: Vec<PublicKey> = client_keys.iter().map(SecretKey::public).collect();
        let ordinary = &victims[..plan.workload.clients];
        let place = of_store.as_ref().map(|store| &store.place);
        let hostile = hostile::arm(
            &plan,
            parameters.cluster,
            hostile_keys,
            &victims,
            (place, &guest),
            &random,
        );
        let clients = client_keys
            .into_iter()
            .enumerate()
            .map(|(index, key)| Client::new(&plan, &parameters, index, key, ordinary, &random))
            .collect();
        let mut report = SimulationReport { runs: 1, ..SimulationReport::default() };
        report.spaces.runs = u64::from(plan.service == ServiceKind::TupleSpaces);
        let mut world = World {
            options: options.clone(),
            silences: Vec::new(),
            network: Network::new(stations, plan.network, random.fork("network")),
            chaos: Chaos::new(random.fork("chaos")),
            disk_random: random.fork("disks"),
            client_random: random.fork("client faults"),
            random: random.fork("world"),
            checkers: Checkers::new(&plan, &parameters, &genesis),
            plan,
            parameters,
            now_us: START_US,
            stamp: 0,
            stepped_us: START_US,
            queue: Queue::default(),
            replicas,
            clients,
            hostile,
            calls: Vec::new(),
            replacement: None,
            orders: Orders::new(random.fork("orders")),
            revoking: None,
            ending: Ending::default(),
            disturbed_us: START_US,
            stage_awaited_us: START_US,
            clock_mended_us: 0,
            report,
            trace: Trace::new(writer),
            by_hand: false,
            hand: by_hand::Hand::default(),
            outputs: 0,
            spoken: VecDeque::new(),
            broken: None,
            of_store,
            guest,
            answered: Vec::new(),
            sessions: Vec::new(),
            dying: Vec::new(),
        };
        world.choose_liars();
        world
    }

    /// Runs `body`; a panic of anything in it is a violation too.
    pub(crate) fn guarded(
        &mut self,
        body: impl FnOnce(&mut World),
    ) -> Result<SimulationReport, Box<Violation>> {
        let result = catch_unwind(AssertUnwindSafe(|| body(self)));
        if let Err(panic) = result {
            let broken = self.panicked(&*panic);
            self.broken = None;
            self.fail(broken);
        }
        self.trace.flush();
        self.report.virtual_us = self.now_us - START_US;
        self.report.fingerprint = self.trace.fingerprint();
        match self.broken.take() {
            None => Ok(self.report.clone()),
            Some(Broken { rule, what }) => Err(Box::new(Violation {
                rule,
                what,
                at_us: self.now_us,
                step: self.report.steps,
                faults: self.chaos.events(),
                options: self.options.clone(),
            })),
        }
    }

    pub(crate) fn run(&mut self) {
        self.begin_all();
        self.run_on();
    }

    /// Begins, with all that may go wrong.
    pub(crate) fn begin_all(&mut self) {
        self.begin();
        self.begin_orders();
        self.schedule_fault();
        if self.has_spaces() {
            self.schedule_client_fault();
        }
        if self.plan.mode == Mode::Liveness {
            self.watch_calls();
        }
    }

    /// Runs from wherever it is to the end.
    pub(crate) fn run_on(&mut self) {
        let steps = self.options.steps;
        self.run_while(|world| world.report.steps < steps);
        if self.broken.is_none() {
            self.end();
        }
    }

    /// Begins, and runs until a replica is down and the group has come to a slot, or the steps end.
    #[cfg(test)]
    pub(crate) fn run_until_down(&mut self, replica: usize, slot: Slot) {
        self.begin();
        self.schedule_fault();
        let steps = self.options.steps;
        self.run_while(|world| {
            let down = world.replicas[replica].process.is_none();
            world.report.steps < steps && !(down && world.checkers.agreement.last() >= slot)
        });
    }

    /// Starts every replica on an empty disk, and every client.
    pub(crate) fn begin(&mut self) {
        for replica in 0..self.replicas.len() {
            self.format(replica, None);
            self.start(replica);
        }
        for client in 0..self.clients.len() {
            self.start_client(client);
        }
        self.start_attacks();
    }

    /// Lets events happen until a moment, which then has come.
    pub(crate) fn run_until(&mut self, until_us: u64) {
        self.run_while(|world| world.queue.next_us().is_some_and(|at| at <= until_us));
        self.now_us = self.now_us.max(until_us);
    }

    /// Lets events happen while `more` says so.
    pub(crate) fn run_while(&mut self, more: impl Fn(&World) -> bool) {
        let mut events = 0;
        while self.broken.is_none() && more(self) {
            let Some((at, event)) = self.queue.pop() else { return };
            self.now_us = self.now_us.max(at);
            self.happen(event);
            events += 1;
            if events > EVENTS_AT_MOST {
                self.fail(Broken::new("Progress (A4, C1)", "the run does not end"));
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Message { from, to, lane, epoch, bytes } => {
                self.arrive((from, to), lane, epoch, bytes);
            }
            Event::Flushed { replica, life } => {
                if self.lives(replica, life)
                    && !self.postponed(replica, || Event::Flushed { replica, life })
                {
                    self.on_flushed(replica);
                }
            }
            Event::StateStored { replica, life } => {
                if self.lives(replica, life)
                    && !self.postponed(replica, || Event::StateStored { replica, life })
                {
                    self.on_state_stored(replica);
                }
            }
            Event::StateDigested { replica, life, manifest } => {
                let again = || Event::StateDigested { replica, life, manifest: manifest.clone() };
                if self.lives(replica, life) && !self.postponed(replica, again) {
                    self.on_state_digested(replica, manifest);
                }
            }
            Event::StateRestored { replica, life } => {
                if self.lives(replica, life)
                    && !self.postponed(replica, || Event::StateRestored { replica, life })
                {
                    self.on_state_restored(replica);
                }
            }
            Event::Worked { replica, life } => {
                if self.lives(replica, life)
                    && !self.postponed(replica, || Event::Worked { replica, life })
                {
                    self.on_worked(replica);
                }
            }
            Event::ReadBeside { replica, life, read } => {
                if self.lives(replica, life) {
                    self.on_read_beside(replica, *read);
                }
            }
            Event::Read { replica, life, to, wanted } => {
                if self.lives(replica, life) {
                    self.on_read(replica, to, &wanted);
                }
            }
            Event::Late { replica, to, bytes } => self.say_late(replica, to, &bytes),
            Event::Attack { hostile } => self.attack(hostile),
            Event::Tick { replica, life } => {
                if self.lives(replica, life) {
                    self.on_tick(replica);
                }
            }
            Event::Round { replica, life } => {
                if self.lives(replica, life)
                    && !self.postponed(replica, || Event::Round { replica, life })
                {
                    self.end_round(replica);
                }
            }
            Event::Connect { a, b } => self.try_connect(a, b),
            Event::LinkDown { at, peer, epoch } => self.on_link_down(at, peer, epoch),
            Event::TransfersDown { at, peer, epoch } => self.on_transfers_down(at, peer, epoch),
            Event::TransfersUp { a, b, epoch } => self.on_transfers_up(a, b, epoch),
            Event::ClientTick { client, life } => self.on_client_tick(client, life),
            Event::Call { client, life, caller } => self.make_call(client, life, caller),
            Event::Fault => self.on_fault(),
            Event::ClientFault => self.on_client_fault(),
            Event::FencedWrite { client, lock, token } => self.fenced_write(client, &lock, token),
            Event::Heal(id) => self.heal(id),
            Event::Flap(id) => self.flap(id),
            Event::Start { replica } => self.start(replica),
            Event::Administer => self.administer(),
            Event::Order => self.next_order(),
            Event::Look => self.look(),
            Event::Watch => self.watch_calls(),
        }
    }

    pub(crate) fn push(&mut self, delay_us: u64, event: Event) {
        self.push_at(self.now_us + delay_us, event);
    }

    pub(crate) fn push_at(&mut self, at_us: u64, event: Event) {
        self.queue.push(at_us, event);
    }

    /// A replica that is paused does it later.
    fn postponed(&mut self, replica: usize, event: impl FnOnce() -> Event) -> bool {
        let until = self.replicas[replica].paused_until_us;
        if until <= self.now_us {
            return false;
        }
        self.push_at(until, event());
        true
    }

    fn lives(&self, replica: usize, life: u64) -> bool {
        let replica = &self.replicas[replica];
        replica.life == life && replica.process.is_some()
    }

    /// A moment that is later than all before.
    pub(crate) fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    pub(crate) fn check(&mut self, check: Check) {
        if let Err(broken) = check {
            self.fail(broken);
        }
    }

    /// The first thing that broke is kept.
    pub(crate) fn fail(&mut self, broken: Broken) {
        self.trace.line(self.now_us, format_args!("{} violated: {}", broken.rule, broken.what));
        self.broken.get_or_insert(broken);
    }

    pub(crate) fn failed(&self) -> bool {
        self.broken.is_some()
    }

    pub(crate) fn step(&mut self) {
        self.report.steps += 1;
        if self.open_calls() > 0 {
            self.report.busy_us += self.now_us - self.stepped_us;
        }
        self.stepped_us = self.now_us;
    }

    pub(crate) fn fired(&mut self, kind: FaultKind) {
        self.report.fired(kind);
        if !self.ending.begun() && is_drawn(kind) {
            self.report.struck += 1;
        }
    }

    pub(crate) fn mark(&mut self, mark: Mark) {
        self.report.reached(mark);
    }

    /// Whether the group runs tuple spaces.
    pub(crate) fn has_spaces(&self) -> bool {
        self.plan.service == ServiceKind::TupleSpaces
    }

    pub(crate) fn n(&self) -> usize {
        self.replicas.len()
    }

    /// The client at a station, if one is; above the number of clients a hostile one.
    pub(crate) fn client_at(&self, station: usize) -> Option<usize> {
        station.checked_sub(self.n())
    }

    /// Name of a station in a trace.
    pub(crate) fn name(&self, station: usize) -> String {
        match self.client_at(station) {
            None => format!("r{station}"),
            Some(client) if client + 1 == self.clients.len() => "admin".to_owned(),
            Some(client) if client >= self.clients.len() => {
                format!("h{}", client - self.clients.len())
            }
            Some(client) => format!("c{client}"),
        }
    }
}
