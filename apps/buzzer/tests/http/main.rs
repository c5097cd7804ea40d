//! The program over HTTP, on real servers of a cluster of two partitions.

mod accounts;
mod answers;
mod attacks;
mod browser;
mod causality;
mod deletions;
mod doors;
mod failures;
mod fullness;
mod guesses;
mod mix;
mod network;
mod newest;
mod posts;
mod program;
mod world;
