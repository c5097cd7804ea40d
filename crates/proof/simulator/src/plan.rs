//! What a seed stands for: the group, the surroundings and the workload of one run.
//!
//! Everything is drawn in a fixed order and only then replaced by what the options ask for, so
//! that asking for one thing leaves the others as they were.

use crate::options::ServiceKind;
use crate::options::{Mode, SimulationOptions};
use crate::random::Random;
use crate::report::FaultKind;
use perdura_adversary::{Attack, Strategy};
use perdura_protocol::configuration::{Durability, Schedule};
use perdura_protocol::{Faults, Scheme, Versions};
use perdura_replica::node::StateTransfer;

/// How messages travel. Times in microseconds, odds in a million.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkPlan {
    /// Shortest delay.
    pub delay_us: u64,
    /// Added delay, drawn evenly up to this.
    pub jitter_us: u64,
    /// Odds of a delay a hundred times longer.
    pub straggle: u64,
    /// Odds of losing a message on a link that stays up.
    pub loss: u64,
    /// Odds of delivering a message twice.
    pub duplication: u64,
    /// Odds of damaging a message, which costs the link.
    pub corruption: u64,
    /// Whether messages of a link overtake each other.
    pub reordering: bool,
}

impl NetworkPlan {
    /// Nothing goes wrong.
    pub const CALM: NetworkPlan = NetworkPlan {
        delay_us: 200,
        jitter_us: 200,
        straggle: 0,
        loss: 0,
        duplication: 0,
        corruption: 0,
        reordering: false,
    };
}

/// What clients do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkloadPlan {
    /// Client processes.
    pub clients: usize,
    /// Calls that a client has open at most.
    pub callers: usize,
    /// Keys that all share.
    pub keys: u64,
    /// Longest pause between two calls of a caller, microseconds.
    pub think_us: u64,
    /// Calls in a hundred after which the caller makes the next one at once.
    pub bursts: u64,
    /// Calls in a hundred that only read.
    pub reads: u64,
    /// Of these, in a hundred, those not ordered.
    pub fast_reads: u64,
    /// Calls in a hundred with a short deadline.
    pub short_deadlines: u64,
    /// Usual length of a value, bytes.
    pub value_bytes: usize,
    /// Whether some commands are taken for costly ones.
    pub costly: bool,
}

/// How often something is done to the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultPlan {
    /// Longest time from one fault to the next, microseconds.
    pub interval_us: u64,
    /// Longest time a replica stays down or cut off, microseconds.
    pub down_us: u64,
    /// Failures in a hundred that last for longer than a group may stand still
    /// ([`crate::checkers::progress::TIMEOUT_US`]).
    pub lasting: u64,
    /// Whether replicas lose their disks and are replaced.
    pub wipes: bool,
    /// Which kinds happen, a bit each. Half of the runs leave most of them out ("swarm testing":
    /// Groce et al., ISSTA 2012): what needs a quiet group, or the same fault often, happens there.
    pub kinds: u64,
}

impl FaultPlan {
    /// Whether a kind happens.
    #[must_use]
    pub fn has(&self, kind: FaultKind) -> bool {
        self.kinds >> (kind as u64) & 1 == 1
    }
}

