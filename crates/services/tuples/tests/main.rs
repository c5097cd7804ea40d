//! The tuple spaces.

mod claims;
mod decoding;
mod held;
mod model;
mod operations;
mod operators;
mod support;
mod waiting;
