//! Empty answers: at some moment of each such call the queue can have been empty. A value is there
//! for certain between the end of the bounds of its put and the beginning of those of its leaving. One
//! of which nobody knows who took it is there for good, but for as many as there are takings of
//! unknown outcome that were called by then.
//!
//! Each answer is given the earliest such moment for which there are takers enough, those before it
//! included, and keeps it. In theory an answer could have to have a later moment for the sake of
//! another one; no history is known of which that is so.

use super::values::{Seen, Value};
use super::{Flaw, takers};

fn covers(value: &Value, moment: u64) -> bool {
    value.times.put.1 < moment && moment < value.times.left.0
}

/// Finds a moment for each empty answer, by which what was there has to be taken.
pub fn place(seen: &mut Seen) -> Result<(), Flaw> {
    for (from, to) in seen.empties.iter().map(|empty| empty.span).collect::<Vec<_>>() {
        let ends = seen.values.iter().map(|value| value.times.left.0);
        let mut moments: Vec<u64> = ends.chain(seen.takers.iter().copied()).collect();
        moments.retain(|moment| (from + 1..=to).contains(moment));
        moments.push(from);
        moments.sort_unstable();
        moments.dedup();
        if !moments.into_iter().any(|moment| is_placed(seen, moment)) {
            return Err(flaw(seen, (from, to)));
        }
    }
    Ok(())
}

/// Whether nothing can have been there at this moment; then what was there is gone by then.
fn is_placed(seen: &mut Seen, moment: u64) -> bool {
    if seen.values.iter().any(|value| covers(value, moment)) {
        return false;
    }
    let before: Vec<u64> = seen.values.iter().map(|value| value.times.left.1).collect();
    for value in seen.values.iter_mut().filter(|value| value.times.put.1 < moment) {
        value.times.left.1 = value.times.left.1.min(moment);
    }
    if takers::assign(seen).is_ok() {
        return true;
    }
    for (value, left_by) in seen.values.iter_mut().zip(before) {
        value.times.left.1 = left_by;
    }
    false
}

fn flaw(seen: &Seen, (from, to): (u64, u64)) -> Flaw {
    let there =
        |value: &&Value| value.times.put.1 <= to && (value.times.left.0 > from || !value.taken);
    let values: Vec<String> =
        seen.values.iter().filter(there).map(|value| value.name.clone()).collect();
    let what = format!(
        "a call found nothing, or left nothing, between {from} and {to}, though at every moment of \
         that some of these were there: {}",
        values.join(", ")
    );
    Flaw { what, values }
}
