//! Authenticated links between replicas, and between clients and replicas.
//!
//! The pieces, from the inside out: an [`Identity`] is an Ed25519 key as TLS sees it; a [`Link`] is
//! one connection without its socket (TLS, the [`Hello`] exchange, frames); a [`Hub`] is a
//! replica's network on the thread that calls it; for transfers it has a second one ([`Lane`]). Hubs of several groups share an address
//! through a [`Doorman`].
//!
//! Invariants:
//! - Nothing is delivered from a peer whose key has not been proven by its TLS handshake and
//!   admitted by the owner of the hub.
//! - Every length is held against its bound before memory is reserved for it, and memory grows
//!   with the bytes that really arrived: a length that a peer announced gets a message
//!   [`Bounds::eager_bytes`] at most, and then twice what came.
//! - Every queue is bounded; the bounds and their reasons are in [`bounds`].
//! - A misbehaving peer loses its own connection and nobody else's.

#![deny(unsafe_code)]

mod backoff;
pub mod bounds;
mod error;
mod framing;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod hello;
mod hub;
mod identity;
mod link;
mod naming;
mod sealed;
mod stats;
mod version;

pub use backoff::Backoff;
pub use bounds::Bounds;
pub use error::{LinkError, Misbehaviour, QueueError};
pub use hello::{Answer, Hello, PROTOCOL_VERSION, Refusal, Role};
pub use hub::{
    Admission, BindError, Doorman, DoormanStats, Handed, Hub, HubConfig, HubEvent, MemberAddress,
    Peer, Seat, SendError,
};
pub use identity::{Identity, IdentityError};
pub use link::{Arrived, Drained, Link, Received};
pub use perdura_protocol::Lane;
pub use stats::{MisbehaviourCounts, Stats};
pub use tcp::{connect_address, tune};
pub use version::version_of;

mod tcp;
mod uninit;
