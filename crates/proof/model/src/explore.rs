//! Breadth first through all states, so that a violation comes with a shortest trace; and random
//! walks where the space is too large.

use crate::mix::Mix;
use crate::model::{Broken, Input, LocalId, Model, Move, Sizes};
use crate::scope::Scope;
use crate::violation::Violation;
use std::hash::{Hash, Hasher};

/// The states seen, in the order in which they were found, each with the one it was found from.
struct Seen {
    seats: usize,
    flat: Vec<LocalId>,
    parents: Vec<u32>,
    // Open addressing; 0 is free, else the number of a state plus one.
    places: Vec<u32>,
}

impl Seen {
    fn new(seats: usize) -> Seen {
        Seen { seats, flat: Vec::new(), parents: Vec::new(), places: vec![0; 1 << 16] }
    }

    fn len(&self) -> usize {
        self.parents.len()
    }

    fn state(&self, index: usize) -> &[LocalId] {
        &self.flat[index * self.seats..(index + 1) * self.seats]
    }

    fn place(&self, state: &[LocalId]) -> usize {
        let mut hasher = Mix::default();
        state.hash(&mut hasher);
        let mask = self.places.len() - 1;
        let mut place = hasher.finish() as usize & mask;
        while self.places[place] != 0 && self.state(self.places[place] as usize - 1) != state {
            place = (place + 1) & mask;
        }
        place
    }

    /// Whether the state was new.
    fn insert(&mut self, state: &[LocalId], parent: u32) -> bool {
        let place = self.place(state);
        if self.places[place] != 0 {
            return false;
        }
        self.flat.extend_from_slice(state);
        self.parents.push(parent);
        self.places[place] = self.parents.len() as u32;
        if self.parents.len() * 2 > self.places.len() {
            self.grow();
        }
        true
    }

    fn grow(&mut self) {
        self.places = vec![0; self.places.len() * 2];
        for index in 0..self.parents.len() {
            let state = self.state(index).to_vec();
            let place = self.place(&state);
            self.places[place] = index as u32 + 1;
        }
    }

    fn path(&self, end: usize) -> Vec<usize> {
        let mut path = vec![end];
        while self.parents[path[path.len() - 1]] != u32::MAX {
            path.push(self.parents[path[path.len() - 1]] as usize);
        }
        path.reverse();
        path
    }
}

