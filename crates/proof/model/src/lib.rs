//! The model check of the agreement core: the real machine ([`perdura_agreement::Agreement`]),
//! whole groups of it, in every order of events within small bounds.
//!
//! What is explored. A state of the group is, of each replica, its machine, all that it has said,
//! and what is on its disk. A step gives one replica one input and carries out what the machine
//! wants done, as the driver does: a message arrives, a client hands over a frame, a later view is
//! joined, a record becomes durable, the replica crashes and restarts. After each step what was
//! delivered is held against all others and against what quorums have on disk.
//!
//! The space is made smaller by these; each loses no violation:
//! 1. *The network is a set* ([`posts`]). What was said may arrive at any time later, any number of
//!    times, or never. So arrivals need not be remembered, and retransmission adds nothing.
//! 2. *Time-outs are choices.* A replica may join a later view at any time. That is more than
//!    suspicion allows, never less.
//! 3. *Votes arrive in quorums* ([`model::Input::Votes`]). A vote that completes nothing changes
//!    only the table of votes, which nothing but the next vote for the same reads; so it may as well
//!    arrive just before the one that completes something.
//! 4. *View changes are heard by the leader that gathers them.* Elsewhere they make a replica join,
//!    which 2 covers.
//! 5. *A log is durable at once, or not before the crash.* A late record delays messages, which 1
//!    covers, and own votes, which 3 does; so what a crash finds on disk may as well have been there
//!    at once. Before a crash the disk stalls after any record ([`model::Move::until_stall`]), and
//!    the replica goes on without it until it crashes. Which replicas crash is fixed in a scope.
//! 6. *A crash and the restart are one step.* Who is down is somebody who hears nothing.
//! 7. *Live form* ([`perdura_agreement::canonical`]): what nothing can read any more does not tell
//!    states apart. Accusations may rest on it, and so are judged in whole form only.
//! 8. *A step of one replica is worked out once* ([`model`]): the machine is deterministic. This
//!    saves time, not states.
//!
//! `tests/bounds.rs` holds 3, 4 and 7 against exploration and walks without them.
//!
//! These are bounds, and what lies beyond them is not covered: the scope's slots and views; one
//! frame per batch; batches execute at once; no state transfer, no checkpoint but the prefix that a
//! scope names, which liars neither sign nor use; no change of configuration; one crash; the batches
//! and forgeries of [`adversary`]; keyed hashes for signatures. That a frame is ordered twice is no
//! violation here: sessions answer it (E4), and the simulator checks that.

#![forbid(unsafe_code)]

pub mod adversary;
pub mod catalogue;
pub mod explore;
pub mod mix;
pub mod model;
pub mod posts;
pub mod replica;
pub mod scope;
mod trace;
pub mod violation;
pub mod world;
