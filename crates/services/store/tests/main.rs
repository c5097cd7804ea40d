//! The key-value store.

mod bounds;
mod decoding;
mod model;
mod partition;
mod support;
mod transactions;
