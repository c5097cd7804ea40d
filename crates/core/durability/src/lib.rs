//! What a replica keeps on disk, and how it gets it back (rules D1 to D5 and D8; the log
//! and checkpoint halves of `papers/dura-smart-atc13.txt` section 4).
//!
//! A data directory holds, by relative name:
//!
//! | name | what |
//! |---|---|
//! | `superblock` | identity, and which checkpoint is the state ([`superblock`]); `superblock.new` while it is written anew |
//! | `log/<use number>` | the log, in prezeroed recycled files ([`log`]) |
//! | `log/free-<use number>` | files of the log to be used again |
//! | `log/marks` | up to where the log was flushed |
//! | `checkpoint/<slot>` | a state after a slot: what changed, and links to older ones ([`checkpoint`]); `checkpoint/new` while it is written |
//! | `lock` | held by the process that has the directory open ([`file_disk`]) |
//! | `service-panicked` | a note: at which slot the service panicked, by which program |
//! | `taken-back` | a note: the directory is an older copy of itself |
//!
//! At a start the notes are looked for first, `lock` is taken, and `superblock` is read, which says which checkpoint counts. Then come that one and the log.
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
//!
//! # Formats, checkpoints and their files
//!
//! Each format is described at the head of its file: `superblock.rs`, `log/file.rs`, `log/group.rs`,
//! `log/frame.rs`, `checkpoint.rs`. The version is in each; newer ones are refused. `perdura inspect` prints those of logs and checkpoints. The
//! format version is 3: directories of versions 1 and 2 are read, and become version 3 when they are opened. From version 3 on the superblock, which
//! also counts the runs of the replica, has fields by name (`crates/core/protocol/src/fields.rs`): one of a newer program is passed over, or refused
//! by its name if that program says that it has to be understood. `older_format.rs` writes version 1, for tests and the simulator only.
//!
//! A checkpoint is a file with the pieces that changed since the one before it, and an index that names the place of every piece, in this file or in
//! that of an older checkpoint (`checkpoint/links.rs`). The superblock names the checkpoints and all files that they link to, and only a file that
//! it does not name is removed, or written over. Nothing is ever changed in a file that it names. So many files make garbage, and that is bounded:
//! the files of a checkpoint take at most twice what it would take as one file, and are 17 at most. Moving pieces for that costs at most a byte for
//! each byte of garbage, in the long run, and never more than writing all. A state of up to 4 MiB is written as a whole each time.
//!
//! What a rotten piece costs: it is lost to every checkpoint that links to it. When all of a state was written each time, the one kept behind the
//! newest stood for any rot in it. Now it does for rot in what the newest wrote itself, its manifest and index included, and for small states as
//! before; where the two share a piece there is one copy of that on this disk. If that rots, and a start finds it (`choose_state` in `storage.rs`
//! verifies every piece against its digest, wherever it stands), the state is `Lost` and comes from peers before the replica votes. The first
//! checkpoint after any damage links to nothing, so that what is rotten is not carried on.
//!
//! Writing is paced: in chunks of at most 1 MiB, with a flush of the file each 8 MiB, so that no large flush stands in the way of the log's, and
//! with pauses (`crates/core/replica/src/runtime/pace.rs`): to keep to a rate if one is set (`checkpoint_mb_s`), else as long as the work before
//! them, and longer while the log's flushes take more than twice what they take without a checkpoint. A received state is not paced. After the event
//! loop was told that a state is stored, the largest of the files that no checkpoint needs any more is kept as `checkpoint/new`, and the next
//! checkpoint is written over it; so where checkpoints are about as large as those before they take no blocks and give none back. On a file system
//! mounted with `discard`, a virtual disk was seen to stand still more often than else after it was told of free blocks, for 100 to 400 ms. A file
//! that is at most a sixty-fourth larger than what is written (8 MiB at most) stays so large, with zeros before the index; if more than 1 MiB is
//! written, only where it ends with a page. A larger one is cut down to what is written. The file that is kept is cut down before, to the smaller of
//! the last two files that were written since the replica's start, where it is larger than that one by more than the same sixty-fourth. Other old
//! files are cut down before they are removed. All that is done by 8 MiB at a time, with pauses. With sequential checkpoints digesting is spread
//! too, over half the time between the last two boundaries and five seconds at most: all replicas have it to do at the same time, and of a state of
//! 1 GB it takes each a processor for half a second to a second. A replica that is stopped writes without pauses for half a second, then gives the
//! checkpoint up.

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
    Again, CheckpointError, CheckpointReader, Checkpoints, NewState, PieceLocation, PieceName,
    Stored,
};
pub use disk::{Disk, DiskError};
pub use file_disk::FileDisk;
pub use log::{Log, LogError};
pub use memory_disk::MemoryDisk;
pub use storage::{
    Amnesia, Expectation, FormatError, OpenError, Opened, RecoveredState, StorageOptions, format,
    open,
};
pub use superblock::{CheckpointName, Identity, Link, Superblock};

/// Version of every format in the data directory. A directory of a newer one is refused.
/// Versions 1 and 2 are read: their superblocks differ, and of version 1 checkpoints and log too.
pub const FORMAT_VERSION: u32 = 3;
