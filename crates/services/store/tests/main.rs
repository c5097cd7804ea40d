//! The key-value store.

mod bounds;
mod costs;
mod decoding;
mod fullness;
mod model;
mod partition;
mod support;
mod transactions;
