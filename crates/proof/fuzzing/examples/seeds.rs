//! Writes the seeds of every fuzz target, made by real encoders, into `fuzz/seeds`:
//! `cargo run -p perdura-fuzzing --example seeds`. What is there under other names stays: the inputs
//! that found something.

use perdura_fuzzing::TARGETS;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds");
    for target in TARGETS {
        let directory = root.join(target.name);
        std::fs::create_dir_all(&directory)?;
        for (name, seed) in (target.seeds)() {
            let path = directory.join(name);
            // TLS draws at random: one hello is as good as another.
            if target.name != "tls" || !path.exists() {
                std::fs::write(path, seed)?;
            }
        }
    }
    Ok(())
}
