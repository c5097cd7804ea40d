//! Writing one checkpoint's file: what it does not link to, in bounded chunks, paced.

use super::format::{Check, Entry, FOOTER_BYTES, Footer, Header, PieceLocation};
use super::{CheckpointError, NewState, TEMPORARY_NAME};
use crate::disk::{DIRECT_BYTES, Disk, DiskError};
use crate::page_buffer::PageBuffer;
use perdura_protocol::Digest;
use std::ops::ControlFlow;

/// A checkpoint is written in chunks of at most this size, with a pause between them if its pace
/// has one. Past the operating system's cache: it is not read soon, and flushed as a whole it would
/// keep the log's flushes waiting.
pub(super) const CHUNK_BYTES: usize = 1024 * 1024;

/// Room for header, index and footer of a small state.
const INDEX_BYTES: usize = 8 * 1024;

/// Writes a file from its start to its end.
struct ChunkWriter<'a, D> {
    disk: &'a mut D,
    pace: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
    sync_bytes: u64,
    written: u64,
    unsynced: u64,
    buffer: PageBuffer,
}

impl<D: Disk> ChunkWriter<'_, D> {
    fn offset(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn push(&mut self, mut bytes: &[u8]) -> Result<(), CheckpointError> {
        while self.buffer.len() + bytes.len() > CHUNK_BYTES {
            let (now, later) = bytes.split_at(CHUNK_BYTES - self.buffer.len());
            self.buffer.extend(now);
            self.flush()?;
            bytes = later;
        }
        self.buffer.extend(bytes);
        Ok(())
    }

    fn push_zeros(&mut self, mut count: u64) -> Result<(), CheckpointError> {
        let zeros = [0; DIRECT_BYTES];
        while count > 0 {
            let now = count.min(DIRECT_BYTES as u64);
            self.push(&zeros[..now as usize])?;
            count -= now;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), CheckpointError> {
        let bytes = self.buffer.len() as u64;
        if bytes == 0 {
            return Ok(());
        }
        self.disk.write_through(TEMPORARY_NAME, self.written, self.buffer.aligned())?;
        self.buffer.clear();
        self.written += bytes;
        self.unsynced += bytes;
        // Not all at the end: what piles up in the cache is flushed in one go, and the log's
        // flushes wait behind it.
        if self.unsynced >= self.sync_bytes {
            self.disk.sync(TEMPORARY_NAME)?;
            self.unsynced = 0;
        }
        if (self.pace)(bytes).is_break() {
            return Err(CheckpointError::Stopped);
        }
        Ok(())
    }
}

/// Writes the file under its temporary name: the manifest, the pieces that have no link, the
/// index of all. What stands under that name is written over. Returns its size, and whether that was so.
pub(super) fn write_file(
    disk: &mut impl Disk,
    header: &Header,
    state: &mut NewState<'_>,
    links: &[Option<PieceLocation>],
    sync_bytes: u64,
) -> Result<(u64, bool), CheckpointError> {
    // Over a file that is needed no more, where one was kept ([`super::Checkpoints::remove_old`]).
    let over = disk.exists(TEMPORARY_NAME)?;
    if !over {
        disk.create(TEMPORARY_NAME, 0)?;
    }
    let old_bytes = disk.len(TEMPORARY_NAME)?;
    let unlinked = state.pieces.iter().zip(links).filter(|(_, link)| link.is_none());
    let bytes: usize = unlinked.map(|(name, _)| name.bytes as usize).sum();
    // And a little for the index; it grows if that is not enough.
    let room = bytes + state.manifest.len() + INDEX_BYTES;
    let buffer = PageBuffer::with_room(room.min(CHUNK_BYTES));
    let mut out =
        ChunkWriter { disk, pace: state.pace, sync_bytes, written: 0, unsynced: 0, buffer };
    let (bytes, key) = header.encode();
    out.push(&bytes)?;
    out.push(&key.sum(state.manifest))?;
    out.push(state.manifest)?;
    let mut index = Vec::new();
    for (number, (name, link)) in state.pieces.iter().zip(links).enumerate() {
        let place = match link {
            Some(place) => *place,
            None => {
                let content = (state.content)(number);
                if content.len() != name.bytes as usize || Digest::of(&content) != name.digest {
                    return Err(CheckpointError::OtherPiece { index: number });
                }
                let place =
                    PieceLocation { file: header.slot, offset: out.offset(), bytes: name.bytes };
                out.push(&content)?;
                place
            }
        };
        Entry { place, check: Check::Digest(name.digest) }.encode(&mut index);
    }
    let index_bytes = index.len() as u64;
    let needed_bytes = out.offset() + index_bytes + FOOTER_BYTES as u64;
    let end = end_of_file(needed_bytes, old_bytes, sync_bytes);
    out.push_zeros(end - needed_bytes)?;
    let index_offset = out.offset();
    let footer = Footer { index_offset, index_bytes, index_sum: key.sum(&index) };
    out.push(&index)?;
    out.push(&footer.encode(&key))?;
    out.flush()?;
    let written = out.written;
    if cut_down(disk, TEMPORARY_NAME, written, sync_bytes, &mut || (state.pace)(0))?.is_break() {
        return Err(CheckpointError::Stopped);
    }
    disk.sync(TEMPORARY_NAME)?;
    disk.release(TEMPORARY_NAME);
    Ok((written, over))
}

/// Where a file ends that has to take so many bytes, and is written over one of `old_bytes`. What
/// takes more than one chunk ends with a page, so that all of it goes past the cache. Where the old
/// file is hardly larger, and ends with a page if the new one has to, the new one is as large, with
/// zeros before the index, for blocks that are given back may keep the device busy for a tenth of a
/// second. An old file that does not, as one of a version before, is cut down to the end of a page,
/// or made larger up to it.
fn end_of_file(needed_bytes: u64, old_bytes: u64, sync_bytes: u64) -> u64 {
    let unit = if needed_bytes > CHUNK_BYTES as u64 { DIRECT_BYTES as u64 } else { 1 };
    let most_bytes = needed_bytes + slack_bytes(needed_bytes, sync_bytes);
    let stays = (needed_bytes..=most_bytes).contains(&old_bytes) && old_bytes.is_multiple_of(unit);
    if stays { old_bytes } else { needed_bytes.next_multiple_of(unit) }
}

/// So much larger than `bytes` may a file be for it to stay as it is.
pub(super) fn slack_bytes(bytes: u64, sync_bytes: u64) -> u64 {
    (bytes / 64).min(sync_bytes)
}

/// Cuts a file down to `size_bytes`, by `step_bytes` at a time (1 at least), with a call of `pace` after each.
pub(super) fn cut_down(
    disk: &mut impl Disk,
    name: &str,
    size_bytes: u64,
    step_bytes: u64,
    pace: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<ControlFlow<()>, DiskError> {
    let (step_bytes, mut left_bytes) = (step_bytes.max(1), disk.len(name)?);
    while left_bytes > size_bytes {
        left_bytes = ((left_bytes - 1) / step_bytes * step_bytes).max(size_bytes);
        disk.shrink(name, left_bytes)?;
        // With a journal, the blocks go when the change is durable.
        disk.sync(name)?;
        if pace().is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
