//! The shrinker against runs that fail because something is truly broken: a disk that forgets.

use super::*;
use crate::options::ServiceKind;
use crate::plan::Plan;
use crate::violation::Broken;
use crate::world::World;
use perdura_protocol::Slot;

/// A run in which the disk of replica 1 forgets everything synced when the replica is down for
/// the first time after some slots.
fn forgetful(options: &SimulationOptions) -> Result<SimulationReport, Box<Violation>> {
    let mut world = World::new(options, Plan::draw(options), None);
    world.guarded(|world| {
        world.run_until_down(1, Slot(5));
        if !world.failed() && world.replicas[1].process.is_none() {
            world.format(1, None);
        }
        world.run_on();
    })
}

fn failing() -> Violation {
    let service = Some(ServiceKind::KeyValue);
    let options = |seed| SimulationOptions { service, ..SimulationOptions::new(seed, 4_000) };
    let failing = (1..50).find_map(|seed| forgetful(&options(seed)).err());
    let violation = *failing.unwrap();
    assert_eq!(violation.rule, "Durability (D1, D4)");
    violation
}

#[test]
fn a_failing_run_is_shrunk_to_a_small_one_that_fails_alike() {
    let from = failing();
    let mut told = 0;
    let shrunk = shrink(&from, RUNS_AT_MOST, forgetful, |_, _| told += 1);
    println!("{shrunk}");
    assert!(shrunk.minimal && shrunk.runs <= RUNS_AT_MOST && told > 3);
    let small = &shrunk.violation;
    // The replica has to go down once, and that may take something else.
    assert_eq!(small.rule, from.rule);
    assert!((1..=2).contains(&shrunk.events()), "{}", shrunk.events());
    assert!(small.step < from.step, "{} of {}", small.step, from.step);
    assert!(small.options.steps < from.options.steps);
    let fewer = &small.options.overrides;
    assert!(fewer.clients.is_some_and(|clients| clients <= 2) && fewer.callers == Some(1));
    assert!(small.options.overrides.without.len() > FaultKind::ALL.len() / 2);
    // The command repeats it.
    assert_eq!(forgetful(&small.options), Err(Box::new(small.clone())));
    // In a world that is not broken the same run keeps every rule.
    assert!(crate::simulate(&small.options).is_ok());
}

#[test]
fn shrinking_is_bounded_and_repeats_itself() {
    let from = failing();
    let few = shrink(&from, 7, forgetful, |_, _| ());
    assert_eq!((few.runs, few.minimal), (7, false));
    assert_eq!(few, shrink(&from, 7, forgetful, |_, _| ()));
    assert_eq!(few.violation.rule, from.rule);
}

#[test]
fn another_rule_is_no_shrinking() {
    let from = failing();
    let other = |_: &SimulationOptions| {
        let rule = Broken::new("Agreement (A1)", "").rule;
        Err(Box::new(Violation { rule, ..from.clone() }))
    };
    let kept = shrink(&from, 20, other, |_, _| panic!("nothing is smaller"));
    assert_eq!(kept.violation, from);
}
