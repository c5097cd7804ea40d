#![no_main]

perdura_fuzzing::fuzz!("json_line");
