//! A batch of seeds: every rule is kept in each, every kind of fault fires in one of them, and every
//! rare branch is taken in one.
//!
//! `PERDURA_SEEDS` (200), `PERDURA_FIRST_SEED` (781) and `PERDURA_STEPS` (10,000) ask for more; each
//! failing seed is printed with the command that repeats it. With `PERDURA_RULES_ONLY=1` what did not
//! happen is no failure.

use perdura_adversary::Strategy;
use perdura_protocol::Faults;
use perdura_protocol::configuration::Durability;
use perdura_simulator::{Mark, Mode, Options, Report, simulate};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const THREADS: usize = 2;

fn asked(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The baseline of experiments holds what `sync` holds; it executes later.
#[test]
fn every_rule_is_kept_with_sync_naive() {
    // Among so few these come to all lies and rare branches.
    let first = asked("PERDURA_FIRST_SEED", 781);
    for seed in first..first + asked("PERDURA_SEEDS", 200).div_ceil(10) {
        let durability = Some(Durability::SyncNaive);
        let options = Options { durability, ..Options::new(seed, asked("PERDURA_STEPS", 10_000)) };
        let report = simulate(&options).unwrap_or_else(|violation| panic!("{violation}"));
        assert!(report.calls.ok > 0, "{options}");
    }
}

/// One seed of a thousand comes to this by itself, one of twenty with such a liar.
#[test]
fn junk_is_held_beside_what_is_missing() {
    let held = (1..=300).any(|seed| {
        let options = Options {
            faults: Faults::new(1, 1).ok(),
            mode: Some(Mode::Safety),
            liars: Some(vec![Strategy::CorruptTransfer]),
            ..Options::new(seed, asked("PERDURA_STEPS", 10_000))
        };
        let report = simulate(&options).unwrap_or_else(|violation| panic!("{violation}"));
        report.marks.contains_key(&Mark::HeldInVain)
    });
    assert!(held, "no false answer came before its turn");
}

/// There are so many lies that some are drawn in none of so few runs.
fn is_told_when_asked_for(lie: Strategy, first: u64, steps: u64) {
    let told = (first..first + 20).any(|seed| {
        let options = Options { liars: Some(vec![lie]), ..Options::new(seed, steps) };
        let report = simulate(&options).unwrap_or_else(|violation| panic!("{violation}"));
        let (never_told, _) = report.never_tried();
        !never_told.contains(&lie)
    });
    assert!(told, "never told: {lie:?}");
}

#[test]
fn every_rule_is_kept_and_every_fault_fires() {
    // Among so few these come to all rare branches.
    let first = asked("PERDURA_FIRST_SEED", 781);
    let (count, steps) = (asked("PERDURA_SEEDS", 200), asked("PERDURA_STEPS", 10_000));
    let next = AtomicU64::new(0);
    let total = Mutex::new((Report::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    let result = simulate(&Options::new(first + index, steps));
                    let mut total = total.lock().unwrap();
                    match result {
                        Ok(report) => total.0.add(&report),
                        Err(violation) => {
                            eprintln!("{violation}");
                            total.1.push(violation);
                        }
                    }
                }
            });
        }
    });
    let (report, violations) = total.into_inner().unwrap();
    println!("{report}");
    assert!(violations.is_empty(), "{} of {count} seeds failed", violations.len());
    if count >= 200 && asked("PERDURA_RULES_ONLY", 0) == 0 {
        assert_eq!(report.never_fired(), [], "kinds of faults that never took effect");
        assert_eq!(report.never_reached(), [], "rare branches that were never taken");
        let (lies, attacks) = report.never_tried();
        assert!(attacks.is_empty(), "never done: {attacks:?}");
        lies.into_iter().for_each(|lie| is_told_when_asked_for(lie, first, steps));
        assert!(report.spaces.runs > 0, "no run was of tuple spaces");
        assert!(report.calls.ok > 1_000 && report.calls.fast_reads > 0);
        assert!(report.views_started > 0 && report.transfers > 0 && report.truncations > 0);
    }
}
