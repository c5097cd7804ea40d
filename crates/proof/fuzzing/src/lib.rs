//! What the fuzz targets do. `fuzz/` runs these functions under libFuzzer (`make fuzz`),
//! `tests/smoke.rs` runs them on the stable toolchain over the committed seeds (`make test`).
//!
//! A target takes any bytes. It panics where a decoder does, where a decoder takes more memory than
//! its [`Memory`] allows, and where what was decoded is not encoded as it was: the codec is
//! canonical, so a value has one encoding. It returns whether the input was accepted, so that the
//! smoke can see that seeds still are.

pub mod memory;
pub mod mutation;
mod partition;
mod protocol;
mod script;
mod service;
mod state;
mod storage;
mod text;
mod transport;
mod tuples;

use bytes::Bytes;
use memory::Memory;
use perdura_protocol::{Decode, Encode};

/// A seed with its name.
pub type Seed = (&'static str, Vec<u8>);

/// A fuzz target.
#[derive(Debug)]
pub struct Target {
    /// As in `fuzz/fuzz_targets` and `fuzz/seeds`.
    pub name: &'static str,
    /// Whether the input was accepted.
    pub run: fn(&[u8]) -> bool,
    /// Made by real encoders; each of them is accepted.
    pub seeds: fn() -> Vec<Seed>,
    /// Inputs in a smoke.
    pub smoke: usize,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "message", run: protocol::message, seeds: protocol::messages, smoke: 40000 },
    Target { name: "command", run: protocol::command, seeds: protocol::commands, smoke: 20000 },
    Target { name: "record", run: protocol::record, seeds: protocol::records, smoke: 20000 },
    Target { name: "framing", run: transport::framing, seeds: transport::framed, smoke: 20000 },
    Target { name: "hello", run: transport::hello, seeds: transport::hellos, smoke: 20000 },
    Target { name: "tls", run: transport::tls, seeds: transport::hello_records, smoke: 2500 },
    Target {
        name: "superblock",
        run: storage::superblock,
        seeds: storage::superblocks,
        smoke: 20000,
    },
    Target { name: "directory", run: storage::directory, seeds: storage::patches, smoke: 7500 },
    Target { name: "log_model", run: storage::log_model, seeds: storage::lives, smoke: 300 },
    Target { name: "manifest", run: state::manifest, seeds: state::manifests, smoke: 20000 },
    Target { name: "state", run: state::state, seeds: state::states, smoke: 10000 },
    Target { name: "store_command", run: service::command, seeds: service::commands, smoke: 30000 },
    Target { name: "store_reply", run: service::reply, seeds: service::replies, smoke: 20000 },
    Target {
        name: "partition_command",
        run: partition::command,
        seeds: partition::commands,
        smoke: 10000,
    },
    Target {
        name: "partition_reply",
        run: partition::reply,
        seeds: partition::replies,
        smoke: 20000,
    },
    Target { name: "tuple_command", run: tuples::command, seeds: tuples::commands, smoke: 15000 },
    Target { name: "tuple_reply", run: tuples::reply, seeds: tuples::replies, smoke: 20000 },
    Target { name: "tuple_segment", run: tuples::segment, seeds: tuples::segments, smoke: 15000 },
    Target {
        name: "cluster_file",
        run: text::cluster_file,
        seeds: text::cluster_files,
        smoke: 7500,
    },
    Target { name: "key_file", run: text::key_file, seeds: text::key_files, smoke: 10000 },
    Target {
        name: "replica_file",
        run: text::replica_file,
        seeds: text::replica_files,
        smoke: 10000,
    },
    Target { name: "json_line", run: text::json_line, seeds: text::json_lines, smoke: 20000 },
    Target { name: "space_line", run: text::space_line, seeds: text::space_lines, smoke: 20000 },
    Target { name: "history", run: text::history, seeds: text::histories, smoke: 10000 },
];

/// The body of a target's program in `fuzz/fuzz_targets`, which depends on `libfuzzer_sys`.
#[macro_export]
macro_rules! fuzz {
    ($name:literal) => {
        #[global_allocator]
        static ALLOCATOR: $crate::memory::Counting = $crate::memory::Counting;

        libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            ($crate::target($name).run)(data);
        });
    };
}

/// The target with a name.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn target(name: &str) -> &'static Target {
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("there is no target {name}"))
}

/// Decodes all of `data` within the memory allowed, and encodes it again.
fn round_trip<T: Decode + Encode>(memory: Memory, data: &[u8]) -> Option<T> {
    let bytes = Bytes::copy_from_slice(data);
    let value = memory.hold(data.len(), || T::from_bytes(bytes.clone())).ok()?;
    assert_eq!(value.to_bytes(), bytes, "not encoded as it was");
    Some(value)
}

/// A seed of a value.
fn seed(name: &'static str, value: &impl Encode) -> Seed {
    (name, value.to_bytes().to_vec())
}
