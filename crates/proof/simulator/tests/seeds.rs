//! What the seeds of `scripts/seeds` draw seldom or never.

use perdura_adversary::Strategy;
use perdura_protocol::Faults;
use perdura_simulator::{Mark, Mode, SimulationOptions, simulate};

const STEPS: u64 = 10_000;

/// One seed of a thousand comes to this by itself, one of twenty with such a liar.
#[test]
fn junk_is_held_beside_what_is_missing() {
    let held = (1..=300).any(|seed| {
        let options = SimulationOptions {
            faults: Faults::new(1, 1).ok(),
            mode: Some(Mode::Safety),
            liars: Some(vec![Strategy::CorruptTransfer]),
            ..SimulationOptions::new(seed, STEPS)
        };
        let report = simulate(&options).unwrap_or_else(|violation| panic!("{violation}"));
        report.marks.contains_key(&Mark::HeldInVain)
    });
    assert!(held, "no false answer came before its turn");
}

/// Versions and limit are raised, clients listed, and the administrator's key replaced and the former one stolen, whatever else goes
/// wrong.
#[test]
fn what_the_administrator_orders_is_drawn() {
    let marks = [
        Mark::VersionsRaised,
        Mark::LimitRaised,
        Mark::ClientsListed,
        Mark::AdministratorReplaced,
        Mark::FormerKeyRefused,
    ];
    let mut missing = marks.to_vec();
    for seed in 1..=100 {
        let report = simulate(&SimulationOptions::new(seed, STEPS));
        let report = report.unwrap_or_else(|violation| panic!("{violation}"));
        missing.retain(|mark| !report.marks.contains_key(mark));
        if missing.is_empty() {
            return;
        }
    }
    panic!("{missing:?}");
}
