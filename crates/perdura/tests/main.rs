//! The entrance, as a program uses it.

mod ledger;
mod store;
