//! Perdura replicates a service, so that it stays available while up to `u` of its replicas fail, and correct while up to `r` of them lie.
//!
//! - A **service of your own** implements [`Service`]: what it does to its state ([`Sharded`] maps, and values) with each command. [`cli`] makes a
//!   program of it that runs replicas and operates them; [`Client`] calls it.
//! - A **cluster** is made with [`Cluster::builder`], or by that program's `init`; [`Replica`] runs one of its replicas in this process.
//! - The **key-value store** that `perdura` runs, over one partition or many, is used by [`Store`].
//! - [`blocking`] has [`Client`](blocking::Client) and [`Store`](blocking::Store) for programs that are not async.
//!
//! Every call ends in one of three ways, which the errors keep apart: it has a reply; it is refused, and certain to have changed nothing; or nobody
//! can tell ([`CallError`]).

#![forbid(unsafe_code)]

pub mod blocking;
mod client;
mod cluster;
mod replica;
mod store;

pub use client::{Client, OpenError};
pub use cluster::{Builder, Cluster, CreateError};
pub use perdura_cli::service as cli;
pub use perdura_client::{Indeterminacy, Options, Refusal};
pub use perdura_protocol::{Faults, FaultsError, PublicKey};
pub use perdura_typed::{CallError, Context, ERROR_BYTES, Key, Parts, Service, Sharded};
pub use replica::{Replica, Running, Shutdown};
pub use store::{Conflicts, Scan, Store, StoreError, Transaction};
