//! The program over HTTP, on real servers of a cluster of two partitions.

mod accounts;
mod browser;
mod causality;
mod deletions;
mod failures;
mod guesses;
mod mix;
mod network;
mod posts;
mod program;
mod world;
