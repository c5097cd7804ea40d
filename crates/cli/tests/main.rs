//! The program, on real processes.

mod administration;
mod bad_input;
mod bench;
mod cluster;
mod cold_restart;
mod common;
mod dev;
mod help;
mod hog;
mod kills;
mod monitoring;
mod older;
mod operators;
mod output;
mod servers;
mod space;
mod store;
mod surroundings;
mod transactions;
mod unreachable;
mod upgrades;
