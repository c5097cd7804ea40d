//! What an operation says about each key: what the key must have held before it, and what it
//! holds afterwards. Steps of a transaction have no data flow between keys, so this is all.
//!
//! An operation with an unknown outcome happens only if its conditions hold; if they do not, it
//! fails and changes nothing, which is as if it never happened.

use super::history::{Call, History, Operation, Outcome, Return, Step, StepReturn};
use std::collections::BTreeMap;

/// A value, by number; `None`: absent.
pub type Value = Option<u32>;

/// Keys and values of a history, numbered.
#[derive(Debug, Default)]
pub struct Keys {
    keys: BTreeMap<String, usize>,
    names: Vec<String>,
    values: BTreeMap<String, u32>,
}

impl Keys {
    /// All keys and values that the history names anywhere.
    #[must_use]
    pub fn of(history: &History) -> Keys {
        let mut keys = Keys::default();
        for operation in &history.operations {
            match &operation.call {
                Call::Get { key } | Call::Delete { key } => keys.add(key, None),
                Call::Put { key, value } => keys.add(key, Some(value)),
                Call::Transaction { steps } => steps.iter().for_each(|step| keys.add_step(step)),
            }
            if let Outcome::Ok(value) = &operation.outcome {
                keys.add_return(value);
            }
        }
        let names: Vec<String> = keys.keys.keys().cloned().collect();
        for (number, name) in names.iter().enumerate() {
            keys.keys.insert(name.clone(), number);
        }
        Keys { names, ..keys }
    }

