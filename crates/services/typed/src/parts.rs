//! What a service's state consists of: its maps, and what stands beside them.
//!
//! The service names its parts in one function ([`crate::Service::parts`]), and all that has to be done with a state goes through it: what a
//! refused command wrote is undone, a snapshot is taken, a state is installed, its size is counted.
//!
//! A snapshot: segment 0 has, by part and in their order, the number of a map's segments, or a value as `postcard` encodes it; the maps' segments
//! follow.

use crate::faithful::{self, Unfaithful};
use crate::journal::{Found, Journaled, Misfit, forget_dropped};
use crate::key::Key;
use crate::scratch::lend;
use crate::sharded::Sharded;
use crate::wire::{append, whole};
use bytes::Bytes;
use perdura_execution::{Entry, RestoreError, Snapshot};
use perdura_protocol::codec::encode_bytes;
use perdura_protocol::{Decode, DecodeError, Encode, Reader};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::mem::take;
use std::sync::Arc;

/// Most bytes of a part that is no map, encoded; and of all of them together sixteen times as many.
pub const PART_BYTES: usize = 64 * 1024;

/// What goes through the parts of a state.
pub struct Parts<'a> {
    version: u16,
    does: Does<'a>,
}

/// What is done with each of them.
enum Does<'a> {
    /// Marks the maps, from 1 on.
    Begin(usize),
    Measure(Measuring<'a>),
    /// The command is not going to be undone.
    Settle,
    /// Takes the maps out of their places.
    TakeBack(&'a mut Found),
    /// Puts what was there when the command began where it was.
    Undo(Undo<'a>),
    /// All that the state holds, whatever segments it stands in.
    Content(&'a mut Vec<u8>),
    /// Whether all of it comes back from its bytes.
    Verify(&'a mut Result<(), Unfaithful>),
    Freeze(&'a mut Frozen),
    /// Shares each with another state, and takes up those of another one.
    Share(&'a mut Shared),
    Adopt(&'a Shared, &'a mut Count),
    Install(&'a mut Install),
}

struct Undo<'a> {
    found: &'a mut Found,
    before: &'a Measured,
    done: &'a mut Count,
}

/// How many parts there are of each kind.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    maps: usize,
    values: usize,
}

/// What a service is told whose parts are not what they were, so that nothing of it can be undone.
const OTHER_PARTS: &str = "`Service::parts` names more or fewer parts after a command than before: how many there are, and their order, is fixed for \
    each version (what comes and goes belongs into a map)";

/// A state is measured, and what its values were before. Where there is none before, it is no command's state but the program's own, or one that
/// others had: all of it can be encoded.
struct Measuring<'a> {
    now: &'a mut Measured,
    // Of the maps.
    segments: &'a mut usize,
    before: Option<&'a Measured>,
}

impl Measuring<'_> {
    /// What was to be written in this state, or stands in it, that may not be.
    fn misfit(&mut self, misfit: Misfit) {
        let may_be = misfit != Misfit::Unencodable || self.before.is_some();
        assert!(may_be, "the first state of the service has a value that cannot be encoded");
        self.now.misfit.get_or_insert(misfit);
    }

    /// A part that is no map.
    fn value<T: Serialize + DeserializeOwned>(&mut self, value: &T) {
        self.now.parts.values += 1;
        let Some(index) = self.now.values.push(value) else {
            return self.misfit(Misfit::Unencodable);
        };
        let bytes = self.now.values.get(index).unwrap_or_default();
        self.now.bytes += bytes.len() as u64;
        // What has not changed was looked at before; though a first state may have been none that may be.
        let before = self.before.filter(|before| before.misfit.is_none());
        if before.and_then(|before| before.values.get(index)) == Some(bytes) {
            return;
        }
        if bytes.len() > PART_BYTES {
            self.misfit(Misfit::TooLarge);
        } else if whole::<T>(bytes).is_none() {
            self.misfit(Misfit::Unreadable);
        }
    }
}

/// Values, encoded, one behind the other.
#[derive(Clone, Default)]
struct Values {
    bytes: Vec<u8>,
    // Where each ends.
    ends: Vec<usize>,
}

impl Values {
    fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    /// Adds one, and gives its number; none if it cannot be encoded, and nothing stands for it then.
    fn push<T: Serialize>(&mut self, value: &T) -> Option<usize> {
        let start = self.bytes.len();
        let encodes = append(value, &mut self.bytes).is_ok();
        if !encodes {
            self.bytes.truncate(start);
        }
        self.ends.push(self.bytes.len());
        encodes.then(|| self.ends.len() - 1)
    }

    /// Keeps the room, up to what values that may be take.
    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(16 * PART_BYTES);
        self.ends.clear();
    }
}

/// A state after a command.
#[derive(Default)]
pub(crate) struct Measured {
    pub bytes: u64,
    parts: Count,
    /// The command was to write an entry that cannot be one, or made such a value.
    pub misfit: Option<Misfit>,
    /// What undoes the next command.
    values: Values,
}

impl Measured {
    /// For another state, with the room that there is.
    fn clear(&mut self) {
        let mut values = take(&mut self.values);
        values.clear();
        *self = Measured { values, ..Measured::default() };
    }

    /// Of all values.
    pub fn value_bytes(&self) -> usize {
        self.values.bytes.len()
    }
}

/// The parts of a state as they were.
#[derive(Default)]
pub(crate) struct Frozen {
    head: Vec<u8>,
    maps: Vec<Arc<dyn Snapshot>>,
}

/// The parts of a state, shared with it: what changes one of the two changes nothing of the other.
#[derive(Default)]
pub(crate) struct Shared {
    maps: Vec<Journaled>,
    // Encoded.
    values: Vec<Bytes>,
}

struct Install {
    head: Reader,
    segments: std::vec::IntoIter<Bytes>,
    outcome: Result<(), RestoreError>,
}

impl Parts<'_> {
    /// The version of the service that is in force: one of its parts that came with a later version is named only from that on.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// A map is a part.
    pub fn map<K: Key, V: Serialize + DeserializeOwned>(&mut self, map: &mut Sharded<K, V>) {
        match &mut self.does {
            Does::Begin(mark) => {
                *mark += 1;
                map.inner().begin(*mark);
            }
            Does::Measure(measuring) => {
                let inner = map.inner();
                measuring.now.parts.maps += 1;
                measuring.now.bytes += inner.map().bytes();
                *measuring.segments += inner.map().segments();
                if let Some(misfit) = inner.misfit() {
                    measuring.misfit(misfit);
                }
            }
            Does::Settle => map.inner().settle(),
            Does::TakeBack(found) => map.inner().take_back(found),
            Does::Undo(undo) => {
                undo.done.maps += 1;
                assert!(undo.done.maps <= undo.before.parts.maps, "{OTHER_PARTS}");
                *map.inner() = undo.found.take(undo.done.maps);
            }
            Does::Content(content) => {
                for (key, value) in map.inner().map().range(b"", None) {
                    encode_bytes(key, content);
                    encode_bytes(value, content);
                }
                content.push(0xff);
            }
            Does::Verify(found) if found.is_ok() => {
                **found = faithful::of_map::<K, V>(map.inner().map());
            }
            Does::Verify(_) => {}
            Does::Freeze(frozen) => {
                let snapshot = map.inner().map().snapshot();
                (snapshot.segments() as u32).encode(&mut frozen.head);
                frozen.maps.push(snapshot);
            }
            Does::Share(shared) => shared.maps.push(map.inner().clone()),
            Does::Adopt(shared, done) => {
                let of = shared.maps.get(done.maps).unwrap_or_else(|| panic!("{OTHER_PARTS}"));
                *map.inner() = of.clone();
                done.maps += 1;
            }
            Does::Install(install) => install.part(|head, segments| {
                let count = u32::decode(head).map_err(malformed)?;
                if count as usize > segments.len() {
                    return Err(RestoreError::Contradiction(
                        "a map has fewer segments than it says",
                    ));
                }
                let own = segments.take(count as usize).collect();
                map.restore(own)
            }),
        }
    }

    /// Anything else is a part: it is written anew with each checkpoint, and looked at with each command, so it should be small, and has to be at most
    /// [`PART_BYTES`]. What grows with use belongs into a map.
    ///
    /// # Panics
    /// When it cannot be encoded in the first state. A command that makes it such is refused.
    pub fn value<T: Serialize + DeserializeOwned>(&mut self, value: &mut T) {
        match &mut self.does {
            Does::Begin(_) | Does::Settle | Does::TakeBack(_) => {}
            Does::Measure(measuring) => measuring.value(value),
            Does::Undo(undo) => {
                let before = undo.before.values.get(undo.done.values);
                let before = before.unwrap_or_else(|| panic!("{OTHER_PARTS}"));
                undo.done.values += 1;
                // What has not changed need not be decoded. What cannot be encoded has changed.
                if !lend(|bytes| append(value, bytes).is_ok() && bytes == before) {
                    *value = whole(before).unwrap_or_else(|| {
                        panic!("a part of the state does not come back as it was encoded")
                    });
                }
            }
            Does::Content(content) => encoded(value, |bytes| encode_bytes(bytes, content)),
            Does::Verify(found) if found.is_ok() => **found = faithful::of_value(value),
            Does::Verify(_) => {}
            Does::Freeze(frozen) => encoded(value, |bytes| encode_bytes(bytes, &mut frozen.head)),
            Does::Share(shared) => {
                let bytes = encoded(value, Bytes::copy_from_slice);
                shared.values.push(bytes);
            }
            Does::Adopt(shared, done) => {
                let of = shared.values.get(done.values).and_then(|bytes| whole(bytes));
                *value = of.unwrap_or_else(|| panic!("{OTHER_PARTS}"));
                done.values += 1;
            }
            Does::Install(install) => install.part(|head, _| {
                let bytes = head.bytes("a part of the state", PART_BYTES).map_err(malformed)?;
                *value = whole(&bytes)
                    .ok_or(RestoreError::Contradiction("a part of the state is of another type"))?;
                Ok(())
            }),
        }
    }
}

/// What is made of a part that is no map, encoded.
///
/// # Panics
/// When it cannot be: that of a state after a command can.
pub(crate) fn encoded<T: Serialize, U>(value: &T, then: impl FnOnce(&[u8]) -> U) -> U {
    lend(|bytes| {
        let done = append(value, bytes);
        done.unwrap_or_else(|error| panic!("a part of the state cannot be encoded: {error}"));
        then(bytes)
    })
}

/// Why it does not decode.
fn malformed(reason: DecodeError) -> RestoreError {
    RestoreError::Malformed { index: 0, reason }
}

impl Install {
    /// The next part, unless one before it failed.
    fn part(
        &mut self,
        install: impl FnOnce(&mut Reader, &mut std::vec::IntoIter<Bytes>) -> Result<(), RestoreError>,
    ) {
        if self.outcome.is_ok() {
            self.outcome = install(&mut self.head, &mut self.segments);
        }
    }
}

/// What an adapter does with the parts that a function names.
pub(crate) struct All<'a> {
    pub version: u16,
    pub name: &'a mut dyn FnMut(&mut Parts),
}

