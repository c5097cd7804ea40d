//! The client of a Perdura cluster.
//!
//! [`ClientCore`] is the protocol: sessions, frames, retransmission, reply quorums, fast reads. It
//! is pure; time comes in, messages go out, and the simulator drives the same one. [`Client`] is
//! its driver on tokio: one task that owns the connections and moves bytes and time.
//!
//! Every call ends by its deadline in one of three ways, which the types keep apart (rule C1):
//! a [`Reply`], a [`Refusal`] (nothing happened, for certain), or an [`Indeterminacy`] (it may have
//! happened, or may still happen).

#![forbid(unsafe_code)]

mod core;
mod driver;
mod outcome;
mod views;
mod votes;

pub use crate::core::{
    CallId, CallOptions, ClientConfig, ClientCore, ClientStats, Mode, Output, bounds,
};
pub use crate::driver::{
    Attendance, CallError, Client, ClusterConfig, ConnectError, DriverStats, Options,
    ReplicaAddress,
};
pub use crate::outcome::{CallResult, Indeterminacy, Refusal, Reply};
