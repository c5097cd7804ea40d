//! Tests for services of one's own: [`check`] runs one beside its twins, and finds what replicas would differ in.

#![forbid(unsafe_code)]

mod check;
mod random;
mod run;

pub use check::{Fault, Finding, Step, check};
pub use random::Random;
