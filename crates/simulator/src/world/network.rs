//! The network: links between stations (replicas first, then clients, the administrator last).
//!
//! A link that is up loses, delays, repeats and reorders messages as the plan says, worse than TCP
//! does. A link that breaks loses what was in flight; both ends are told, at once or late. A cut
//! link stays up and delivers nothing, one way or both.

use crate::plan::NetworkPlan;
use crate::random::Random;
use crate::report::FaultKind;

/// The two directions and the two ends of a link between stations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// Whether messages flow.
    pub up: bool,
    /// Grows whenever it breaks or comes up; what was sent before is lost.
    pub epoch: u64,
    /// Number of the connection, unique; replicas know a client's link by it.
    pub connection: u64,
    /// Whether the lower and the higher station think that it is up.
    pub known_up: [bool; 2],
    /// Whether an attempt to connect is under way.
    pub dialling: bool,
}

/// What becomes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// When it arrives; and perhaps again.
    pub arrivals_us: [Option<u64>; 2],
    /// What happened to it.
    pub faults: [Option<FaultKind>; 4],
}

/// All links.
#[derive(Debug)]
pub struct Network {
    stations: usize,
    links: Vec<Link>,
    // By (from, to): cuts, and the latest arrival so far.
    cuts: Vec<u32>,
    latest_us: Vec<u64>,
    connections: u64,
    random: Random,
    /// How messages travel now.
    pub plan: NetworkPlan,
}

impl Network {
    /// All links down.
    #[must_use]
    pub fn new(stations: usize, plan: NetworkPlan, random: Random) -> Network {
        let pairs = stations * stations;
        Network {
            stations,
            links: vec![Link::default(); pairs],
            cuts: vec![0; pairs],
            latest_us: vec![0; pairs],
            connections: 0,
            random,
            plan,
        }
    }

    /// The link between two stations.
    pub fn link(&mut self, a: usize, b: usize) -> &mut Link {
        &mut self.links[a.min(b) * self.stations + a.max(b)]
    }

    /// Number of stations.
    #[must_use]
    pub fn stations(&self) -> usize {
        self.stations
    }

    /// Whether anything sent by `from` arrives at `to`.
    #[must_use]
    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts[from * self.stations + to] > 0
    }

    /// Cuts, or mends, one direction. Cuts add up.
    pub fn cut(&mut self, from: usize, to: usize, cut: bool) {
        let cuts = &mut self.cuts[from * self.stations + to];
        *cuts = if cut { *cuts + 1 } else { cuts.saturating_sub(1) };
    }

    /// A link comes up; returns the connection's number.
    pub fn connect(&mut self, a: usize, b: usize) -> u64 {
        self.connections += 1;
        let connection = self.connections;
        let link = self.link(a, b);
        link.up = true;
        link.epoch += 1;
        link.connection = connection;
        link.known_up = [true; 2];
        connection
    }

    /// A link breaks; what was in flight is lost.
    pub fn disconnect(&mut self, a: usize, b: usize) {
        let link = self.link(a, b);
        link.up = false;
        link.epoch += 1;
    }

    /// Decides what becomes of a message that is sent now on a link that is up.
    pub fn fate(&mut self, from: usize, to: usize, now_us: u64) -> Fate {
        let mut fate = Fate::default();
        if self.is_cut(from, to) {
            return fate;
        }
        let plan = self.plan;
        let random = &mut self.random;
        if random.one_in_million(plan.loss) {
            fate.faults[0] = Some(FaultKind::MessageLoss);
            return fate;
        }
        let mut delay = plan.delay_us + random.below(plan.jitter_us + 1);
        if random.one_in_million(plan.straggle) {
            delay *= 100;
            fate.faults[1] = Some(FaultKind::MessageDelay);
        }
        let latest = &mut self.latest_us[from * self.stations + to];
        let mut arrival = now_us + delay;
        if arrival < *latest {
            if plan.reordering {
                fate.faults[2] = Some(FaultKind::MessageReordering);
            } else {
                arrival = *latest;
            }
        }
        *latest = (*latest).max(arrival);
        fate.arrivals_us[0] = Some(arrival);
        if random.one_in_million(plan.duplication) {
            fate.faults[3] = Some(FaultKind::MessageDuplication);
            fate.arrivals_us[1] = Some(arrival + random.below(20 * plan.jitter_us + 1));
        }
        fate
    }
}
