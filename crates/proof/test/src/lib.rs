//! Tests for services of one's own: [`check`] runs one beside its twins, and finds what replicas would differ in; [`simulate`] runs it in simulated
//! groups, where replicas crash, lie and forget, and holds what you say of it against each state.

#![forbid(unsafe_code)]

mod check;
mod random;
mod run;
mod simulate;

pub use check::{Fault, Finding, Step, check};
pub use random::Random;
pub use simulate::{Broken, Simulation, Summary, simulate};
