//! The order of the values. One is *before* another where its put ended before the other's began,
//! where it was the head before the other left, where a chain says so, or through a third. What was
//! put at one moment, or left at one, has nothing between its values: what is before one of them is
//! before all. Then it was put earlier, and had left when the other became the head, which narrows
//! the bounds of both, and may put more in order. It ends where nothing changes, or where no order is
//! left.

use super::values::{Seen, Times, Value};
use super::{Flaw, takers, together};

/// Which values are before which, by place.
pub struct Before(Vec<Vec<bool>>);

impl Before {
    /// As far as the bounds say so.
    fn of(seen: &Seen) -> Before {
        let all = 0..seen.values.len();
        let direct = |one: usize, other: usize| {
            let (first, second) = (seen.values[one].times, seen.values[other].times);
            one != other && (first.put.1 < second.put.0 || first.head_by < second.left.0)
        };
        let row = |one| all.clone().map(|other| direct(one, other)).collect();
        let mut before = Before(all.clone().map(row).collect());
        for chain in &seen.chains {
            chain.windows(2).for_each(|pair| before.0[pair[0]][pair[1]] = true);
        }
        before.keep_apart(seen);
        let groups = || seen.put_together.iter().chain(&seen.taken_together);
        let groups: Vec<&Vec<usize>> = groups().filter(|group| group.len() > 1).collect();
        before.close();
        while groups.iter().any(|group| before.keep_together(group)) {
            before.close();
        }
        before
    }

    /// Adds what was put before a moment at which values were taken and nothing was left, or left
    /// after it.
    fn keep_apart(&mut self, seen: &Seen) {
        let after = seen.empties.iter().filter_map(|empty| Some((empty.after?, empty.span)));
        for (group, (from, to)) in after.map(|(at, span)| (&seen.taken_together[at], span)) {
            for other in (0..self.0.len()).filter(|other| !group.contains(other)) {
                let times = seen.values[other].times;
                self.0[other][group[0]] |= times.put.1 < from;
                self.0[group[0]][other] |= times.left.0 > to;
            }
        }
    }

    /// Whether one came before another.
    pub fn has(&self, one: usize, other: usize) -> bool {
        self.0[one][other]
    }

    /// Adds what follows through a third.
    fn close(&mut self) {
        for middle in 0..self.0.len() {
            let behind = self.0[middle].clone();
            for row in self.0.iter_mut().filter(|row| row[middle]) {
                row.iter_mut().zip(&behind).for_each(|(known, new)| *known |= new);
            }
        }
    }

    /// Adds what follows for values that have none of others between them; whether there was any.
    fn keep_together(&mut self, group: &[usize]) -> bool {
        let mut changed = false;
        for other in (0..self.0.len()).filter(|other| !group.contains(other)) {
            let first = group.iter().any(|one| self.0[other][*one]);
            let last = group.iter().any(|one| self.0[*one][other]);
            for one in group {
                changed |= first && !self.0[other][*one] || last && !self.0[*one][other];
                self.0[other][*one] |= first;
                self.0[*one][other] |= last;
            }
        }
        changed
    }
}

/// Narrows all bounds; a flaw if there is no order.
pub fn settle(seen: &mut Seen) -> Result<(), Flaw> {
    loop {
        let before: Vec<Times> = seen.values.iter().map(|value| value.times).collect();
        let chains = seen.chains.len();
        for at in 0..seen.values.len() {
            narrow_by_empties(seen, at);
            check(seen, at, at)?;
        }
        together::narrow(seen)?;
        let order = Before::of(seen);
        for one in 0..seen.values.len() {
            for other in 0..seen.values.len() {
                if one != other && order.has(one, other) {
                    narrow(seen, one, other)?;
                }
            }
        }
        together::narrow_ends(seen, &order)?;
        let is_as_before = |(before, value): (&Times, &Value)| *before == value.times;
        let is_settled =
            chains == seen.chains.len() && before.iter().zip(&seen.values).all(is_as_before);
        if is_settled && !takers::leave_the_rest(seen) {
            return find_cycle(seen, &order);
        }
    }
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
pub fn narrow_by_itself(times: &mut Times) {
    times.head_by = times.head_by.min(times.left.1);
    times.put.1 = times.put.1.min(times.head_by);
    times.left.0 = times.left.0.max(times.put.0);
}

/// What was there before a moment at which nothing was has left by then, and what left after it was
/// put after it.
fn narrow_by_empties(seen: &mut Seen, at: usize) {
    let Seen { values, empties, .. } = seen;
    let times = &mut values[at].times;
    narrow_by_itself(times);
    for (from, to) in empties.iter().map(|empty| empty.span) {
        if times.put.1 < from {
            times.left.1 = times.left.1.min(to);
        }
        if times.left.0 > to {
            times.put.0 = times.put.0.max(from);
        }
    }
    narrow_by_itself(times);
}

/// Whether a value has times left, after those of another one narrowed them.
pub fn check(seen: &Seen, one: usize, other: usize) -> Result<(), Flaw> {
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

/// Looks for values that are before themselves, through others.
fn find_cycle(seen: &Seen, order: &Before) -> Result<(), Flaw> {
    let circle = (0..seen.values.len()).filter(|at| order.has(*at, *at));
    let values: Vec<String> = circle.map(|at| seen.values[at].name.clone()).collect();
    if values.is_empty() {
        return Ok(());
    }
    let what = format!("no queue has an order in which these are: {}", values.join(", "));
    Err(Flaw { what, values })
}
