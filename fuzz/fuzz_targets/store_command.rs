#![no_main]

perdura_fuzzing::fuzz!("store_command");
