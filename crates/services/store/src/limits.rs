//! Bounds of the store. Clients check them before they send, replicas refuse beyond them; the texts
//! are the same.

/// Longest key, bytes; the shortest has one byte.
pub const KEY_BYTES: usize = 4096;

/// Longest value, bytes.
pub const VALUE_BYTES: usize = 1024 * 1024;

/// Keys and values of a transaction together, bytes. With the framing of its operations it fits
/// [`perdura_protocol::limits::COMMAND_BYTES`].
pub const TRANSACTION_BYTES: usize = 4 * 1024 * 1024;

/// Operations of a transaction.
pub const OPERATIONS: usize = 1024;

/// Entries that one range read gives.
pub const RANGE_ENTRIES: usize = 10_000;

/// Bytes of the encoded entries that one range read gives; a single entry always fits.
pub const RANGE_BYTES: usize = 1024 * 1024;

/// Bytes of a transaction's encoded results: a reply has to fit a frame.
pub const RESULT_BYTES: usize = 4 * 1024 * 1024;

/// What an entry counts for in the state besides its key and its value, bytes: its place in memory.
pub const ENTRY_OVERHEAD_BYTES: usize = 64;

/// A segment above this, with more than one entry, is split: large enough that a state of many
/// gigabytes has a manifest of megabytes, small enough to copy on the first write after a snapshot.
pub const SEGMENT_SPLIT_BYTES: usize = 64 * 1024;

/// A segment that shrinks below this looks for a neighbour to merge with.
pub const SEGMENT_MERGE_BYTES: usize = 16 * 1024;

/// Merged segments are at most this large, so that the next few writes do not split them again.
pub const SEGMENT_MERGED_BYTES: usize = 48 * 1024;
