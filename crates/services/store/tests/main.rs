//! The key-value store.

mod bounds;
mod decoding;
mod model;
mod support;
mod transactions;