    fn add(&mut self, key: &str, value: Option<&String>) {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.to_owned(), 0);
        }
        if let Some(value) = value {
            self.add_value(value);
        }
    }

    fn add_value(&mut self, value: &str) {
        if !self.values.contains_key(value) {
            let number = self.values.len() as u32;
            self.values.insert(value.to_owned(), number);
        }
    }

    fn add_step(&mut self, step: &Step) {
        match step {
            Step::Cmp { key, value } => self.add(key, value.as_ref()),
            Step::Read { key } | Step::Delete { key } => self.add(key, None),
            Step::Insert { key, value } | Step::Write { key, value, .. } => {
                self.add(key, Some(value));
            }
            Step::Range { .. } => {}
        }
    }

    fn add_return(&mut self, value: &Return) {
        match value {
            Return::Value(Some(value)) => self.add_value(value),
            Return::Committed(results) => {
                for result in results {
                    match result {
                        StepReturn::Value(Some(value)) => self.add_value(value),
                        StepReturn::Entries { entries, .. } => {
                            entries.iter().for_each(|(key, value)| self.add(key, Some(value)));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The key with a number.
    #[must_use]
    pub fn name(&self, key: usize) -> &str {
        &self.names[key]
    }

    fn key(&self, key: &str) -> usize {
        self.keys[key]
    }

    fn value(&self, value: Option<&str>) -> Value {
        value.map(|value| self.values[value])
    }
}

/// What a key must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Exactly this.
    Is(Value),
    /// Anything else.
    IsNot(Value),
}

impl Need {
    fn holds(self, value: Value) -> bool {
        match self {
            Need::Is(wanted) => value == wanted,
            Need::IsNot(other) => value != other,
        }
    }
}

/// What an operation says about one key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Condition {
    /// All of these held before it.
    pub needs: Vec<Need>,
    /// What it left; none if it left the key alone.
    pub sets: Option<Value>,
}

impl Condition {
    /// Whether `value` is what the operation needs.
    #[must_use]
    pub fn holds(&self, value: Value) -> bool {
        self.needs.iter().all(|need| need.holds(value))
    }
}

/// An operation as the search sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prepared {
    /// Index in the history.
    pub index: usize,
    /// When it was called.
    pub invoked: u64,
    /// When it returned; none: it need not happen.
    pub ended: Option<u64>,
    /// By key, ascending.
    pub conditions: Vec<(usize, Condition)>,
}

impl Prepared {
    /// What `operation` says; `None` if it says nothing. `Err`: no store answers so.
    pub fn of(
        keys: &Keys,
        index: usize,
        operation: &Operation,
    ) -> Result<Option<Prepared>, String> {
        let (result, ended) = match &operation.outcome {
            Outcome::Ok(result) => (Some(result), Some(operation.ended.unwrap_or(u64::MAX))),
            Outcome::Refused => return Ok(None),
            Outcome::Unknown => (None, None),
        };
        let mut reader = Reading { keys, conditions: BTreeMap::new() };
        match (&operation.call, result) {
            (Call::Get { key }, Some(Return::Value(value))) => {
                reader.reads(key, Need::Is(keys.value(value.as_deref())))?;
            }
            (Call::Put { key, value }, Some(Return::Put) | None) => reader.sets(key, Some(value)),
            (Call::Delete { key }, Some(Return::Deleted(existed))) => {
                reader.reads(key, presence(*existed))?;
                reader.sets(key, None);
            }
            (Call::Delete { key }, None) => reader.sets(key, None),
            (Call::Transaction { steps }, Some(Return::Committed(results))) => {
                reader.committed(steps, results)?;
            }
            (Call::Transaction { steps }, Some(Return::Failed(step))) => {
                reader.failed(steps, *step as usize)?;
            }
            (Call::Transaction { steps }, None) => {
                if reader.unknown(steps).is_err() {
                    return Ok(None); // It cannot commit.
                }
            }
            (Call::Get { .. }, None) => return Ok(None),
            _ => return Err("the answer does not fit the call".to_owned()),
        }
        let mut conditions = reader.conditions;
        if ended.is_none() && conditions.values().all(|one| one.sets.is_none()) {
            return Ok(None);
        }
        conditions.retain(|_, one| !one.needs.is_empty() || one.sets.is_some());
        let invoked = operation.invoked;
        let conditions: Vec<(usize, Condition)> = conditions.into_iter().collect();
        Ok((!conditions.is_empty()).then_some(Prepared { index, invoked, ended, conditions }))
    }

    /// What it says about one key.
    #[must_use]
    pub fn project(&self, key: usize) -> Option<Prepared> {
        let condition = self.condition(key)?.clone();
        if self.ended.is_none() && condition.sets.is_none() {
            return None;
        }
        Some(Prepared { conditions: vec![(key, condition)], ..*self })
    }

    /// What it says about one key, if anything.
    #[must_use]
    pub fn condition(&self, key: usize) -> Option<&Condition> {
        self.conditions.iter().find(|(held, _)| *held == key).map(|(_, condition)| condition)
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.conditions.iter().all(|(_, condition)| condition.sets.is_none())
    }
}

fn presence(existed: bool) -> Need {
    if existed { Need::IsNot(None) } else { Need::Is(None) }
}

struct Reading<'a> {
    keys: &'a Keys,
    conditions: BTreeMap<usize, Condition>,
}

impl Reading<'_> {
    /// A read sees what the transaction itself wrote, else it tells what was there before.
    fn reads(&mut self, key: &str, need: Need) -> Result<(), String> {
        self.reads_key(self.keys.key(key), need)
    }

    fn reads_key(&mut self, key: usize, need: Need) -> Result<(), String> {
        let condition = self.conditions.entry(key).or_default();
        match condition.sets {
            Some(written) if need.holds(written) => Ok(()),
            Some(_) => Err(format!(
                "a transaction does not see its own write of {:?}",
                self.keys.name(key)
            )),
            None => {
                if !condition.needs.contains(&need) {
                    condition.needs.push(need);
                }
                Ok(())
            }
        }
    }

    fn sets(&mut self, key: &str, value: Option<&str>) {
        let value = self.keys.value(value);
        self.conditions.entry(self.keys.key(key)).or_default().sets = Some(value);
    }

    fn compares(&mut self, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            if let Step::Cmp { key, value } = step {
                self.reads(key, Need::Is(self.keys.value(value.as_deref())))?;
            }
        }
        Ok(())
    }

    fn committed(&mut self, steps: &[Step], results: &[StepReturn]) -> Result<(), String> {
        if steps.len() != results.len() {
            return Err("a transaction has a result for each step".to_owned());
        }
        self.compares(steps)?;
        for (step, result) in steps.iter().zip(results) {
            match (step, result) {
                (Step::Cmp { .. }, StepReturn::Done) => {}
                (Step::Read { key }, StepReturn::Value(value)) => {
                    self.reads(key, Need::Is(self.keys.value(value.as_deref())))?;
                }
                (Step::Range { .. }, StepReturn::Entries { entries, more }) => {
                    self.range(step, entries, *more)?;
                }
                (Step::Delete { key }, StepReturn::Deleted(existed)) => {
                    self.reads(key, presence(*existed))?;
                    self.sets(key, None);
                }
                (Step::Insert { .. } | Step::Write { .. }, StepReturn::Done) => self.write(step)?,
                _ => return Err("a result does not fit its step".to_owned()),
            }
        }
        Ok(())
    }

    fn write(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Insert { key, value } => {
                self.reads(key, Need::Is(None))?;
                self.sets(key, Some(value));
            }
            Step::Write { key, value, only_if_present } => {
                if *only_if_present {
                    self.reads(key, Need::IsNot(None))?;
                }
                self.sets(key, Some(value));
            }
            Step::Delete { key } => self.sets(key, None),
            Step::Cmp { .. } | Step::Read { .. } | Step::Range { .. } => {}
        }
        Ok(())
    }

    fn unknown(&mut self, steps: &[Step]) -> Result<(), String> {
        self.compares(steps)?;
        steps.iter().try_for_each(|step| self.write(step))
    }

    /// Nothing changed; the step that failed tells why.
    fn failed(&mut self, steps: &[Step], failed: usize) -> Result<(), String> {
        let Some(step) = steps.get(failed) else {
            return Err("no such step can fail".to_owned());
        };
        if let Step::Cmp { key, value } = step {
            self.reads(key, Need::IsNot(self.keys.value(value.as_deref())))?;
        } else {
            self.compares(steps)?;
            steps[..failed].iter().try_for_each(|step| self.write(step))?;
            match step {
                Step::Insert { key, .. } => self.reads(key, Need::IsNot(None))?,
                Step::Write { key, only_if_present: true, .. } => {
                    self.reads(key, Need::Is(None))?
                }
                _ => return Err("this step cannot fail".to_owned()),
            }
        }
        self.conditions.values_mut().for_each(|condition| condition.sets = None);
        Ok(())
    }

    /// Every key of the range that the answer covers was there with its value, or was not there.
    fn range(
        &mut self,
        step: &Step,
        entries: &[(String, String)],
        more: bool,
    ) -> Result<(), String> {
        let Step::Range { start, end, reverse, limit } = step else { return Ok(()) };
        if entries.len() > *limit as usize {
            return Err("a range read gives more than was asked for".to_owned());
        }
        let found: BTreeMap<&str, &str> =
            entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let in_order = entries
            .windows(2)
            .all(|pair| if *reverse { pair[0].0 > pair[1].0 } else { pair[0].0 < pair[1].0 });
        let outside =
            |key: &str| key < start.as_str() || end.as_ref().is_some_and(|end| key >= end.as_str());
        if !in_order || entries.iter().any(|(key, _)| outside(key)) {
            return Err("a range read is out of order or out of its range".to_owned());
        }
        let last = entries.last().map(|(key, _)| key.as_str());
        for key in 0..self.keys.len() {
            let name = self.keys.name(key);
            let covered = match (more, last) {
                (false, _) => true,
                (true, None) => false,
                (true, Some(last)) => {
                    if *reverse {
                        name >= last
                    } else {
                        name <= last
                    }
                }
            };
            if covered && !outside(name) {
                let value = self.keys.value(found.get(name).copied());
                self.reads_key(key, Need::Is(value))?;
            }
        }
        Ok(())
    }
}
