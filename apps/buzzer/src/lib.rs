//! Buzzer: a social network whose whole state is in Perdura's partitioned store (Augustus, EuroSys 2013, section 4.4).
//!
//! [`network`] is the network itself, as a trait with its implementation on Perdura; [`web`] has it as pages, and as JSON beside them. Programs over the
//! network alone need nothing of the web.

#![forbid(unsafe_code)]

mod api;
mod doors;
pub mod network;
mod places;
pub mod serve;
pub mod web;
