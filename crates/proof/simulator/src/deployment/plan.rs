//! What a seed stands for beyond what it does to each group ([`crate::plan`]).

use super::Role;
use crate::options::{Mode, ServiceKind, SimulationOptions};
use crate::plan::Plan;
use crate::random::Random;
use crate::report::FaultKind;
use perdura_protocol::Versions;

/// Most partitions of a simulated store.
pub const PARTITIONS_AT_MOST: usize = 8;

/// A store, and what its clients do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StorePlan {
    pub partitions: usize,
    /// Whether keys are spread by their hashes; else by ranges.
    pub by_hash: bool,
    /// Processes that do what the workload says, and what each does at once.
    pub callers: usize,
    pub tasks: usize,
    /// Processes that attack.
    pub hostile: usize,
    /// Transactions in a hundred that may touch all partitions.
    pub global: u64,
    /// Keys of each family: accounts, registers, members of a set.
    pub keys: u64,
    /// Longest pause of a task, milliseconds.
    pub think_ms: u64,
    pub short_deadlines: u64,
    pub value_bytes: usize,
    /// Longest time between two deaths of processes, milliseconds; none if they live on.
    pub deaths_ms: Option<u64>,
    /// Of a hundred times that a process asks several groups at once, so many are its last moment.
    pub torn: u64,
    /// Of a hundred calls so many go out late, so that what is asked of several groups at once comes to them one after the other.
    pub stutters: u64,
    /// Whether somebody ends what others leave while faults go on.
    pub resolves: bool,
    pub state_limit_bytes: u64,
    /// Whether it is waited at the end until all is forgotten that is over: minutes.
    pub forgets: bool,
    /// Whether one lying key holds and marks all that it can while nothing else goes wrong, and correct callers get on nevertheless.
    pub hogs: bool,
    /// When the key of a hostile process is revoked in all groups, if it is, milliseconds.
    pub revokes_ms: Option<u64>,
}

/// In one run of four.
fn revokes_ms(options: &SimulationOptions) -> Option<u64> {
    let mut random = Random::new(options.seed).fork("revokes");
    random.percent(25).then(|| random.between(500, 10_000))
}

impl StorePlan {
    /// The store of these options.
    pub fn draw(options: &SimulationOptions) -> StorePlan {
        let mut random = Random::new(options.seed).fork("store");
        let partitions = random.between(2, 4) as usize;
        let plan = StorePlan {
            partitions,
            by_hash: random.percent(50),
            callers: random.between(2, 4) as usize,
            tasks: random.between(1, 4) as usize,
            hostile: *random.pick(&[0, 0, 1, 2]),
            global: *random.pick(&[0, 30, 60, 90, 100]),
            keys: partitions as u64 + *random.pick(&[0, 4, 12, 24]),
            think_ms: *random.pick(&[2, 20, 200]),
            short_deadlines: *random.pick(&[0, 5, 25]),
            value_bytes: *random.pick(&[16, 16, 300]),
            deaths_ms: *random.pick(&[None, Some(2_000), Some(10_000)]),
            torn: *random.pick(&[0, 1, 5]),
            stutters: *Random::new(options.seed).fork("stutters").pick(&[0, 0, 10, 30]),
            resolves: random.percent(50),
            state_limit_bytes: 1 << 30,
            forgets: Random::new(options.seed).fork("forgets").percent(20),
            hogs: Random::new(options.seed).fork("hogs").percent(5),
            revokes_ms: revokes_ms(options),
        };
        let plan = if plan.hogs { plan.with_a_hog() } else { plan };
        let plan = if random.percent(20) { plan.with_little_room() } else { plan };
        let overrides = &options.overrides;
        StorePlan {
            partitions: options.partitions.unwrap_or(plan.partitions).clamp(2, PARTITIONS_AT_MOST),
            callers: overrides.clients.unwrap_or(plan.callers).max(1),
            tasks: overrides.callers.unwrap_or(plan.tasks).max(1),
            keys: overrides.keys.unwrap_or(plan.keys).max(2),
            deaths_ms: plan.deaths_ms.filter(|_| overrides.allow(FaultKind::ClientRestart)),
            revokes_ms: plan.revokes_ms.filter(|_| overrides.allow(FaultKind::ClientRevoked)),
            torn: if overrides.allow(FaultKind::ClientRestart) { plan.torn } else { 0 },
            hostile: match &options.attacks {
                Some(attacks) if attacks.is_empty() => 0,
                _ => plan.hostile,
            },
            hogs: plan.hogs && options.attacks.as_ref().is_none_or(|all| !all.is_empty()),
            ..plan
        }
    }

    /// Large values, many of them written at once in several partitions, and not room for all of them.
    fn with_little_room(self) -> StorePlan {
        const VALUE_BYTES: usize = 2_000;
        let keys = self.keys + 12;
        // Of registers and of members there are so many; all of them take twice as much.
        let state_limit_bytes = VALUE_BYTES as u64 * keys / self.partitions as u64;
        let (global, stutters) = (self.global.max(60), self.stutters.max(10));
        let (value_bytes, tasks) = (VALUE_BYTES, 4);
        StorePlan { value_bytes, state_limit_bytes, keys, global, stutters, tasks, ..self }
    }

    /// One lying key, and a workload that is not in its own way for long.
    fn with_a_hog(self) -> StorePlan {
        let (hostile, resolves, revokes_ms) = (1, true, None);
        let keys = self.keys.max(self.partitions as u64 + 12);
        StorePlan { hostile, resolves, revokes_ms, keys, think_ms: 200, ..self }
    }

    /// Client processes: those of the workload, those that attack, and one that ends what others leave.
    pub fn processes(&self) -> usize {
        self.callers + self.hostile + 1
    }

    /// What the process with a number is there for.
    pub fn role(&self, process: usize) -> Role {
        match process {
            caller if caller < self.callers => Role::Caller,
            hostile if hostile < self.callers + self.hostile => Role::Hostile,
            _ => Role::Resolver,
        }
    }

    /// What is asked for of one of the groups.
    pub fn options_of(options: &SimulationOptions, group: usize) -> SimulationOptions {
        let seed = Random::new(options.seed).fork(&format!("group {group}")).next();
        let mut of_group = SimulationOptions { seed, partitions: None, ..options.clone() };
        of_group.overrides.clients = None;
        of_group.overrides.callers = None;
        of_group
    }

    /// What happens to one of the groups: faults and liars of its own, at the pace of all.
    pub fn plan_of(&self, options: &SimulationOptions, group: usize) -> Plan {
        let of_all = Plan::draw(options);
        let mut plan = Plan::draw(&StorePlan::options_of(options, group));
        plan.service = ServiceKind::Partitions;
        plan.versions = Versions { service: crate::witness::NEWEST, ..Versions::NEW };
        plan.scheme = of_all.scheme;
        plan.chaos.interval_us = of_all.chaos.interval_us * self.partitions as u64;
        plan.chaos.down_us = of_all.chaos.down_us;
        plan.workload.clients = self.processes();
        // What each has open at most: parts, and what ends and forgets transactions.
        plan.workload.callers = 4 * self.tasks + 16;
        if options.mode == Some(Mode::Liveness) {
            plan.mode = Mode::Liveness;
        }
        if self.hogs && options.liars.is_none() {
            // One that leads costs time of its own, and so does who was away. Nothing goes wrong for a thousand years.
            plan.liars.clear();
            plan.chaos.interval_us = 1 << 55;
        }
        plan
    }
}
