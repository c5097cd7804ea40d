//! A later release of the allocator may number its options in another way. In a process of its own, since options are
//! set while there is one thread that uses them.

use perdura_cli::allocator::{self, Allocator};

#[global_allocator]
static ALLOCATOR: Allocator = allocator::ALLOCATOR;

#[test]
fn the_option_is_the_one_that_is_meant() {
    let given = std::env::var_os("MIMALLOC_PURGE_DELAY");
    assert_eq!(given, None, "unset it for this test");
    assert!(allocator::keep_free_memory());
    // It is not what it was by default any more.
    assert!(!allocator::keep_free_memory());
}
