//! Finding the tuples that match a template, oldest first.
//!
//! Where the template begins with values, the index gives the numbers of the tuples that begin with
//! them, ascending; else all tuples of the space are looked at, in the order of their numbers.

use crate::holds;
use crate::layout::{Record, index_key, number_of, tuple_key};
use crate::limits;
use crate::operate::Now;
use crate::reply::{Found, Purpose};
use crate::space::Contents;
use crate::steps::TUPLE_STEP;
use crate::tuple::{Template, Tuple};
use perdura_execution::Meter;
use perdura_protocol::PublicKey;
use perdura_store::SegmentMap;

/// Why a search did not come to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It looked at [`limits::SCANNED_TUPLES`], or more than [`limits::SCANNED_BYTES`], in vain.
    Scanned,
    /// It met a match with a lease, and has no time to hold it against.
    Timeless,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search<'a> {
    pub map: &'a SegmentMap,
    pub space: &'a Contents,
    pub template: &'a Template,
    pub client: PublicKey,
    /// What a tuple has to admit the client for; nothing, for a claim. What somebody has is not taken or leased.
    pub purpose: Purpose,
    /// `None` for a read that is not ordered.
    pub now: Option<Now>,
    /// Whether somebody has tuples of the space.
    pub holds: bool,
    /// Whether what is about to be taken for good counts: it may be given back.
    pub leaving: bool,
    /// Told of what is looked at.
    pub meter: &'a Meter,
}

/// A tuple that was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen<'a> {
    pub number: u64,
    pub record: Record<'a>,
    /// Whether somebody has it.
    pub held: bool,
    /// Whether that is a command which is to take it for good.
    pub leaves: bool,
}

/// What a search goes on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    /// This was in vain.
    InVain,
    /// So was this, and its bytes do not count, neither against limits nor as read: a queue is not worked off by fewer for the length of its jobs.
    Barred,
    More,
    Enough,
}

/// Tuples, up to limits.
#[derive(Debug, Default)]
pub(crate) struct Several {
    pub tuples: Vec<Found>,
    pub more: bool,
}

impl Search<'_> {
    /// The oldest match.
    pub(crate) fn oldest(&self) -> Result<Option<Found>, Stop> {
        let mut oldest = None;
        self.each(0, |seen| {
            if self.is_barred(seen) {
                return Look::Barred;
            }
            oldest = Some(self.found(seen));
            Look::Enough
        })?;
        Ok(oldest)
    }

    /// Whether there is a match, whoever has it.
    pub(crate) fn any(&self) -> Result<bool, Stop> {
        let mut any = false;
        self.each(0, |_| {
            any = true;
            Look::Enough
        })?;
        Ok(any)
    }

    /// The matches with numbers above `after`, up to `limit` and [`limits::RESULT_BYTES`].
    pub(crate) fn several(&self, after: u64, limit: u32) -> Result<Several, Stop> {
        let mut several = Several::default();
        let mut bytes = 0;
        self.each(after, |seen| {
            if self.is_barred(seen) {
                return Look::Barred;
            }
            bytes += seen.record.tuple.len();
            let count = several.tuples.len();
            if count >= limit as usize || (bytes > limits::RESULT_BYTES && count > 0) {
                several.more = true;
                return Look::Enough;
            }
            several.tuples.push(self.found(seen));
            Look::More
        })?;
        Ok(several)
    }

    /// Whether somebody else has what is to be taken, or takes what is to be read.
    fn is_barred(&self, seen: Seen<'_>) -> bool {
        let takes = matches!(self.purpose, Purpose::Take | Purpose::Lease);
        (seen.held && takes) || (seen.leaves && !self.leaving)
    }

    fn found(&self, Seen { number, record, held, .. }: Seen<'_>) -> Found {
        // Its own lease does not end what somebody has.
        let now = self.now.filter(|_| !held);
        let expires = now.and_then(|now| now.shown(record.expires));
        Found { number, expires, tuple: Tuple::of_raw(record.tuple) }
    }

    /// Gives the matches with numbers above `after` in their order, until told to stop.
    fn each(&self, after: u64, mut give: impl FnMut(Seen<'_>) -> Look) -> Result<(), Stop> {
        let (id, first) = (self.space.id, after.saturating_add(1));
        let (mut tuples, mut bytes) = (0, 0);
        let mut look = |number: u64, value: &[u8]| {
            if tuples == limits::SCANNED_TUPLES || bytes > limits::SCANNED_BYTES {
                return Err(Stop::Scanned);
            }
            // Not refused: by the limits of what is looked at in vain and of what is given it is less than a command may cost.
            let _ = self.meter.charge(TUPLE_STEP);
            let look = match self.matched(number, Record::of(value))? {
                Some(seen) => give(seen),
                None => Look::InVain,
            };
            if look != Look::Barred {
                let _ = self.meter.charge(value.len());
            }
            match look {
                Look::InVain => {
                    tuples += 1;
                    bytes += value.len();
                }
                Look::Barred => tuples += 1,
                Look::More | Look::Enough => {}
            }
            Ok(look != Look::Enough)
        };
        // No tuple has the largest number.
        if let Some(prefix) = self.template.prefix(self.space.index_fields) {
            let start = index_key(id, prefix, first);
            let end = index_key(id, prefix, u64::MAX);
            for (key, _) in self.map.range(&start, Some(&end)) {
                let number = number_of(key);
                let value = self.map.get(&tuple_key(id, number));
                if !look(number, value.expect("the index names tuples that are there"))? {
                    break;
                }
            }
        } else {
            let start = tuple_key(id, first);
            let end = tuple_key(id, u64::MAX);
            for (key, value) in self.map.range(&start, Some(&end)) {
                if !look(number_of(key), value)? {
                    break;
                }
            }
        }
        Ok(())
    }

    fn matched<'a>(&self, number: u64, record: Record<'a>) -> Result<Option<Seen<'a>>, Stop> {
        let admitted = match self.purpose {
            Purpose::Read => record.read.admits(self.client),
            Purpose::Take | Purpose::Lease => record.take.admits(self.client),
            Purpose::Claim => true,
        };
        if !admitted || !self.template.matches_raw(record.tuple) {
            return Ok(None);
        }
        let hold = if self.holds { holds::of(self.map, self.space.id, number) } else { None };
        let held = hold.is_some_and(|hold| hold.is_held());
        let leaves = hold.is_some_and(|hold| hold.leaves());
        let seen = Some(Seen { number, record, held, leaves });
        match (record.expires(), self.now) {
            (Some(_), None) if !held => Err(Stop::Timeless),
            (Some(expires), Some(now)) if !held && expires <= now.clock => Ok(None),
            _ => Ok(seen),
        }
    }
}
