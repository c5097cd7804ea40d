//! Tuples and the templates that match them.
//!
//! A tuple is kept as it is encoded, its fields one after the other, and its fields are read off
//! when they are asked for: a list of tuples of small fields would take many times the memory they
//! came in.

use crate::command::CommandError;
use crate::field::{Field, FieldRef, Kind, take_array, take_bytes};
use crate::limits;
use bytes::Bytes;
use perdura_protocol::codec::{encode_bytes, encode_list};
use perdura_protocol::{Decode, DecodeError, Digest, Encode, Reader};
use std::fmt;

/// A sequence of typed fields, at least one.
#[derive(Clone, PartialEq, Eq)]
pub struct Tuple(Bytes);

/// Fields or wildcards; it matches tuples of as many fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template {
    /// From 1 to [`limits::FIELDS`].
    pub fields: Vec<Pattern>,
}

/// What a field of a tuple is held against.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Any field.
    Any,
    /// Any field of this type.
    Kind(Kind),
    /// This value, of its type.
    Value(Field),
}

impl Tuple {
    /// The tuple of these fields.
    ///
    /// # Errors
    /// When there are none or too many, or they are too long together.
    pub fn new(fields: &[Field]) -> Result<Tuple, CommandError> {
        check_fields(fields.len())?;
        let mut raw = Vec::new();
        fields.iter().for_each(|field| field.encode(&mut raw));
        if raw.len() > limits::TUPLE_BYTES {
            return Err(CommandError::TupleBytes(raw.len()));
        }
        Ok(Tuple(raw.into()))
    }

    /// Its fields.
    pub fn fields(&self) -> impl Iterator<Item = Field> + '_ {
        refs(&self.0).map(FieldRef::to_field)
    }

    /// Bytes of its encoding.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn raw(&self) -> &[u8] {
        &self.0
    }

    /// The tuple of an encoding that was checked before, with memory of its own.
    pub(crate) fn of_raw(raw: &[u8]) -> Tuple {
        Tuple(Bytes::copy_from_slice(raw))
    }
}

fn check_fields(count: usize) -> Result<(), CommandError> {
    match count {
        1..=limits::FIELDS => Ok(()),
        count => Err(CommandError::Fields(count)),
    }
}

/// Holds the encoding of a tuple against its layout and the limits.
pub(crate) fn check_raw(mut raw: &[u8]) -> Result<(), DecodeError> {
    if raw.len() > limits::TUPLE_BYTES {
        let (found, limit) = (raw.len() as u64, limits::TUPLE_BYTES as u64);
        return Err(DecodeError::AboveLimit { what: "tuple", found, limit });
    }
    let mut count = 0;
    while !raw.is_empty() {
        FieldRef::read(&mut raw)?;
        count += 1;
    }
    check_fields(count).map_err(|_| DecodeError::NotCanonical("number of a tuple's fields"))
}

/// The fields of an encoding that was checked before.
pub(crate) fn refs(mut raw: &[u8]) -> impl Iterator<Item = FieldRef<'_>> {
    std::iter::from_fn(move || FieldRef::read(&mut raw).ok())
}

/// The fields of an encoding that was checked before, each as it is encoded, for [`matches_encoded`].
pub(crate) fn split(mut raw: &[u8]) -> Vec<&[u8]> {
    let mut fields = Vec::new();
    while !raw.is_empty() {
        let before = raw;
        if FieldRef::read(&mut raw).is_err() {
            break;
        }
        fields.push(&before[..before.len() - raw.len()]);
    }
    fields
}

/// Whether an encoded template that was checked before matches a tuple of these fields. Neither is
/// decoded: a value has one encoding.
pub(crate) fn matches_encoded(mut template: &[u8], fields: &[&[u8]]) -> bool {
    let mut compare = || {
        if u32::from_le_bytes(take_array(&mut template)?) as usize != fields.len() {
            return Ok(false);
        }
        for field in fields {
            let [tag] = take_array(&mut template)?;
            let matches = match tag {
                0 => true,
                1 => field.starts_with(&take_array::<1>(&mut template)?),
                _ => take_bytes(&mut template)? == *field,
            };
            if !matches {
                return Ok(false);
            }
        }
        Ok::<bool, DecodeError>(true)
    };
    compare().unwrap_or(false)
}

/// What the index knows a prefix of fields by: a hash of their number and values. Two prefixes with
/// one hash cost time and nothing else, since what is found is held against the template.
pub(crate) type PrefixHash = [u8; 16];

