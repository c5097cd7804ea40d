//! The store as its documentation has it: a map, and transactions that happen whole or not.

use perdura_oracle::{Call, Return, Step, StepReturn};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Keys and values, which all copies share.
type Map = BTreeMap<Arc<str>, Arc<str>>;

/// The map. Copies share it until one changes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Model(Arc<Map>);

impl Model {
    /// Carries out a call.
    pub fn run(&mut self, call: &Call) -> Return {
        match call {
            Call::Get { key } => Return::Value(value_of(&self.0, key)),
            Call::Put { key, value } => {
                Arc::make_mut(&mut self.0).insert(key.as_str().into(), value.as_str().into());
                Return::Put
            }
            Call::Delete { key } => {
                Return::Deleted(Arc::make_mut(&mut self.0).remove(key.as_str()).is_some())
            }
            Call::Transaction { steps } => {
                let mut copy = Map::clone(&self.0);
                match transact(&mut copy, steps) {
                    Ok(results) => {
                        if copy != *self.0 {
                            self.0 = Arc::new(copy);
                        }
                        Return::Committed(results)
                    }
                    Err(failed) => Return::Failed(failed as u32),
                }
            }
        }
    }

    /// What the entries count for, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let entry = |(key, value): (&Arc<str>, &Arc<str>)| {
            (key.len() + value.len() + perdura_store::limits::ENTRY_OVERHEAD_BYTES) as u64
        };
        self.0.iter().map(entry).sum()
    }

    /// The keys from `start` on and before `end`, in the order in which they are read.
    pub fn keys(&self, start: &str, end: Option<&str>, reverse: bool) -> Vec<&str> {
        let from = self.0.range::<str, _>((Bound::Included(start), Bound::Unbounded));
        let keys = from.map(|(key, _)| &**key).take_while(|key| end.is_none_or(|end| *key < end));
        let mut keys: Vec<&str> = keys.collect();
        if reverse {
            keys.reverse();
        }
        keys
    }

    /// What a call that only reads would give.
    #[must_use]
    pub fn ask(&self, call: &Call) -> Return {
        self.clone().run(call)
    }
}

fn value_of(map: &Map, key: &str) -> Option<String> {
    map.get(key).map(|value| value.to_string())
}

fn transact(map: &mut Map, steps: &[Step]) -> Result<Vec<StepReturn>, usize> {
    for (index, step) in steps.iter().enumerate() {
        if let Step::Cmp { key, value } = step
            && map.get(key.as_str()).map(|held| &**held) != value.as_deref()
        {
            return Err(index);
        }
    }
    let mut results = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        results.push(match step {
            Step::Cmp { .. } => StepReturn::Done,
            Step::Read { key } => StepReturn::Value(value_of(map, key)),
            Step::Range { start, end, limit, reverse } => {
                range(map, start, end.as_deref(), *limit as usize, *reverse)
            }
            Step::Insert { key, value } => {
                if map.contains_key(key.as_str()) {
                    return Err(index);
                }
                map.insert(key.as_str().into(), value.as_str().into());
                StepReturn::Done
            }
            Step::Write { key, value, only_if_present } => {
                if *only_if_present && !map.contains_key(key.as_str()) {
                    return Err(index);
                }
                map.insert(key.as_str().into(), value.as_str().into());
                StepReturn::Done
            }
            Step::Delete { key } => StepReturn::Deleted(map.remove(key.as_str()).is_some()),
        });
    }
    Ok(results)
}

fn range(map: &Map, start: &str, end: Option<&str>, limit: usize, reverse: bool) -> StepReturn {
    let inside = |key: &str| key >= start && end.is_none_or(|end| key < end);
    let mut entries: Vec<(String, String)> = map
        .iter()
        .filter(|(key, _)| inside(key))
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect();
    if reverse {
        entries.reverse();
    }
    let more = entries.len() > limit;
    entries.truncate(limit);
    StepReturn::Entries { entries, more }
}
