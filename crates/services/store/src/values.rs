//! The values of a segment, by the index of their keys. Short ones stand in one buffer, so that a copy on write and
//! an encoding touch memory in a row, where values of their own would cost a cache miss each. Long ones own
//! exact allocations, which copies share: never slices of the batch in which they came.
//!
//! While all are of one length, and that is small, the buffer has them in their order, and nothing else is
//! needed to find one.
//!
//! Invariants: the ranges of short values lie within the buffer and do not overlap; `unused` is what no range covers.
//! Where there is a width, there are no slots, and nothing is unused; else there is a slot for each value.

use crate::prefetch::prefetch;
use std::sync::Arc;

/// Values up to this size are short. Larger ones cost more to copy than to share.
const SHORT_BYTES: usize = 256;

/// Values up to this size stand in their order if all have the same: one that comes or goes moves those behind it.
const EVEN_BYTES: usize = 32;

#[derive(Clone, Debug)]
enum Slot {
    /// A part of the buffer.
    Short {
        start: u32,
        length: u32,
    },
    Long(Arc<[u8]>),
}

/// Values by index. Empty to begin with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    count: usize,
    // The length of all of them.
    width: Option<usize>,
    slots: Vec<Slot>,
    buffer: Vec<u8>,
    unused: usize,
}

/// What short values of a segment take together is far below this.
fn offset(position: usize) -> u32 {
    u32::try_from(position).expect("a segment's values are bounded")
}

impl Values {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn get(&self, index: usize) -> &[u8] {
        if let Some(width) = self.width {
            assert!(index < self.count, "no such value");
            return &self.buffer[index * width..(index + 1) * width];
        }
        match &self.slots[index] {
            Slot::Short { start, length } => {
                &self.buffer[*start as usize..*start as usize + *length as usize]
            }
            Slot::Long(value) => value,
        }
    }

    /// Asks for what tells where the value at `index` is, or for the value.
    pub(crate) fn prefetch_place(&self, index: usize) {
        match self.width {
            Some(_) => prefetch(self.get(index)),
            None => prefetch(&self.slots[index]),
        }
    }

    /// Puts another value in the place of the one at `index`.
    pub(crate) fn replace(&mut self, index: usize, value: &[u8]) {
        if self.width == Some(value.len()) {
            let start = index * value.len();
            self.buffer[start..start + value.len()].copy_from_slice(value);
            return;
        }
        self.make_slots();
        match &mut self.slots[index] {
            Slot::Short { start, length } if value.len() <= *length as usize => {
                self.unused += *length as usize - value.len();
                *length = offset(value.len());
                let start = *start as usize;
                self.buffer[start..start + value.len()].copy_from_slice(value);
                if self.tidy() {
                    self.drop_slots();
                }
            }
            Slot::Long(old) if value.len() == old.len() => match Arc::get_mut(old) {
                Some(owned) => owned.copy_from_slice(value),
                None => *old = value.into(),
            },
            _ => {
                self.free(index);
                self.slots[index] = self.store(value);
            }
        }
    }

    /// Puts `value` in front of the one at `index`.
    pub(crate) fn insert(&mut self, index: usize, value: &[u8]) {
        if self.count == 0 && value.len() <= EVEN_BYTES {
            *self = Values { width: Some(value.len()), ..Values::default() };
        }
        if self.width == Some(value.len()) {
            self.reserve(value.len());
            let start = index * value.len();
            self.buffer.splice(start..start, value.iter().copied());
        } else {
            self.make_slots();
            let slot = self.store(value);
            self.slots.insert(index, slot);
        }
        self.count += 1;
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.count -= 1;
        if let Some(width) = self.width {
            self.buffer.drain(index * width..(index + 1) * width);
            let length = self.buffer.len();
            if self.buffer.capacity() > length + length / 3 + 4 * SHORT_BYTES {
                self.buffer.shrink_to_fit();
            }
            return;
        }
        self.free(index);
        self.slots.remove(index);
        if self.slots.capacity() > 2 * self.slots.len() + 64 {
            self.slots.shrink_to_fit();
        }
        if self.tidy() {
            self.drop_slots();
        }
    }

    /// Adds those of `right` behind the last.
    pub(crate) fn append(&mut self, right: &Values) {
        for index in 0..right.len() {
            match right.slots.get(index) {
                Some(Slot::Long(value)) => {
                    self.make_slots();
                    self.count += 1;
                    self.slots.push(Slot::Long(Arc::clone(value)));
                }
                _ => self.insert(self.count, right.get(index)),
            }
        }
    }

    /// Cuts off those from `index` on.
    pub(crate) fn split_off(&mut self, index: usize) -> Values {
        let (count, width) = (self.count - index, self.width);
        self.count = index;
        let mut right = Values { count, width, ..Values::default() };
        if let Some(width) = width {
            right.buffer = self.buffer.split_off(index * width);
            self.buffer.shrink_to_fit();
            return right;
        }
        right.slots = self.slots.split_off(index);
        self.slots.shrink_to_fit();
        right.buffer = pack(&self.buffer, &mut right.slots);
        self.buffer = pack(&self.buffer, &mut self.slots);
        self.unused = 0;
        self.drop_slots();
        right.drop_slots();
        right
    }

