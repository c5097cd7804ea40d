//! The entrance to Perdura: what a Rust program depends on that makes a cluster, runs a replica, or is a client.
//!
//! - [`create`] makes the files of a new cluster, with the defaults of a new cluster
//!   ([`Cluster::default_parameters`]) and places on this machine or on hosts;
//! - [`config`] is what stands in those files;
//! - [`replica`] opens a replica from its file, and runs it;
//! - [`connect`] makes a client from a cluster's files.
//!
//! The command `perdura` does the same for operators; errors are in its words, and name the file, the field, and what to
//! do.

#![forbid(unsafe_code)]

pub mod config;
pub mod connect;
pub mod create;
pub mod format;
pub mod replica;

pub use config::{Cluster, KeyFile, ReplicaFile};
