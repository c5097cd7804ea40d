//! A replica: agreement, durability and execution composed into one pure [`node::Node`], and the
//! event loop that moves its bytes, time and completions.

#![forbid(unsafe_code)]

pub mod node;
pub mod runtime;
