//! Execution: the replicated state machine of one replica.
//!
//! A [`Service`] is what a developer writes. The [`Machine`] wraps it with what every service
//! needs to be replicated: sessions with exactly-once semantics, the register of clients, the
//! configurations of the group, agreed time. It takes decided batches in slot order and gives
//! replies; it gives cheap snapshots of everything that influences later execution, and starts
//! from them.
//!
//! Nothing here has a clock, randomness, sockets, threads, or iterates over an unordered map: equal
//! batches give equal replies and equal state digests on every replica (rules E1 to E4 of
//! docs/design.md).

#![forbid(unsafe_code)]

mod administration;
mod alone;
mod asked;
mod beside;
mod boxed;
mod cost;
mod executor;
mod footprint;
mod genesis;
mod interface;
mod machine;
mod manifest;
mod measure;
mod outcomes;
mod restore;
mod rules_in_force;
mod service;
mod session;
mod sessions;
mod snapshot;
mod stage;
mod view;
mod waiting;

pub use alone::Alone;
pub use asked::{Asked, Call, ServicePanic, Shown, fatal_here, panic_is_expected};
pub use beside::ReadState;
pub use boxed::{AnyService, any_service, flip_bit_of};
pub use cost::{Meter, SESSION_BODIES, TooCostly};
pub use executor::{Boundary, ExecutedBatch, Executor};
pub use footprint::{Footprint, KeyMark, KeyRange};
pub use genesis::{Genesis, GenesisError};
pub use interface::{Inspector, Interface, Opaque};
pub use machine::{Executed, Machine, Reply, Retry, newest_versions};
pub use manifest::{Entry, Manifest, ManifestError, PIECES, SEGMENTS, TooLarge};
pub use measure::Measure;
pub use restore::RestoreError;
pub use service::{
    ExecutionContext, FailingMemory, Failure, QueryContext, Readable, Service, Snapshot, Standing,
    StateLimit,
};
pub use snapshot::StateSnapshot;
pub use stage::{Done, ExecutionStage, Job, JobQueue, StagedBatch};
pub use view::{News, View};
pub use waiting::{Progress, Release, Waiting};
