//! The model check at bounds that take seconds, that it can fail, and that its reductions lose
//! nothing that can be told from outside.

use perdura_agreement::canonical::Form;
use perdura_model::catalogue;
use perdura_model::explore::{explore, explore_with, walk, walk_with};
use perdura_model::model::Observable;
use perdura_model::scope::Scope;
use std::collections::BTreeSet;

const LIMIT: usize = 5_000_000;

#[test]
fn small_scopes_hold_to_the_end() {
    for named in catalogue::small() {
        let run = explore(named.scope, LIMIT);
        println!("{}: {} states, {} transitions", named.name, run.states, run.transitions);
        assert!(run.violation.is_none(), "{}: {:#?}", named.name, run.violation);
        assert!(run.complete && run.ends > 0, "{} was not explored to the end", named.name);
        assert!(run.deliveries.iter().all(|count| *count > 0), "{}: no delivery", named.name);
    }
}

#[test]
fn every_flaw_is_found() {
    for (flaw, scope) in catalogue::flawed() {
        let n = scope.faults.n();
        let run = explore(scope, LIMIT);
        assert!(run.violation.is_some(), "{flaw:?}, n = {n}: not found in {} states", run.states);
    }
}

fn observables(scope: Scope) -> BTreeSet<Observable> {
    let mut all = BTreeSet::new();
    let run = explore_with(scope, LIMIT, |model, state| {
        all.insert(model.observable(state));
    });
    println!("{} states, {} observable ones", run.states, all.len());
    assert!(run.complete && run.violation.is_none(), "{:#?}", run.violation);
    all
}

fn whole(scope: &Scope) -> Scope {
    Scope { form: Form::Whole, ..scope.clone() }
}

/// Every delivery by itself, in any order, and nothing left out of a state: the same views and
/// deliveries can be reached as with the reductions.
#[test]
fn reductions_lose_nothing_that_can_be_told() {
    let scope = Scope::new(1, 0, 1, 2);
    assert!(observables(scope.clone()) == observables(whole(&scope)));
}

/// Where the whole space is too large, walks through it find nothing that the reduced one lacks.
#[test]
fn walks_without_reductions_stay_within_the_reduced_space() {
    let scopes = [
        (300, Scope::new(1, 0, 1, 2).crashing(&[0])),
        (300, Scope::new(1, 0, 1, 2).crashing(&[2])),
        (1, Scope::new(1, 1, 1, 2).liars(&[2])),
        (1, Scope::new(1, 1, 1, 1).liars(&[0])),
    ];
    for (walks, scope) in scopes {
        let reduced = observables(scope.clone());
        let mut met = BTreeSet::new();
        let walked = walk_with(
            &whole(&scope),
            0..walks,
            || false,
            |model, state| {
                let observable = model.observable(state);
                assert!(reduced.contains(&observable), "{scope:?}: {observable:?}");
                met.insert(observable);
            },
        );
        assert!(walked.violation.is_none(), "{:#?}", walked.violation);
        println!("{} steps met {} of {}", walked.steps, met.len(), reduced.len());
        assert!(met.len() > 3, "the walks led nowhere");
    }
}

#[test]
fn short_walks_beyond_the_bounds_hold() {
    for named in catalogue::beyond() {
        let walked = walk(&named.scope, 0..20, || false);
        assert!(walked.violation.is_none(), "{}: {:#?}", named.name, walked.violation);
        assert!(walked.steps > 0);
    }
}
