//! How much memory a decoder takes, measured: the greatest sum of what it has allocated at a time.
//! A reallocation counts twice while it lasts, since it may copy.
//!
//! Measuring needs [`Counting`] as the global allocator, as in the smoke and in `fuzz/`; without it
//! nothing is held against anything.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with a count of the bytes that each thread has allocated and not freed.
#[derive(Clone, Copy, Debug)]
pub struct Counting;

thread_local! {
    // Negative where a thread frees what others allocated.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    // Calls that allocate, and bytes that they asked for.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

fn asked(bytes: usize) {
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    let _ = ASKED.try_with(|asked| asked.set(asked.get() + bytes as u64));
    add(bytes as isize);
}

fn add(bytes: isize) {
    // A thread that ends has no count any more.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is the system allocator's, with the same arguments; the counts are plain cells
// of the thread, and neither allocate nor panic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        asked(layout.size());
        // SAFETY: as our caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        asked(layout.size());
        // SAFETY: as our caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: as our caller's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        asked(size);
        add(-(layout.size() as isize));
        // SAFETY: as our caller's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// The greatest number of bytes that `body` had allocated at a time, and what it gave.
pub fn peak_of<R>(body: impl FnOnce() -> R) -> (usize, R) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = body();
    (usize::try_from(PEAK.get() - before).unwrap_or(0), result)
}

/// How often `body` allocated on this thread, how many bytes it asked for, and what it gave.
pub fn allocations_of<R>(body: impl FnOnce() -> R) -> ((u64, u64), R) {
    let before = (CALLS.get(), ASKED.get());
    let result = body();
    ((CALLS.get() - before.0, ASKED.get() - before.1), result)
}

/// What a decoder may take: so many times the input, and so much more.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Times the length of the input.
    pub times: usize,
    /// Bytes on top, for tables of a bounded number of items.
    pub plus: usize,
}

impl Memory {
    /// What peers and clients send: twice the frame, and a table of at most 1,024 items, of 80 bytes
    /// each at most.
    pub const FRAME: Memory = Memory { times: 2, plus: 80 * 1024 };

    /// Runs a decoder on an input of `length` bytes.
    ///
    /// # Panics
    /// When it takes more than is allowed.
    pub fn hold<R>(self, length: usize, decoder: impl FnOnce() -> R) -> R {
        let (peak, result) = peak_of(decoder);
        let most = self.times * length + self.plus;
        assert!(
            peak <= most,
            "{peak} bytes were allocated for an input of {length}; at most {most}"
        );
        result
    }
}
