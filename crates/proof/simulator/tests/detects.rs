//! In builds with seeded bugs, as `make test` makes them: some of them are found within a few seeds, and none is on by itself.
//! `scripts/detect` does the same with all of them, for as long as it takes.

use perdura_protocol::seeded::Bug;
use perdura_simulator::{ServiceKind, SimulationOptions, simulate};

/// One test: a bug is switched on for the whole process.
#[test]
fn seeded_bugs_are_found_within_a_few_seeds() {
    assert!(Bug::active().is_none());
    for seed in 1..=3 {
        simulate(&SimulationOptions::new(seed, 4_000)).unwrap();
    }
    let partitions = Some(ServiceKind::Partitions);
    for (bug, service) in [
        (Bug::QuorumOffByOne, None),
        (Bug::AcceptBeforePersist, None),
        (Bug::ReplyBeforeLog, None),
        (Bug::VotesUnverified, partitions),
        (Bug::ReadsThroughLocks, partitions),
    ] {
        bug.activate().unwrap();
        let options = |seed| SimulationOptions { service, ..SimulationOptions::new(seed, 10_000) };
        let found = (1..=20).find_map(|seed| simulate(&options(seed)).err());
        let found = found.unwrap_or_else(|| panic!("{} is not found", bug.name()));
        assert!(found.to_string().contains(&format!("--bug {}", bug.name())), "{found}");
    }
}
