//! The entrance to Perdura: what a Rust program depends on that makes a cluster, runs a replica, or is a client.
//!
//! - [`create`] makes the files of a new cluster, with the defaults of a new cluster
//!   ([`Cluster::default_parameters`]) and places on this machine or on hosts;
//! - [`config`] is what stands in those files;
//! - [`replica`] opens a replica from its file, and runs it;
//! - [`server`] does that with a server of a cluster of several partitions;
//! - [`connect`] makes a client from a cluster's files;
//! - [`health`] is what its replicas say of themselves, and what that means.
//!
//! What these take and give is of other crates, which are here under their own names: [`client`], [`replica_runtime`] (all of that crate:
//! [`machinery`]), [`execution`] (the trait [`execution::Service`] of a service of your own), [`protocol`], [`durability`], and the services [`store`] and [`tuples`].
//!
//! The command `perdura` does the same for operators; errors are in its words, and name the file, the field, and what to
//! do.

#![forbid(unsafe_code)]

pub mod config;
pub mod connect;
pub mod create;
pub mod format;
pub mod health;
pub mod replica;
mod resolver;
pub mod server;
pub mod service;

pub use config::{Cluster, KeyFile, PartitionedCluster, ReplicaFile, ServerFile};
pub use service::ServiceKind;

pub use bytes;
pub use perdura_client as client;
pub use perdura_durability as durability;
pub use perdura_execution as execution;
pub use perdura_protocol as protocol;
pub use perdura_replica as machinery;
pub use perdura_replica::runtime as replica_runtime;
pub use perdura_store as store;
pub use perdura_transactions as transactions;
pub use perdura_tuples as tuples;
pub use toml;
