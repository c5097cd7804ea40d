//! The store service: an ordered map of byte-string keys to byte-string values with the short
//! transactions of Augustus (Padilha and Pedone, EuroSys 2013, section 3.1 and table 1).
//!
//! A client declares all operations of a transaction at once: comparisons, reads, updates. All
//! comparisons come first; if they hold, the rest runs in order, atomically. Put, get and delete
//! are transactions of one operation with a shorter encoding.
//!
//! [`StoreCommand`] and [`StoreReply`] are what clients send and receive; [`Store`] is the service.
//! Like every service it is pure: equal commands give equal replies and equal segments.
//!
//! A store may have several partitions, each the state of a replica group of its own: [`partition`] has a partition's side of
//! transactions over several of them.
//!
//! [`SegmentMap`], in which it keeps its state, is for other services as well: the tuple spaces
//! have theirs in one.

#![deny(unsafe_code)]

mod ahead;
mod bounds;
mod command;
mod directory;
mod entries;
mod fullness;
mod interface;
mod keys;
pub mod limits;
mod map;
pub mod partition;
mod plan;
mod prefetch;
#[cfg(test)]
mod random;
mod range;
mod reply;
mod segment;
mod service;
mod values;

pub use command::{CommandError, Operation, StoreCommand, Transaction};
pub use entries::{Entries, EntriesIter};
pub use fullness::Fullness;
pub use map::{At, Full, PartialMap, SegmentMap};
pub use range::{behind, beyond_prefix};
pub use reply::{OperationResult, StoreReply, TransactionResult};
pub use service::Store;
