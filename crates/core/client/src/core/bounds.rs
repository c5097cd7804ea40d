//! Bounds and times of a client, each with its reason.

use perdura_protocol::limits;

/// Bytes of commands after which a frame is closed: beyond this a signature is amortised, and a
/// larger frame only delays those behind it. A larger command has a frame by itself.
pub const FRAME_TARGET_BYTES: usize = 256 * 1024;

/// Calls that wait to be sent; one more is refused. Far above what a cluster answers in a second
/// would only be answered after its deadline.
pub const WAITING_CALLS: usize = 65_536;

/// Bytes of calls that wait to be sent; a call beyond it is refused.
pub const WAITING_BYTES: usize = 256 * 1024 * 1024;

/// Fast reads in flight; further ones are ordered, which shares signatures and messages.
pub const FAST_READS: usize = 1024;

/// Largest command: it has to fit into a frame.
pub const COMMAND_BYTES: usize = limits::COMMAND_BYTES;

/// A session is renewed when a call is under way and nothing was sent in it for this time, milliseconds: three times before replicas take
/// its client for gone.
pub const RENEW_MS: u64 = 3_000;

/// Numbers of the window that are kept for what withdraws and confirms others.
pub const WORDS: usize = 16;

/// Numbers of which the replicas are to be told that is in no hurry, before a frame goes out for that alone.
pub const KNOWN: usize = limits::SESSION_WAITS / 8;

/// What waits at the replicas is asked for again in this time, milliseconds: its reply comes by itself, unless the link over which it came
/// broke just then.
pub const PARKED_MS: u64 = 5_000;

/// A session in which nothing was sent for this time, milliseconds, is left for another one: half of what replicas give it, for their clock
/// and this one differ.
pub const IDLE_MS: u64 = limits::SESSION_MS / 2;

/// Session numbers tried before the calls that wait for a session are refused.
pub const OPEN_ATTEMPTS: u32 = 8;
