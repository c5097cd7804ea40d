//! Bounds of links and of the hub, each with its reason.

use perdura_protocol::limits;
use std::time::Duration;

/// How large messages and queues of one link may become, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Largest message that the peer may send.
    pub receive_bytes: usize,
    /// Largest message that may be queued for the peer.
    pub send_bytes: usize,
    /// Most bytes that wait for the peer at once.
    pub queue_bytes: usize,
    /// Bytes of each buffer that stay between two uses, and that are read at once where no large message
    /// is coming.
    pub buffer_bytes: usize,
    /// Bytes that the beginning of a large message gets at once; more only as its bytes come.
    pub eager_bytes: usize,
}

impl Bounds {
    /// Between replicas. The queue holds one largest message and as much again of the usual ones;
    /// what does not fit is dropped, for the protocol sends it again.
    pub const REPLICA: Bounds = Bounds {
        receive_bytes: limits::MESSAGE_BYTES,
        send_bytes: limits::MESSAGE_BYTES,
        queue_bytes: 2 * limits::MESSAGE_BYTES,
        buffer_bytes: READ_BYTES,
        // A batch of the usual size, and what comes with it.
        eager_bytes: limits::BATCH_TARGET_BYTES + 256 * 1024,
    };

    /// At a replica, of a client's link. The queue holds all replies that a session caches; a
    /// client that leaves more than that unread is gone, or wants to fill our memory.
    pub const CLIENT_AT_REPLICA: Bounds = Bounds {
        receive_bytes: limits::CLIENT_MESSAGE_BYTES,
        send_bytes: limits::MESSAGE_BYTES,
        queue_bytes: limits::SESSION_REPLY_BYTES + limits::MESSAGE_BYTES,
        // A frame of hundreds of small commands; 256 MiB for both directions of all links.
        buffer_bytes: 32 * 1024,
        eager_bytes: CLIENT_FAIR_BYTES,
    };

    /// At a client. The queue holds a few of the largest frames; the client keeps at most
    /// a handful unacknowledged.
    pub const CLIENT: Bounds = Bounds {
        receive_bytes: limits::MESSAGE_BYTES,
        send_bytes: limits::CLIENT_MESSAGE_BYTES,
        queue_bytes: 8 * limits::CLIENT_MESSAGE_BYTES,
        buffer_bytes: READ_BYTES,
        eager_bytes: limits::BATCH_TARGET_BYTES,
    };

    /// Before the peer is admitted: hellos and answers only.
    pub(crate) const HANDSHAKE: Bounds = Bounds {
        receive_bytes: HANDSHAKE_FRAME_BYTES,
        send_bytes: HANDSHAKE_FRAME_BYTES,
        queue_bytes: 4 * HANDSHAKE_FRAME_BYTES,
        buffer_bytes: HANDSHAKE_FRAME_BYTES,
        eager_bytes: HANDSHAKE_FRAME_BYTES,
    };
}

/// Largest frame before a peer is admitted: a hello, or a refusal with its reason in words.
pub const HANDSHAKE_FRAME_BYTES: usize = 2048;

/// Longest reason of a refusal, bytes of UTF-8: a few lines for a person.
pub const REFUSAL_REASON_BYTES: usize = 1024;

/// Ciphertext held for a socket that does not take it: enough for one large system call.
pub const CIPHERTEXT_BYTES: usize = 512 * 1024;

/// Messages up to this size are copied out of the read buffer; larger ones too, unless they are most of it:
/// one that is kept for long keeps no more than twice its length.
pub const COPIED_MESSAGE_BYTES: usize = 4096;

/// Bytes read from a socket in one system call.
pub const READ_BYTES: usize = 128 * 1024;

/// What a message counts for in a link's share of a round, besides its bytes: to take a small message
/// in costs about as much as to decrypt and move this many bytes.
pub const MESSAGE_ROUND_BYTES: usize = 1024;

/// As [`MESSAGE_ROUND_BYTES`], for each record.
pub const RECORD_ROUND_BYTES: usize = 512;

/// A link's share of a round is read in system calls of at least this much.
pub const SHARE_READ_BYTES: usize = 16 * 1024;

/// Bytes read from one replica in one round of the hub; then the next link has its turn. Some
/// hundred microseconds: by so much a replica that floods delays a round of the others.
pub const REPLICA_ROUND_BYTES: usize = 256 * 1024;

