//! What steps count for that are not in proportion to a command's own bytes: as many bytes as take as long to read ([`perdura_execution::Meter`]),
//! measured and rounded up, for memory is slower where a state is large.
//!
//! Nothing is refused half way. Who waits for one tuple, or until it is gone, is counted and served, whatever the sum is: no more can
//! wait than a space has room for. What serves those who wait for many tuples is undone where it costs more than a command may
//! ([`crate::serve::Before`]).

/// A tuple that is looked at, besides its bytes.
pub(crate) const TUPLE_STEP: usize = 512;

/// A waiter whose template is held against a tuple: 50 ns where a short one differs, 600 where 4 KiB are the same.
pub(crate) const WAITER_STEP: usize = 512;

/// One that is passed over, for it wants something else or is only counted: 40 ns.
pub(crate) const PASSED_STEP: usize = 64;

/// One that is served: 2 us, to take it off its three orders, and to tell it.
pub(crate) const SERVED_STEP: usize = 2048;

/// A claim that is let through, or refused, besides its bytes: 10 us, for its tuple is inserted and offered.
pub(crate) const CLAIM_STEP: usize = 8192;

/// A key for which claims may wait, besides its bytes: 1 us, to hash it and look for one.
pub(crate) const KEY_STEP: usize = 1024;

/// An entry that goes with its space: 800 ns.
pub(crate) const REMOVED_STEP: u64 = 1024;
