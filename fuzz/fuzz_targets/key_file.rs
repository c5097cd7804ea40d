#![no_main]

perdura_fuzzing::fuzz!("key_file");