/// A run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What the group runs.
    pub service: ServiceKind,
    /// The versions with which the group starts.
    pub versions: Versions,
    /// Fault bounds.
    pub faults: Faults,
    /// Liveness or safety.
    pub mode: Mode,
    /// How statements are signed.
    pub scheme: Scheme,
    /// When replies leave.
    pub durability: Durability,
    /// Slots in agreement at once.
    pub depth: u64,
    /// Slots between checkpoints of a replica.
    pub checkpoint_interval: u64,
    /// Bytes of batches between them.
    pub checkpoint_bytes: u64,
    /// How many times rarer they may be for a large state.
    pub checkpoint_stretch: u64,
    /// Agreed time between them, milliseconds.
    pub checkpoint_ms: Option<u64>,
    /// Who stores which checkpoint.
    pub schedule: Schedule,
    /// Whom a replica that was away asks for the state.
    pub state_transfer: StateTransfer,
    /// Size of a log file, bytes.
    pub log_file_bytes: u64,
    /// Longest usual flush, microseconds.
    pub flush_us: u64,
    /// How much longer than on an idle machine the digest of a state takes; some spread it over seconds.
    pub slow_digests: u64,
    /// How long the stage of each replica usually takes for a batch, microseconds; none executes in its event loop.
    pub stages: Vec<Option<u64>>,
    /// Whether clients number their sessions by clocks that are wrong.
    pub astray: bool,
    /// Whether an event loop takes several inputs in a round.
    pub long_rounds: bool,
    /// Largest drift of a replica's monotonic clock, in a million.
    pub drift: u64,
    /// Messages.
    pub network: NetworkPlan,
    /// Clients.
    pub workload: WorkloadPlan,
    /// Faults.
    pub chaos: FaultPlan,
    /// Queues are smaller than on real machines by two to the power of this.
    pub shrunk: u32,
    /// How replicas lie, one strategy for each liar; at most `r`.
    pub liars: Vec<Strategy>,
    /// How clients attack, one attack for each hostile client.
    pub attacks: Vec<Attack>,
    /// Longest time between two attacks of a hostile client, microseconds.
    pub attack_us: u64,
}

/// The tuple spaces in one run of five. From a stream of its own: the others stay what they were.
fn draw_service(seed: u64) -> ServiceKind {
    match Random::new(seed).fork("service").below(5) {
        0 => ServiceKind::TupleSpaces,
        _ => ServiceKind::KeyValue,
    }
}

/// Those of clusters of 0.1.0 in one run of four, those without a bound on what a slot costs in one of four, and those before costs made
/// checkpoints due in one of eight. From a stream of its own too.
fn draw_versions(seed: u64) -> Versions {
    let rules = |rules| Versions { rules, service: 1 };
    let before_costs =
        if Random::new(seed).fork("rules").percent(50) { rules(2) } else { Versions::NEW };
    *Random::new(seed).fork("versions").pick(&[
        Versions::FIRST,
        rules(1),
        before_costs,
        Versions::NEW,
    ])
}

/// Whether some commands are taken for costly ones. From a stream of its own too.
fn draw_costly(seed: u64) -> bool {
    Random::new(seed).fork("costly commands").percent(50)
}

/// With which version of its service a run starts: mostly with the newest, which needs newer rules than the first.
/// From a stream of its own too.
fn draw_service_version(seed: u64, versions: Versions) -> Versions {
    let newest = crate::witness::NEWEST;
    let service = *Random::new(seed).fork("version of the service").pick(&[1, newest, newest]);
    if versions.rules == 0 { versions } else { Versions { service, ..versions } }
}

/// In one run of four. From a stream of its own too.
fn draw_slow_digests(seed: u64) -> u64 {
    *Random::new(seed).fork("slow digests").pick(&[1, 1, 1, 50])
}

/// In three runs of four replicas execute in stages, at one pace, but for some: they do so in their event loops, or take ten times as long.
/// From a stream of its own too.
fn draw_stages(seed: u64, n: usize) -> Vec<Option<u64>> {
    let mut random = Random::new(seed).fork("stages");
    let usual = *random.pick(&[None, Some(0), Some(200), Some(3_000)]);
    let mut draw = |usual: u64| match random.below(8) {
        0 => None,
        1 => Some(10 * usual + 100),
        _ => Some(usual),
    };
    (0..n).map(|_| usual.and_then(&mut draw)).collect()
}

/// In one run of three the first clients number their sessions by clocks that are a day ahead, a day behind, and at 1970. From a stream of
/// its own too.
fn draw_astray(seed: u64) -> bool {
    *Random::new(seed).fork("astray").pick(&[true, false, false])
}

