//! Buzzer: a social network whose whole state is in Perdura's partitioned store (Augustus, EuroSys 2013, section 4.4).
//!
//! [`network`] is the network itself, as a trait with its implementation on Perdura.

#![forbid(unsafe_code)]

pub mod network;
