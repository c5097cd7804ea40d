//! Bounds of the tuple spaces. Clients check them before they send, replicas refuse beyond them;
//! the texts are the same.

/// Longest name of a space, bytes of UTF-8; the shortest has one.
pub const SPACE_NAME_BYTES: usize = 128;

/// Fields of a tuple or template; the fewest are 1.
pub const FIELDS: usize = 32;

/// Longest tuple, bytes of its encoding: a tag for each field, and 4 bytes for a string's or byte
/// string's length, 8 for a number, 1 for a truth value. With its lease and its access lists it fits
/// one value of the map.
pub const TUPLE_BYTES: usize = 512 * 1024;

/// Tuples that one command inserts, takes or reads, and names that one command lists.
pub const TUPLES_AT_ONCE: usize = 512;

/// Tuples that one command inserts, bytes with their leases and access lists. With its framing the
/// command fits [`perdura_protocol::limits::COMMAND_BYTES`].
pub const INSERTED_BYTES: usize = 4 * 1024 * 1024;

/// Bytes of tuples that one command gives; a single tuple always fits.
pub const RESULT_BYTES: usize = 1024 * 1024;

/// Client keys in an access list.
pub const ACCESS_KEYS: usize = 64;

/// Leading fields by which a space may index its tuples: each takes an entry per tuple.
pub const INDEX_FIELDS: u8 = 8;

/// Longest lease, milliseconds: ten years.
pub const LEASE_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

/// Longest wait for a tuple, milliseconds: a day.
pub const WAIT_MS: u64 = 24 * 3600 * 1000;

/// Commands of one session that wait at once, under version 1. Few, since the numbers of a session move on only when
/// the oldest has its reply.
pub const WAITERS_PER_SESSION: usize = 64;

/// Bytes of the values in a template that waits: each inserted tuple is held against it.
pub const WAITING_TEMPLATE_BYTES: usize = 4096;

/// Bytes of a claim that waits: its tuple, lease and access lists.
pub const WAITING_CLAIM_BYTES: usize = 64 * 1024;

/// Commands that wait for tuples of one space: bounds what one inserted tuple is held against. From version 3 on those of one client key,
/// with the one that is about to wait, are no more than would then be left of these: so one key has half of them at most.
pub const WAITERS_PER_SPACE: u64 = 8192;

/// Tuples that one command looks at in vain for its template; one that needs more is refused. It
/// bounds how long a template without indexed fields holds up everybody else.
pub const SCANNED_TUPLES: usize = 10_000;

/// Bytes of those tuples, with their access lists: the search ends at the tuple that exceeds it.
/// Those that match are bounded by [`RESULT_BYTES`].
pub const SCANNED_BYTES: usize = 1024 * 1024;

/// Tuples with an ended lease, of all spaces, that are removed before one batch. Those that are left
/// are not seen by anybody, and go before the next ones.
pub const EXPIRED_AT_ONCE: usize = 4096;

/// The same from version 2 on, where each of them may let somebody through who waits.
pub const ENDED_AT_ONCE: usize = 512;

/// From version 3 on fewer of them, where many wait: so many waiters, for tuples that are given back, and tuples, for claims that may be let through,
/// may have to be looked at before no further one is removed. Some hundred milliseconds at most.
pub const ENDED_LOOKS: u64 = 1 << 18;

/// Tuples that one command removes from a space that is being deleted.
pub const DELETED_AT_ONCE: usize = 4096;