/// In one run of four checkpoints follow the size of the state: bytes between them, and how much rarer they may be.
/// From a stream of its own too.
fn draw_stretch(seed: u64) -> (u64, u64) {
    *Random::new(seed).fork("stretch").pick(&[
        (1 << 20, 1),
        (1 << 20, 1),
        (1 << 20, 1),
        (64 << 10, 12),
    ])
}

/// In one run of two checkpoints are due by what commands cost, or by time. From a stream of its own too.
fn draw_checkpoint_ms(seed: u64) -> Option<u64> {
    *Random::new(seed).fork("checkpoint time").pick(&[None, None, Some(50), Some(1_000)])
}

/// Of the runs with the least depth some go slot by slot. From a stream of its own too.
fn draw_depth(seed: u64, drawn: u64) -> u64 {
    if drawn == 2 && Random::new(seed).fork("depth").percent(25) { 1 } else { drawn }
}

fn draw_faults(random: &mut Random) -> Faults {
    let (u, r) = match random.below(100) {
        0..35 => (1, 0),
        35..50 => (2, 0),
        50..80 => (1, 1),
        80..95 => (2, 1),
        _ => (2, 2),
    };
    Faults::new(u, r).unwrap_or_else(|_| unreachable!("all of these are in range"))
}

/// Most liars that a group which is drawn has room for.
pub const LIARS_AT_MOST: usize = 2;

/// The group drawn, or another one if liars are asked for that it has no room for.
fn draw_room(options: &SimulationOptions, drawn: Faults) -> Faults {
    let liars = options.liars.as_ref().map_or(0, Vec::len).min(LIARS_AT_MOST);
    let (mut faults, mut random) = (drawn, Random::new(options.seed).fork("room for liars"));
    while faults.r() < liars {
        faults = draw_faults(&mut random);
    }
    faults
}

/// Groups that are spread over cities or continents: one-way delays from 10 to 60 ms.
fn draw_wide(random: &mut Random) -> NetworkPlan {
    let near = draw_network(random);
    NetworkPlan {
        delay_us: random.between(10_000, 60_000),
        jitter_us: *random.pick(&[1_000, 10_000]),
        // A hundred times longer would be a link that stands still.
        straggle: 0,
        ..near
    }
}

fn draw_network(random: &mut Random) -> NetworkPlan {
    let rough = random.percent(50);
    NetworkPlan {
        delay_us: random.between(50, 1_500),
        jitter_us: *random.pick(&[100, 1_000, 5_000]),
        straggle: if rough { random.below(5_000) } else { 0 },
        loss: if rough { *random.pick(&[0, 1_000, 10_000, 50_000]) } else { 0 },
        duplication: if rough { *random.pick(&[0, 10_000, 50_000]) } else { 0 },
        corruption: if rough { *random.pick(&[0, 0, 100, 1_000]) } else { 0 },
        reordering: random.percent(60),
    }
}

fn draw_workload(random: &mut Random, tempo: Tempo, faults: Faults, costly: bool) -> WorkloadPlan {
    let (clients, callers) = (random.between(2, 5) as usize, random.between(1, 4) as usize);
    WorkloadPlan {
        clients,
        callers,
        keys: random.between(2, 8),
        think_us: match tempo {
            Tempo::Busy { think_us } => think_us,
            Tempo::Steady { share } => {
                let calls_per_s = share * idle_steps_per_s(faults) / (100 - share);
                let per_call_us = 1_000_000 * call_steps(faults) / calls_per_s.max(1);
                // The mean of what is drawn evenly up to this is half of it.
                2 * (clients * callers) as u64 * per_call_us
            }
        },
        bursts: *random.pick(&[0, 30, 60]),
        reads: *random.pick(&[20, 50]),
        fast_reads: *random.pick(&[0, 50, 90]),
        short_deadlines: *random.pick(&[0, 5, 25]),
        value_bytes: *random.pick(&[16, 16, 16, 300, 2_000]),
        costly,
    }
}

