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
        named(
            "liar-small",
            "n = 4, replica 2 lies: 1 slot, 2 views",
            Scope::new(1, 1, 1, 2).liars(&[2]),
        ),
        named(
            "liar-small-forging",
            "the same, and it signs Accepts falsely",
            Scope::new(1, 1, 1, 2).liars(&[2]).forging(),
        ),
    ]
}

/// All that is explored to the end.
#[must_use]
pub fn exhaustive() -> Vec<Named> {
    let mut all = crash();
    all.extend(byzantine());
    all
}

fn crash() -> Vec<Named> {
    let group = || Scope::new(1, 0, 2, 2);
    let views = || Scope::new(1, 0, 1, 3);
    vec![
        named("crash", "n = 3: 2 slots, 2 views", group()),
        named(
            "crash-prefix",
            "n = 3: 2 slots, 2 views, prefix signed after slot 1",
            group().boundary(1),
        ),
        named("crash-views", "n = 3: 1 slot, 3 views", views()),
        named("crash-0-views", "n = 3, replica 0 crashes: 1 slot, 3 views", views().crashing(&[0])),
        named("crash-1-views", "n = 3, replica 1 crashes: 1 slot, 3 views", views().crashing(&[1])),
        named("crash-2-views", "n = 3, replica 2 crashes: 1 slot, 3 views", views().crashing(&[2])),
    ]
}

fn byzantine() -> Vec<Named> {
    let group = |liar: u8| Scope::new(1, 1, 1, 2).liars(&[liar]);
    let prefix = |liar: u8| group(liar).boundary(1);
    let twin = |id: u8| Scope::new(1, 1, 1, 1).twin(id);
    vec![
        named("liar-0", "n = 4, replica 0 (leads view 0) lies: 1 slot, 2 views", group(0)),
        named("liar-1", "n = 4, replica 1 (leads view 1) lies: 1 slot, 2 views", group(1)),
        named("liar-2", "n = 4, replica 2 (follows) lies: 1 slot, 2 views", group(2)),
        named(
            "liar-0-forging",
            "n = 4, replica 0 lies and signs Accepts falsely: 1 slot, 2 views",
            group(0).forging(),
        ),
        named(
            "liar-1-forging",
            "n = 4, replica 1 lies and signs Accepts falsely: 1 slot, 2 views",
            group(1).forging(),
        ),
        named(
            "liar-0-prefix",
            "n = 4, replica 0 lies: 1 slot, 2 views, its prefix signed",
            prefix(0),
        ),
        named(
            "liar-1-prefix",
            "n = 4, replica 1 lies: 1 slot, 2 views, its prefix signed",
            prefix(1),
        ),
        named("twin-0", "n = 4, replica 0 (leads) runs twice: 1 slot, 1 view", twin(0)),
        named("twin-2", "n = 4, replica 2 (follows) runs twice: 1 slot, 1 view", twin(2)),
    ]
}

/// Explored as far as a limit allows, when named on the command line.
fn large() -> Vec<Named> {
    let group = || Scope::new(1, 0, 2, 2);
    let liar = |liar: u8, seat: usize| Scope::new(1, 1, 1, 2).liars(&[liar]).crashing(&[seat]);
    let twin = |id: u8| Scope::new(1, 1, 1, 2).twin(id);
    let views = |liar: u8| Scope::new(1, 1, 1, 3).liars(&[liar]);
    vec![
        named("crash-0", "n = 3, replica 0 crashes: 2 slots, 2 views", group().crashing(&[0])),
        named("crash-1", "n = 3, replica 1 crashes: 2 slots, 2 views", group().crashing(&[1])),
        named("crash-2", "n = 3, replica 2 crashes: 2 slots, 2 views", group().crashing(&[2])),
        // By seat: the liar has none.
        named("liar-0-crash-1", "n = 4, replica 0 lies, 1 crashes: 1 slot, 2 views", liar(0, 0)),
        named("liar-0-crash-2", "n = 4, replica 0 lies, 2 crashes: 1 slot, 2 views", liar(0, 1)),
        named("liar-1-crash-0", "n = 4, replica 1 lies, 0 crashes: 1 slot, 2 views", liar(1, 0)),
        named("liar-1-crash-2", "n = 4, replica 1 lies, 2 crashes: 1 slot, 2 views", liar(1, 1)),
        named("liar-3-views", "n = 4, replica 3 lies: 1 slot, 3 views", views(3)),
        named("twin-0-views", "n = 4, replica 0 runs twice: 1 slot, 2 views", twin(0)),
        named("twin-1-views", "n = 4, replica 1 runs twice: 1 slot, 2 views", twin(1)),
        named("twin-2-views", "n = 4, replica 2 runs twice: 1 slot, 2 views", twin(2)),
    ]
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
            "walk-liar-0-forging",
            "n = 4, replica 0 lies and signs Accepts falsely: 2 slots, 3 views",
            byzantine().liars(&[0]).forging(),
        ),
        named(
            "walk-six",
            "n = 6 (u = 2, r = 1), replica 1 lies: 2 slots, 3 views",
            six().liars(&[1]),
        ),
        named("walk-six-twin", "n = 6, replica 0 runs twice: 2 slots, 3 views", six().twin(0)),
        named("walk-crash", "n = 3, two crashes of each: 3 slots, 4 views", crash),
        named("walk-twin", "n = 4, replica 1 runs twice: 2 slots, 3 views", byzantine().twin(1)),
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
    all.extend(large());
    all
}
