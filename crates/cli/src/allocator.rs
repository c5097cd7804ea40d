//! The allocator of `perdura` and `perdura-lab`, and how long it keeps memory that is free. The only unsafe code of this
//! crate.

use libmimalloc_sys::{mi_option_get, mi_option_set, mi_option_t};

/// Its type; a program names it as its own (`#[global_allocator]`).
pub type Allocator = mimalloc::MiMalloc;

/// It.
pub const ALLOCATOR: Allocator = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc's header: after so many milliseconds free memory goes back to the system. The
/// wrapper gives no name to it.
const PURGE_DELAY: mi_option_t = 15;

/// What mimalloc 3 sets it to. Where that differs the number means something else.
const USUAL_MS: i64 = 1000;

/// A snapshot keeps the values that are overwritten while it lives, and frees them all when it ends; the next one, seconds
/// later, needs as much again. To get that from the system takes half as long again as the rest of a write.
const KEPT_MS: i64 = 60_000;

/// Keeps free memory for longer, unless `MIMALLOC_PURGE_DELAY` says for how long. To be called first, while there is
/// one thread. False where the allocator is another one than this was written for.
#[allow(unsafe_code)]
pub fn keep_free_memory() -> bool {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_some() {
        return true;
    }
    // SAFETY: both are given a number of the allocator's own enumeration, which has more than 30, and no other thread
    // is there that could change an option or read it at the same time.
    unsafe {
        let usual = mi_option_get(PURGE_DELAY) == USUAL_MS;
        if usual {
            mi_option_set(PURGE_DELAY, KEPT_MS);
        }
        usual
    }
}