/// Steps that a plan is made for: what happens in a run keeps its density when it is longer.
const STEPS: u64 = 10_000;

/// How fast a run spends its steps. Most steps of a busy group are its clients' traffic, and 10,000
/// of them are over in a few virtual seconds, in which little can go wrong and come right again.
/// With clients that think the same steps last for a minute; then most are what replicas say of
/// themselves ten times a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tempo {
    /// Callers pause for this long at most, microseconds.
    Busy { think_us: u64 },
    /// So many steps in a hundred are clients' traffic, if all goes well.
    Steady { share: u64 },
}

/// Steps in a second of a group that nobody asks for anything: measured, as is the next.
fn idle_steps_per_s(faults: Faults) -> u64 {
    let n = faults.n() as u64;
    10 * n * (n - 1) + 12 * n
}

/// Steps that one call costs when it comes alone.
fn call_steps(faults: Faults) -> u64 {
    let n = faults.n() as u64;
    if faults.is_byzantine() { 2 * n * n + 5 } else { 6 * n - 2 }
}

impl Tempo {
    fn draw(random: &mut Random) -> Tempo {
        let think_us = *random.pick(&[500, 5_000, 50_000]);
        match random.below(100) {
            0..30 => Tempo::Busy { think_us },
            30..55 => Tempo::Steady { share: 60 },
            _ => Tempo::Steady { share: 30 },
        }
    }

    /// What [`STEPS`] last for if all goes well, microseconds.
    fn length_us(self, faults: Faults) -> u64 {
        match self {
            Tempo::Busy { think_us } => 3_000_000 + 60 * think_us,
            Tempo::Steady { share } => STEPS * 10_000 * (100 - share) / idle_steps_per_s(faults),
        }
    }
}

/// Shortest and longest of the times between faults, and of downtimes, microseconds.
const INTERVAL_US: [u64; 2] = [100_000, 20_000_000];
const DOWN_US: [u64; 2] = [100_000, 25_000_000];

/// Faults for a run that lasts `length_us`: from a few to many, short ones and long ones.
fn draw_chaos(random: &mut Random, length_us: u64) -> FaultPlan {
    // The mean time between two is half of the longest.
    let events = *random.pick(&[10, 25, 60]);
    let part = *random.pick(&[30, 10, 4]);
    FaultPlan {
        interval_us: (2 * length_us / events).clamp(INTERVAL_US[0], INTERVAL_US[1]),
        down_us: (length_us / part).clamp(DOWN_US[0], DOWN_US[1]),
        lasting: *random.pick(&[0, 10, 30]),
        wipes: random.percent(60),
        kinds: draw_kinds(random),
    }
}

/// Damage to what was synced.
const DAMAGE: [FaultKind; 8] = [
    FaultKind::BitFlip,
    FaultKind::ZeroedSector,
    FaultKind::StaleSector,
    FaultKind::LostWrite,
    FaultKind::MisdirectedWrite,
    FaultKind::MisdirectedRead,
    FaultKind::RunningRot,
    FaultKind::ScatteredDamage,
];

const _: () = assert!(FaultKind::ALL.len() <= u64::BITS as usize, "a bit for each kind");

fn bit(kind: FaultKind) -> u64 {
    1 << (kind as u64)
}

/// What happens to clients of tuple spaces, in every such run.
const OF_CLIENTS: [FaultKind; 2] = [FaultKind::ClientPause, FaultKind::ClientClockJump];

