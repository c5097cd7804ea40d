//! The tuple spaces.

mod claims;
mod costs;
mod decoding;
mod held;
mod model;
mod operations;
mod operators;
mod replays;
mod support;
mod waiting;
