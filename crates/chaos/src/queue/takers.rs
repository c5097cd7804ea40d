//! Values that left the queue and of which nobody knows who took them need a taking of unknown
//! outcome each, called before they left at the latest. A taking may happen at any time after its
//! call, so the first ones can do whatever later ones can: the value that left first gets the first.

use super::Flaw;
use super::values::{NEVER, Seen, Value};

/// Gives each of them a taker; a flaw if there are too few.
pub fn assign(seen: &Seen) -> Result<(), Flaw> {
    let gone = |value: &&Value| !value.taken && value.times.left.1 < NEVER;
    let mut gone: Vec<&Value> = seen.values.iter().filter(gone).collect();
    gone.sort_by_key(|value| value.times.left.1);
    for (place, value) in gone.iter().enumerate() {
        if seen.takers.get(place).is_none_or(|taker| *taker > value.times.left.1) {
            let what = format!(
                "{} was put and was gone at {}, and nobody can have taken it",
                value.name, value.times.left.1
            );
            return Err(Flaw { what, values: vec![value.name.clone()] });
        }
    }
    Ok(())
}
