//! Runs `scenarios/*.txt`. `PERDURA_REWRITE=1` writes what comes of them, for review as a
//! difference.

use std::path::PathBuf;

#[test]
fn scenarios_go_as_written() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 4, "no scenarios in {}", directory.display());
    let rewrite = std::env::var_os("PERDURA_REWRITE").is_some();
    for path in paths {
        let written = std::fs::read_to_string(&path).unwrap();
        let came = perdura_simulator::scenario::run(&written)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if rewrite {
            std::fs::write(&path, came).unwrap();
        } else {
            assert!(came == written, "{} went otherwise:\n{came}", path.display());
        }
    }
}
