//! Decoding within bounds, whatever the bytes are: clients choose them.
//!
//! `postcard` recurses as deep as its input asks where a type contains itself, and goes through as many elements as a list says it has, also where
//! they take no bytes. Here what is nested deeper than so many levels is none, nor is a list of too many elements for its bytes. Both follow from the
//! type and the bytes alone, so that all replicas answer alike.
//!
//! Nor do bytes bound memory: an empty text takes one, and in memory two dozen; an enum of a name alone one, and in memory as many as its largest
//! variant. So what is more than a number is counted, for whoever bounds it ([`Count`]). Numbers are in memory at most sixteen times what they are here.
//!
//! [`Bounded`] stands around each part that a decoding is made of: `serde` has a trait for each. Only what contains something else is counted, and
//! everything else passes through.

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use std::cell::Cell;
use std::fmt;

/// Most levels of a command, a query, and a value that is stored: each struct, tuple, enum, option, list and map that stands within another is one
/// level more.
pub const LEVELS: usize = 64;

/// Most levels of what a service answers, so that it can put what it has stored into something else.
pub(crate) const ANSWER_LEVELS: usize = 2 * LEVELS;

/// Most elements of lists and maps that take no bytes when they are encoded, in all of a command or a value that is stored.
pub const EMPTY_ELEMENTS: usize = 1024;

/// How many structs, tuples, enums, options, lists, maps, texts and byte strings there are in what is decoded.
pub(crate) struct Count {
    most: u64,
    found: Cell<u64>,
}

impl Count {
    /// It is decoded only if it has no more than so many.
    pub fn up_to(most: u64) -> Count {
        Count { most, found: Cell::new(0) }
    }

    /// How many there are, as far as it was decoded.
    pub fn found(&self) -> u64 {
        self.found.get()
    }

    /// Whether there are too many.
    pub fn is_exceeded(&self) -> bool {
        self.found() > self.most
    }

    /// There is one more.
    fn one<E: Error>(&self) -> Result<(), E> {
        self.found.set(self.found() + 1);
        if self.is_exceeded() { Err(E::custom("it has too many parts")) } else { Ok(()) }
    }
}

/// What these bytes are, all of them, if it has no more than so many levels.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8], levels: usize) -> Option<T> {
    decode_counted(bytes, levels, &Count::up_to(u64::MAX))
}

/// The same of what has no more parts than this counts to.
pub(crate) fn decode_counted<T: DeserializeOwned>(
    bytes: &[u8],
    levels: usize,
    count: &Count,
) -> Option<T> {
    // What takes bytes has one of its own at least.
    let elements = Cell::new(bytes.len() + EMPTY_ELEMENTS);
    let left = Left { levels, elements: &elements, count, is_list: false };
    let mut postcard = postcard::Deserializer::from_bytes(bytes);
    let value = T::deserialize(Bounded { of: &mut postcard, left }).ok()?;
    postcard.finalize().ok()?.is_empty().then_some(value)
}

/// What may still come.
#[derive(Clone, Copy)]
struct Left<'c> {
    levels: usize,
    // In all of the input.
    elements: &'c Cell<usize>,
    count: &'c Count,
    // Whether the input says how many elements there are here; otherwise the type does.
    is_list: bool,
}

impl Left<'_> {
    /// Inside of something.
    fn inside<E: Error>(self) -> Result<Self, E> {
        self.count.one()?;
        self.deeper()
    }

    fn deeper<E: Error>(self) -> Result<Self, E> {
        let levels = self.levels.checked_sub(1);
        let levels = levels.ok_or_else(|| E::custom("it is nested too deep"))?;
        Ok(Left { levels, is_list: false, ..self })
    }

    /// The same of a list or a map.
    fn inside_list<E: Error>(self) -> Result<Self, E> {
        Ok(Left { is_list: true, ..self.inside()? })
    }

    /// There is one more element.
    fn element<E: Error>(self) -> Result<(), E> {
        if self.is_list {
            let elements = self.elements.get().checked_sub(1);
            let elements = elements.ok_or_else(|| E::custom("too many elements for its bytes"))?;
            self.elements.set(elements);
        }
        Ok(())
    }
}

/// A part of a decoding, and what may still come within it.
struct Bounded<'c, T> {
    of: T,
    left: Left<'c>,
}

impl<'c, T> Bounded<'c, T> {
    /// Something else, with what may still come within this.
    fn with<U>(&self, of: U) -> Bounded<'c, U> {
        Bounded { of, left: self.left }
    }
}

/// What contains nothing else.
macro_rules! leaves {
    ($($name:ident)*) => { $(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.of.$name(visitor)
        }
    )* };
}

