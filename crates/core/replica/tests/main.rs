//! Nodes, one by one on virtual time, and groups of replicas on real disks and sockets.

mod attesting;
mod backlog;
mod boots;
mod checkpoints;
mod common;
mod differences;
mod floods;
mod follower;
mod group;
mod large_segments;
mod let_go;
mod notaries;
mod notary;
mod offers;
mod outdated;
mod panics;
mod passed_over;
mod real;
mod repair;
mod shared;
mod slow_seeder;
mod stage;
mod stalled;
mod transfer;
mod transfer_link;
mod waiting;
