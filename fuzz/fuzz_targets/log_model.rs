#![no_main]

perdura_fuzzing::fuzz!("log_model");
