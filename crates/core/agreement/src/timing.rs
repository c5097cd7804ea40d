//! Time-outs. They affect liveness only; safety never depends on time.

/// How often the driver calls [`crate::Agreement::on_tick`], at least.
pub const TICK_MS: u64 = 20;

/// Between two Status messages to each peer. Short against every time-out that rests on it.
pub const STATUS_MS: u64 = 100;

/// A leader that has not been heard of for this long is suspected. Ten lost heartbeats, or an
/// event loop that stood still for a second.
pub const SILENCE_MS: u64 = 1_000;

/// The same when the connection to it broke: a process that died resets its connections at once,
/// one that lives dials again within this time.
pub const DISCONNECTED_MS: u64 = 100;

/// A peer that gave up the view alone, and stays connected, is followed after this time: longer than
/// whatever passes by itself ...
pub const FOLLOW_MS: u64 = 8_000;

/// ... and next time after twice as long, so many times, up to over two hours: it may lie.
pub const FOLLOW_DOUBLINGS: u32 = 10;

/// A request or proposal that made no progress for this long makes a replica suspect the leader.
pub const REQUEST_MS: u64 = 1_000;

/// Who was cut off, or behind, is not tried as a leader for this time, and who was cut off not named as the
/// next one before it has kept up for so long.
pub const RETURNED_MS: u64 = 10_000;

/// From a quorum of view changes to a working new view.
pub const VIEW_CHANGE_MS: u64 = 500;

/// Doublings of the time-outs over failed views.
pub const BACKOFF_LIMIT: u32 = 6;

/// An unanswered Fetch is repeated to the next peer after this time, a FetchBatch to the leader.
pub const FETCH_MS: u64 = 500;