/// Bytes read from one client in one round of the hub.
pub const CLIENT_ROUND_BYTES: usize = 64 * 1024;

/// Bytes read from all clients together in one round of the hub, so that replicas wait for
/// milliseconds at most, however many clients there are.
pub const CLIENTS_ROUND_BYTES: usize = 1024 * 1024;

/// Client links at once: bounds file descriptors, and with the bounds per link, memory.
pub const CLIENT_LINKS: usize = 4096;

/// Links of one client key at once: a fleet of processes, each with a session. When all places are taken the key that has most gives
/// one up for another key.
pub const LINKS_PER_CLIENT: usize = limits::SESSIONS_PER_CLIENT;

/// Bytes waiting for all clients together. Beyond it, the link that wants more of it while it has
/// more than [`CLIENT_FAIR_BYTES`] is closed.
pub const CLIENTS_QUEUE_BYTES: usize = 512 * 1024 * 1024;

/// Bytes of incomplete messages of all clients together. Beyond it, the link that wants more of it
/// while it has more than [`CLIENT_FAIR_BYTES`] is closed.
pub const CLIENTS_INBOUND_BYTES: usize = 512 * 1024 * 1024;

/// While a peer has to wait, whether it still has to is looked at again after this time.
pub const HELD_BACK_TIME: Duration = Duration::from_millis(10);

/// What each client link may use of the shared bounds in any case, bytes.
pub const CLIENT_FAIR_BYTES: usize = 128 * 1024;

/// TLS handshakes carried out in a second for whoever connects from where somebody was admitted, and as many for members: a few
/// hundredths of a core. Links last; after an outage all clients of a replica are back within seconds.
pub const HANDSHAKES_S: u32 = 200;

/// The same for strangers, and how many of them at once.
pub const STRANGERS_S: u32 = 100;
/// See [`STRANGERS_S`].
pub const STRANGER_BURST: u32 = 64;

/// Connections accepted in one round of the hub, so that whoever connects without end holds nobody up who is linked.
pub const ACCEPTS_PER_ROUND: usize = 64;

/// Sockets that members may have beyond what others may where a process may have few files open.
pub const MEMBERS_SOCKETS: usize = 32;

/// While all places of strangers are taken, connections are accepted that far apart.
pub const CROWDED_PAUSE: Duration = Duration::from_millis(10);

/// Links of the administrator beyond [`CLIENT_LINKS`]: when all places are taken somebody has to be able to revoke a key.
pub const ADMINISTRATOR_LINKS: usize = 4;

/// Bytes of a first record that are looked at before the handshake: a hello of ours is a few hundred.
pub const FIRST_RECORD_BYTES: usize = 2048;

/// How many of [`HANDSHAKES_S`] at once: what connects together when a large application starts.
pub const HANDSHAKE_BURST: u32 = 256;

/// Addresses remembered from which somebody was admitted: as many as there are client links.
pub const KNOWN_ADDRESSES: usize = CLIENT_LINKS;

/// Connections that have not proven who they are, from members, from where somebody was admitted, and from elsewhere, each. One more
/// closes one of the address that has most of them: a handshake takes milliseconds, so an honest one is over long before.
pub const UNADMITTED_LINKS: usize = 128;

/// Connections for groups that are not here are told of in the log that far apart.
pub const UNKNOWN_NAMES_TOLD: Duration = Duration::from_secs(60);

/// Time for connecting, TLS and the hello exchange.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// A record of which only a part is here is waited for so long. Its length is not authentic before all of it is here: where a path has changed that, what
/// comes behind it would be swallowed, and on a link with little traffic for hours.
pub const RECORD_TIME: Duration = Duration::from_secs(30);

/// As [`HANDSHAKE_TIME`], for the first attempt to reach another replica; doubled up to that with each
/// attempt that takes longer, until a link is up. A byte that was changed on its way can leave both
/// ends of a handshake waiting for the other, and a group may stand still for want of this one link.
pub const DIAL_TIME_FIRST: Duration = Duration::from_secs(1);

/// First pause before a replica is dialled again.
pub const REDIAL_FIRST: Duration = Duration::from_millis(50);

/// Longest pause before a replica is dialled again.
pub const REDIAL_LONGEST: Duration = Duration::from_secs(1);

/// Unacknowledged data or keep-alive probes close a connection after this time. Generous against
/// a busy machine; a replica that only hangs is suspected by the protocol long before.
pub const SILENCE: Duration = Duration::from_secs(10);
