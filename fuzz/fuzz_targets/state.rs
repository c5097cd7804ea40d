#![no_main]

perdura_fuzzing::fuzz!("state");
