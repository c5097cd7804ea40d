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
mod tests;
