//! What ends a link, and what a peer can do wrong.

use perdura_protocol::text::Printable;
use std::io;

/// What a peer did that no correct peer does. Each is counted, and closes the link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, thiserror::Error)]
pub enum Misbehaviour {
    /// Bytes that are not TLS 1.3 with an Ed25519 raw public key, or no genuine record behind it.
    #[error("its bytes are no TLS 1.3 handshake or record of this protocol")]
    Tls,
    /// The first frame is not a hello, or the answer to it is none.
    #[error("its first frame is neither a hello nor an answer to one")]
    MalformedHello,
    /// A frame above the link's bound.
    #[error("a message is longer than this link allows")]
    OversizedFrame,
    /// A frame without content.
    #[error("a message is empty")]
    EmptyFrame,
    /// A message that does not decode, as the hub's owner reports.
    #[error("a message does not decode")]
    MalformedMessage,
    /// A message that a peer of this kind may not send, as the hub's owner reports.
    #[error("a message is of a kind that this peer may not send")]
    ForbiddenMessage,
    /// A client that does not read its replies, or uses more than its share of memory.
    #[error("it left too many bytes unread, or too many messages unfinished")]
    Flooding,
}

impl Misbehaviour {
    /// All kinds, in the order of their counters.
    pub const ALL: [Misbehaviour; 7] = [
        Misbehaviour::Tls,
        Misbehaviour::MalformedHello,
        Misbehaviour::OversizedFrame,
        Misbehaviour::EmptyFrame,
        Misbehaviour::MalformedMessage,
        Misbehaviour::ForbiddenMessage,
        Misbehaviour::Flooding,
    ];

    /// A name for metrics: lower case with underscores.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Misbehaviour::Tls => "tls",
            Misbehaviour::MalformedHello => "malformed_hello",
            Misbehaviour::OversizedFrame => "oversized_frame",
            Misbehaviour::EmptyFrame => "empty_frame",
            Misbehaviour::MalformedMessage => "malformed_message",
            Misbehaviour::ForbiddenMessage => "forbidden_message",
            Misbehaviour::Flooding => "flooding",
        }
    }
}

/// Why a link ended, or did not come up.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer ended the connection.
    #[error("closed by the peer")]
    Closed,
    /// TLS failed; what the other side's alert or our verifier says.
    #[error("TLS: {}", Printable(.0))]
    Tls(String),
    /// The peer did what no correct peer does.
    #[error("misbehaviour: {}: {}", .0, Printable(.1))]
    Misbehaviour(Misbehaviour, String),
    /// The peer is a newer program whose welcome has a field that we may not pass over.
    #[error(
        "it is a newer program: its welcome has the field {0:?}, which may not be passed over and is not known here; \
         update this program first"
    )]
    NewerWelcome(String),
    /// The peer refused us.
    #[error("refused: {}", Printable(.reason))]
    Refused {
        /// The version of the protocol that it speaks.
        version: u16,
        /// Its reason, in words.
        reason: String,
    },
    /// We refused the peer, with the reason that it was told.
    #[error("we refused it: {0}")]
    RefusedByUs(String),
    /// Connecting, TLS and hello took longer than [`crate::bounds::HANDSHAKE_TIME`], or than an attempt
    /// to reach another replica had ([`crate::bounds::DIAL_TIME_FIRST`]).
    #[error("connecting and the handshake took too long")]
    Expired,
    /// A record was not complete after [`crate::bounds::RECORD_TIME`].
    #[error(
        "a record that began to come is not complete: the path swallows bytes, or has changed some"
    )]
    Unfinished,
    /// A newer connection of the same replica took its place.
    #[error("replaced by a newer connection of the same replica")]
    Replaced,
    /// The owner closed it, and says why.
    #[error("closed by us: {0}")]
    ClosedByUs(String),
}

/// Why a message was not queued on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueError {
    /// The peer does not take messages as fast as we have them.
    #[error("the link's queue is full")]
    Full,
    /// The message is empty or above the link's bound: a bug of the sender.
    #[error("a message of {0} bytes is not allowed on this link")]
    Size(usize),
}