impl All<'_> {
    fn each(&mut self, does: Does<'_>) {
        (self.name)(&mut Parts { version: self.version, does });
    }

    /// A command begins: from here on it can be undone.
    pub fn begin(&mut self) {
        // What a command before it dropped, of whatever service of this thread, that ended in a panic.
        forget_dropped();
        self.each(Does::Begin(0));
    }

    /// # Panics
    /// When it has a value that cannot be encoded.
    pub fn measure(&mut self) -> Measured {
        let mut now = Measured::default();
        let _ = self.measure_by(None, &mut now);
        now
    }

    /// The same after a command, by what it was before; `now` is measured anew, in the room that it has. How many segments the maps have: that
    /// may be another number when the next command is undone.
    ///
    /// # Panics
    /// When it does not have the parts that it had before.
    pub fn measure_after(&mut self, before: &Measured, now: &mut Measured) -> usize {
        now.clear();
        let segments = self.measure_by(Some(before), now);
        assert!(now.parts == before.parts, "{OTHER_PARTS}");
        segments
    }

    fn measure_by(&mut self, before: Option<&Measured>, now: &mut Measured) -> usize {
        let mut segments = 0;
        self.each(Does::Measure(Measuring { now, segments: &mut segments, before }));
        if now.value_bytes() > 16 * PART_BYTES {
            now.misfit.get_or_insert(Misfit::TooLarge);
        }
        segments
    }

    /// The command is not going to be undone.
    pub fn settle(&mut self) {
        self.each(Does::Settle);
        forget_dropped();
    }

    /// All that the state holds.
    pub fn content(&mut self) -> Vec<u8> {
        let mut content = Vec::new();
        self.each(Does::Content(&mut content));
        content
    }

    /// Whether all that it holds comes back from its bytes as it is.
    pub fn verify(&mut self) -> Result<(), Unfaithful> {
        let mut found = Ok(());
        self.each(Does::Verify(&mut found));
        found
    }

    /// All is as it was when the command began, by what was measured before that.
    ///
    /// # Panics
    /// When it does not have the parts that it had then.
    pub fn undo(&mut self, before: &Measured) {
        let mut found = Found::default();
        self.each(Does::TakeBack(&mut found));
        found.take_dropped();
        let mut done = Count::default();
        self.each(Does::Undo(Undo { found: &mut found, before, done: &mut done }));
        assert!(done == before.parts, "{OTHER_PARTS}");
    }

    pub fn freeze(&mut self) -> Frozen {
        let mut frozen = Frozen::default();
        self.each(Does::Freeze(&mut frozen));
        frozen
    }

    pub fn share(&mut self) -> Shared {
        let mut shared = Shared::default();
        self.each(Does::Share(&mut shared));
        shared
    }

    /// Makes a first state what was shared.
    ///
    /// # Panics
    /// When it has other parts.
    pub fn adopt(&mut self, shared: &Shared) {
        self.each(Does::Adopt(shared, &mut Count::default()));
    }

    /// Makes the state what was frozen in these segments.
    ///
    /// # Errors
    /// When no state of these parts has them; it is not used any more then.
    pub fn install(&mut self, segments: Vec<Bytes>) -> Result<(), RestoreError> {
        let mut segments = segments.into_iter();
        let head = segments.next().ok_or(RestoreError::Contradiction("there is no segment"))?;
        let mut install = Install { head: Reader::new(head), segments, outcome: Ok(()) };
        self.each(Does::Install(&mut install));
        install.outcome?;
        install.head.finish().map_err(malformed)?;
        match install.segments.len() {
            0 => Ok(()),
            _ => Err(RestoreError::Contradiction("there are more segments than the parts have")),
        }
    }
}

impl Frozen {
    /// The map that has this segment, and which one it is of that map.
    fn of_map(&self, mut index: usize) -> Option<(&Arc<dyn Snapshot>, usize)> {
        index = index.checked_sub(1)?;
        for map in &self.maps {
            match index.checked_sub(map.segments()) {
                Some(rest) => index = rest,
                None => return Some((map, index)),
            }
        }
        None
    }
}

impl Snapshot for Frozen {
    fn segments(&self) -> usize {
        1 + self.maps.iter().map(|map| map.segments()).sum::<usize>()
    }

    fn segment(&self, index: usize) -> Bytes {
        match self.of_map(index) {
            Some((map, index)) => map.segment(index),
            None => Bytes::copy_from_slice(&self.head),
        }
    }

    fn entry(&self, index: usize) -> Entry {
        match self.of_map(index) {
            Some((map, index)) => map.entry(index),
            None => Entry::of(&self.head),
        }
    }
}
