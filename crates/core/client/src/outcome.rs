//! What becomes of a call (rule C1). The types keep three things apart: it happened and this is
//! the reply; it did not happen, for certain; nobody can tell.

use bytes::Bytes;
use perdura_protocol::RefusalReason;
use perdura_protocol::attestation::Attestation;

/// The reply to a call that was carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The service's reply.
    Service(Bytes),
    /// The service's reply, one that states something to those outside of the group: never without what proves it.
    Attested {
        /// The reply.
        reply: Bytes,
        /// Of r + 1 replicas that gave this reply, ascending, the lowest whose signatures came and hold.
        attestations: Vec<Attestation>,
    },
    /// The service's reply to a read that was not ordered, if it was asked for with its slot ([`crate::Client::observe`]).
    Unordered {
        /// The reply.
        reply: Bytes,
        /// It holds behind a slot that is not below this one, the (r + 1)-th highest that those named who gave it. So if nothing that was
        /// read has been changed behind this slot, it is what there is.
        slot: u64,
    },
    /// An administration command was carried out.
    Administered {
        /// Number of the latest configuration.
        configuration: u64,
        /// First slot of the latest configuration.
        from_slot: u64,
    },
    /// What the administrator asked for.
    Told(Bytes),
}

/// Why nothing happened. That is certain.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// It was ordered, and enough replicas say that it changed nothing.
    #[error("{0}")]
    Ordered(RefusalReason),
    /// The session that it needs was refused; it was not sent.
    #[error("no session was opened, so it was not sent: {0}")]
    Session(RefusalReason),
    /// The deadline passed before it was sent for ordering.
    #[error("the deadline passed before it was sent")]
    DeadlinePassed,
    /// So few members of the group are linked that they order nothing, and none answered for some time.
    #[error("too few replicas are there, so it was not sent")]
    Unreachable,
    /// Every replica of the group refused this client, or is not the one that it was told of.
    #[error("every replica refused this client, so it was not sent")]
    KeptOut,
    /// Too many calls wait in this client.
    #[error("too many calls wait to be sent")]
    QueueFull,
    /// The command is longer than a replica takes.
    #[error("the command has {0} bytes, more than replicas take")]
    TooLarge(usize),
    /// The client was closed before it was sent.
    #[error("the client was closed before it was sent")]
    Closed,
}

/// Why nobody can tell whether it happened, or will happen.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Indeterminacy {
    /// The deadline passed after it was sent.
    #[error("the deadline passed after it was sent")]
    DeadlinePassed,
    /// The replicas no longer keep the reply.
    #[error("the replicas no longer keep its reply")]
    TooOld,
    /// It was carried out, and its reply has so many bytes, more than replicas send.
    #[error("it was carried out, and its reply of {0} bytes is more than replicas send")]
    ReplyTooLarge(u64),
    /// The session ended: its key was revoked, or nothing was ordered in it for a minute. An earlier try may have executed.
    #[error("its session ended")]
    NoSession,
    /// The replicas say that too many numbers of the session are open; it may execute later.
    #[error("the replicas did not take its number, and may take it later")]
    WindowExceeded,
    /// Enough replicas agree on an answer that makes no sense for a call.
    #[error("the replicas gave an answer that fits no call")]
    UnexpectedReply,
    /// The client was closed after it was sent.
    #[error("the client was closed after it was sent")]
    Closed,
}

/// The three-way outcome of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallResult {
    /// It happened.
    Completed(Reply),
    /// It did not happen, and will not.
    Refused(Refusal),
    /// It may have happened, or still happen.
    Indeterminate(Indeterminacy),
}
