//! Tests for services of one's own: [`check`] runs one beside its twins, and finds what replicas would differ in; [`simulate`] runs it in simulated
//! groups, where replicas crash, lie and forget, and holds what you say of it against each state; [`recorded`] holds a changed program against what
//! older ones wrote.

#![forbid(unsafe_code)]

mod check;
mod random;
mod record;
mod run;
mod simulate;
mod words;

pub use check::{Answers, Fault, Finding, Step, check};
pub use random::Random;
pub use record::{Change, Changed, RecordError, recorded};
pub use simulate::{Broken, Simulation, Summary, simulate};