fn draw_kinds(random: &mut Random) -> u64 {
    // A disk that is struck again and again can no longer be held against an intact one.
    let damage = DAMAGE.into_iter().fold(0, |kinds, kind| kinds | bit(kind));
    let kinds = match random.below(100) {
        0..50 => u64::MAX,
        50..75 => FaultKind::DRAWN
            .iter()
            .copied()
            .filter(|_| random.percent(30))
            .fold(0, |kinds, kind| kinds | bit(kind)),
        // Replacements need others that are well, and so they are rare elsewhere.
        _ => (0..3)
            .fold(bit(FaultKind::Wipe), |kinds, _| kinds | bit(*random.pick(FaultKind::DRAWN))),
    };
    if kinds == u64::MAX { kinds } else { kinds & !damage }
}

/// At most `r` liars, in two runs of three where there may be any; half of them all lie alike. In
/// liveness mode those above `u` are left out later.
fn draw_liars(random: &mut Random, faults: Faults) -> Vec<Strategy> {
    if !faults.is_byzantine() || random.percent(33) {
        return Vec::new();
    }
    let count = random.between(1, faults.r() as u64) as usize;
    let mut liars: Vec<Strategy> = (0..count).map(|_| *random.pick(&Strategy::ALL)).collect();
    if random.percent(50) {
        let first = liars[0];
        liars.fill(first);
    }
    liars
}

fn draw_attacks(random: &mut Random) -> Vec<Attack> {
    let count = match random.below(100) {
        0..65 => 0,
        65..90 => 1,
        _ => 2,
    };
    (0..count).map(|_| *random.pick(&Attack::ALL)).collect()
}

impl Plan {
    /// By which power of two the bounds of replies in stages are smaller than on real machines: a client's part of them is a few values.
    #[must_use]
    pub fn stage_shrunk(&self) -> u32 {
        if self.shrunk == 0 { 0 } else { self.shrunk + 4 }
    }

