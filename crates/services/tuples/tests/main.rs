//! The tuple spaces.

mod decoding;
mod model;
mod operations;
mod support;
mod waiting;
