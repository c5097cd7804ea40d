#![no_main]

perdura_fuzzing::fuzz!("tuple_command");
