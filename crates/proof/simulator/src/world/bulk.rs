//! A caller that fills a space with more tuples than one command, or one batch, removes, looks at
//! what becomes of them, and deletes the space.

use super::spaces::tuple;
use crate::checkers::commit_order::Seen;
use crate::random::Random;
use perdura_protocol::Time;
use perdura_tuples::{
    Entry, Field, Operation, Pattern, SpaceOptions, Template, TupleCommand, TupleReply, limits,
};

/// The space.
pub const BULK: &str = "bulk";

/// Commands that fill it: together they insert more tuples than [`limits::DELETED_AT_ONCE`]; or, with
/// leases, so many that most end at about one time, more than [`limits::EXPIRED_AT_ONCE`].
const FILLS: usize = limits::DELETED_AT_ONCE / limits::TUPLES_AT_ONCE + 1;
const LEASED_FILLS: usize = 2 * limits::EXPIRED_AT_ONCE / limits::TUPLES_AT_ONCE;

/// Leases of its tuples, if they have any, end together so long after the first was inserted, by the
/// caller's wall clock, milliseconds.
const LEASE_MS: u64 = 5_000;

/// Commands between filling and deleting it.
const LOOKS: usize = 8;

/// Longest time that the caller thinks between two commands, microseconds.
const HURRY_US: u64 = 20_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Done,
    Creating,
    Filling {
        fills: usize,
        // When the leases end, once the first tuples were asked for.
        end: Option<Time>,
    },
    Looking {
        looks: usize,
        end: Time,
    },
    Deleting,
}

/// What the caller is at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bulk {
    state: State,
    leased: bool,
    // A command of it has not ended, and whether that deletes the space.
    asked: Option<bool>,
    values: i64,
}

fn all() -> Template {
    Template { fields: vec![Pattern::Value("b".into()), Pattern::Any] }
}

impl Bulk {
    /// One that begins, with or without leases.
    pub fn new(leased: bool) -> Bulk {
        Bulk { state: State::Creating, leased, asked: None, values: 0 }
    }

    /// The next command, when the client's wall clock shows this; nothing when it has deleted the
    /// space.
    pub fn next(&mut self, random: &mut Random, wall: Time) -> Option<TupleCommand> {
        self.asked = None;
        let operation = match &mut self.state {
            State::Done => return None,
            State::Creating => Operation::Create(SpaceOptions::default()),
            State::Filling { end, .. } => {
                let end = end.get_or_insert(Time(wall.0 + LEASE_MS));
                let lease_ms = self.leased.then(|| end.0.saturating_sub(wall.0).max(1));
                let first = self.values;
                self.values += limits::TUPLES_AT_ONCE as i64;
                let entry = |value: i64| {
                    let tuple = tuple(&["b".into(), Field::Integer(value)]);
                    Entry { lease_ms, ..Entry::new(tuple) }
                };
                Operation::OutAll((first..self.values).map(entry).collect())
            }
            State::Looking { end, .. } => {
                // With leases it looks until they have ended.
                if self.leased && wall < *end && !random.percent(20) {
                    return None;
                }
                Self::looks(random)
            }
            // In between it asks for what is refused as long as the space is being deleted.
            State::Deleting if random.percent(20) => Self::looks(random),
            State::Deleting => Operation::Delete,
        };
        self.asked = Some(operation == Operation::Delete);
        Some(TupleCommand::On { space: BULK.to_owned(), operation })
    }

    fn fills(&self) -> usize {
        if self.leased { LEASED_FILLS } else { FILLS }
    }

    fn looks(random: &mut Random) -> Operation {
        let limit = limits::TUPLES_AT_ONCE as u32;
        match random.below(8) {
            0 => Operation::Rdp(all()),
            1 => Operation::RdAll { template: all(), after: 0, limit },
            2 if random.percent(25) => Operation::InAll { template: all(), limit },
            _ => Operation::Describe,
        }
    }

    /// A command of the caller ended; whether it was one of these.
    pub fn ended(&mut self, seen: &Seen<TupleReply>) -> bool {
        let Some(deletes) = self.asked.take() else { return false };
        self.state = match (self.state, seen) {
            (State::Creating, Seen::Ok(_)) => State::Filling { fills: 1, end: None },
            // There is one that an earlier process of the client made, or may be.
            (State::Creating, _) => State::Deleting,
            (State::Filling { fills, end }, _) if fills == self.fills() => {
                State::Looking { looks: 1, end: end.unwrap_or_default() }
            }
            (State::Filling { fills, end }, _) => State::Filling { fills: fills + 1, end },
            (State::Looking { looks: LOOKS, .. }, _) => State::Deleting,
            (State::Looking { looks, end }, _) => State::Looking { looks: looks + 1, end },
            (State::Deleting, Seen::Ok(TupleReply::Deleted { remaining: 0 })) => State::Done,
            // An earlier one, of which the caller does not know, has deleted it.
            (State::Deleting, Seen::RefusedInOrder) if deletes => State::Done,
            (state, _) => state,
        };
        true
    }

    /// How long the caller thinks at most, microseconds, if it is at it.
    #[must_use]
    pub fn hurry_us(&self) -> Option<u64> {
        match self.state {
            State::Done => None,
            State::Looking { .. } if self.leased => None,
            _ => Some(HURRY_US),
        }
    }
}
