//! In builds with seeded bugs, as `make test` makes them: each bug that a scenario claims to find (a line `# Finds NAME, NAME`)
//! makes it go otherwise, or breaks a rule in it. `PERDURA_MATRIX=1` prints which bugs each of the
//! scenarios finds.

use perdura_protocol::seeded::Bug;
use perdura_simulator::scenario;
use std::collections::BTreeMap;
use std::path::PathBuf;

fn scenarios() -> BTreeMap<String, String> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios");
    let files = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// What a scenario claims to find.
fn claims(text: &str) -> Vec<Bug> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("# Finds "));
    let names = lines.flat_map(|line| line.trim_end_matches('.').split(", "));
    names.map(|name| Bug::parse(name).unwrap_or_else(|| panic!("no bug {name:?}"))).collect()
}

fn goes_as_written(text: &str) -> bool {
    scenario::run(text).is_ok_and(|came| came == text)
}

/// One test: a bug is switched on for the whole process.
#[test]
fn scenarios_find_what_they_claim() {
    let scenarios = scenarios();
    for (name, text) in &scenarios {
        assert!(goes_as_written(text), "{name} goes otherwise without any bug");
    }
    let claimed: Vec<(&String, Vec<Bug>)> =
        scenarios.iter().map(|(name, text)| (name, claims(text))).collect();
    let mut missed = Vec::new();
    for (name, bugs) in claimed {
        for bug in bugs {
            bug.activate().unwrap();
            if goes_as_written(&scenarios[name]) {
                missed.push(format!("{name} does not find {}", bug.name()));
            }
        }
    }
    if std::env::var_os("PERDURA_MATRIX").is_some() {
        for bug in Bug::ALL {
            bug.activate().unwrap();
            let found = scenarios.iter().filter(|(_, text)| !goes_as_written(text));
            let names: Vec<&str> = found.map(|(name, _)| name.as_str()).collect();
            println!("{} {}: {}", bug.rule(), bug.name(), names.join(", "));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
