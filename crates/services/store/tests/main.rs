//! The key-value store.

mod decoding;
mod model;
mod support;
mod transactions;
