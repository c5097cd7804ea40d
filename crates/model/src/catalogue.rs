//! The scopes that are explored, by name.

use crate::scope::{Flaw, Scope};

/// A scope with its name and what it is.
#[derive(Clone, Debug)]
pub struct Named {
    /// For the command line.
    pub name: &'static str,
    /// For the reader.
    pub what: &'static str,
    /// The bounds.
    pub scope: Scope,
}

fn named(name: &'static str, what: &'static str, scope: Scope) -> Named {
    Named { name, what, scope }
}

/// Small enough for every run of the tests.
#[must_use]
pub fn small() -> Vec<Named> {
    vec![
        named("crash-small", "n = 3: 1 slot, 2 views", Scope::new(1, 0, 1, 2)),
        named("byzantine-small", "n = 4, nobody lies: 1 slot, 2 views", Scope::new(1, 1, 1, 2)),
    ]
}

/// All that is explored to the end.
#[must_use]
pub fn exhaustive() -> Vec<Named> {
    let crash = || Scope::new(1, 0, 2, 2);
    let byzantine = || Scope::new(1, 1, 1, 2);
    let mut all = vec![
        named("crash", "n = 3: 2 slots, 2 views", crash()),
        named(
            "crash-prefix",
            "n = 3: 2 slots, 2 views, prefix signed after slot 1",
            crash().boundary(1),
        ),
        named("crash-views", "n = 3: 1 slot, 3 views", Scope::new(1, 0, 1, 3)),
    ];
    let seats = [
        ("crash-0", "crash-0-views", "replica 0"),
        ("crash-1", "crash-1-views", "replica 1"),
        ("crash-2", "crash-2-views", "replica 2"),
    ];
    let _ = seats;
    let rest: Vec<(&'static str, Scope)> = vec![
        ("liar-0", byzantine().liars(&[0])),
        ("liar-1", byzantine().liars(&[1])),
        ("liar-2", byzantine().liars(&[2])),
        ("twin-0", byzantine().twin(0)),
        ("twin-1", byzantine().twin(1)),
        ("twin-2", byzantine().twin(2)),
        ("crash-0", crash().crashing(&[0])),
        ("crash-1", crash().crashing(&[1])),
        ("crash-2", crash().crashing(&[2])),
        ("crash-0-views", Scope::new(1, 0, 1, 3).crashing(&[0])),
        ("crash-1-views", Scope::new(1, 0, 1, 3).crashing(&[1])),
        ("crash-2-views", Scope::new(1, 0, 1, 3).crashing(&[2])),
        ("liar-0-prefix", byzantine().liars(&[0]).boundary(1)),
        ("liar-1-prefix", byzantine().liars(&[1]).boundary(1)),
        ("liar-0-crash-1", byzantine().liars(&[0]).crashing(&[0])),
        ("liar-0-crash-2", byzantine().liars(&[0]).crashing(&[1])),
        ("liar-1-crash-0", byzantine().liars(&[1]).crashing(&[0])),
        ("liar-1-crash-2", byzantine().liars(&[1]).crashing(&[1])),
        ("liar-2-crash-0", byzantine().liars(&[2]).crashing(&[0])),
        ("liar-0-views", Scope::new(1, 1, 1, 3).liars(&[0])),
        ("liar-1-views", Scope::new(1, 1, 1, 3).liars(&[1])),
        ("liar-3-views", Scope::new(1, 1, 1, 3).liars(&[3])),
        ("liar-0-slots", Scope::new(1, 1, 2, 2).liars(&[0])),
    ];
    all.extend(rest.into_iter().map(|(name, scope)| named(name, "probe", scope)));
    all
}

/// Each flaw in a scope in which it shows.
#[must_use]
pub fn flawed() -> Vec<(Flaw, Scope)> {
    vec![
        (Flaw::QuorumOffByOne, Scope::new(1, 0, 1, 2)),
        (Flaw::QuorumOffByOne, Scope::new(1, 1, 1, 2).liars(&[0])),
        (Flaw::VotesLostAtRestart, Scope::new(1, 0, 1, 2).crashing(&[2])),
        (Flaw::ViewsLostAtRestart, Scope::new(1, 0, 1, 2).crashing(&[2])),
        (Flaw::DurableTooEarly, Scope::new(1, 0, 1, 2).crashing(&[2])),
        (Flaw::DurableTooEarlyUnseen, Scope::new(1, 0, 1, 2).crashing(&[2])),
        (Flaw::ViewChangeWithoutLocks, Scope::new(1, 0, 1, 2)),
        (Flaw::ViewChangeWithoutLocks, Scope::new(1, 1, 1, 2)),
        (Flaw::LiarTooMany, Scope::new(1, 0, 1, 2).liars(&[2])),
        (Flaw::LiarTooMany, Scope::new(1, 1, 1, 2).liars(&[0, 3])),
    ]
    .into_iter()
    .map(|(flaw, scope)| (flaw, scope.flaw(flaw)))
    .collect()
}

/// Beyond what can be explored to the end: for random walks.
#[must_use]
pub fn beyond() -> Vec<Named> {
    let byzantine = || Scope::new(1, 1, 2, 3);
    let six = || Scope::new(2, 1, 2, 3);
    let crash = Scope { crashes: 2, ..Scope::new(1, 0, 3, 4).crashing(&[0, 1, 2]) };
    vec![
        named("walk-liar-0", "n = 4, replica 0 lies: 2 slots, 3 views", byzantine().liars(&[0])),
        named("walk-liar-1", "n = 4, replica 1 lies: 2 slots, 3 views", byzantine().liars(&[1])),
        named("walk-liar-3", "n = 4, replica 3 lies: 2 slots, 3 views", byzantine().liars(&[3])),
        named(
            "walk-six",
            "n = 6 (u = 2, r = 1), replica 1 lies: 2 slots, 3 views",
            six().liars(&[1]),
        ),
        named("walk-six-twin", "n = 6, replica 0 runs twice: 2 slots, 3 views", six().twin(0)),
        named("walk-crash", "n = 3, two crashes of each: 3 slots, 4 views", crash),
        named(
            "walk-liar-crash",
            "n = 4, replica 1 lies, each other one crashes once: 1 slot, 3 views",
            Scope::new(1, 1, 1, 3).liars(&[1]).crashing(&[0, 1, 2]),
        ),
    ]
}

/// Every scope with a name but those for walks.
#[must_use]
pub fn all() -> Vec<Named> {
    let mut all = small();
    all.extend(exhaustive());
    all
}
