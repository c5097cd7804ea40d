//! A partition's side of transactions over several: the steps, and what those try who lie.

mod attacks;
mod books;
mod bounds_by_key;
mod encoding;
mod forgetting;
mod hearing;
mod last;
mod marks;
mod measures;
mod seeded;
mod snapshots;
mod steps;
mod turns;
mod wasteful;
pub mod world;