fn prefix_hash(count: u8, fields: &[u8]) -> PrefixHash {
    hash_of(b"perdura.tuples.prefix.v1", &[count], fields)
}

/// What claims for a key are known by: a hash of the number of a tuple's fields, and of the first `key` of them.
pub(crate) fn claim_hash(count: u8, key: u8, fields: &[u8]) -> PrefixHash {
    hash_of(b"perdura.tuples.claim.v1", &[count, key], fields)
}

fn hash_of(domain: &[u8], counts: &[u8], fields: &[u8]) -> PrefixHash {
    let Digest(digest) = Digest::of(&[domain, counts, fields].concat());
    let mut hash = [0; 16];
    hash.copy_from_slice(&digest[..16]);
    hash
}

/// Hashes of a tuple's prefixes of 1 to `width` fields, as far as it has them.
pub(crate) fn prefixes(raw: &[u8], width: u8) -> impl Iterator<Item = (u8, PrefixHash)> {
    let mut rest = raw;
    (1..=width).map_while(move |count| {
        FieldRef::read(&mut rest).ok()?;
        Some((count, prefix_hash(count, &raw[..raw.len() - rest.len()])))
    })
}

impl Template {
    /// The template of a tuple's own values.
    #[must_use]
    pub fn of(fields: &[Field]) -> Template {
        Template { fields: fields.iter().cloned().map(Pattern::Value).collect() }
    }

    /// What matches tuples of as many fields as `tuple` that begin with the same `key` of them.
    pub(crate) fn of_key(tuple: &Tuple, key: u8) -> Template {
        let pattern = |(place, field)| {
            if place < usize::from(key) { Pattern::Value(field) } else { Pattern::Any }
        };
        Template { fields: tuple.fields().enumerate().map(pattern).collect() }
    }

    /// Whether it matches `tuple`.
    #[must_use]
    pub fn matches(&self, tuple: &Tuple) -> bool {
        self.matches_raw(tuple.raw())
    }

    pub(crate) fn matches_raw(&self, raw: &[u8]) -> bool {
        let mut fields = refs(raw);
        let all = self.fields.iter().all(|pattern| {
            fields.next().is_some_and(|field| match pattern {
                Pattern::Any => true,
                Pattern::Kind(kind) => field.kind() == *kind,
                Pattern::Value(value) => field.equals(value),
            })
        });
        all && fields.next().is_none()
    }

    /// The longest prefix of values, of at most `width` fields, by which the index finds tuples.
    pub(crate) fn prefix(&self, width: u8) -> Option<(u8, PrefixHash)> {
        let mut raw = Vec::new();
        let mut count = 0;
        for pattern in self.fields.iter().take(usize::from(width)) {
            let Pattern::Value(value) = pattern else { break };
            value.encode(&mut raw);
            count += 1;
        }
        (count > 0).then(|| (count, prefix_hash(count, &raw)))
    }

    /// Bytes of its values, encoded as in a tuple.
    pub(crate) fn bytes(&self) -> usize {
        let value = |pattern: &Pattern| match pattern {
            Pattern::Value(value) => value.bytes(),
            Pattern::Any | Pattern::Kind(_) => 0,
        };
        self.fields.iter().map(value).sum()
    }

    pub(crate) fn validate(&self) -> Result<(), CommandError> {
        check_fields(self.fields.len())?;
        match self.bytes() {
            ..=limits::TUPLE_BYTES => Ok(()),
            length => Err(CommandError::TupleBytes(length)),
        }
    }
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.fields()).finish()
    }
}

impl Encode for Tuple {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_bytes(&self.0, out);
    }
}

impl Decode for Tuple {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let raw = reader.bytes("tuple", limits::TUPLE_BYTES)?;
        check_raw(&raw)?;
        Ok(Tuple(raw))
    }
}

impl Encode for Pattern {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Pattern::Any => out.push(0),
            Pattern::Kind(kind) => out.extend_from_slice(&[1, kind.tag()]),
            Pattern::Value(value) => {
                out.push(2);
                let mut raw = Vec::new();
                value.encode(&mut raw);
                encode_bytes(&raw, out);
            }
        }
    }
}

impl Decode for Pattern {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            0 => Pattern::Any,
            1 => Pattern::Kind(Kind::of_tag(u8::decode(reader)?)?),
            2 => {
                let raw = reader.bytes("field", limits::TUPLE_BYTES)?;
                let mut rest = &raw[..];
                let value = FieldRef::read(&mut rest)?.to_field();
                if !rest.is_empty() {
                    return Err(DecodeError::TrailingBytes);
                }
                Pattern::Value(value)
            }
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}

