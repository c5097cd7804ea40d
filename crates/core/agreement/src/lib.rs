//! Agreement: orders batches of client frames for any (u, r).
//!
//! A pure machine (docs/design.md, Agreement): messages, completions and time go in, effects come out.
//! With r = 0 it runs propose, accept, decide through the leader (Paxos); with r > 0 propose,
//! write, accept among the replicas (PBFT, Castro and Liskov, OSDI 1999). The two differ in three
//! places: whether Write exists, who receives Accept, and what justifies a lock in a view change.
//!
//! What the driver owes this machine:
//! 1. It appends [`Effect::Persist`] records to the log in the order in which they come out, and
//!    calls [`Agreement::on_persisted`] when they are durable. Whatever must be on disk before it
//!    is said is held back in here until then (rule A2); the driver just sends what it is told.
//! 2. It executes [`Effect::Deliver`] in order and calls [`Agreement::on_executed`] after each.
//! 3. Messages handed in carry the sender that the link proved, and client frames inside them
//!    whose signatures were verified (rule A5).
//! 4. It calls [`Agreement::on_tick`] about every [`timing::TICK_MS`], and [`Agreement::flush`]
//!    after each round of input, which is when a leader proposes what has queued up.
//!
//! Files: `admission` and [`pool`] frames that wait; `slot` what is known about a slot; `rules` the voting rules;
//! `ordering` the path of a batch; `prefix` the base and the window of view
//! changes; `leading` the proposer; `evidence` what proves a view change and
//! what follows from it; `suspicion` what there is against a leader, `views` view changes; `demand` whether a leader gives what is
//! asked of it, `withholding` whether it leaves out single frames, `trials` whether another one gives more; `penalty` who sends bad signatures; `laggards` retransmission; `catching_up` and `fetches` decided batches for who was away;
//! `restart` what a log says after a crash; `canonical` which states are one to a model checker.

#![forbid(unsafe_code)]

mod admission;
#[doc(hidden)]
pub mod canonical;
mod catching_up;
mod comparing;
mod demand;
mod evidence;
mod expected;
mod fetches;
mod laggards;
mod leading;
mod machine;
mod marks;
mod ordering;
mod peers;
mod penalty;
pub mod pool;
mod prefix;
mod prefix_votes;
mod proofs;
mod reproposal;
mod restart;
mod rules;
mod slot;
mod suspicion;
mod ticks;
mod timeouts;
pub mod timing;
mod trials;
mod views;
mod withholding;

pub use admission::HeldMemory;
pub use fetches::{ANSWER_BYTES, EARLY_BYTES};
pub use machine::{Agreement, Effect, Mode, Now, Settings};
pub use marks::Marks;
pub use ordering::HELD_PROPOSAL_BYTES;
pub use penalty::{Misbehaviour, Penalty};
pub use restart::Restart;
pub use suspicion::Suspicion;
pub use withholding::ASKED_AT_ONCE;
