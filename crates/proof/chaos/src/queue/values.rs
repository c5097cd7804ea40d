//! What a history says of each value by itself: when it can have been put, have become the head and
//! have left. Nothing else in the judgement looks at operations.

use super::{Call, Flaw, Item, Return};
use crate::clocks::Clocks;
use crate::operation::{Call as Any, Operation, Outcome, Return as AnyReturn};
use std::collections::BTreeMap;

/// A time that never comes.
pub const NEVER: u64 = u64::MAX;

/// Bounds of a value's times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// It was put at one of these, or between.
    pub put: (u64, u64),
    /// It was the head by then.
    pub head_by: u64,
    /// It left at one of these, or between; the latter never if it may have stayed.
    pub left: (u64, u64),
}

/// A value that was in the queue for certain.
#[derive(Debug)]
pub struct Value {
    /// The value.
    pub name: String,
    /// The number of its tuple, where it is known.
    pub number: Option<u64>,
    /// When it was where.
    pub times: Times,
    /// Whether it is known who took it.
    pub taken: bool,
    /// Whether somebody saw that it was the head and did not take it.
    pub read: bool,
}

/// An answer by which nothing is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Empty {
    /// Nothing was there at one of these moments, or between.
    pub span: (u64, u64),
    /// If values were taken at that moment, their place in [`Seen::taken_together`].
    pub after: Option<usize>,
}

/// What is known of all values.
#[derive(Debug, Default)]
pub struct Seen {
    /// Values that were in the queue.
    pub values: Vec<Value>,
    /// Values in the order of the queue, by place in [`Seen::values`].
    pub chains: Vec<Vec<usize>>,
    /// Values that were put at one moment, by place.
    pub put_together: Vec<Vec<usize>>,
    /// Values that left at one moment, by place.
    pub taken_together: Vec<Vec<usize>>,
    /// Of [`Seen::taken_together`], those that left something.
    pub more: Vec<usize>,
    /// When something else may have been put of which nobody knows, ascending.
    pub maybe: Vec<u64>,
    /// Answers by which nothing is left.
    pub empties: Vec<Empty>,
    /// Times since which a value may have been taken by somebody who does not know, ascending.
    pub takers: Vec<u64>,
}

/// A value that somebody put, perhaps.
struct Put {
    value: Value,
    refused: bool,
    // Whether it was in the queue for certain.
    certain: bool,
}

#[derive(Default)]
struct Reader {
    puts: BTreeMap<String, Put>,
    // Values that were put together, and that were taken together.
    groups: Vec<Vec<String>>,
    taken_together: Vec<Vec<String>>,
    seen: Seen,
}

fn flaw(what: String, value: &str) -> Flaw {
    Flaw { what, values: vec![value.to_owned()] }
}

impl Seen {
    /// Of a history.
    pub fn of(operations: &[Operation], clocks: &Clocks) -> Result<Seen, Flaw> {
        let mut reader = Reader::default();
        operations.iter().try_for_each(|operation| reader.read_put(operation))?;
        operations.iter().try_for_each(|operation| reader.read_answer(operation, clocks))?;
        reader.put_together();
        reader.seen()
    }
}

impl Reader {
    fn read_put(&mut self, operation: &Operation) -> Result<(), Flaw> {
        let Any::Queue(Call::Out { values }) = &operation.call else { return Ok(()) };
        let first = match &operation.outcome {
            Outcome::Ok(AnyReturn::Queue(Return::Inserted { first })) => *first,
            _ => None,
        };
        let certain = matches!(operation.outcome, Outcome::Ok(_));
        for (place, name) in (0..).zip(values) {
            let value = Value {
                name: name.clone(),
                number: first.map(|first| first.saturating_add(place)),
                times: Times {
                    put: (operation.invoked, operation.ended.filter(|_| certain).unwrap_or(NEVER)),
                    head_by: NEVER,
                    left: (operation.invoked, NEVER),
                },
                taken: false,
                read: false,
            };
            let refused = operation.outcome == Outcome::Refused;
            if self.puts.insert(name.clone(), Put { value, refused, certain }).is_some() {
                return Err(flaw(
                    format!("{name} is put twice: the judge needs unique values"),
                    name,
                ));
            }
        }
        self.groups.push(values.clone());
        Ok(())
    }

