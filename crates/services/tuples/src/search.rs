//! Finding the tuples that match a template, oldest first.
//!
//! Where the template begins with values, the index gives the numbers of the tuples that begin with
//! them, ascending; else all tuples of the space are looked at, in the order of their numbers.

use crate::layout::{Record, index_key, number_of, tuple_key};
use crate::limits;
use crate::reply::Found;
use crate::space::Space;
use crate::tuple::{Template, Tuple};
use perdura_protocol::{PublicKey, Time};
use perdura_store::SegmentMap;

/// What a tuple has to admit the client for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Read,
    Take,
}

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
    pub space: &'a Space,
    pub template: &'a Template,
    pub client: PublicKey,
    pub purpose: Purpose,
    /// `None` for a read that is not ordered.
    pub now: Option<Time>,
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
        self.each(0, |number, record| {
            oldest = Some(found(number, record));
            false
        })?;
        Ok(oldest)
    }

    /// The matches with numbers above `after`, up to `limit` and [`limits::RESULT_BYTES`].
    pub(crate) fn several(&self, after: u64, limit: u32) -> Result<Several, Stop> {
        let mut several = Several::default();
        let mut bytes = 0;
        self.each(after, |number, record| {
            bytes += record.tuple.len();
            let count = several.tuples.len();
            if count >= limit as usize || (bytes > limits::RESULT_BYTES && count > 0) {
                several.more = true;
                return false;
            }
            several.tuples.push(found(number, record));
            true
        })?;
        Ok(several)
    }

    /// Gives the matches with numbers above `after` in their order, until told to stop.
    fn each(&self, after: u64, mut give: impl FnMut(u64, &Record<'_>) -> bool) -> Result<(), Stop> {
        let (id, first) = (self.space.id(), after.saturating_add(1));
        let (mut tuples, mut bytes) = (0, 0);
        let mut look = |number: u64, value: &[u8]| {
            if tuples == limits::SCANNED_TUPLES || bytes > limits::SCANNED_BYTES {
                return Err(Stop::Scanned);
            }
            let record = Record::of(value);
            if self.is_match(&record)? {
                return Ok(give(number, &record));
            }
            tuples += 1;
            bytes += value.len();
            Ok(true)
        };
        // No tuple has the largest number.
        if let Some(prefix) = self.template.prefix(self.space.options().index_fields) {
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

    fn is_match(&self, record: &Record<'_>) -> Result<bool, Stop> {
        let admitted = match self.purpose {
            Purpose::Read => record.read.admits(self.client),
            Purpose::Take => record.take.admits(self.client),
        };
        if !admitted || !self.template.matches_raw(record.tuple) {
            return Ok(false);
        }
        match (record.expires(), self.now) {
            (None, _) => Ok(true),
            (Some(_), None) => Err(Stop::Timeless),
            (Some(expires), Some(now)) => Ok(expires > now),
        }
    }
}

fn found(number: u64, record: &Record<'_>) -> Found {
    Found { number, expires: record.expires(), tuple: Tuple::of_raw(record.tuple) }
}