    /// The plan of these options.
    #[must_use]
    pub fn draw(options: &SimulationOptions) -> Plan {
        let mut random = Random::new(options.seed).fork("plan");
        let faults = draw_faults(&mut random);
        let mode = if random.percent(50) { Mode::Liveness } else { Mode::Safety };
        let scheme = if random.percent(1) { Scheme::Ed25519 } else { Scheme::KeyedHash };
        let durability = if random.percent(10) { Durability::Async } else { Durability::Sync };
        let tempo = Tempo::draw(&mut random);
        // Times and load follow from the group that is asked for.
        let faults = options.faults.unwrap_or_else(|| draw_room(options, faults));
        let length_us = tempo.length_us(faults);
        let (checkpoint_bytes, checkpoint_stretch) = draw_stretch(options.seed);
        let mut plan = Plan {
            service: options.service.unwrap_or_else(|| draw_service(options.seed)),
            versions: draw_versions(options.seed),
            faults,
            mode,
            scheme,
            durability,
            depth: draw_depth(options.seed, *random.pick(&[2, 8, 32])),
            checkpoint_interval: match tempo {
                Tempo::Busy { .. } => *random.pick(&[16, 64]),
                Tempo::Steady { .. } => *random.pick(&[8, 16]),
            },
            checkpoint_bytes,
            checkpoint_stretch,
            checkpoint_ms: draw_checkpoint_ms(options.seed),
            schedule: Schedule::Coordinated,
            state_transfer: StateTransfer::default(),
            log_file_bytes: *random.pick(&[16 * 1024, 64 * 1024, 256 * 1024]),
            flush_us: *random.pick(&[300, 1_000, 4_000]),
            slow_digests: draw_slow_digests(options.seed),
            stages: draw_stages(options.seed, faults.n()),
            astray: draw_astray(options.seed),
            long_rounds: random.percent(50),
            drift: *random.pick(&[0, 1_000, 50_000]),
            network: match tempo {
                Tempo::Steady { .. } if random.percent(60) => draw_wide(&mut random),
                _ => draw_network(&mut random),
            },
            shrunk: 0,
            workload: draw_workload(&mut random, tempo, faults, draw_costly(options.seed)),
            chaos: draw_chaos(&mut random, length_us),
            liars: Vec::new(),
            attacks: Vec::new(),
            attack_us: (length_us / 50).clamp(100_000, 2_000_000),
        };
        plan.mode = options.mode.unwrap_or(plan.mode);
        plan.versions = draw_service_version(options.seed, plan.versions);
        if plan.service == ServiceKind::TupleSpaces {
            plan.chaos.kinds |= OF_CLIENTS.into_iter().fold(0, |kinds, kind| kinds | bit(kind));
        }
        plan.scheme = options.scheme.unwrap_or(plan.scheme);
        plan.durability = options.durability.unwrap_or(plan.durability);
        let schedules = [Schedule::Coordinated, Schedule::Sequential];
        let drawn = *Random::new(options.seed).fork("schedule").pick(&schedules);
        plan.schedule = options.schedule.unwrap_or(drawn);
        // A baseline: one liar makes all of it slow, and nobody is promised otherwise.
        let single = Random::new(options.seed).fork("transfer").percent(25);
        let drawn = match plan.mode {
            Mode::Safety if single => StateTransfer::SingleSender,
            Mode::Safety | Mode::Liveness => StateTransfer::Collaborative,
        };
        plan.state_transfer = options.state_transfer.unwrap_or(drawn);
        let mut adversary = Random::new(options.seed).fork("adversary");
        plan.liars = draw_liars(&mut adversary, plan.faults);
        plan.attacks = draw_attacks(&mut adversary);
        let patient = adversary.percent(50);
        plan.shrunk = *Random::new(options.seed).fork("queues").pick(&[0, 0, 6, 8]);
        if let Some(liars) = &options.liars {
            plan.liars = liars.iter().copied().take(plan.faults.r()).collect();
        }
        if let Some(attacks) = &options.attacks {
            plan.attacks.clone_from(attacks);
        }
        // Where liars are all that may fail, nobody else is ever away: most of these runs are about
        // safety.
        let needs_others = |liar: &Strategy| liar.is_about_views() || liar.is_about_states();
        let alone = plan.liars.len() >= plan.faults.u() && plan.liars.iter().any(needs_others);
        let restless = Random::new(options.seed).fork("liars alone").percent(75);
        if alone && restless && options.mode.is_none() {
            plan.mode = Mode::Safety;
        }
        if plan.mode == Mode::Liveness {
            plan.liars.truncate(plan.faults.u());
        }
        // Else a flood is all that there is room for in a run.
        if plan.attacks.contains(&Attack::Flood) {
            plan.attack_us = plan.attack_us.max(500_000);
        }
        // Who lies about views needs leaders that fail.
        if plan.liars.iter().any(|liar| liar.is_about_views()) {
            plan.chaos.interval_us = (length_us / 30).max(INTERVAL_US[0]);
        }
        // Who lies about states needs somebody who was away for long.
        if plan.liars.iter().any(|liar| liar.is_about_states()) {
            plan.checkpoint_interval = plan.checkpoint_interval.min(16);
            plan.log_file_bytes = 16 * 1024;
            plan.chaos.down_us = (length_us / 3).clamp(1_000_000, DOWN_US[1]);
            plan.chaos.wipes = true;
            let away = [FaultKind::Isolation, FaultKind::MachineCrash, FaultKind::Wipe];
            plan.chaos.kinds |= away.into_iter().fold(0, |kinds, kind| kinds | bit(kind));
        }
        // Who passes clients over is seen after a while only; busy clients use up the steps.
        let passes_over = [Strategy::Censor, Strategy::Withhold];
        if patient && plan.liars.iter().any(|liar| passes_over.contains(liar)) {
            plan.workload.think_us = plan.workload.think_us.max(200_000);
            plan.workload.callers = 1;
            plan.depth = plan.depth.min(8);
        }
        options.overrides.apply(&mut plan);
        plan
    }
}