    /// Gives each value a slot, if they have none.
    fn make_slots(&mut self) {
        if let Some(width) = self.width.take() {
            let length = offset(width);
            let slot = |index| Slot::Short { start: offset(index * width), length };
            self.slots = (0..self.count).map(slot).collect();
        }
    }

    /// Of values that were just packed, does without the slots if all are of one small length.
    fn drop_slots(&mut self) {
        let Some(Slot::Short { length: first, .. }) = self.slots.first() else { return };
        let first = *first;
        if first as usize > EVEN_BYTES {
            return;
        }
        let even = |slot: &Slot| matches!(slot, Slot::Short { length, .. } if *length == first);
        if self.slots.iter().all(even) {
            (self.width, self.slots) = (Some(first as usize), Vec::new());
        }
    }

    /// Gives back what is there for more.
    pub(crate) fn shrink(&mut self) {
        self.slots.shrink_to_fit();
        self.buffer.shrink_to_fit();
    }

    /// A slot for a value, which is in nobody's order yet.
    fn store(&mut self, value: &[u8]) -> Slot {
        if value.len() > SHORT_BYTES {
            return Slot::Long(value.into());
        }
        self.tidy();
        let start = offset(self.buffer.len());
        self.reserve(value.len());
        self.buffer.extend_from_slice(value);
        Slot::Short { start, length: offset(value.len()) }
    }

    fn reserve(&mut self, bytes: usize) {
        if self.buffer.capacity() - self.buffer.len() < bytes {
            // By an eighth: what entries count for in the state leaves no room for twice their values.
            self.buffer.reserve_exact(bytes + self.buffer.len() / 8);
        }
    }

    /// What the value at `index` takes of the buffer is used no more.
    fn free(&mut self, index: usize) {
        if let Slot::Short { length, .. } = &mut self.slots[index] {
            self.unused += std::mem::take(length) as usize;
        }
    }

    /// Packs the buffer if a quarter of it is unused, and more than a few values; whether it did.
    fn tidy(&mut self) -> bool {
        let packs = self.unused > 4 * SHORT_BYTES && 4 * self.unused > self.buffer.len();
        if packs {
            self.buffer = pack(&self.buffer, &mut self.slots);
            self.unused = 0;
        }
        packs
    }

    /// Other bits in the value at `index`: for tests of what finds them.
    pub(crate) fn flip_bit(&mut self, index: usize, byte: usize, bit: u8) -> bool {
        let mut value = self.get(index).to_vec();
        let Some(byte) = byte.checked_rem(value.len()) else { return false };
        value[byte] ^= 1 << bit;
        self.replace(index, &value);
        true
    }
}

