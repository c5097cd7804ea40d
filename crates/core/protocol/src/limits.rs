//! Bounds that every replica of a cluster shares; a message that exceeds one is misbehaviour.
//! Each has its reason beside it.

/// Largest encoded command: a store transaction of 4 MiB plus the framing of 1,024 operations.
pub const COMMAND_BYTES: usize = 4 * 1024 * 1024 + 64 * 1024;

/// Commands in one client frame: amortises a signature a thousandfold, decodes in microseconds.
pub const FRAME_COMMANDS: usize = 1024;

/// Largest client frame: one largest command, or many small ones.
pub const FRAME_BYTES: usize = COMMAND_BYTES + 64 * 1024;

/// Frames in one batch: bounds the signatures of clients that one Propose makes a replica verify. Those in commands are bounded by its bytes.
pub const BATCH_FRAMES: usize = 4096;

/// Largest batch: at least one largest frame fits.
pub const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Bytes after which a leader closes a batch though more has queued up: beyond this a larger batch
/// amortises nothing more, and its transmission delays the slots behind it.
pub const BATCH_TARGET_BYTES: usize = 1024 * 1024;

/// What the commands of a slot may cost together from version 2 of the rules on, in bytes that are read from the state or answered beyond the
/// commands' own, or what takes as long: four replicas on two shared cores take less than 50 ms for it.
pub const SLOT_COST: u64 = 16 * 1024 * 1024;

/// What of it takes a millisecond, by the same measurement: half of the cores' time was each replica's.
pub const COST_PER_MS: u64 = SLOT_COST / 25;

/// What one command may cost: it reads as much as the largest reply has, answers it, and looks at hundreds of thousands of entries on the way.
pub const COMMAND_COST: u64 = 16 * 1024 * 1024;

/// Largest message between replicas: a NewView of the largest group with every slot of the pipeline
/// locked, or a run of decided batches.
pub const MESSAGE_BYTES: usize = 32 * 1024 * 1024;

/// Largest message that a client may send: a frame and its header.
pub const CLIENT_MESSAGE_BYTES: usize = FRAME_BYTES + 1024;

/// Slots above the delivered prefix for which messages are kept.
pub const WINDOW: u64 = 1024;

/// Delivered slots between two signed Prefix statements. Small against the window, so that the
/// window moves; large against a signature's cost.
pub const PREFIX_INTERVAL: u64 = 64;

/// Command numbers of a session that may be unacknowledged at once. Replies to these are kept.
pub const SESSION_WINDOW: u64 = 1024;

/// Bytes of cached replies per session; beyond it the oldest bodies go and a retry of theirs is
/// answered "too old".
pub const SESSION_REPLY_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of cached replies of all sessions of one client key: eight sessions' worth. Beyond it the
/// bodies of the session that was idle for longest go, as above.
pub const CLIENT_REPLY_BYTES: usize = 64 * 1024 * 1024;

/// A session that orders nothing for this time, milliseconds, ends. Its client is gone, or does not mind: it opens another one unnoticed.
pub const SESSION_MS: u64 = 60_000;

/// What waits in a session that nothing renews for this time, milliseconds, is withdrawn: its client is gone.
pub const ATTENDED_MS: u64 = 10_000;

/// What is handed over to a client that waited for it is the next one's if it is not confirmed within this time, milliseconds, or a little
/// longer where replicas may lie ([`Parameters::offer_ms`](crate::configuration::Parameters::offer_ms)).
pub const OFFER_MS: u64 = 1_000;

/// Commands of one session that wait, or whose results its client has not acknowledged.
pub const SESSION_WAITS: usize = 1024;

/// A session is opened within this time, milliseconds, of the one in its number, by agreed time. For twice as long its number is remembered,
/// and no frame can open it again after that.
pub const NONCE_MS: u64 = 60_000;

/// Session numbers that pass in a millisecond when sessions are numbered by the clock: 1,024 to the microsecond, so that clients that share
/// a key and start together differ in the low bits.
pub const NONCES_PER_MS: u64 = 1024 * 1000;

/// Numbers from here on renew a session and execute nothing; far above what a session's commands reach.
pub const FIRST_RENEWAL: u64 = 1 << 63;

/// Sessions of one client key: a fleet of processes.
pub const SESSIONS_PER_CLIENT: usize = 4096;

/// Sessions that each client key can have, however many others there are.
pub const SESSIONS_OWN: usize = 16;

/// Sessions that all client keys together can have beyond that: so many that a state of as many segments as a service may have can still be
/// read back.
pub const SESSIONS_SHARED: usize = (CLIENTS + 1) * (FIRST_SESSIONS_PER_CLIENT - SESSIONS_OWN);

/// Session numbers remembered of one client key: five hundred processes in a second that run one command each.
pub const NONCES_PER_CLIENT: usize = 65_536;

/// Session numbers that each client key can use within the time that they are remembered, however many others use.
pub const NONCES_OWN: usize = 256;

/// Session numbers of all client keys together beyond that.
pub const NONCES_SHARED: usize = 1 << 20;

/// All session numbers that may be remembered and the registered clients fit into one piece of a state.
const _: () = assert!(
    (CLIENTS + 1) * (NONCES_OWN * 8 + 256) + NONCES_SHARED * 8 + REPLICAS * 64 * 1024
        <= PIECE_BYTES
);

/// Under the first version of the rules, sessions of one client key; opening another evicts the one that was idle for longest, of those
/// without commands that wait if there are any.
pub const FIRST_SESSIONS_PER_CLIENT: usize = 64;

/// Under the first version of the rules, session numbers remembered of one client key, the largest ones.
pub const FIRST_NONCES_PER_CLIENT: usize = 256;

/// Registered client keys.
pub const CLIENTS: usize = 4096;

/// Largest limit that the state of a service may have: what one machine's memory holds. What is ordered is answered by it, so it changes with
/// the version of the rules only.
pub const STATE_LIMIT_BYTES: u64 = 1 << 40;

/// Partitions of a store.
pub const PARTITIONS: usize = 64;

/// Statements that a replica signs at once for those outside of its group ([`crate::attestation`]).
pub const ATTESTED: usize = 1024;

/// Largest statement of those: a service says in it what it is about by a hash.
pub const LEAF_BYTES: usize = 512;

/// Signatures in a command that have to be genuine for it to be ordered: of r + 1 replicas, 9 at most, of each partition.
pub const COMMAND_CLAIMS: usize = PARTITIONS * 9;

/// The same in a frame. A signature has 64 bytes, so that many commands in 256 KiB, after which clients close a frame, have no more.
pub const FRAME_CLAIMS: usize = 4096;

/// Replicas of a group: u + r + max(u, r) + 1 with both at most 8.
pub const REPLICAS: usize = 25;

/// Decided batches in one message: the deepest pipeline. Bounds what a message of null batches takes
/// in memory.
pub const DECISIONS: usize = 256;

/// Decided batches sent in answer to one Fetch stop after this many bytes.
pub const FETCH_BYTES: usize = 4 * 1024 * 1024;

/// Length of a client's registered name, in bytes of UTF-8.
pub const CLIENT_NAME_BYTES: usize = 64;

/// Largest piece of a transferred state: a segment that holds one value of 1 MiB, or the table of
/// a client's sessions with all cached replies.
pub const PIECE_BYTES: usize = 24 * 1024 * 1024;

/// Largest manifest of a state: 36 bytes for each piece.
pub const MANIFEST_BYTES: usize = 24 * 1024 * 1024;

#[cfg(test)]
mod tests;
