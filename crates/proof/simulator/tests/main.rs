//! Whole groups on virtual time.

mod determinism;
mod kept;
mod partitions;
mod scenarios;
mod seeds;
