//! Fields by name, for formats that have to grow (docs/design.md, Versions).
//!
//! A list of fields, ascending by name, each once: `u16` count, then for each a byte (1 if who does not know it has to
//! refuse the whole, 0 if it may be passed over), the name (`u8` length, then lower-case letters, digits, `.`, `-` and `_`) and the
//! value (`u32` length, then its encoding). So an older program reads what a newer one wrote, or says by name what it does not
//! understand; and equal lists have equal bytes.

use crate::codec::{Decode, DecodeError, Encode, Reader, encode_bytes};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Most fields in a list.
const MOST: usize = 256;

/// Bytes of a name, at most.
const NAME_BYTES: usize = 48;

/// Bytes of a value, at most.
const VALUE_BYTES: usize = 64 * 1024;

/// Why fields are not those of a value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FieldError {
    /// It is not there.
    #[error("the field {0:?} is missing")]
    Missing(&'static str),
    /// A newer program wrote it, and says that it has to be understood.
    #[error("the field {0:?} is of a newer version of this program, and may not be passed over")]
    Unknown(String),
    /// Its value does not decode.
    #[error("the field {name:?} is malformed: {reason}")]
    Malformed {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        reason: DecodeError,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Field {
    required: bool,
    value: Bytes,
}

/// A list of fields.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fields {
    by_name: BTreeMap<String, Field>,
}

impl Fields {
    /// Adds a field without which the others are not understood rightly.
    ///
    /// # Panics
    /// When there is one of that name, or the name or the value is too long or not of its letters: those of this program are not.
    pub fn require(&mut self, name: &str, value: &impl Encode) {
        self.add(name, true, value);
    }

    /// Adds a field that may be passed over, and lost when an older program writes the list again.
    ///
    /// # Panics
    /// As [`Fields::require`].
    pub fn offer(&mut self, name: &str, value: &impl Encode) {
        self.add(name, false, value);
    }

    fn add(&mut self, name: &str, required: bool, value: &impl Encode) {
        let value = value.to_bytes();
        assert!(is_name(name.as_bytes()) && value.len() <= VALUE_BYTES, "field {name:?}");
        let before = self.by_name.insert(name.to_owned(), Field { required, value });
        assert!(before.is_none() && self.by_name.len() <= MOST, "field {name:?}");
    }

    /// Takes a field out.
    ///
    /// # Errors
    /// [`FieldError::Malformed`].
    pub fn take<T: Decode>(&mut self, name: &'static str) -> Result<Option<T>, FieldError> {
        let Some(field) = self.by_name.remove(name) else { return Ok(None) };
        let value = T::from_bytes(field.value);
        value.map(Some).map_err(|reason| FieldError::Malformed { name, reason })
    }

    /// Takes a field out that has to be there.
    ///
    /// # Errors
    /// [`FieldError::Missing`], [`FieldError::Malformed`].
    pub fn need<T: Decode>(&mut self, name: &'static str) -> Result<T, FieldError> {
        self.take_required(name)?.ok_or(FieldError::Missing(name))
    }

    /// Takes a field out that may not be passed over, and that older programs do not write.
    ///
    /// # Errors
    /// [`FieldError::Malformed`].
    pub fn take_required<T: Decode>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<T>, FieldError> {
        if self.by_name.get(name).is_some_and(|field| !field.required) {
            let reason = DecodeError::NotCanonical("it may not be passed over");
            return Err(FieldError::Malformed { name, reason });
        }
        self.take(name)
    }

    /// All that is known was taken out; what is left may be passed over.
    ///
    /// # Errors
    /// [`FieldError::Unknown`] with the first that may not.
    pub fn pass_over(&self) -> Result<(), FieldError> {
        let unknown = self.by_name.iter().find(|(_, field)| field.required);
        unknown.map_or(Ok(()), |(name, _)| Err(FieldError::Unknown(name.clone())))
    }

    /// Puts fields beside these that were passed over when they were read.
    pub fn put_back(&mut self, passed_over: &Fields) {
        for (name, field) in &passed_over.by_name {
            self.by_name.entry(name.clone()).or_insert_with(|| field.clone());
        }
    }
}

fn is_name(bytes: &[u8]) -> bool {
    let letter = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
    (1..=NAME_BYTES).contains(&bytes.len()) && bytes.iter().all(letter)
}

impl Encode for Fields {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.by_name.len() as u16).encode(out);
        for (name, field) in &self.by_name {
            field.required.encode(out);
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
            encode_bytes(&field.value, out);
        }
    }
}

