//! What was done to the cluster, and when.

use crate::course::{Course, lock};
use crate::faults::FaultKind;
use crate::inject::Injected;
use std::sync::{Arc, Mutex};

/// A fault that was injected; times in microseconds since the start of the run.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its kind.
    pub kind: FaultKind,
    /// Whom it struck.
    pub replicas: Vec<usize>,
    /// What exactly was done, and what came of it.
    pub detail: String,
    /// Whether it took effect.
    pub fired: bool,
    /// By how much it put a clock ahead, at most, microseconds.
    pub ahead_us: u64,
    /// When it began.
    pub began: u64,
    /// When it was over.
    pub healed: Option<u64>,
    /// When all replicas were well again.
    pub level: Option<u64>,
}

impl Event {
    /// When everything was well again, as far as is known.
    pub fn end(&self) -> u64 {
        self.level.or(self.healed).unwrap_or(u64::MAX)
    }

    /// Whom it struck, in words.
    pub fn whom(&self) -> String {
        match self.replicas.as_slice() {
            [one] => format!("replica {one}"),
            _ => "several".to_owned(),
        }
    }
}

#[cfg(test)]
impl Event {
    /// One that took effect at the start of the run and has not ended.
    pub fn of(kind: FaultKind) -> Event {
        Event {
            kind,
            replicas: vec![0],
            detail: String::new(),
            fired: true,
            ahead_us: 0,
            began: 0,
            healed: None,
            level: None,
        }
    }
}

/// All events.
pub struct Timeline {
    course: Arc<Course>,
    events: Mutex<Vec<Event>>,
}

impl Timeline {
    /// An empty one.
    pub fn new(course: &Arc<Course>) -> Timeline {
        Timeline { course: Arc::clone(course), events: Mutex::default() }
    }

    /// Notes that a fault begins; gives its number.
    pub fn begin(&self, kind: FaultKind, replicas: &[usize]) -> usize {
        let mut events = lock(&self.events);
        events.push(Event {
            kind,
            replicas: replicas.to_vec(),
            detail: String::new(),
            fired: false,
            ahead_us: 0,
            began: self.course.now_us(),
            healed: None,
            level: None,
        });
        events.len() - 1
    }

    /// Notes that a fault is over.
    pub fn healed(&self, number: usize, injected: Injected) {
        if let Some(event) = lock(&self.events).get_mut(number) {
            event.healed = Some(self.course.now_us());
            event.detail = injected.detail;
            event.fired = injected.fired;
            event.ahead_us = injected.ahead_us;
        }
    }

    /// Notes that all is well again after all faults that are over; gives them.
    pub fn level(&self) -> Vec<Event> {
        let mut now_level = Vec::new();
        for event in lock(&self.events).iter_mut() {
            if event.healed.is_some() && event.level.is_none() {
                event.level = Some(self.course.now_us());
                now_level.push(event.clone());
            }
        }
        now_level
    }

    /// All so far.
    pub fn events(&self) -> Vec<Event> {
        lock(&self.events).clone()
    }
}
