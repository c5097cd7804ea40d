//! The modules of the library once more, with their tests.

#![forbid(unsafe_code)]
#![allow(dead_code, unused_imports, reason = "what only others use is used by nobody here")]

mod api;
mod doors;
mod network;
mod places;
mod serve;
mod web;
