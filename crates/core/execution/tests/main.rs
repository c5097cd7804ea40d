//! The machine around a service.

mod administration;
mod sessions;
mod snapshots;
mod support;
mod waiting;
