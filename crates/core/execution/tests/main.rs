//! The machine around a service.

mod administration;
mod cost;
mod offers;
mod outside;
mod panics;
mod queue;
mod sessions;
mod snapshots;
mod stage;
mod support;
mod terms;
mod waiting;
