//! Bounds of transactions over several partitions.

/// Participants of a transaction that changes something: each proves its vote to each other.
pub const UPDATE_PARTICIPANTS: usize = 16;

/// Participants of one that only reads.
pub const READ_PARTICIPANTS: usize = perdura_protocol::limits::PARTITIONS;

/// Transactions of one client key that may be pending in a partition, until others had to end some of them.
pub const PENDING_PER_CLIENT: u32 = 1024;

/// Transactions of one client key that are remembered, beyond which no further one is voted on: fences let them be forgotten.
pub const RECORDS_PER_CLIENT: u32 = 8 * PENDING_PER_CLIENT;

/// So many transactions that a client ended itself double what may be pending again, up to [`PENDING_PER_CLIENT`].
pub const REDEEMED_BY: u32 = 16;

/// Ranges that pending transactions read, all together: a write is held against all of them.
pub const RANGES: usize = 4096;

/// Of these those of one client key: as many as one transaction reads.
pub const RANGES_PER_CLIENT: usize = crate::limits::OPERATIONS;

/// Values that the pending transactions of one client key write: for each of them a segment may be needed.
pub const VALUES_PER_CLIENT: usize = 64 * crate::limits::OPERATIONS;

/// Values that all pending transactions write: half of the segments that a state may have. From version 2 on one client takes no more of them than
/// are then left free, and so it is with ranges, and with what is held.
pub const VALUES: usize = 200_000;

/// Bytes of keys and values that one transaction holds at most: an operation holds two keys, one of them with a byte more, beside what it brings
/// itself. What all hold is a quarter of the state's limit, and from version 2 on as much more as one transaction may hold, so that one
/// alone leaves enough, however small the state may be.
pub const HELD_PER_TRANSACTION: usize = crate::limits::TRANSACTION_BYTES
    + crate::limits::OPERATIONS * (2 * crate::limits::KEY_BYTES + 1);

/// A transaction that has been pending for so long may be ended by others, milliseconds; where clocks may differ more, later.
pub const EXPIRY_MS: u64 = 2_000;

/// A participant from which nothing was heard while a transaction has been pending on it for so long is taken for unreachable,
/// milliseconds.
pub const UNREACHABLE_MS: u64 = 5_000;

/// Transactions that one question lists.
pub const LISTED: u32 = 256;

/// Transactions that one command to forget forgets at most.
pub const FORGOTTEN: usize = 1024;

/// Participants of transactions that one command to forget looks at from version 2 on, and those of the last transaction that are left then. The
/// next one goes on behind them.
pub const LOOKED_AT: usize = 4096;

/// Bytes of a piece in which what a pending transaction holds is kept.
pub const HELD_PIECE_BYTES: usize = 256 * 1024;

/// Marks of those who wait for locks that there are at most.
pub const MARKS: usize = 4096;

/// Of these those of one client key.
pub const MARKS_PER_CLIENT: usize = 64;

/// Keys and ranges that a mark is on: of who wants more it is on the key where he last met somebody.
pub const KEYS_OF_A_MARK: usize = 64;

/// Of these ranges: each key that is written is held against them.
pub const RANGES_OF_A_MARK: usize = 4;

/// Their bytes, likewise.
pub const BYTES_OF_A_MARK: usize = 8 * 1024;
