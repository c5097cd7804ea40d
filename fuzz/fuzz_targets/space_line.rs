#![no_main]

perdura_fuzzing::fuzz!("space_line");
