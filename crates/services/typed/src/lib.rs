//! Services in types: a developer writes a [`Service`] whose commands, queries, replies and errors are types with `serde`'s traits, and whose state is
//! maps ([`Sharded`]) and values; [`Typed`] makes of it what replicas run, and [`Client`] what talks to them.

#![forbid(unsafe_code)]

mod bounded;
mod budget;
mod client;
mod client_key;
mod faithful;
mod journal;
mod key;
mod parts;
mod scratch;
mod service;
mod sharded;
mod wire;

pub use bounded::{EMPTY_ELEMENTS, LEVELS};
pub use client::{CallError, Client};
pub use client_key::ClientKey;
#[doc(hidden)]
pub use faithful::Unfaithful;
pub use key::Key;
pub use parts::{PART_BYTES, Parts};
pub use service::{Context, ERROR_BYTES, QueryContext, Service, Typed, name_of};
pub use sharded::Sharded;
pub use wire::{EncodeError, PART_COST, encode_command, encode_query, is_refusal};
