//! The network: links between stations (replicas first, then clients, the administrator last).
//!
//! A link that is up loses, delays, repeats and reorders messages as the plan says, worse than TCP
//! does. A link that breaks loses what was in flight; both ends are told, at once or late. A cut
//! link stays up and delivers nothing, one way or both. A slow one carries so many bytes per
//! second, and drops what does not fit into its queue. Bytes that are damaged on the way do not
//! verify (TLS), and cost the link: they never reach a node.
//!
//! Between replicas a link has two lanes, each a connection in reality: that of transfers has an order
//! of its own, goes down with the other, and sometimes alone.

use crate::plan::NetworkPlan;
use crate::random::Random;
use crate::report::FaultKind;
use perdura_protocol::message::Lane;

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
    /// No connection comes up before this time: an end that is the one to dial does not know yet
    /// that the last one broke.
    pub blocked_until_us: u64,
    /// Its lane of transfers; never up between others than replicas.
    pub transfers: Transfers,
}

/// The lane of transfers of a link.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transfers {
    /// Whether messages flow.
    pub up: bool,
    /// As that of the link, whose changes are among its own.
    pub epoch: u64,
    /// Whether the lower and the higher station think that it is up.
    pub known_up: [bool; 2],
}

impl Link {
    /// The lane that a message for this one is sent on by the lower or the higher station.
    #[must_use]
    pub fn lane(&self, wanted: Lane, side: usize) -> Lane {
        if self.transfers.known_up[side] { wanted } else { Lane::Agreement }
    }

    /// By which messages of a lane are known that were sent before it broke; none while it is down.
    #[must_use]
    pub fn epoch_of(&self, lane: Lane) -> Option<u64> {
        match lane {
            Lane::Agreement => self.up.then_some(self.epoch),
            Lane::Transfer => (self.up && self.transfers.up).then_some(self.transfers.epoch),
        }
    }

    /// The lane of transfers comes up; both ends know.
    pub fn connect_transfers(&mut self) {
        let epoch = self.transfers.epoch + 1;
        self.transfers = Transfers { up: true, epoch, known_up: [true; 2] };
    }

    /// The lane of transfers breaks; what was in flight on it is lost.
    pub fn break_transfers(&mut self) {
        self.transfers.up = false;
        self.transfers.epoch += 1;
    }
}

/// What becomes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// When it arrives; and perhaps again.
    pub arrivals_us: [Option<u64>; 2],
    /// What happened to it.
    pub faults: [Option<FaultKind>; 4],
    /// It arrives damaged, and the link breaks.
    pub corrupted: bool,
}

/// Bytes that wait for a slow link; what does not fit is dropped, as the real queue does.
const QUEUE_BYTES: u64 = 1 << 20;

/// All links.
#[derive(Debug)]
pub struct Network {
    stations: usize,
    links: Vec<Link>,
    // By (from, to): cuts, and the latest arrival so far on each lane.
    cuts: Vec<u32>,
    latest_us: Vec<[u64; 2]>,
    // Bytes per second (0: as many as there are), and when all that was sent is through.
    rates: Vec<u64>,
    busy_until_us: Vec<u64>,
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
            latest_us: vec![[0; 2]; pairs],
            rates: vec![0; pairs],
            busy_until_us: vec![0; pairs],
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

    /// Nothing is cut any more.
    pub fn mend_all(&mut self) {
        self.cuts.fill(0);
    }

    /// From now on `from` sends at most so many bytes per second to `to`; 0 lifts the limit.
    pub fn throttle(&mut self, from: usize, to: usize, bytes_per_second: u64) {
        self.rates[from * self.stations + to] = bytes_per_second;
    }

    /// Whether something waits in the queue of a link that is or was slow.
    #[must_use]
    pub fn is_queued(&self, from: usize, to: usize, now_us: u64) -> bool {
        self.busy_until_us[from * self.stations + to] > now_us
    }

    /// How long a message waits until it is through a slow link; `None` when the queue is full.
    fn queued_us(&mut self, pair: usize, bytes: usize, now_us: u64) -> Option<u64> {
        let rate = self.rates[pair];
        if rate == 0 {
            return Some(0);
        }
        let start = self.busy_until_us[pair].max(now_us);
        let end = start + bytes as u64 * 1_000_000 / rate;
        let waiting_bytes = (end - now_us) as u128 * u128::from(rate) / 1_000_000;
        if waiting_bytes > u128::from(QUEUE_BYTES.max(2 * bytes as u64)) {
            return None;
        }
        self.busy_until_us[pair] = end;
        Some(end - now_us)
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
        for pair in [a * self.stations + b, b * self.stations + a] {
            // What was in flight on the last one is lost.
            (self.busy_until_us[pair], self.latest_us[pair]) = (0, [0; 2]);
        }
        connection
    }

