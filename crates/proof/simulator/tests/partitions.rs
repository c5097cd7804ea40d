//! Stores of several partitions: groups side by side, and clients of transactions over all of them.

use perdura_simulator::{Mark, ServiceKind, SimulationOptions, SimulationReport, simulate};

fn of_partitions(seed: u64, steps: u64) -> SimulationOptions {
    SimulationOptions {
        service: Some(ServiceKind::Partitions),
        ..SimulationOptions::new(seed, steps)
    }
}

#[test]
fn a_partitioned_store_keeps_what_it_promises_whatever_goes_wrong() {
    let mut total = SimulationReport::default();
    for seed in 1..=14 {
        let options = of_partitions(seed, 3_000);
        total.add(&simulate(&options).unwrap_or_else(|violation| panic!("{violation}")));
    }
    let counts = total.transactions;
    assert_eq!((total.runs, counts.runs), (14, 14));
    assert!(counts.committed > 200 && counts.global_committed > 20 && counts.looks > 20);
    assert!(counts.deaths > 10 && counts.fast > 50 && counts.edges > 1_000, "{counts:?}");
    for mark in [Mark::TransactionEndedForOthers, Mark::RecordsForgotten, Mark::LockMet] {
        assert!(total.marks.contains_key(&mark), "{mark:?}");
    }
}

#[test]
fn as_many_partitions_as_are_asked_for() {
    for partitions in [2, 5] {
        let options = SimulationOptions { partitions: Some(partitions), ..of_partitions(3, 1_000) };
        let report = simulate(&options).unwrap_or_else(|violation| panic!("{violation}"));
        assert!(report.steps >= 1_000 * partitions as u64);
        let line = options.to_string();
        assert!(line.ends_with(&format!("--service partitions --partitions {partitions}")));
    }
}
