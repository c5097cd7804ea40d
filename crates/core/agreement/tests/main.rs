//! Agreement machines by themselves, and in groups.

mod gathering;
mod group;
mod harness;
mod laggard;
mod new_views;
mod proofs;
mod slow_disk;
mod successors;
mod suspicion;
