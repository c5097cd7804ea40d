//! `sync-naive`: logging as Dura-SMaRt's experiments have it for a baseline (USENIX ATC 2013, table 1
//! and figure 9: "naive"), one write and one flush for each command.
//!
//! The bytes on disk are those of `sync`. A group is written from its front to its back, up to the end
//! of one command after the other, and each part is flushed before the next is written; what follows
//! the last command goes with it. So a crash leaves a part of a group where `sync` may leave one too,
//! and recovery knows nothing of this module. A group without commands has one write and one flush.

use crate::disk::{Disk, DiskError};
use perdura_protocol::Record;

/// Where each command of `records` ends in their group; `frames` are their places in it.
pub(super) fn command_ends(records: &[Record], frames: &[(usize, usize)]) -> Vec<usize> {
    let of_record = |(record, (start, bytes)): (&Record, &(usize, usize))| {
        let Some((_, batch)) = record.batch() else { return Vec::new() };
        // The batch is the last field of the records that have one.
        let batch_start = start + bytes - batch.raw().len();
        batch.command_ends().into_iter().map(|end| batch_start + end).collect()
    };
    records.iter().zip(frames).flat_map(of_record).collect()
}

/// Writes the parts of `group` that end at `ends`, all but the last, each with a flush of its own.
/// Gives where the last part begins: at 0 if there are no ends.
pub(super) fn write_all_but_last<D: Disk>(
    disk: &mut D,
    name: &str,
    offset: u64,
    group: &[u8],
    ends: &[usize],
) -> Result<usize, DiskError> {
    let mut done = 0;
    for end in ends.iter().take(ends.len().saturating_sub(1)) {
        disk.write_at(name, offset + done as u64, &group[done..*end])?;
        disk.sync(name)?;
        done = *end;
    }
    Ok(done)
}
