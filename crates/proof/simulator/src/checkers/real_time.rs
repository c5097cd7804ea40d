//! That an order of execution respects real time: what is called after something has ended stands
//! behind it. Shared by the judges of the store and of the tuple spaces.

use std::collections::BTreeMap;

/// A call, as far as time is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// When it was called.
    pub invoked: u64,
    /// When it ended, if its effect is certain by then.
    pub ended: Option<u64>,
    /// Where in the order it was executed, from 1, and where it took effect: the same but for what
    /// waited. Nothing if it was not ordered, or is not known to have happened.
    pub places: Option<(usize, usize)>,
}

/// Walks through the calls in the order in which they were made: each must stand behind everything
/// that had ended by then. `choose` gives the place, not before the given one, of a call that was
/// answered without being ordered, nothing where there is nothing to place.
///
/// # Errors
/// What `choose` says, or what `late` says of a call and the place that it ought to stand behind.
pub fn check<E>(
    spans: &[Span],
    mut choose: impl FnMut(usize, usize) -> Result<Option<usize>, E>,
    late: impl Fn(usize, (usize, usize)) -> E,
) -> Result<(), E> {
    let mut by_call: Vec<usize> = (0..spans.len()).collect();
    by_call.sort_by_key(|index| spans[*index].invoked);
    // Ends with the place that everything called later must stand behind.
    let mut ended: BTreeMap<u64, usize> = BTreeMap::new();
    let mut behind = 0;
    for index in by_call {
        let span = spans[index];
        while let Some(first) = ended.first_entry()
            && *first.key() < span.invoked
        {
            behind = behind.max(first.remove());
        }
        let place = match span.places {
            // It took effect as the first-th command, so it stands behind first - 1 others.
            Some((first, _)) if first <= behind => return Err(late(index, (first, behind))),
            Some((_, last)) => last,
            None => match choose(index, behind)? {
                Some(place) => place,
                None => continue,
            },
        };
        if let Some(end) = span.ended {
            ended.insert(end, place);
        }
    }
    Ok(())
}
