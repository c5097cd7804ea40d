//! What is on disk, against faults of it.

mod common;
mod files;
mod fixture;
mod links;
mod log;
mod marks;
mod model;
mod reread;
mod storage;
mod torn;
