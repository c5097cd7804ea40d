//! Runs `scenarios/*.txt`. `PERDURA_REWRITE=1` writes what comes of them, for review as a
//! difference. `PERDURA_SCENARIO=leader_crash` runs one, and prints a line for everything that
//! happens in it.

use perdura_simulator::scenario;
use std::io::{Write, stdout};
use std::path::PathBuf;

#[test]
fn scenarios_go_as_written() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios");
    let one = std::env::var("PERDURA_SCENARIO").ok();
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .filter(|path| one.as_deref().is_none_or(|one| path.file_stem().unwrap() == one))
        .collect();
    paths.sort();
    assert!(one.is_some() || paths.len() >= 4, "no scenarios in {}", directory.display());
    let rewrite = std::env::var_os("PERDURA_REWRITE").is_some();
    let mut otherwise = Vec::new();
    for path in paths {
        let written = std::fs::read_to_string(&path).unwrap();
        let writer = one.as_ref().map(|_| Box::new(stdout()) as Box<dyn Write>);
        match scenario::run_traced(&written, writer) {
            Ok(came) if came == written => {}
            Ok(came) if rewrite => std::fs::write(&path, came).unwrap(),
            Ok(came) => otherwise.push(format!("{} went otherwise:\n{came}", path.display())),
            Err(error) => otherwise.push(format!("{}: {error}", path.display())),
        }
    }
    assert!(otherwise.is_empty(), "{}", otherwise.join("\n\n"));
}
