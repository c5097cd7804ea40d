//! A store of several partitions on one virtual time: a [`World`] for each group, with all its faults, liars and checkers, and clients of
//! all of them, which are [`perdura_transactions::Transactions`].
//!
//! Whatever is due first, in a group or in a client process, happens next. What tasks ask for is handed to the client cores in the
//! groups at the moment when they ask; what becomes of it is theirs the moment it is known. Processes die at any moment, with their tasks and
//! cores, and start anew.
//!
//! `process` runs the tasks of one client process and `desk` is what they share with the driver, `workload` is what they do, `history`
//! what they were told; `members` makes known who is in the groups, `revoking` that a client is none any more, `resolver` ends what others leave, `fairness` asks whether
//! who waits gets in, `ending` brings all to rest and
//! judges.

mod desk;
mod ending;
mod fairness;
pub(crate) mod history;
mod hostile;
mod labelled;
mod members;
pub(crate) mod plan;
mod process;
mod resolver;
mod revoking;
mod workload;

pub(crate) use workload::money;

use crate::options::SimulationOptions;
use crate::plan::Plan;
use crate::random::{Random, mix};
use crate::report::{FaultKind, Mark, SimulationReport};
use crate::violation::{Broken, Violation};
use crate::world::{Keys, OfStore, World};
use desk::{Answered, Asking, Desk, Way, lock, too_late};
use history::SharedHistory;
use labelled::Labelled;
use members::Herald;
use perdura_client::{CallError, CallResult, Reply};
use perdura_protocol::partitions::{Distribution, Group, MAP_VERSION, group_id};
use perdura_protocol::{ClusterId, Map, PartitionId, PublicKey, SecretKey, Slot};
use perdura_store::partition::{Certificate, StorePartition};
use perdura_transactions::{Answer, Transactions};
use plan::StorePlan;
use process::Process;
use std::collections::{BTreeSet, VecDeque};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use workload::Caller;

/// Steps without end are a bug.
const EVENTS_AT_MOST: u64 = 100_000_000;

/// Longest time that a process stays away, microseconds.
const AWAY_US: u64 = 2_000_000;

/// What a client process is there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Caller,
    Hostile,
    Resolver,
}

/// A client process of all groups, from one death to the next.
struct Client {
    role: Role,
    key: SecretKey,
    life: u64,
    /// Nothing while it is away.
    process: Option<Process>,
    transactions: Option<Transactions<Way>>,
    /// Calls that wait until an equal one has ended.
    held: VecDeque<Asking>,
    starts_us: u64,
}

impl Client {
    /// Whether tasks of it have not ended.
    fn is_busy(&self) -> bool {
        self.process.as_ref().is_none_or(|process| !process.busy.is_empty())
    }
}

/// See the module.
pub(crate) struct Deployment {
    options: SimulationOptions,
    plan: StorePlan,
    map: Arc<Map>,
    worlds: Vec<World>,
    clients: Vec<Client>,
    history: SharedHistory,
    heralds: Vec<Herald>,
    /// Number of the newest configuration of each group that clients know.
    known_members: Vec<u64>,
    random: Random,
    now_us: u64,
    dies_us: u64,
    revokes_us: u64,
    /// Nobody dies any more.
    calm: bool,
    /// One key takes all that it can.
    hogs: bool,
    closing: bool,
    report: SimulationReport,
    broken: Option<Broken>,
}

/// Runs the options to their end.
///
/// # Errors
/// The first rule that was broken.
pub(crate) fn run(
    options: &SimulationOptions,
    writer: Option<Box<dyn Write>>,
) -> Result<SimulationReport, Box<Violation>> {
    let mut deployment = Deployment::new(options, writer);
    let result = catch_unwind(AssertUnwindSafe(|| deployment.run()));
    deployment.end_run(result.err().map(|panic| Broken::panicked(&*panic)))
}

