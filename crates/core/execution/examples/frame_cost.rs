//! What executing a frame costs while its client key has many sessions open, against one: nanoseconds, medians of pairs.
//!
//! `cargo run --profile fast -p perdura-execution --example frame_cost [SESSIONS]`
//!
//! Each pair executes the same frames of one session on two machines, with a snapshot every thousand slots, as at checkpoints.

mod counter;

use counter::Counter;
use perdura_execution::{Genesis, Machine};
use perdura_protocol::configuration::{Member, Parameters};
use perdura_protocol::{
    Batch, ClusterId, Command, Configuration, Encode, Faults, Frame, PublicKey, ServiceName,
    SessionId, Slot, Time, limits,
};
use std::time::Instant;

const CLIENT: PublicKey = PublicKey([1; 32]);
const NOW_MS: u64 = 1_000_000;
const FRAMES: u64 = 20_000;
const PAIRS: usize = 15;
const SNAPSHOT_SLOTS: u64 = 1_000;

struct Bench {
    machine: Machine<Counter>,
    number: u64,
}

fn session(index: u64) -> SessionId {
    SessionId { client: CLIENT, nonce: NOW_MS * limits::NONCES_PER_MS + index }
}

impl Bench {
    fn new(sessions: u64) -> Bench {
        let parameters = Parameters {
            service: ServiceName::literal("counter"),
            ..Parameters::small(
                ClusterId([9; 16]),
                Faults::new(1, 1).expect("in range"),
                PublicKey([200; 32]),
            )
        };
        let members = (0..4).map(|id| Member { key: PublicKey([100 + id; 32]), incarnation: 0 });
        let configuration = Configuration { id: 0, from_slot: Slot(0), members: members.collect() };
        let genesis = Genesis { configuration, clients: vec![("one".into(), CLIENT)] };
        let machine = Machine::new(&parameters, genesis, Counter::default());
        let mut bench = Bench { machine: machine.expect("it is consistent"), number: 1 };
        for index in 0..sessions {
            bench.order(session(index), 0, 0, Command::Open);
        }
        assert_eq!(bench.machine.session_count() as u64, sessions);
        bench
    }

    fn order(&mut self, session: SessionId, acked_below: u64, number: u64, command: Command) {
        let frame = Frame::build(
            ClusterId([9; 16]),
            session,
            acked_below,
            number,
            &[command.to_bytes()],
            None,
        );
        let batch = Batch::requests(Time(NOW_MS), vec![frame]);
        self.machine.execute(self.machine.slot().next(), &batch);
    }

    /// Nanoseconds for a frame.
    fn run(&mut self) -> f64 {
        let middle = session(self.machine.session_count() as u64 / 2);
        let start = Instant::now();
        for _ in 0..FRAMES {
            let add = Command::Service("add 1".into());
            self.order(middle, self.number, self.number, add);
            self.number += 1;
            if self.number.is_multiple_of(SNAPSHOT_SLOTS) {
                std::hint::black_box(self.machine.snapshot());
            }
        }
        start.elapsed().as_nanos() as f64 / FRAMES as f64
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let sessions = std::env::args().nth(1).map_or(4_000, |text| text.parse().expect("a number"));
    let (mut one, mut many) = (Bench::new(1), Bench::new(sessions));
    let pairs: Vec<(f64, f64)> = (0..PAIRS)
        .map(|pair| {
            let first = if pair % 2 == 0 { one.run() } else { many.run() };
            let second = if pair % 2 == 0 { many.run() } else { one.run() };
            if pair % 2 == 0 { (first, second) } else { (second, first) }
        })
        .collect();
    let of_one = median(pairs.iter().map(|pair| pair.0).collect());
    let of_many = median(pairs.iter().map(|pair| pair.1).collect());
    let ratio = median(pairs.iter().map(|(one, many)| many / one).collect());
    println!("a frame of one command with 1 session of its key open: {of_one:.0} ns");
    println!(
        "with {sessions}: {of_many:.0} ns, {ratio:.3} times as much (median of {PAIRS} pairs)"
    );
}