    /// A link breaks; what was in flight is lost.
    pub fn disconnect(&mut self, a: usize, b: usize) {
        let link = self.link(a, b);
        link.up = false;
        link.epoch += 1;
        link.break_transfers();
    }

    /// Decides what becomes of a message that is sent now on a link that is up.
    pub fn fate(
        &mut self,
        (from, to): (usize, usize),
        lane: Lane,
        bytes: usize,
        now_us: u64,
    ) -> Fate {
        let mut fate = Fate::default();
        if self.is_cut(from, to) {
            return fate;
        }
        let plan = self.plan;
        let pair = from * self.stations + to;
        let Some(queued) = self.queued_us(pair, bytes, now_us) else { return fate };
        let random = &mut self.random;
        if random.one_in_million(plan.loss) {
            fate.faults[0] = Some(FaultKind::MessageLoss);
            return fate;
        }
        if random.one_in_million(plan.corruption) {
            fate.faults[0] = Some(FaultKind::CorruptedBytes);
            fate.corrupted = true;
            return fate;
        }
        let mut travel = plan.delay_us + random.below(plan.jitter_us + 1);
        if random.one_in_million(plan.straggle) {
            travel *= 100;
            fate.faults[1] = Some(FaultKind::MessageDelay);
        }
        let latest = &mut self.latest_us[pair][lane as usize];
        let mut arrival = now_us + queued + travel;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> Network {
        Network::new(3, NetworkPlan::CALM, Random::new(1))
    }

    #[test]
    fn a_slow_link_takes_its_time_and_drops_what_does_not_fit() {
        let mut network = network();
        network.throttle(0, 1, 100_000);
        let arrival =
            |network: &mut Network| network.fate((0, 1), Lane::Agreement, 50_000, 0).arrivals_us[0];
        assert!((500_000..501_000).contains(&arrival(&mut network).unwrap()));
        assert!((1_000_000..1_001_000).contains(&arrival(&mut network).unwrap()));
        let sent = (0..100).filter(|_| arrival(&mut network).is_some()).count();
        assert!((10..30).contains(&sent), "{sent}");
        // The other direction, and the link once it is fast again, are not concerned.
        assert!(network.fate((1, 0), Lane::Agreement, 50_000, 0).arrivals_us[0].unwrap() < 1_000);
        network.throttle(0, 1, 0);
        assert!(network.is_queued(0, 1, 500_000) && !network.is_queued(1, 0, 500_000));
        assert!(
            network.fate((0, 1), Lane::Agreement, 50_000, 0).arrivals_us[0].unwrap() > 500_000,
            "in order"
        );
        network.connect(0, 1);
        assert!(!network.is_queued(0, 1, 0));
        assert!(network.fate((0, 1), Lane::Agreement, 50_000, 0).arrivals_us[0].unwrap() < 1_000);
    }

    #[test]
    fn each_lane_keeps_its_order_and_none_is_kept_between_them() {
        let mut network = network();
        (network.plan.jitter_us, network.plan.reordering) = (1_000, false);
        let mut latest = [0; 2];
        let mut overtaken = 0;
        for turn in 0..1_000 {
            let lane = if turn % 2 == 0 { Lane::Agreement } else { Lane::Transfer };
            let arrival = network.fate((0, 1), lane, 100, turn).arrivals_us[0].unwrap();
            assert!(arrival >= latest[lane as usize]);
            overtaken += usize::from(arrival < latest[1 - lane as usize]);
            latest[lane as usize] = arrival;
        }
        assert!(overtaken > 0);
    }

    #[test]
    fn damaged_bytes_arrive_nowhere() {
        let mut network = network();
        network.plan.corruption = 1_000_000;
        let fate = network.fate((0, 1), Lane::Agreement, 100, 0);
        assert!(fate.corrupted && fate.arrivals_us == [None; 2]);
        assert_eq!(fate.faults[0], Some(FaultKind::CorruptedBytes));
    }
}
