//! What a replica keeps on disk, and how it gets it back (DESIGN.md rules D1 to D5 and D8; the log
//! and checkpoint halves of `papers/dura-smart-atc13.txt` section 4).
//!
//! A data directory holds, by relative name:
//!
//! | name | what |
//! |---|---|
//! | `superblock` | identity, and which checkpoint is the state ([`superblock`]) |
//! | `log/<use number>` | the log, in prezeroed recycled files ([`log`]) |
//! | `log/free-<use number>` | files of the log to be used again |
//! | `checkpoint/<slot>` | a state after a slot: what changed, and links to older ones ([`checkpoint`]) |
//! | `lock` | held by the process that has the directory open ([`file_disk`]) |
//!
//! Start at [`storage`]: [`storage::format`] makes a directory, [`storage::open`] verifies one and
//! hands out the [`Log`] (for the keeper's thread) and the [`Checkpoints`] (for another).
//!
//! Everything here is synchronous and pure over the [`Disk`] trait: no clock, no randomness, no
//! threads, and `std::fs` in `file_disk` only. The simulator runs the same code over a
//! [`MemoryDisk`] and crashes it at every I/O operation.
//!
//! After any failed write or sync the part that saw it refuses every later call (rule D3): what a
//! kernel keeps of pages that it failed to write is not known, so nothing is tried again on them.

#![forbid(unsafe_code)]

pub mod checkpoint;
mod checksum;
pub mod disk;
pub mod file_disk;
#[doc(hidden)]
pub mod fuzzing;
pub mod inspect;
pub mod log;
pub mod memory_disk;
#[doc(hidden)]
pub mod older_format;
mod page_buffer;
pub mod storage;
pub mod superblock;

pub use checkpoint::{
    Again, CheckpointError, CheckpointReader, Checkpoints, NewState, PieceName, Place, Stored,
};
pub use disk::{Disk, DiskError};
pub use file_disk::FileDisk;
pub use log::{Log, LogError};
pub use memory_disk::MemoryDisk;
pub use storage::{
    Amnesia, Expectation, FormatError, OpenError, Opened, Options, RecoveredState, format, open,
};
pub use superblock::{CheckpointName, Identity, Link, Superblock};

/// Version of every format in the data directory. A directory of a newer one is refused.
/// Versions 1 and 2 are read: their superblocks differ, and of version 1 checkpoints and log too.
pub const FORMAT_VERSION: u32 = 3;
