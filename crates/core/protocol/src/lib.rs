//! The shared language of Perdura: identifiers, quorum arithmetic, the canonical codec, keys and
//! signatures, and every message and log record that leaves a replica.
//!
//! Nothing here decides anything: this crate has no clock, no sockets, no threads and no state of
//! its own. The words are those of docs/design.md.

#![forbid(unsafe_code)]

/// Whether a seeded bug is switched on: the constant `false`, but in builds with the feature
/// `seeded-bugs`.
#[macro_export]
macro_rules! seeded {
    ($bug:ident) => {
        $crate::seeded::ARE_BUILT_IN && $crate::seeded::Bug::$bug.is_active()
    };
}

pub mod attestation;
pub mod batch;
pub mod boots;
pub mod codec;
pub mod command;
pub mod configuration;
pub mod fields;
pub mod frame;
pub mod ids;
pub mod keys;
pub mod limits;
pub mod message;
pub mod partitions;
pub mod quorum;
pub mod record;
pub mod seeded;
pub mod statement;
pub mod text;
pub mod versions;
pub mod viewchange;
pub mod vitals;

pub use attestation::Attestation;
pub use batch::Batch;
pub use codec::{Decode, DecodeError, Encode, Reader};
pub use command::{AdminCommand, ClientList, Command, Outcome, RefusalReason};
pub use configuration::Configuration;
pub use frame::{Frame, SessionId};
pub use ids::{BootId, ClusterId, Digest, ReplicaId, Slot, Time, View};
pub use keys::{PublicKey, Scheme, SecretKey, Signature};
pub use message::{Lane, Message};
pub use partitions::{Map, PartitionId};
pub use quorum::{Faults, FaultsError};
pub use record::Record;
pub use statement::{Certificate, Context};
pub use versions::{ServiceName, Versions};
