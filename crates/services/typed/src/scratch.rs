//! Buffers that each thread has, for what is encoded and then copied or looked up: allocations would cost as much as the map.

use std::cell::RefCell;

/// Most buffers that are kept: who encodes a key and a value at once has two.
const KEPT: usize = 4;

/// Most bytes of room that one is kept with.
const KEPT_BYTES: usize = 64 * 1024;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Does some work with a buffer, which is empty.
pub(crate) fn lend<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut buffer = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
    let done = work(&mut buffer);
    if buffer.capacity() <= KEPT_BYTES {
        buffer.clear();
        BUFFERS.with_borrow_mut(|buffers| {
            if buffers.len() < KEPT {
                buffers.push(buffer);
            }
        });
    }
    done
}
