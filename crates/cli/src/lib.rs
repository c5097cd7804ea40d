//! The commands of `perdura`, which operate a cluster: one module for each. The program itself is
//! `main.rs`, which calls [`main`].
//!
//! Others take of it what they share with the commands: the experiments of `perdura-lab` clusters on this machine
//! ([`local`], [`mod@bench`]) and arguments ([`connect`], [`init`]), the fuzz targets the JSON lines of `perdura kv batch` and
//! `perdura space batch` ([`kv_json`], [`space_json`]). What a cluster's files are, and how replicas and clients are opened from them, is
//! in the crate `perdura`.

#![deny(unsafe_code)]

/// Prints a line; if nobody reads it any more, there is nobody to tell.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// Prints a line to standard error; if nobody reads it any more, there is nobody to tell.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod admin;
mod administer;
pub mod allocator;
mod batch;
pub mod bench;
mod called;
mod client_keys;
mod clients_of_all;
mod command;
mod completion;
pub mod connect;
mod dev;
pub mod ending;
mod health;
pub mod init;
mod inspect;
mod json;
mod kv;
mod kv_batch;
mod kv_export;
pub mod kv_json;
mod kv_range;
mod kv_walk;
mod limit;
pub mod local;
mod logging;
mod man;
mod members;
mod own;
pub mod partitions;
pub mod process;
mod progress;
mod reinit;
pub mod replica;
pub mod server;
mod shell;
mod space;
mod space_batch;
mod space_held;
pub mod space_json;
pub mod status;
mod steps;
mod txn;
mod upgrade;

pub use command::main;
pub use ending::Usage;
pub use own::service;
