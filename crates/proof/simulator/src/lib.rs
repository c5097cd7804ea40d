//! Whole groups of replicas and their clients in one thread on virtual time, from one seed.
//!
//! What runs is the real thing: [`perdura_replica::node::Node`] with the store or the tuple spaces, the durability
//! crate's log and checkpoints over its disk in memory, and [`perdura_client::ClientCore`]. Only
//! the network, the clocks, the scheduling of the disk and the workload are simulated. Nothing
//! here has a clock, threads, or iterates over an unordered map: equal [`SimulationOptions`] give equal
//! runs, byte for byte.
//!
//! A store of several partitions is several groups on one virtual time, and clients of all of them (`deployment`).
//!
//! Start at [`world`] (the events; its `chaos` says what may be done to a group within which
//! promise), then [`checkers`] (what is asked of it). [`scenario`] runs the readable ones in
//! `scenarios/`.

#![forbid(unsafe_code)]

pub mod checkers;
mod deployment;
mod guest;
mod options;
mod overrides;
mod plan;
mod report;
pub mod scenario;
pub mod shrink;
mod violation;
mod witness;
pub mod world;

pub use deployment::plan::PARTITIONS_AT_MOST;
pub use guest::{Drawn, Guest, simulate_guest};
pub use options::{
    Mode, ServiceKind, SimulationOptions, parse_scheme, parse_service, scheme_name, service_name,
};
pub use overrides::{Numbers, Overrides, Simpler};
pub use perdura_adversary::Random;
pub(crate) use perdura_adversary::random;
pub use plan::{FaultPlan, LIARS_AT_MOST, NetworkPlan, Plan, WorkloadPlan};
pub use report::{Calls, FaultKind, Mark, SimulationReport, SpaceCounts, TransactionCounts};
pub use violation::Violation;
pub use world::STATEMENTS;
pub use world::{pass_over_stumbles, simulate, simulate_traced, simulate_with_history};
