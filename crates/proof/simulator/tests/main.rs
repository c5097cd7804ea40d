//! Whole groups on virtual time.

mod determinism;
mod kept;
mod scenarios;
mod seeds;
