//! The tuple space service (the Durable DepSpace of Dura-SMaRt, Bessani et al., USENIX ATC 2013,
//! section 4; after DepSpace, Bessani et al., EuroSys 2008): named spaces of tuples, which are sequences
//! of typed fields. A client inserts tuples, and reads or takes those that match a template.
//!
//! The contract:
//! - every tuple has a number in its space. Numbers ascend in the order of insertion and are never
//!   used again, not even by another space of the same name: they serve as fencing tokens;
//! - of several tuples that match, the oldest is meant, the one with the smallest number;
//! - a lease ends at an agreed time. A command at that time, or later, does not see the tuple; no
//!   wall clock is asked (rule E3);
//! - `rd` and `in` wait, in order, for a tuple that is not there. Whoever inserts it serves those who
//!   wait, the longest first; nobody polls. A wait ends at an agreed time, at which the group orders
//!   a tick if it orders nothing else; and with its session, or when its client goes on without it;
//! - from version 2 of the rules on, what is handed over to one who waited is an *offer*, there and nobody else's until it is confirmed, or
//!   taken back ([`Operation::In`]); *claims* insert a tuple when no other has its key ([`Operation::Claim`]); tuples are taken under a
//!   lease, by which they come back ([`Operation::Lease`]);
//! - from version 3 on one client key has no more commands waiting in a space than it leaves to others;
//! - access is by the client's key: a space admits clients to insert, to read, to take; a tuple
//!   narrows the latter two. A tuple that does not admit a client is not there for it.
//!
//! [`TupleCommand`] and [`TupleReply`] are what clients send and receive; [`TupleSpaces`] is the
//! service. Like every service it is pure: equal commands give equal replies and equal segments.
//! Fields are opaque to it but for their equality, so a client may put shares of a secret into
//! them, and hashes of what it wants to match.

#![forbid(unsafe_code)]

mod access;
mod claims;
mod command;
mod field;
mod holds;
mod layout;
pub mod limits;
mod manage;
mod operate;
mod operation;
mod reply;
mod restore;
mod search;
mod serve;
mod service;
mod space;
mod steps;
mod tuple;
mod waiting;

pub use access::Access;
pub use command::{CommandError, Entry, SpaceOptions, TupleCommand};
pub use field::{Field, Float, Kind};
pub use operation::Operation;
pub use reply::{Broken, Found, Leased, Purpose, SpaceDescription, TupleReply, Waiting};
pub use service::TupleSpaces;
pub use tuple::{Pattern, Template, Tuple};