/// The map of the store.
fn map_of(
    options: &SimulationOptions,
    plan: &StorePlan,
    plans: &[Plan],
    resolver: PublicKey,
) -> Map {
    let mut random = Random::new(options.seed).fork("cluster");
    let mut id = [0; 16];
    id.copy_from_slice(&random.bytes32()[..16]);
    let cluster = ClusterId(id);
    let group = |(index, of_group): (usize, &Plan)| Group {
        id: group_id(cluster, PartitionId(index as u16), plan.partitions),
        faults: of_group.faults,
        members: Keys::draw(&StorePlan::options_of(options, index), of_group)
            .replicas
            .iter()
            .map(SecretKey::public)
            .collect(),
    };
    let groups = plans.iter().enumerate().map(group).collect();
    let bounds = (1..plan.partitions).map(|index| vec![b'a' + index as u8].into()).collect();
    let distribution =
        if plan.by_hash { Distribution::Hash } else { Distribution::Range { bounds } };
    Map { cluster, version: MAP_VERSION, distribution, groups, resolvers: vec![resolver] }
}

/// Whether a process wants to end.
fn process_dies(client: &Client) -> bool {
    client.process.as_ref().is_some_and(|process| lock(&process.desk).dies)
}

/// Adds what a client did in its life.
fn count(report: &mut SimulationReport, client: &Transactions<Way>) {
    let counters = client.counters();
    report.transactions.ended_for_others += counters.ended_for_others;
    report.transactions.conflicts += counters.conflicts;
}

impl Deployment {
    fn new(options: &SimulationOptions, writer: Option<Box<dyn Write>>) -> Deployment {
        let plan = StorePlan::draw(options);
        let random = Random::new(options.seed).fork("deployment");
        let plans: Vec<Plan> =
            (0..plan.partitions).map(|group| plan.plan_of(options, group)).collect();
        let mut keys = random.fork("clients");
        let scheme = plans[0].scheme;
        let keys: Vec<SecretKey> =
            (0..plan.processes()).map(|_| SecretKey::from_seed(scheme, keys.bytes32())).collect();
        let resolver = keys[plan.processes() - 1].public();
        let map = Arc::new(map_of(options, &plan, &plans, resolver));
        let is_hostile = |index: &usize| plan.role(*index) == Role::Hostile;
        let hostile: BTreeSet<PublicKey> =
            (0..keys.len()).filter(is_hostile).map(|index| keys[index].public()).collect();
        let writer = writer.map(Labelled::shared);
        let world = |(index, of_group): (usize, Plan)| {
            let partition = PartitionId(index as u16);
            let place = StorePartition { map: Arc::clone(&map), partition, max_skew_ms: 500 };
            let of_store = OfStore {
                place,
                clients: keys.clone(),
                hostile: hostile.clone(),
                state_limit_bytes: plan.state_limit_bytes,
            };
            let writer = writer.as_ref().map(|writer| {
                Box::new(Labelled::new(writer, format!("g{index} "))) as Box<dyn Write>
            });
            World::with(
                &StorePlan::options_of(options, index),
                of_group,
                writer,
                Some(of_store),
                None,
            )
        };
        let worlds: Vec<World> = plans.into_iter().enumerate().map(world).collect();
        let client = |(index, key): (usize, &SecretKey)| Client {
            role: plan.role(index),
            key: key.clone(),
            life: 0,
            process: None,
            transactions: None,
            held: VecDeque::new(),
            starts_us: 0,
        };
        let clients = keys.iter().enumerate().map(client).collect();
        Deployment {
            options: options.clone(),
            plan,
            map,
            worlds,
            clients,
            history: SharedHistory::default(),
            heralds: Vec::new(),
            known_members: vec![0; plan.partitions],
            random,
            now_us: 0,
            dies_us: u64::MAX,
            revokes_us: u64::MAX,
            calm: false,
            hogs: false,
            closing: false,
            report: SimulationReport::default(),
            broken: None,
        }
    }

