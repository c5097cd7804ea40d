//! Bytes that grow, and stand at a multiple of 4 KiB in memory when they are complete, so that a disk
//! can take them from there without a copy ([`crate::disk::Disk::write_through`]).

use crate::disk::DIRECT_BYTES;
use perdura_protocol::Encode;

/// A buffer that is used again and again. Its memory is that of a `Vec`, of which it leaves out what
/// comes before the first multiple.
#[derive(Default)]
pub(crate) struct PageBuffer {
    memory: Vec<u8>,
    start: usize,
}

impl PageBuffer {
    /// What it keeps of its memory when it is cleared; a rare larger content gives its own back.
    const KEPT_BYTES: usize = 16 * 1024 * 1024;

    /// An empty one.
    pub(crate) fn new() -> PageBuffer {
        PageBuffer::default()
    }

    /// An empty one that takes so many bytes without growing.
    pub(crate) fn with_room(bytes: usize) -> PageBuffer {
        let memory = Vec::with_capacity(bytes + DIRECT_BYTES);
        let mut buffer = PageBuffer { memory, start: 0 };
        buffer.clear();
        buffer
    }

    /// Drops the content.
    pub(crate) fn clear(&mut self) {
        if self.memory.capacity() > Self::KEPT_BYTES {
            self.memory.clear();
            self.memory.shrink_to(Self::KEPT_BYTES);
        }
        self.start = first_multiple(&self.memory);
        self.memory.truncate(self.start);
        self.memory.resize(self.start, 0);
    }

    /// Bytes of the content.
    pub(crate) fn len(&self) -> usize {
        self.memory.len() - self.start
    }

    /// Makes the content `length` bytes long, with zeros.
    pub(crate) fn resize(&mut self, length: usize) {
        self.memory.resize(self.start + length, 0);
    }

    /// Adds an encoded item.
    pub(crate) fn append(&mut self, item: &impl Encode) {
        item.encode(&mut self.memory);
    }

    /// Adds bytes.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.memory.extend_from_slice(bytes);
    }

    /// The content, wherever it stands.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }

    /// The content, at a multiple of 4 KiB. It is moved there if the memory was, as it grew.
    pub(crate) fn aligned(&mut self) -> &[u8] {
        if first_multiple(&self.memory) != self.start {
            let room = self.memory.capacity().max(self.len() + DIRECT_BYTES);
            let mut memory = Vec::with_capacity(room);
            let start = first_multiple(&memory);
            memory.resize(start, 0);
            memory.extend_from_slice(&self.memory[self.start..]);
            *self = PageBuffer { memory, start };
        }
        &self.memory[self.start..]
    }
}

/// Where the first multiple is, of memory that begins anywhere.
fn first_multiple(memory: &[u8]) -> usize {
    memory.as_ptr().addr().wrapping_neg() % DIRECT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_aligned(bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(DIRECT_BYTES)
    }

    #[test]
    fn whatever_it_grows_to_it_is_whole_and_aligned() {
        let mut buffer = PageBuffer::new();
        for length in [1, 100, 4096, 5000, 200_000, 3 << 20, 20 << 20, 10] {
            buffer.clear();
            assert_eq!(buffer.len(), 0);
            buffer.resize(length);
            for (place, byte) in (0u8..250).cycle().zip(buffer.as_mut_slice()) {
                *byte = place;
            }
            buffer.resize(length + 7);
            let content = buffer.aligned();
            assert!(is_aligned(content), "{length}");
            assert_eq!(content.len(), length + 7);
            let written = (0u8..250).cycle().take(length).chain([0; 7]);
            assert!(content.iter().copied().eq(written), "{length}");
        }
    }

    #[test]
    fn it_keeps_sixteen_mebibytes_and_gives_the_rest_back() {
        let mut buffer = PageBuffer::new();
        buffer.resize(40 << 20);
        buffer.clear();
        assert!((16 << 20..20 << 20).contains(&buffer.memory.capacity()));
        assert_eq!(buffer.len(), 0);
    }

    #[test]
    fn what_has_room_is_not_moved() {
        let mut buffer = PageBuffer::with_room(100_000);
        let place = buffer.as_mut_slice().as_ptr().addr();
        buffer.resize(100_000);
        assert_eq!(buffer.aligned().as_ptr().addr(), place);
    }

    #[test]
    fn in_steady_use_nothing_is_moved() {
        let mut buffer = PageBuffer::new();
        let mut place = None;
        for _ in 0..3 {
            buffer.clear();
            buffer.resize(100_000);
            let content = buffer.aligned().as_ptr().addr();
            assert!(place.is_none_or(|known| known == content));
            place = Some(content);
        }
    }
}