/// What an exploration found.
#[derive(Debug)]
pub struct Outcome {
    /// States of the group.
    pub states: usize,
    /// Steps between them that were looked at.
    pub transitions: u64,
    /// Steps on the longest of the shortest ways to a state.
    pub depth: usize,
    /// States in which nothing can happen any more.
    pub ends: u64,
    /// Whether every state within the bounds was visited.
    pub complete: bool,
    /// Sizes of the tables.
    pub sizes: Sizes,
    /// For each view the states of one replica in it that have delivered something.
    pub deliveries: Vec<usize>,
    /// Rare branches with how many states of one replica have each behind them.
    pub marks: Vec<(&'static str, usize)>,
    /// What was violated, and the steps that lead there.
    pub violation: Option<(Violation, Vec<String>)>,
}

/// Visits all states of a scope, `limit` at most.
#[must_use]
pub fn explore(scope: Scope, limit: usize) -> Outcome {
    explore_with(scope, limit, |_, _| {})
}

/// The same, and shows every state to `visit`.
#[must_use]
pub fn explore_with(
    scope: Scope,
    limit: usize,
    mut visit: impl FnMut(&Model, &[LocalId]),
) -> Outcome {
    let (mut model, first) = match Model::new(scope) {
        Ok(started) => started,
        Err(violation) => return failed_at_start(violation),
    };
    let mut seen = Seen::new(first.len());
    seen.insert(&first, u32::MAX);
    let mut run = Outcome {
        states: 0,
        transitions: 0,
        depth: 0,
        ends: 0,
        complete: true,
        sizes: model.sizes(),
        deliveries: Vec::new(),
        marks: Vec::new(),
        violation: None,
    };
    let (mut index, mut level_end) = (0, 1);
    let mut moves: Vec<Move> = Vec::new();
    while index < seen.len() {
        if index == level_end {
            level_end = seen.len();
            run.depth += 1;
        }
        if seen.len() > limit {
            run.complete = false;
            break;
        }
        let mut state = seen.state(index).to_vec();
        visit(&model, &state);
        if let Err(broken) = model.moves(&state, &mut moves) {
            run.violation =
                Some(trace(&mut model, &seen, index, Some(broken.clone()), broken.violation));
            break;
        }
        if moves.is_empty() {
            run.ends += 1;
            if let Err(violation) = model.judge_end(&state) {
                run.violation = Some(trace(&mut model, &seen, index, None, violation));
                break;
            }
        }
        run.transitions += moves.len() as u64;
        for step in &moves {
            let before = std::mem::replace(&mut state[step.seat], step.next);
            seen.insert(&state, index as u32);
            state[step.seat] = before;
        }
        index += 1;
    }
    run.states = seen.len();
    run.sizes = model.sizes();
    run.deliveries = model.deliveries();
    run.marks = model.marks();
    run
}

fn failed_at_start(violation: Violation) -> Outcome {
    Outcome {
        states: 0,
        transitions: 0,
        depth: 0,
        ends: 0,
        complete: false,
        sizes: Sizes { locals: 0, posts: 0, steps: 0 },
        deliveries: Vec::new(),
        marks: Vec::new(),
        violation: Some((violation, Vec::new())),
    }
}

/// The steps from the start to a state, found again by taking them.
fn trace(
    model: &mut Model,
    seen: &Seen,
    end: usize,
    broken: Option<Broken>,
    violation: Violation,
) -> (Violation, Vec<String>) {
    let mut lines = Vec::new();
    let mut moves = Vec::new();
    for pair in seen.path(end).windows(2) {
        let (from, to) = (seen.state(pair[0]).to_vec(), seen.state(pair[1]).to_vec());
        let known = model.moves(&from, &mut moves).is_ok();
        let step = moves
            .iter()
            .find(|step| known && to[step.seat] == step.next && from[step.seat] != to[step.seat]);
        lines.extend(step.map(|step| model.describe(step.seat, step.input, step.until_stall)));
    }
    lines.extend(broken.map(|b| model.describe(b.seat, b.input, b.until_stall)));
    (violation, lines)
}

/// What random walks found.
#[derive(Debug)]
pub struct Walked {
    /// Walks.
    pub walks: u64,
    /// Steps in all of them.
    pub steps: u64,
    /// Steps of the longest.
    pub longest: usize,
    /// Walks that came to an end in which nothing can happen any more.
    pub ends: u64,
    /// Different states of single replicas, in the last table.
    pub sizes: Sizes,
    /// What was violated, in which walk, and the steps that lead there.
    pub violation: Option<(u64, Violation, Vec<String>)>,
}

/// A walk ends here: a liar may change its unverified votes for ever.
const WALK_STEPS: usize = 300;

/// The tables of a model are started afresh beyond this many states of single replicas.
const LOCALS_KEPT: usize = 50_000;

/// Takes random walks from the start, each decided by its seed.
#[must_use]
pub fn walk(scope: &Scope, seeds: std::ops::Range<u64>, enough: impl FnMut() -> bool) -> Walked {
    walk_with(scope, seeds, enough, |_, _| {})
}

/// The same, and shows every state to `visit`.
#[must_use]
pub fn walk_with(
    scope: &Scope,
    seeds: std::ops::Range<u64>,
    mut enough: impl FnMut() -> bool,
    mut visit: impl FnMut(&Model, &[LocalId]),
) -> Walked {
    let mut walked = Walked {
        walks: 0,
        steps: 0,
        longest: 0,
        ends: 0,
        sizes: Sizes { locals: 0, posts: 0, steps: 0 },
        violation: None,
    };
    let mut started = Model::new(scope.clone());
    for seed in seeds {
        if enough() {
            break;
        }
        if started.as_ref().is_ok_and(|(model, _)| model.sizes().locals > LOCALS_KEPT) {
            started = Model::new(scope.clone());
        }
        let Ok((model, first)) = &mut started else { break };
        walked.walks += 1;
        if let Err((violation, lines)) = one_walk(model, first, seed, &mut walked, &mut visit) {
            walked.violation = Some((seed, violation, lines));
            return walked;
        }
        walked.sizes = model.sizes();
    }
    walked
}

fn one_walk(
    model: &mut Model,
    first: &[LocalId],
    seed: u64,
    walked: &mut Walked,
    visit: &mut impl FnMut(&Model, &[LocalId]),
) -> Result<(), (Violation, Vec<String>)> {
    let mut random = Random(seed);
    let mut state = first.to_vec();
    let mut taken: Vec<(usize, Input, Option<u32>)> = Vec::new();
    let mut moves = Vec::new();
    loop {
        let told = |model: &Model, taken: &[(usize, Input, Option<u32>)]| {
            taken.iter().map(|(seat, input, stall)| model.describe(*seat, *input, *stall)).collect()
        };
        visit(model, &state);
        if let Err(broken) = model.moves(&state, &mut moves) {
            taken.push((broken.seat, broken.input, broken.until_stall));
            return Err((broken.violation, told(model, &taken)));
        }
        if moves.is_empty() {
            walked.ends += 1;
            model.judge_end(&state).map_err(|violation| (violation, told(model, &taken)))?;
            return Ok(());
        }
        if taken.len() >= WALK_STEPS {
            return Ok(());
        }
        let step = random.pick(&moves);
        state[step.seat] = step.next;
        taken.push((step.seat, step.input, step.until_stall));
        walked.steps += 1;
        walked.longest = walked.longest.max(taken.len());
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of the steps; time-outs and crashes are rarer, so that views have time to get somewhere.
    fn pick(&mut self, moves: &[Move]) -> Move {
        let weight = |step: &Move| match step.input {
            Input::Join(_) | Input::Crash(_) => 1,
            _ => 8,
        };
        let total: u64 = moves.iter().map(weight).sum();
        let mut left = self.next() % total;
        for step in moves {
            if left < weight(step) {
                return *step;
            }
            left -= weight(step);
        }
        moves[0]
    }
}
