#![no_main]

perdura_fuzzing::fuzz!("cluster_file");
