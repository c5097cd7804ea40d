//! The machine around a service.

mod administration;
mod cost;
mod offers;
mod outside;
mod panics;
mod queue;
mod rules_in_force;
mod sessions;
mod snapshots;
mod stage;
mod support;
mod waiting;