/// The same of what has more in memory than a number has.
macro_rules! counted_leaves {
    ($($name:ident)*) => { $(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.left.count.one()?;
            self.of.$name(visitor)
        }
    )* };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Bounded<'_, D> {
    type Error = D::Error;

    leaves! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128 deserialize_u8
        deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char
        deserialize_unit deserialize_identifier
    }

    counted_leaves! { deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf }

    // `postcard` refuses these: they ask it what comes next.
    leaves! { deserialize_any deserialize_ignored_any }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.of.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let left = self.left.inside()?;
        self.of.deserialize_option(Bounded { of: visitor, left })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        // In memory it is what it has within it.
        let left = self.left.deeper()?;
        self.of.deserialize_newtype_struct(name, Bounded { of: visitor, left })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let left = self.left.inside_list()?;
        self.of.deserialize_seq(Bounded { of: visitor, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let left = self.left.inside()?;
        self.of.deserialize_tuple(len, Bounded { of: visitor, left })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let left = self.left.inside()?;
        self.of.deserialize_tuple_struct(name, len, Bounded { of: visitor, left })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let left = self.left.inside_list()?;
        self.of.deserialize_map(Bounded { of: visitor, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let left = self.left.inside()?;
        self.of.deserialize_struct(name, fields, Bounded { of: visitor, left })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let left = self.left.inside()?;
        self.of.deserialize_enum(name, variants, Bounded { of: visitor, left })
    }

    fn is_human_readable(&self) -> bool {
        self.of.is_human_readable()
    }
}

/// Of what contains something else; visitors of leaves are not wrapped.
impl<'de, V: Visitor<'de>> Visitor<'de> for Bounded<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.of.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.of.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let deserializer = self.with(deserializer);
        self.of.visit_some(deserializer)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<V::Value, D::Error> {
        let deserializer = self.with(deserializer);
        self.of.visit_newtype_struct(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<V::Value, A::Error> {
        let elements = self.with(elements);
        self.of.visit_seq(elements)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        let entries = self.with(entries);
        self.of.visit_map(entries)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        let variant = self.with(variant);
        self.of.visit_enum(variant)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Bounded<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let deserializer = self.with(deserializer);
        self.of.deserialize(deserializer)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = self.with(seed);
        let element = self.of.next_element_seed(seed)?;
        if element.is_some() {
            self.left.element()?;
        }
        Ok(element)
    }

    fn size_hint(&self) -> Option<usize> {
        self.of.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = self.with(seed);
        let key = self.of.next_key_seed(seed)?;
        if key.is_some() {
            self.left.element()?;
        }
        Ok(key)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.with(seed);
        self.of.next_value_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.of.size_hint()
    }
}

impl<'de, 'c, A: EnumAccess<'de>> EnumAccess<'de> for Bounded<'c, A> {
    type Error = A::Error;
    type Variant = Bounded<'c, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let left = self.left;
        let (variant, content) = self.of.variant_seed(seed)?;
        Ok((variant, Bounded { of: content, left }))
    }
}

/// A variant and its fields are one level: that of the enum.
impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.of.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.with(seed);
        self.of.newtype_variant_seed(seed)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let visitor = self.with(visitor);
        self.of.tuple_variant(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = self.with(visitor);
        self.of.struct_variant(fields, visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};
    use std::collections::{BTreeMap, BTreeSet};
    use std::fmt::Debug;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    enum Formula {
        True,
        Not(Box<Formula>),
        All(Vec<Formula>),
    }

    /// Each way in which one thing may stand within another.
    #[derive(Serialize, Deserialize, PartialEq, Clone, Default, Debug)]
    struct Nested {
        unit: (),
        numbers: (u8, i16, u32, i64, u128, i128, f32, f64, bool, char),
        texts: Vec<String>,
        pairs: BTreeMap<String, Option<Nested>>,
        kinds: Vec<Kind>,
        array: [Option<u16>; 3],
        newtype: Newtype,
        set: BTreeSet<Option<bool>>,
    }

    #[derive(Serialize, Deserialize, PartialEq, Clone, Default, Debug)]
    struct Newtype(Vec<Vec<u8>>);

    #[derive(Serialize, Deserialize, PartialEq, Clone, Debug)]
    enum Kind {
        Unit,
        One(Box<Nested>),
        Two(u8, Option<Box<Kind>>),
        Fields { text: String, inner: Result<(), Box<Kind>> },
    }

    /// Choices that are as good as any (SplitMix64).
    struct Choices(u64);

    impl Choices {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) % bound
        }

        fn list<T>(&mut self, mut of: impl FnMut(&mut Choices) -> T) -> Vec<T> {
            (0..self.below(3)).map(|_| of(self)).collect()
        }

        fn text(&mut self) -> String {
            "text\u{e4}\0".repeat(self.below(4) as usize)
        }

        fn nested(&mut self, depth: usize) -> Nested {
            let number = self.below(u64::MAX);
            let deeper = |choices: &mut Choices| match depth {
                0 => None,
                _ => (choices.below(3) > 0).then(|| choices.nested(depth - 1)),
            };
            Nested {
                unit: (),
                numbers: (
                    number as u8,
                    number as i16,
                    number as u32,
                    number as i64,
                    u128::from(number) << 60,
                    i128::from(number) * -7,
                    number as f32,
                    number as f64,
                    number.is_multiple_of(2),
                    char::from(number as u8),
                ),
                texts: self.list(Choices::text),
                pairs: self.list(|choices| (choices.text(), deeper(choices))).into_iter().collect(),
                kinds: self.list(|choices| choices.kind(depth)),
                array: [None, Some(number as u16), None],
                newtype: Newtype(self.list(|choices| choices.list(|choices| choices.0 as u8))),
                set: [Some(true), None, Some(false)]
                    .into_iter()
                    .take(number as usize % 4)
                    .collect(),
            }
        }

        fn kind(&mut self, depth: usize) -> Kind {
            let Some(depth) = depth.checked_sub(1) else { return Kind::Unit };
            match self.below(4) {
                0 => Kind::Unit,
                1 => Kind::One(Box::new(self.nested(depth))),
                2 => Kind::Two(7, Some(Box::new(self.kind(depth)))),
                _ => Kind::Fields { text: self.text(), inner: Err(Box::new(self.kind(depth))) },
            }
        }
    }

    fn plain<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
        let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(value)
    }

    /// Within the bounds it is what `postcard` makes of the bytes, whether they are anything or not.
    #[test]
    fn what_is_within_the_bounds_decodes_as_without_them() {
        let mut choices = Choices(1);
        let mut malformed = 0;
        for _ in 0..2_000 {
            let value = choices.nested(4);
            let mut bytes = postcard::to_stdvec(&value).unwrap();
            assert_eq!(decode(&bytes, LEVELS), Some(value));
            let place = choices.below(bytes.len() as u64) as usize;
            match choices.below(3) {
                0 => bytes.truncate(place),
                1 => bytes[place] ^= 1 << choices.below(8),
                _ => bytes.insert(place, choices.below(256) as u8),
            }
            // By what they encode to: there are numbers that do not equal themselves.
            let encoded =
                |value: Option<Nested>| value.map(|one| postcard::to_stdvec(&one).unwrap());
            let found = encoded(decode(&bytes, LEVELS));
            assert_eq!(found, encoded(plain(&bytes)));
            malformed += u64::from(found.is_none());
        }
        assert!((500..2_000).contains(&malformed), "{malformed}");
    }

    #[test]
    fn what_is_nested_deeper_is_none() {
        let nots = |count: usize| [&vec![1; count][..], &[0]].concat();
        assert!(decode::<Formula>(&nots(LEVELS - 1), LEVELS).is_some());
        assert!(decode::<Formula>(&nots(LEVELS), LEVELS).is_none());
        assert!(decode::<Formula>(&nots(ANSWER_LEVELS - 1), ANSWER_LEVELS).is_some());
        // Each list of formulas is two levels more.
        let alls = |count: usize| [&[2, 1].repeat(count)[..], &[0]].concat();
        assert!(decode::<Formula>(&alls(LEVELS / 2 - 1), LEVELS).is_some());
        assert!(decode::<Formula>(&alls(LEVELS / 2), LEVELS).is_none());
        // However many there are.
        for bytes in [vec![1; 4 << 20], vec![2; 4 << 20], [2, 1].repeat(2 << 20)] {
            assert!(decode::<Formula>(&bytes, LEVELS).is_none());
        }
        let wide = [&[2, 200, 1][..], &[0; 200]].concat();
        assert!(decode::<Formula>(&wide, LEVELS).is_some());
    }

    #[derive(Deserialize)]
    struct Link {
        next: Option<Box<Link>>,
    }

    #[derive(Deserialize)]
    struct Through(Vec<Through>);

    #[derive(Deserialize)]
    struct Mapped {
        entries: BTreeMap<u8, (Mapped,)>,
    }

    /// Bytes of such a thing within itself, so often; and how many levels each time is.
    fn nests<T: DeserializeOwned>(again: &[u8], end: &[u8], levels: usize) {
        let bytes = |times: usize| [&again.repeat(times)[..], end].concat();
        let most = (LEVELS / levels) - 1;
        assert!(decode::<T>(&bytes(most), LEVELS).is_some());
        assert!(decode::<T>(&bytes(most + 1), LEVELS).is_none());
        assert!(decode::<T>(&bytes((4 << 20) / again.len()), LEVELS).is_none());
    }

    #[test]
    fn each_way_to_contain_itself_has_levels() {
        nests::<Link>(&[1], &[0], 2);
        nests::<Through>(&[1], &[0], 2);
        nests::<Kind>(&[2, 0, 1], &[0], 2);
        nests::<Kind>(&[3, 0, 1], &[0], 2);
        let bytes = |times: usize| [&[1, 7].repeat(times)[..], &[0]].concat();
        assert!(decode::<Mapped>(&bytes(20), LEVELS).is_some_and(|one| one.entries.len() == 1));
        assert!(decode::<Mapped>(&bytes(22), LEVELS).is_none());
        let link: Link = decode(&[1, 0], LEVELS).unwrap();
        assert!(link.next.is_some_and(|link| link.next.is_none()));
        let through: Through = decode(&[1, 0], LEVELS).unwrap();
        assert_eq!(through.0.len(), 1);
    }

    #[test]
    fn a_list_of_what_takes_no_bytes_is_bounded() {
        let encoded = |count: usize| postcard::to_stdvec(&vec![(); count]).unwrap();
        assert_eq!(decode(&encoded(EMPTY_ELEMENTS), LEVELS), Some(vec![(); EMPTY_ELEMENTS]));
        for count in [10_000, u64::MAX] {
            let bytes = postcard::to_stdvec(&count).unwrap();
            assert_eq!(decode::<Vec<()>>(&bytes, LEVELS), None);
            assert_eq!(decode::<BTreeSet<()>>(&bytes, LEVELS), None);
            assert_eq!(decode::<BTreeMap<(), ((), [(); 3])>>(&bytes, LEVELS), None);
        }
        // Of all of them together.
        let many = vec![vec![(); EMPTY_ELEMENTS]; 100];
        assert_eq!(decode::<Vec<Vec<()>>>(&postcard::to_stdvec(&many).unwrap(), LEVELS), None);
        // What takes bytes is bounded by these.
        let lists: Vec<Vec<(u8, ())>> = vec![vec![(0, ()); 100]; 5_000];
        assert_eq!(decode(&postcard::to_stdvec(&lists).unwrap(), LEVELS), Some(lists));
        let empty: Vec<Vec<u8>> = vec![Vec::new(); 100_000];
        assert_eq!(decode(&postcard::to_stdvec(&empty).unwrap(), LEVELS), Some(empty));
    }

    /// What is encoded has so many parts, and is decoded up to just as many.
    fn has_parts<T: Serialize + DeserializeOwned>(value: &T, parts: u64) {
        let bytes = postcard::to_stdvec(value).unwrap();
        let count = Count::up_to(parts);
        assert!(decode_counted::<T>(&bytes, LEVELS, &count).is_some());
        assert_eq!((count.found(), count.is_exceeded()), (parts, false));
        if let Some(fewer) = parts.checked_sub(1) {
            let count = Count::up_to(fewer);
            assert!(decode_counted::<T>(&bytes, LEVELS, &count).is_none());
            // No more than the first that is too many.
            assert_eq!((count.found(), count.is_exceeded()), (parts, true));
        }
    }

    #[test]
    fn what_is_more_than_a_number_is_counted() {
        has_parts(&7u64, 0);
        has_parts(&(), 0);
        has_parts(&Newtype(vec![]), 1);
        has_parts(&vec![7u8; 1000], 1);
        has_parts(&vec![u128::MAX; 1000], 1);
        has_parts(&vec![String::new(); 1000], 1001);
        has_parts(&vec![None::<u64>; 1000], 1001);
        has_parts(&vec![Some(String::new()); 1000], 2001);
        has_parts(&vec![Kind::Unit; 1000], 1001);
        has_parts(&vec![(1u8, 2u8); 1000], 1001);
        has_parts(&vec![Newtype(vec![]); 1000], 1001);
        has_parts(
            &[(1u8, "a".to_owned()), (2, String::new())].into_iter().collect::<BTreeMap<_, _>>(),
            3,
        );
        has_parts(&Kind::Two(7, Some(Box::new(Kind::Unit))), 3);
        // The struct, its numbers, its four lists and maps, its array of three, and what the newtype has in it.
        has_parts(&Nested::default(), 1 + 1 + 4 + 4 + 1);
    }
}
