//! Writing one checkpoint's file: what it does not link to, in bounded chunks, paced.

use super::format::{Check, Entry, Footer, Header, Place};
use super::{CheckpointError, NewState, TEMPORARY_NAME};
use crate::disk::Disk;
use crate::page_buffer::PageBuffer;
use perdura_protocol::{Digest, seeded};

/// A checkpoint is written in chunks of at most this size, with a pause between them if its pace
/// has one. Past the operating system's cache: it is not read soon, and flushed as a whole it would
/// keep the log's flushes waiting.
pub(super) const CHUNK_BYTES: usize = 1024 * 1024;

/// Room for header, index and footer of a small state.
const INDEX_BYTES: usize = 8 * 1024;

/// Writes a file from its start to its end.
struct ChunkWriter<'a, D> {
    disk: &'a mut D,
    pace: &'a mut dyn FnMut(u64) -> std::ops::ControlFlow<()>,
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
/// index of all. Returns its size.
pub(super) fn write_file(
    disk: &mut impl Disk,
    header: &Header,
    state: &mut NewState<'_>,
    links: &[Option<Place>],
    sync_bytes: u64,
) -> Result<u64, CheckpointError> {
    disk.create(TEMPORARY_NAME, 0)?;
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
                let place = Place { file: header.slot, offset: out.offset(), bytes: name.bytes };
                out.push(&content)?;
                place
            }
        };
        Entry { place, check: Check::Digest(name.digest) }.encode(&mut index);
    }
    let (index_offset, index_bytes) = (out.offset(), index.len() as u64);
    let footer = Footer { index_offset, index_bytes, index_sum: key.sum(&index) };
    out.push(&index)?;
    out.push(&footer.encode(&key))?;
    out.flush()?;
    let written = out.written;
    if !seeded!(CheckpointNotFlushed) {
        disk.sync(TEMPORARY_NAME)?;
    }
    disk.release(TEMPORARY_NAME);
    Ok(written)
}