    /// Adds up what the groups did.
    fn end_run(&mut self, panicked: Option<Broken>) -> Result<SimulationReport, Box<Violation>> {
        let mut report = SimulationReport::default();
        let (mut faults, mut fingerprint) = (0, self.report.fingerprint);
        for world in &mut self.worlds {
            let end = world.guarded(|_| {});
            faults += world.chaos.events();
            fingerprint = mix(fingerprint ^ world.report.fingerprint);
            report.add(&world.report);
            if let Err(violation) = end {
                let Violation { rule, what, .. } = *violation;
                let group = world.of_store.as_ref().map_or(0, |store| store.place.partition.0);
                self.broken.get_or_insert(Broken::new(rule, format!("group {group}: {what}")));
            }
        }
        report.transactions = self.report.transactions;
        for (mark, count) in &self.report.marks {
            report.reached_times(*mark, *count);
        }
        (report.runs, report.quiet) = (1, u64::from(report.quiet == self.worlds.len() as u64));
        report.virtual_us = self.now_us;
        report.fingerprint = fingerprint;
        match panicked.or(self.broken.take()) {
            None => Ok(report),
            Some(Broken { rule, what }) => Err(Box::new(Violation {
                rule,
                what,
                at_us: self.now_us,
                step: report.steps,
                faults,
                options: self.options.clone(),
            })),
        }
    }

    fn run(&mut self) {
        self.worlds.iter_mut().for_each(World::begin_all);
        self.now_us = self.worlds.iter().map(|world| world.now_us).max().unwrap_or_default();
        for client in 0..self.clients.len() {
            self.start(client);
        }
        self.draw_death();
        self.draw_revoking();
        let steps = self.options.steps * self.worlds.len() as u64;
        self.run_while(|all| all.steps() < steps);
        if !self.failed() {
            self.end();
        }
    }

    fn steps(&self) -> u64 {
        self.worlds.iter().map(|world| world.report.steps).sum()
    }

    fn failed(&self) -> bool {
        self.broken.is_some() || self.worlds.iter().any(World::failed)
    }

