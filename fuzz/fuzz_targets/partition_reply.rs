#![no_main]

perdura_fuzzing::fuzz!("partition_reply");
