#![no_main]

perdura_fuzzing::fuzz!("record");
