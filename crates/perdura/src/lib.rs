//! Perdura replicates a service, so that it stays available while up to `u` of its replicas fail, and correct while up to `r` of them lie.
//!
//! A service of your own:
//!
//! | | |
//! |---|---|
//! | [`Service`] | what you implement: what each command does to the state |
//! | [`Sharded`], [`Key`] | maps that the state consists of, and what may be a key of one |
//! | [`Parts`], [`PART_BYTES`] | names what the state consists of, and the most that a part may have that is no map |
//! | [`Context`], [`QueryContext`], [`ClientKey`] | what a command or a query may know besides itself and the state |
//! | [`ERROR_BYTES`], [`LEVELS`], [`EMPTY_ELEMENTS`], [`PART_COST`] | the most that a refusal may have, how deep types may be nested, how many elements their lists may have that take no bytes, and what each part of a command costs |
//! | [`cli`] | all of a program's `main`: runs replicas, and operates them |
//! | [`Client`], [`CallError`], [`EncodeError`] | calls it, why a call has no reply, and why one cannot be sent |
//!
//! Clusters and replicas, where a program makes and runs them itself:
//!
//! | | |
//! |---|---|
//! | [`Cluster`], [`Builder`], [`CreateError`] | makes a cluster's files |
//! | [`Faults`], [`FaultsError`] | which faults it bears |
//! | [`Replica`], [`Running`], [`Shutdown`] | runs one of its replicas in this process |
//! | [`ReplicaError`], [`RunError`] | why one cannot be run, or stopped |
//!
//! The key-value store that `perdura` runs, over one partition or many:
//!
//! | | |
//! |---|---|
//! | [`Store`], [`StoreError`] | reads and writes it |
//! | [`Transaction`] | what a closure reads and writes that happens together |
//! | [`Scan`] | entries in the order of their keys |
//!
//! Of both clients: [`Options`] say how long a call may take, [`OpenError`] why there is none, [`CallFailure`], [`Refusal`] and [`Indeterminacy`] why a call has no
//! reply, [`TransactionError`] why the store did not do something; [`ReadError`], [`KeyError`], [`ConnectError`], [`StoreConnectError`] and [`FilesError`] say what
//! is wrong with files. [`blocking`] has both clients for programs that are not async.
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
pub use perdura_client::{CallError as CallFailure, Indeterminacy, Options, Refusal};
pub use perdura_cluster::config::ReadError;
pub use perdura_cluster::connect::{ConnectError, KeyError, StoreConnectError};
pub use perdura_cluster::create::CreateError as FilesError;
pub use perdura_cluster::replica::{OpenError as ReplicaError, RunError};
pub use perdura_protocol::{Faults, FaultsError};
pub use perdura_transactions::TransactionError;
pub use perdura_typed::{CallError, ClientKey, Context, EMPTY_ELEMENTS, ERROR_BYTES, EncodeError};
pub use perdura_typed::{
    Key, LEVELS, PART_BYTES, PART_COST, Parts, QueryContext, Service, Sharded,
};
pub use replica::{Replica, Running, Shutdown};
pub use store::{Scan, Store, StoreError, Transaction};

#[cfg(test)]
mod tests {
    /// What is shown is what the documentation lists.
    #[test]
    fn each_public_name_is_in_the_table_of_contents() {
        let text = include_str!("lib.rs");
        let (shown, _) = text.split_once("#[cfg(test)]").unwrap();
        let mut names = Vec::new();
        for line in shown.replace('\n', " ").split(';') {
            let Some((_, line)) = line.split_once("pub ") else { continue };
            let last = line.rsplit("::").next().unwrap_or(line).replace("mod ", "");
            let of_list = last.trim_matches(['{', '}', ' ', ',']).split(',');
            names.extend(of_list.map(|name| name.rsplit(" as ").next().unwrap().trim().to_owned()));
        }
        assert!(names.len() > 25, "{names:?}");
        for name in names {
            assert!(text.contains(&format!("[`{name}`]")), "{name} is not in the documentation");
        }
    }
}