    fn read_answer(&mut self, operation: &Operation, clocks: &Clocks) -> Result<(), Flaw> {
        let Any::Queue(call) = &operation.call else {
            return Err(flaw(format!("this is no operation of a queue: {operation}"), ""));
        };
        let answer = match &operation.outcome {
            Outcome::Refused => return Ok(()),
            Outcome::Unknown => {
                let most = match call {
                    Call::Inp | Call::In { .. } => 1,
                    Call::InAll { limit } => *limit as usize,
                    Call::Out { .. } | Call::Rdp { .. } | Call::Rd { .. } => 0,
                };
                self.seen.takers.extend(std::iter::repeat_n(operation.invoked, most));
                return Ok(());
            }
            Outcome::Ok(AnyReturn::Queue(answer)) => answer,
            Outcome::Ok(_) => {
                return Err(flaw(format!("this is no answer of a queue: {operation}"), ""));
            }
        };
        let span = (operation.invoked, operation.ended.unwrap_or(NEVER));
        match (call, answer) {
            (Call::Out { .. }, Return::Inserted { .. }) => Ok(()),
            (Call::Inp | Call::In { .. }, Return::Found { item: Some(item) }) => {
                self.taken(item, span)
            }
            (Call::Rdp { .. } | Call::Rd { .. }, Return::Found { item: Some(item) }) => {
                self.had(item, span)?.read = true;
                Ok(())
            }
            (Call::Inp | Call::Rdp { .. }, Return::Found { item: None }) => {
                self.seen.empties.push(Empty { span, after: None });
                Ok(())
            }
            (Call::In { wait_ms } | Call::Rd { wait_ms }, Return::Found { item: None }) => {
                let ends = wait_ms.saturating_mul(1000).saturating_add(span.0);
                let from = ends.saturating_sub(clocks.allowance_us(span)).max(span.0);
                if from > span.1 {
                    return Err(flaw(format!("a wait ended before its time: {operation}"), ""));
                }
                self.seen.empties.push(Empty { span: (from, span.1), after: None });
                Ok(())
            }
            (Call::InAll { limit }, Return::FoundAll { items, more })
                if items.len() <= *limit as usize && !(items.is_empty() && *more) =>
            {
                items.iter().try_for_each(|item| self.taken(item, span))?;
                let place = self.taken_together.len();
                let after = (!items.is_empty()).then_some(place);
                if *more {
                    self.seen.more.push(place);
                } else {
                    self.seen.empties.push(Empty { span, after });
                }
                let names = items.iter().map(|item| item.value.clone());
                self.taken_together.push(names.collect());
                Ok(())
            }
            _ => Err(flaw(format!("the answer does not fit the question: {operation}"), "")),
        }
    }

    /// Somebody had a value that was the head.
    fn had(&mut self, item: &Item, (from, to): (u64, u64)) -> Result<&mut Value, Flaw> {
        let name = &item.value;
        let put = self
            .puts
            .get_mut(name)
            .ok_or_else(|| flaw(format!("{name} was had, and was never put"), name))?;
        if put.refused {
            return Err(flaw(format!("{name} was had, and its insertion was refused"), name));
        }
        put.certain = true;
        let value = &mut put.value;
        if item.number.is_some() && value.number.is_some() && item.number != value.number {
            return Err(flaw(format!("the tuple of {name} has two numbers"), name));
        }
        value.number = value.number.or(item.number);
        value.times.head_by = value.times.head_by.min(to);
        value.times.left.0 = value.times.left.0.max(from);
        Ok(value)
    }

    fn taken(&mut self, item: &Item, span: (u64, u64)) -> Result<(), Flaw> {
        let value = self.had(item, span)?;
        if value.taken {
            return Err(flaw(format!("{} was taken twice", item.value), &item.value));
        }
        value.taken = true;
        value.times.left.1 = value.times.left.1.min(span.1);
        Ok(())
    }

    /// All or none: where one was in the queue, the others were, and since the same moment.
    fn put_together(&mut self) {
        for group in &self.groups {
            let certain = || group.iter().filter_map(|name| self.puts.get(name));
            let times = certain().filter(|put| put.certain).map(|put| put.value.times);
            let Some(put_by) = times.map(|times| times.put.1.min(times.head_by)).min() else {
                continue;
            };
            for name in group {
                if let Some(put) = self.puts.get_mut(name) {
                    put.certain = true;
                    put.value.times.put.1 = put_by;
                }
            }
        }
    }

    /// Without what may never have been in the queue: nobody saw it, so it need not have been.
    fn seen(self) -> Result<Seen, Flaw> {
        let unseen = self.puts.values().filter(|put| !put.certain && !put.refused);
        let mut maybe: Vec<u64> = unseen.map(|put| put.value.times.put.0).collect();
        maybe.sort_unstable();
        let certain = self.puts.into_values().filter(|put| put.certain);
        let values: Vec<Value> = certain.map(|put| put.value).collect();
        let names = (0..).zip(&values).map(|(at, value)| (value.name.as_str(), at));
        let places: BTreeMap<&str, usize> = names.collect();
        let place = |name: &String| places.get(name.as_str()).copied();
        let all = |groups: &[Vec<String>]| -> Vec<Vec<usize>> {
            groups.iter().map(|group| group.iter().filter_map(place).collect()).collect()
        };
        let (put_together, taken_together) = (all(&self.groups), all(&self.taken_together));
        let mut chains = [&put_together[..], &taken_together].concat();
        chains.push(by_number(&values)?);
        let Seen { more, empties, mut takers, .. } = self.seen;
        takers.sort_unstable();
        Ok(Seen { values, chains, put_together, taken_together, more, maybe, empties, takers })
    }
}

/// Those whose numbers are known, ascending.
fn by_number(values: &[Value]) -> Result<Vec<usize>, Flaw> {
    let numbered = (0..values.len()).filter(|at| values[*at].number.is_some());
    let mut numbered: Vec<usize> = numbered.collect();
    numbered.sort_by_key(|at| values[*at].number);
    for pair in numbered.windows(2) {
        let (one, other) = (&values[pair[0]], &values[pair[1]]);
        if one.number == other.number {
            let what = format!("the tuples of {} and {} have one number", one.name, other.name);
            return Err(Flaw { what, values: vec![one.name.clone(), other.name.clone()] });
        }
    }
    Ok(numbered)
}