/// A buffer that holds these short values, of those in `from`, and nothing else; they point into it from then on.
fn pack(from: &[u8], slots: &mut [Slot]) -> Vec<u8> {
    let short = |slot: &Slot| match slot {
        Slot::Short { length, .. } => *length as usize,
        Slot::Long(_) => 0,
    };
    let mut packed = Vec::with_capacity(slots.iter().map(short).sum());
    for slot in slots {
        if let Slot::Short { start, length } = slot {
            let begins = offset(packed.len());
            packed.extend_from_slice(&from[*start as usize..(*start + *length) as usize]);
            *start = begins;
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::choices;

    fn all(values: &Values) -> impl Iterator<Item = &[u8]> {
        (0..values.len()).map(|index| values.get(index))
    }

    /// Memory follows the values: what is unused, and what is there for more.
    #[track_caller]
    fn assert_bounded(values: &Values, used: usize) {
        assert!(values.unused <= 4 * SHORT_BYTES + used / 2, "{} of {used}", values.unused);
        let capacity = values.buffer.capacity();
        assert!(capacity <= 2 * used + 6 * SHORT_BYTES, "{capacity} for {used}");
    }

    #[test]
    fn values_that_shrink_or_grow_in_place_give_their_memory_back() {
        let mut values = Values::default();
        (0..195).for_each(|index| values.insert(index, &[1; SHORT_BYTES]));
        let (length, capacity) = (values.buffer.len(), values.buffer.capacity());
        assert!(capacity <= length + length / 8 + SHORT_BYTES, "{capacity} for {length}");
        for size in [250, 100, 5, 0, 7, 255, 256, 255, 256, 3] {
            for index in 0..195 {
                values.replace(index, &vec![7; size]);
                let used = (0..195).map(|index| values.get(index).len()).sum();
                assert_bounded(&values, used);
            }
        }
        assert!(all(&values).all(|value| value == [7; 3]));
    }

    /// Everything that can be done, beside a plain vector, in an order that a small generator chooses.
    #[test]
    fn values_of_any_size_are_what_was_put_there() {
        let mut below = choices(12345);
        let (mut values, mut model) = (Values::default(), Vec::<Vec<u8>>::new());
        let (mut even, mut uneven) = (0, 0);
        for step in 0..40_000 {
            // At times all have one length.
            let sizes = [0, 3, 16, EVEN_BYTES, 100, SHORT_BYTES, SHORT_BYTES + 1, 2000];
            let size = if step / 1000 % 2 == 0 { sizes[step / 2000 % 8] } else { sizes[below(8)] };
            if step % 2000 == 0 {
                while !model.is_empty() {
                    let at = below(model.len());
                    values.remove(at);
                    model.remove(at);
                }
            }
            let value: Vec<u8> = (0..size).map(|byte| (byte * 7 + step) as u8).collect();
            match below(10) {
                0..4 if model.len() < 200 => {
                    let at = below(model.len() + 1);
                    values.insert(at, &value);
                    model.insert(at, value);
                }
                4..8 if !model.is_empty() => {
                    let at = below(model.len());
                    values.replace(at, &value);
                    model[at] = value;
                }
                8 if !model.is_empty() => {
                    let at = below(model.len());
                    values.remove(at);
                    model.remove(at);
                }
                _ if step % 50 == 0 => {
                    let at = below(model.len() + 1);
                    let mut right = values.split_off(at);
                    assert!(all(&right).eq(&model[at..]) && all(&values).eq(&model[..at]));
                    right.append(&values);
                    model.rotate_left(at);
                    values = right;
                }
                _ => {}
            }
            assert!(all(&values).eq(&model), "{step}");
            let short = model.iter().map(Vec::len).filter(|length| *length <= SHORT_BYTES);
            let used: usize = short.sum();
            assert_eq!(used + values.unused, values.buffer.len());
            assert_bounded(&values, used);
            if let Some(width) = values.width {
                assert!(values.slots.is_empty() && model.iter().all(|value| value.len() == width));
                assert!(values.buffer.capacity() <= used + used / 3 + 5 * SHORT_BYTES);
                even += usize::from(model.len() > 10);
            } else {
                assert_eq!(values.slots.len(), model.len());
                uneven += usize::from(model.len() > 10);
            }
        }
        assert!(even > 5000 && uneven > 5000, "{even} {uneven}");
    }

    #[test]
    fn a_copy_shares_long_values_and_changes_none_of_the_others() {
        let mut values = Values::default();
        values.insert(0, &[1; 16]);
        values.insert(1, &[2; 1000]);
        let copy = values.clone();
        assert_eq!(copy.get(1).as_ptr(), values.get(1).as_ptr());
        values.replace(0, &[3; 16]);
        values.replace(1, &[4; 1000]);
        assert!(all(&copy).eq([&[1; 16][..], &[2; 1000]]));
        assert!(all(&values).eq([&[3; 16][..], &[4; 1000]]));
        // It is its own now, and is written to where it stands.
        let place = values.get(1).as_ptr();
        values.replace(1, &[5; 1000]);
        assert_eq!(values.get(1).as_ptr(), place);
    }

    #[test]
    fn a_copy_of_even_values_stays_as_it_is() {
        let mut values = Values::default();
        (0..100).for_each(|index| values.insert(index, &[index as u8; 16]));
        let copy = values.clone();
        values.replace(5, &[200; 16]);
        values.remove(70);
        values.insert(0, &[201; 16]);
        values.replace(9, &[202; 5]);
        assert!(all(&copy).eq((0..100).map(|index| [index; 16])));
        assert_eq!((copy.slots.len(), values.slots.len()), (0, 100));
        assert_eq!(
            (values.get(0), values.get(6), values.get(9)),
            (&[201; 16][..], &[200; 16][..], &[202; 5][..])
        );
    }

    /// A few that are of another length make slots; without them it goes without, once it is cut.
    #[test]
    fn values_of_one_length_have_no_slots() {
        let mut values = Values::default();
        (0..100).for_each(|index| values.insert(index, &[index as u8; 16]));
        assert_eq!(values.slots.capacity(), 0);
        values.replace(90, &[1; 20]);
        assert_eq!(values.slots.len(), 100);
        let right = values.split_off(50);
        assert!(values.slots.capacity() == 0 && right.slots.len() == 50 && values.unused == 0);
        values.remove(7);
        values.insert(7, &[7; 16]);
        values.replace(8, &[8; 16]);
        assert_eq!(values.slots.capacity(), 0);
        values.append(&right);
        let expected =
            (0..100).map(|index| if index == 90 { vec![1; 20] } else { vec![index; 16] });
        assert!(all(&values).eq(expected.collect::<Vec<_>>()));
    }

    /// They were long, and are short and of one length now.
    #[test]
    fn values_that_became_even_need_no_slots() {
        let mut values = Values::default();
        (0..100).for_each(|index| values.insert(index, &[index as u8; 100]));
        (0..100).for_each(|index| values.replace(index, &[index as u8; 16]));
        // A little of the buffer may be unused until more is.
        (0..80).for_each(|_| values.remove(20));
        assert_eq!(values.slots.capacity(), 0);
        assert!(all(&values).eq((0..20).map(|index| [index; 16])));
    }

    #[test]
    fn a_slot_takes_sixteen_bytes() {
        assert_eq!(size_of::<Slot>(), 16);
    }
}
