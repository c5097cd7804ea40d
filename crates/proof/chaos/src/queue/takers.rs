//! Values that left the queue and of which nobody knows who took them need a taking of unknown
//! outcome each, called before they left at the latest. A taking may happen at any time after its
//! call, so the first ones can do whatever later ones can: the value that left first gets the first. Of those
//! that were the head, and may be there still, one can be.

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
    let may_stay = |value: &&Value| !value.taken && value.times.left.1 == NEVER;
    let heads = seen.values.iter().filter(may_stay).filter(|value| value.times.head_by < NEVER);
    let heads: Vec<String> = heads.map(|value| value.name.clone()).collect();
    if seen.takers.len() < gone.len() + heads.len().saturating_sub(1) {
        let names = heads.join(", ");
        let what = format!("each was the first, and nobody can have taken all but one: {names}");
        return Err(Flaw { what, values: heads });
    }
    Ok(())
}

/// Where all takers are needed for those that are gone, others stay; whether that is news.
pub fn leave_the_rest(seen: &mut Seen) -> bool {
    let gone = |value: &&Value| !value.taken && value.times.left.1 < NEVER;
    if seen.values.iter().filter(gone).count() < seen.takers.len() {
        return false;
    }
    let stays = |value: &&mut Value| !value.taken && value.times.left.1 == NEVER;
    seen.values.iter_mut().filter(stays).fold(false, |news, value| {
        let left = std::mem::replace(&mut value.times.left.0, NEVER);
        news || left < NEVER
    })
}
