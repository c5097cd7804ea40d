//! Values that were put at one moment, or left at one. Their bounds are the same; and where the
//! answer says whether something was left behind them, there was something at that moment, or not.

use super::Flaw;
use super::order::{Before, check, narrow_by_itself};
use super::values::{NEVER, Seen};

/// Of values that left at one moment only the first was the head before that.
pub fn check_heads(seen: &Seen) -> Result<(), Flaw> {
    for group in &seen.taken_together {
        if let Some(read) = group.iter().skip(1).find(|one| seen.values[**one].read) {
            let (first, read) = (&seen.values[group[0]].name, &seen.values[*read].name);
            let what = format!("{first} and {read} were taken at once, and {read} was the first");
            return Err(Flaw { what, values: vec![first.clone(), read.clone()] });
        }
    }
    Ok(())
}

/// Gives those that were put, or left, at one moment the same bounds of it.
pub fn narrow(seen: &mut Seen) -> Result<(), Flaw> {
    for at in 0..seen.put_together.len() {
        let group = seen.put_together[at].clone();
        let times = || group.iter().map(|one| seen.values[*one].times.put);
        let first = times().map(|put| put.0).max().unwrap_or_default();
        let last = times().map(|put| put.1).min().unwrap_or(NEVER);
        for one in &group {
            let times = &mut seen.values[*one].times;
            times.put = (first, last);
            narrow_by_itself(times);
            check(seen, *one, group[0])?;
        }
    }
    (0..seen.taken_together.len()).try_for_each(|at| left_within(seen, at, (0, NEVER)))
}

/// When values left that were taken at one moment.
fn left(seen: &Seen, group: &[usize]) -> (u64, u64) {
    let times = || group.iter().map(|one| seen.values[*one].times.left);
    let first = times().map(|left| left.0).max().unwrap_or_default();
    (first, times().map(|left| left.1).min().unwrap_or(NEVER))
}

/// Values that were taken at one moment left within these times.
fn left_within(seen: &mut Seen, at: usize, (from, to): (u64, u64)) -> Result<(), Flaw> {
    let group = seen.taken_together[at].clone();
    let (first, last) = left(seen, &group);
    for one in &group {
        let times = &mut seen.values[*one].times;
        times.left = (first.max(from), last.min(to));
        narrow_by_itself(times);
        check(seen, *one, group[0])?;
    }
    Ok(())
}

/// Narrows moments at which values were taken, by whether something was left.
pub fn narrow_ends(seen: &mut Seen, order: &Before) -> Result<(), Flaw> {
    for number in 0..seen.empties.len() {
        if let Some(at) = seen.empties[number].after {
            left_nothing(seen, number, at, order)?;
        }
    }
    (0..seen.more.len()).try_for_each(|number| left_more(seen, seen.more[number], order))
}

/// What came behind these was put after they left, and so not with one of them.
fn left_nothing(seen: &mut Seen, number: usize, at: usize, order: &Before) -> Result<(), Flaw> {
    let group = seen.taken_together[at].clone();
    let mut span = left(seen, &group);
    for other in (0..seen.values.len()).filter(|other| !group.contains(other)) {
        let times = &mut seen.values[other].times;
        if order.has(group[0], other) {
            let with_it = seen.put_together.iter().filter(|put| put.contains(&other));
            if with_it.flatten().any(|one| group.contains(one)) {
                let (taken, name) = (&seen.values[group[0]].name, &seen.values[other].name);
                let what = format!("nothing was left behind {taken}, and {name} was there");
                return Err(Flaw { what, values: vec![taken.clone(), name.clone()] });
            }
            span.1 = span.1.min(times.put.1);
            times.put.0 = times.put.0.max(span.0);
            narrow_by_itself(times);
            check(seen, other, group[0])?;
        } else if order.has(other, group[0]) {
            span.0 = span.0.max(times.left.0);
        }
    }
    seen.empties[number].span = span;
    left_within(seen, at, span)
}

/// Something else was there when these left, behind them. If only one value can be meant, it was.
fn left_more(seen: &mut Seen, at: usize, order: &Before) -> Result<(), Flaw> {
    let group = seen.taken_together[at].clone();
    let (from, to) = left(seen, &group);
    if seen.maybe.first().is_some_and(|put| *put <= to) {
        return Ok(());
    }
    let can_be = |other: &usize| {
        let times = seen.values[*other].times;
        let is_there = times.put.0 <= to && times.left.1 >= from;
        is_there && !group.contains(other) && !order.has(*other, group[0])
    };
    let others: Vec<usize> = (0..seen.values.len()).filter(can_be).collect();
    match others[..] {
        [] => {
            let values = group.iter().map(|one| seen.values[*one].name.clone());
            let values: Vec<String> = values.collect();
            let taken = values.join(", ");
            let what = format!("who took {taken} was told that more was there, and nothing was");
            Err(Flaw { what, values })
        }
        [only] => {
            let times = &mut seen.values[only].times;
            times.put.1 = times.put.1.min(to);
            times.left.0 = times.left.0.max(from);
            narrow_by_itself(times);
            let (put, left) = (times.put, times.left);
            check(seen, only, group[0])?;
            let behind = vec![group[group.len() - 1], only];
            if !seen.chains.contains(&behind) {
                seen.chains.push(behind);
            }
            left_within(seen, at, (put.0, left.1))
        }
        _ => Ok(()),
    }
}
