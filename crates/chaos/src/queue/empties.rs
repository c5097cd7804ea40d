//! Empty answers: at some moment of each such call the queue can have been empty. A value is there
//! for certain between the end of the bounds of its put and the beginning of those of its leaving. One
//! of which nobody knows who took it is there for good, but for as many as there are takings of
//! unknown outcome that were called by then; the earliest such moment asks for the fewest of them.

use super::Flaw;
use super::values::{Seen, Value};

fn covers(value: &Value, moment: u64) -> bool {
    value.times.put.1 < moment && moment < value.times.left.0
}

fn can_be_empty(seen: &Seen, moment: u64) -> bool {
    let lasting = |value: &&Value| !value.taken && value.times.put.1 < moment;
    let takers = seen.takers.partition_point(|taker| *taker <= moment);
    !seen.values.iter().any(|value| covers(value, moment))
        && seen.values.iter().filter(lasting).count() <= takers
}

/// Finds a moment for each empty answer, by which what was there has to be taken.
pub fn place(seen: &mut Seen) -> Result<(), Flaw> {
    for (from, to) in seen.empties.clone() {
        let ends = seen.values.iter().map(|value| value.times.left.0);
        let mut moments: Vec<u64> = ends.chain(seen.takers.iter().copied()).collect();
        moments.retain(|moment| (from + 1..=to).contains(moment));
        moments.push(from);
        moments.sort_unstable();
        match moments.into_iter().find(|moment| can_be_empty(seen, *moment)) {
            Some(moment) => {
                let lasting = |value: &&mut Value| !value.taken && value.times.put.1 < moment;
                for value in seen.values.iter_mut().filter(lasting) {
                    value.times.left.1 = value.times.left.1.min(moment);
                }
            }
            None => return Err(flaw(seen, (from, to))),
        }
    }
    Ok(())
}

fn flaw(seen: &Seen, (from, to): (u64, u64)) -> Flaw {
    let there =
        |value: &&Value| value.times.put.1 <= to && (value.times.left.0 > from || !value.taken);
    let values: Vec<String> =
        seen.values.iter().filter(there).map(|value| value.name.clone()).collect();
    let what = format!(
        "a call from {from} to {to} found nothing, though at every moment of it some of these \
         were there: {}",
        values.join(", ")
    );
    Flaw { what, values }
}
