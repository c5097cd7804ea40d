//! Replicas that lie and clients that attack, for tests.
//!
//! A liar is a real replica with a [`Liar`] between it and its links: what it says is replaced,
//! withheld, delayed, repeated or said differently to each, and signed anew with its own key and
//! those of its accomplices; other replicas' keys it does not have. One [`Strategy`] is one way of
//! lying. The simulator and real processes (`perdura-lab replica --misbehave`) use the same liars.
//! A hostile client is an [`Attacker`], with a key of its own that the cluster knows.
//!
//! Everything here is pure: chance is a seed, time an argument.

#![forbid(unsafe_code)]

mod attacker;
mod decisions;
mod insider;
mod liar;
mod memory;
mod mutation;
mod prefixes;
pub mod random;
mod statements;
mod states;
mod strategy;
mod traffic;
mod twin;
mod views;
mod voting;

pub use attacker::{Arms, Attack, Attacker, MakeCommand};
pub use insider::Insider;
pub use liar::Liar;
pub use random::Random;
pub use statements::Statements;
pub use strategy::Strategy;
pub use twin::{Shadow, Twin};