impl Encode for Template {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_list(&self.fields, out);
    }
}

impl Decode for Template {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let fields = reader.list("fields of a template", limits::FIELDS, 1)?;
        let template = Template { fields };
        let checked = template.validate();
        checked
            .map_err(|_| DecodeError::NotCanonical("number or length of a template's fields"))?;
        Ok(template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Vec<Field> {
        vec!["job".into(), 7.into(), true.into()]
    }

    #[test]
    fn a_template_matches_as_many_fields_by_wildcard_type_or_value() {
        let tuple = Tuple::new(&fields()).unwrap();
        let (any, kind) = (Pattern::Any, Pattern::Kind);
        let value = |field: Field| Pattern::Value(field);
        let matches = |fields: &[&Pattern]| {
            Template { fields: fields.iter().copied().cloned().collect() }.matches(&tuple)
        };
        assert!(Template::of(&fields()).matches(&tuple));
        assert!(matches(&[&any, &any, &any]));
        assert!(matches(&[&value("job".into()), &kind(Kind::Integer), &any]));
        assert!(!matches(&[&any, &any]) && !matches(&[&any, &any, &any, &any]));
        assert!(!matches(&[&kind(Kind::Bytes), &any, &any]));
        assert!(!matches(&[&value("jobs".into()), &any, &any]));
        assert!(!matches(&[&any, &value(8.into()), &any]));
    }

    /// An encoded template matches what the template does.
    #[test]
    fn templates_match_as_they_are_encoded() {
        let values = || fields().into_iter().map(Pattern::Value);
        let kinds = || fields().into_iter().map(|field| Pattern::Kind(field.kind()));
        let others = || vec![Field::from("jobs"), Field::Bool(true), Field::Bool(false)];
        let tuples = [fields(), others(), fields()[..2].to_vec()].map(|f| Tuple::new(&f).unwrap());
        let (mut matched, mut not) = (0, 0);
        for place in 0..4 {
            for (one, other) in values().zip(others()) {
                let patterns =
                    [Pattern::Any, one, Pattern::Kind(other.kind()), Pattern::Value(other)];
                for pattern in patterns {
                    for rest in [values().collect::<Vec<_>>(), kinds().collect()] {
                        let mut fields = rest;
                        fields.truncate(2 + place);
                        if let Some(field) = fields.get_mut(place) {
                            *field = pattern.clone();
                        }
                        let template = Template { fields };
                        let encoded = template.to_bytes();
                        for tuple in &tuples {
                            let found = matches_encoded(&encoded, &split(tuple.raw()));
                            assert_eq!(found, template.matches(tuple), "{template:?} {tuple:?}");
                            *if found { &mut matched } else { &mut not } += 1;
                        }
                    }
                }
            }
        }
        assert!(matched > 20 && not > 20, "{matched} {not}");
    }

    #[test]
    fn prefixes_of_template_and_tuple_agree() {
        let tuple = Tuple::new(&fields()).unwrap();
        let of_tuple: Vec<_> = prefixes(tuple.raw(), 8).collect();
        assert_eq!(of_tuple.len(), 3);
        for width in 1..=3 {
            let found = Template::of(&fields()).prefix(width);
            assert_eq!(found, Some(of_tuple[usize::from(width) - 1]));
        }
        let mut template = Template::of(&fields());
        assert_eq!(template.prefix(0), None);
        template.fields[1] = Pattern::Any;
        assert_eq!(template.prefix(8), Some(of_tuple[0]));
        template.fields[0] = Pattern::Kind(Kind::String);
        assert_eq!(template.prefix(8), None);
        assert_eq!(prefixes(tuple.raw(), 2).count(), 2);
    }

    #[test]
    fn tuples_are_bounded() {
        assert_eq!(Tuple::new(&[]), Err(CommandError::Fields(0)));
        let many = vec![Field::Bool(true); limits::FIELDS + 1];
        assert_eq!(Tuple::new(&many), Err(CommandError::Fields(33)));
        assert!(Tuple::new(&many[1..]).is_ok());
        let long = |length| [Field::Bytes(vec![0; length].into())];
        assert!(Tuple::new(&long(limits::TUPLE_BYTES - 5)).is_ok());
        assert!(Tuple::new(&long(limits::TUPLE_BYTES - 4)).is_err());
        assert!(Template::of(&long(limits::TUPLE_BYTES - 4)).validate().is_err());
    }
}