    fn fail(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    /// Lets things happen while `more` says so.
    fn run_while(&mut self, more: impl Fn(&Deployment) -> bool) {
        let mut events = 0;
        while !self.failed() && more(self) {
            events += 1;
            if events > EVENTS_AT_MOST || !self.step() {
                self.fail(Broken::new("Progress (A4, C1)", "the run does not end"));
            }
        }
    }

    /// Lets the next thing happen, if anything does.
    fn step(&mut self) -> bool {
        let worlds = self.worlds.iter().enumerate();
        let next = worlds.filter_map(|(index, world)| Some((world.next_us()?, index))).min();
        let Some((world_us, world)) = next else { return false };
        let due = self.due_us();
        if due <= world_us {
            self.come_to(due);
            self.do_what_is_due();
        } else {
            self.worlds[world].happen_next();
            self.come_to(self.worlds[world].now_us);
            self.take_answers(world);
        }
        self.work();
        true
    }

    fn come_to(&mut self, now_us: u64) {
        self.now_us = self.now_us.max(now_us);
    }

    /// When something outside of the groups is due.
    fn due_us(&self) -> u64 {
        let client = |client: &Client| match &client.process {
            Some(process) => process.due_us().unwrap_or(u64::MAX),
            None => client.starts_us,
        };
        let clients = self.clients.iter().map(client).min().unwrap_or(u64::MAX);
        let heralds = self.heralds.iter().map(Herald::due_us).min().unwrap_or(u64::MAX);
        clients.min(heralds).min(self.dies_us).min(self.revokes_us)
    }

    fn do_what_is_due(&mut self) {
        let now_us = self.now_us;
        for client in 0..self.clients.len() {
            match &self.clients[client].process {
                Some(process) => lock(&process.desk).comes(now_us / 1_000),
                None if self.clients[client].starts_us <= now_us => self.start(client),
                None => {}
            }
        }
        if self.dies_us <= now_us {
            self.draw_death();
            let client = self.random.below(self.plan.callers as u64) as usize;
            self.kill(client);
        }
        if self.revokes_us <= now_us {
            self.revoke();
        }
        self.send_heralds();
    }

    fn draw_death(&mut self) {
        self.dies_us = match self.plan.deaths_ms.filter(|_| !self.closing && !self.calm) {
            Some(most_ms) => self.now_us + 1_000 * self.random.between(1, most_ms),
            None => u64::MAX,
        };
    }

    /// A client process ends, with all its tasks and whatever it knew.
    fn kill(&mut self, client: usize) {
        let here = &mut self.clients[client];
        let Some(process) = here.process.take() else { return };
        self.report.transactions.attacks += lock(&process.desk).attacks;
        drop(process);
        if let Some(client) = here.transactions.take() {
            count(&mut self.report, &client);
        }
        here.held.clear();
        here.starts_us = self.now_us + self.random.between(1_000, AWAY_US);
        if here.role == Role::Hostile {
            self.report.transactions.attackers += 1;
        } else {
            self.report.transactions.deaths += 1;
            self.report.fired(FaultKind::ClientRestart);
        }
        for world in &mut self.worlds {
            world.come_to(self.now_us);
            world.end_client(client);
        }
    }

    /// It starts.
    fn start(&mut self, client: usize) {
        let now_us = self.now_us;
        let here = &mut self.clients[client];
        if here.life > 0 {
            for world in &mut self.worlds {
                world.come_to(now_us);
                world.start_client(client);
            }
        }
        here.life += 1;
        let name = format!("c{client}.{}", here.life);
        let random = self.random.fork(&name);
        let desk = Desk::new(now_us / 1_000, random.fork("desk"));
        lock(&desk).closing = self.closing;
        lock(&desk).hogs = self.hogs;
        if here.role == Role::Caller {
            lock(&desk).stutters = self.plan.stutters;
        }
        let way =
            Way { map: Arc::clone(&self.map), client: here.key.public(), desk: Arc::clone(&desk) };
        let transactions = Transactions::over(way);
        let mut process = Process::new(desk);
        match here.role {
            Role::Caller => {
                for task in 0..self.plan.tasks {
                    let name = format!("{name}.{task}");
                    let random = random.fork(&name);
                    let history = Arc::clone(&self.history);
                    let (of, plan) = ((client, name), self.plan);
                    let caller = Caller::new(transactions.clone(), history, of, plan, random);
                    let founds = client == 0 && task == 0 && here.life == 1;
                    let task = process.begin(Box::pin(caller.work(founds)));
                    process.busy.insert(task);
                }
            }
            Role::Hostile => {
                let of_liars = self.worlds.iter().map(World::liars).collect();
                let (way, plan) = (transactions.groups().clone(), self.plan);
                let hostile =
                    hostile::Hostile::new(transactions.clone(), way, of_liars, plan, random);
                let task = process.begin(Box::pin(hostile.work()));
                process.busy.insert(task);
            }
            Role::Resolver if self.plan.resolves => {
                let resolver =
                    resolver::SimulatedResolver::new(transactions.clone(), self.plan.partitions);
                process.begin(Box::pin(resolver.look_on()));
            }
            Role::Resolver => {}
        }
        here.process = Some(process);
        here.transactions = Some(transactions);
    }

    /// What ended in a group goes to those who wait for it.
    fn take_answers(&mut self, group: usize) {
        let world = &mut self.worlds[group];
        let (answers, dying) = (world.take_answers(), std::mem::take(&mut world.dying));
        let sessions = std::mem::take(&mut self.worlds[group].sessions);
        for (client, ticket, result) in sessions {
            let session =
                result.map_err(|reason| CallError::Refused { reason, detail: String::new() });
            if let Some(process) = &self.clients[client].process {
                lock(&process.desk).answer(ticket as u64, Answered::Session(session));
            }
        }
        for (client, ticket, result) in answers {
            if let Some(herald) = members::number(ticket) {
                self.herald_answered(herald, &result);
                continue;
            }
            let answer = self.answer_of(group, result);
            if let Some(process) = &self.clients[client].process {
                lock(&process.desk).answer(ticket as u64, Answered::Called(answer));
            }
            let held: Vec<Asking> = self.clients[client].held.drain(..).collect();
            held.into_iter().for_each(|asking| self.hand_over(client, asking));
        }
        for client in dying {
            if self.clients[client].role == Role::Caller {
                self.kill(client);
            }
        }
        self.look_at_members(group);
    }

    fn answer_of(&self, group: usize, result: CallResult) -> Result<Answer, CallError> {
        let detail = String::new();
        match result {
            CallResult::Completed(Reply::Attested { reply, attestations }) => {
                let keys = self.worlds[group].member_keys();
                let key = |id: usize| keys.get(id).copied().unwrap_or(PublicKey([0; 32]));
                let signers =
                    attestations.into_iter().map(|one| (key(one.signer.index()), one)).collect();
                let partition = PartitionId(group as u16);
                Ok(Answer { reply, proof: Some(Certificate { partition, signers }), slot: None })
            }
            CallResult::Completed(Reply::Service(reply)) => {
                Ok(Answer { reply, proof: None, slot: None })
            }
            CallResult::Completed(Reply::Unordered { reply, slot }) => {
                Ok(Answer { reply, proof: None, slot: Some(Slot(slot)) })
            }
            CallResult::Completed(Reply::Administered { .. } | Reply::Told(_)) => {
                let reason = perdura_client::Indeterminacy::UnexpectedReply;
                Err(CallError::Indeterminate { reason, detail })
            }
            CallResult::Refused(reason) => Err(CallError::Refused { reason, detail }),
            CallResult::Indeterminate(reason) => Err(CallError::Indeterminate { reason, detail }),
        }
    }

    /// Lets tasks go on, and hands over what they ask for, until none can.
    fn work(&mut self) {
        for client in 0..self.clients.len() {
            while let Some(process) = &mut self.clients[client].process {
                lock(&process.desk).comes(self.now_us / 1_000);
                if !process.work() {
                    break;
                }
                let asked = lock(&process.desk).take_asked();
                let torn = asked.len() > 1
                    && !self.closing
                    && !self.calm
                    && self.clients[client].role == Role::Caller
                    && self.random.percent(self.plan.torn);
                let most = if torn { 1 } else { asked.len() };
                for asking in asked.into_iter().take(most) {
                    self.hand_over(client, asking);
                }
                let dies = process_dies(&self.clients[client]);
                if dies {
                    self.kill(client);
                }
                if torn {
                    self.report.reached(Mark::DiedInBetween);
                    self.kill(client);
                }
            }
        }
    }

    /// Hands to a client core what a task asks for.
    fn hand_over(&mut self, client: usize, asking: Asking) {
        let (ticket, operation, group, command, fast, deadline_ms) = match asking.clone() {
            Asking::Session { ticket, partition, deadline_ms } => {
                let left_ms = deadline_ms.saturating_sub(self.now_us / 1_000);
                let world = &mut self.worlds[partition.index()];
                world.come_to(self.now_us);
                world.ask_session((client, ticket as usize), left_ms);
                self.take_answers(partition.index());
                return;
            }
            Asking::Leave { partition, session } => {
                let world = &mut self.worlds[partition.index()];
                world.come_to(self.now_us);
                world.leave_session(client, session);
                return;
            }
            Asking::Call { ticket, operation, partition, command, fast, deadline_ms } => {
                (ticket, operation, partition.index(), command, fast, deadline_ms)
            }
        };
        let Some(process) = &self.clients[client].process else { return };
        let left_ms = deadline_ms.saturating_sub(self.now_us / 1_000);
        if left_ms == 0 {
            lock(&process.desk).answer(ticket, Answered::Called(Err(too_late())));
            return;
        }
        let world = &mut self.worlds[group];
        world.come_to(self.now_us);
        match world.ask((client, ticket as usize), command, fast, left_ms) {
            Some(record) => {
                if let Some(operation) = operation {
                    let mut history = history::open(&self.history);
                    history.operations[operation].calls.push((group, record));
                }
                // It may have been refused at once.
                self.take_answers(group);
            }
            None => self.clients[client].held.push_back(asking),
        }
    }
}