impl Decode for Fields {
    fn decode(reader: &mut Reader) -> Result<Fields, DecodeError> {
        let count = usize::from(u16::decode(reader)?);
        if count > MOST {
            let (found, limit) = (count as u64, MOST as u64);
            return Err(DecodeError::AboveLimit { what: "fields", found, limit });
        }
        let mut by_name: BTreeMap<String, Field> = BTreeMap::new();
        for _ in 0..count {
            let required = bool::decode(reader)?;
            let length = usize::from(u8::decode(reader)?);
            let name = reader.take(length)?;
            let text = str::from_utf8(&name).ok().filter(|_| is_name(&name));
            let name = text.ok_or(DecodeError::NotCanonical("name of a field"))?.to_owned();
            if by_name.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return Err(DecodeError::NotCanonical("order of fields"));
            }
            let value = reader.bytes("value of a field", VALUE_BYTES)?;
            by_name.insert(name, Field { required, value });
        }
        Ok(Fields { by_name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a newer program writes.
    fn newer(required: bool) -> Fields {
        let mut fields = Fields::default();
        fields.require("slot", &7u64);
        fields.add("colour", required, &9u32);
        Fields::from_bytes(fields.to_bytes()).unwrap()
    }

    #[test]
    fn what_may_be_passed_over_is_and_is_kept() {
        let mut fields = newer(false);
        assert_eq!(fields.need::<u64>("slot"), Ok(7));
        assert_eq!(fields.take::<u64>("size"), Ok(None), "an older program wrote it");
        assert_eq!(fields.pass_over(), Ok(()));
        let mut again = Fields::default();
        again.require("slot", &8u64);
        again.put_back(&fields);
        let mut read = Fields::from_bytes(again.to_bytes()).unwrap();
        assert_eq!((read.need("slot"), read.take("colour")), (Ok(8u64), Ok(Some(9u32))));
        again = Fields::default();
        again.offer("slot", &8u64);
        assert!(matches!(again.need::<u64>("slot"), Err(FieldError::Malformed { .. })));
    }

    #[test]
    fn what_may_not_be_passed_over_is_refused_by_name() {
        let mut fields = newer(true);
        assert_eq!(fields.need::<u64>("slot"), Ok(7));
        assert_eq!(fields.pass_over(), Err(FieldError::Unknown("colour".into())));
        assert_eq!(fields.need::<u32>("size"), Err(FieldError::Missing("size")));
        let reason = DecodeError::TrailingBytes;
        assert_eq!(
            fields.take::<u16>("colour"),
            Err(FieldError::Malformed { name: "colour", reason })
        );
    }

    #[test]
    fn a_list_has_one_encoding() {
        let bytes = newer(true).to_bytes().to_vec();
        let mut swapped = bytes[..2].to_vec();
        let second = 2 + 1 + 1 + "colour".len() + 4 + 4;
        swapped.extend_from_slice(&bytes[second..]);
        swapped.extend_from_slice(&bytes[2..second]);
        let twice = [&[2, 0][..], &bytes[2..second], &bytes[2..second]].concat();
        for other in [swapped, twice] {
            let reason = DecodeError::NotCanonical("order of fields");
            assert_eq!(Fields::from_bytes(other.into()), Err(reason));
        }
        let mut odd = bytes.clone();
        odd[4] = b'C';
        assert_eq!(
            Fields::from_bytes(odd.into()),
            Err(DecodeError::NotCanonical("name of a field"))
        );
        for end in 0..bytes.len() {
            assert!(Fields::from_bytes(Bytes::copy_from_slice(&bytes[..end])).is_err());
        }
    }
}
