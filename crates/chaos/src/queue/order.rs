//! The order of the values. One is *before* another where its put ended before the other's began,
//! where it was the head before the other left, or where a chain says so; then it was put earlier,
//! and had left when the other became the head, which narrows the bounds of both, and may put more
//! in order. It ends where nothing changes, or where no order is left.

use super::Flaw;
use super::values::{Seen, Times};

/// Narrows all bounds; a flaw if there is no order.
pub fn settle(seen: &mut Seen) -> Result<(), Flaw> {
    let chained = chained(seen);
    let mut changed = true;
    while changed {
        let before: Vec<Times> = seen.values.iter().map(|value| value.times).collect();
        for at in 0..seen.values.len() {
            narrow_by_empties(&mut seen.values[at].times, &seen.empties);
            check(seen, at, at)?;
        }
        for one in 0..seen.values.len() {
            for other in 0..seen.values.len() {
                if one != other && is_before(seen, &chained, one, other) {
                    narrow(seen, one, other)?;
                }
            }
        }
        changed = before.iter().zip(&seen.values).any(|(before, value)| *before != value.times);
    }
    find_cycle(seen, &chained)
}

/// By value, those that come right behind it in a chain.
fn chained(seen: &Seen) -> Vec<Vec<usize>> {
    let mut chained = vec![Vec::new(); seen.values.len()];
    for chain in &seen.chains {
        chain.windows(2).for_each(|pair| chained[pair[0]].push(pair[1]));
    }
    chained
}

fn is_before(seen: &Seen, chained: &[Vec<usize>], one: usize, other: usize) -> bool {
    let (first, second) = (seen.values[one].times, seen.values[other].times);
    first.put.1 < second.put.0 || first.head_by < second.left.0 || chained[one].contains(&other)
}

/// One came before the other.
fn narrow(seen: &mut Seen, one: usize, other: usize) -> Result<(), Flaw> {
    let (first, second) = (seen.values[one].times, seen.values[other].times);
    let times = &mut seen.values[one].times;
    times.put.1 = first.put.1.min(second.put.1);
    times.left.1 = first.left.1.min(second.head_by);
    narrow_by_itself(times);
    let times = &mut seen.values[other].times;
    times.put.0 = second.put.0.max(first.put.0);
    times.left.0 = second.left.0.max(first.left.0);
    narrow_by_itself(times);
    check(seen, one, other)?;
    check(seen, other, one)
}

/// It is put, becomes the head, and leaves, in this order.
fn narrow_by_itself(times: &mut Times) {
    times.head_by = times.head_by.min(times.left.1);
    times.put.1 = times.put.1.min(times.head_by);
    times.left.0 = times.left.0.max(times.put.0);
}

/// What was there before an empty answer was asked for has left when it is given, and what left
/// after that was put after it was asked for.
fn narrow_by_empties(times: &mut Times, empties: &[(u64, u64)]) {
    narrow_by_itself(times);
    for (from, to) in empties {
        if times.put.1 < *from {
            times.left.1 = times.left.1.min(*to);
        }
        if times.left.0 > *to {
            times.put.0 = times.put.0.max(*from);
        }
    }
    narrow_by_itself(times);
}

/// Whether a value has times left, after those of another one narrowed them.
fn check(seen: &Seen, one: usize, other: usize) -> Result<(), Flaw> {
    let (first, second) = (&seen.values[one], &seen.values[other]);
    let times = first.times;
    if times.put.0 <= times.put.1 && times.left.0 <= times.left.1 {
        return Ok(());
    }
    let (name, because) = (&first.name, &second.name);
    if one == other {
        let what = format!("no queue has {name} where it was seen and where it was not");
        return Err(Flaw { what, values: vec![name.clone()] });
    }
    let what = format!("no order of a queue explains when {name} and {because} were put and had");
    Err(Flaw { what, values: vec![name.clone(), because.clone()] })
}

/// Looks for values each of which is before the next, in a circle.
fn find_cycle(seen: &Seen, chained: &[Vec<usize>]) -> Result<(), Flaw> {
    let mut left: Vec<usize> = (0..seen.values.len()).collect();
    while !left.is_empty() {
        let behind =
            |at: usize| left.iter().any(|one| *one != at && is_before(seen, chained, *one, at));
        let first: Vec<usize> = left.iter().copied().filter(|at| !behind(*at)).collect();
        if first.is_empty() {
            let values: Vec<String> = left.iter().map(|at| seen.values[*at].name.clone()).collect();
            let what = format!("no queue has an order in which these are: {}", values.join(", "));
            return Err(Flaw { what, values });
        }
        left.retain(|at| !first.contains(at));
    }
    Ok(())
}
