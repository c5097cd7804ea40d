#![no_main]

perdura_fuzzing::fuzz!("replica_file");
