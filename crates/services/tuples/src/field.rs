//! Typed fields, the parts of tuples and templates.
//!
//! A field is a tag byte and its content: a string (0) or byte string (1) with a `u32` length, an
//! integer (2) or float (3) of 8 bytes, a truth value (4) of one. A value has one encoding, so that
//! equal values are equal bytes: floats are never NaN, and zero has no sign.

use bytes::Bytes;
use perdura_protocol::DecodeError;
use perdura_protocol::codec::encode_bytes;
use std::fmt;

/// A value in a tuple.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Field {
    /// Text.
    String(String),
    /// Any bytes.
    Bytes(Bytes),
    /// A signed integer.
    Integer(i64),
    /// A floating-point number.
    Float(Float),
    /// A truth value.
    Bool(bool),
}

/// The type of a field.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Text.
    String,
    /// Any bytes.
    Bytes,
    /// A signed integer of 64 bits.
    Integer,
    /// A floating-point number of 64 bits.
    Float,
    /// A truth value.
    Bool,
}

/// A 64-bit float that equals itself: not NaN, and -0.0 is 0.0. Infinities are allowed.
#[derive(Clone, Copy, PartialEq)]
pub struct Float(f64);

// It is never NaN.
impl Eq for Float {}

impl Float {
    /// The float of a number; `None` of NaN.
    #[must_use]
    pub fn new(value: f64) -> Option<Float> {
        // -0.0 + 0.0 is 0.0, and every other number stays what it is.
        if value.is_nan() { None } else { Some(Float(value + 0.0)) }
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Debug for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Kind {
    pub(crate) fn tag(self) -> u8 {
        match self {
            Kind::String => 0,
            Kind::Bytes => 1,
            Kind::Integer => 2,
            Kind::Float => 3,
            Kind::Bool => 4,
        }
    }

    pub(crate) fn of_tag(tag: u8) -> Result<Kind, DecodeError> {
        match tag {
            0 => Ok(Kind::String),
            1 => Ok(Kind::Bytes),
            2 => Ok(Kind::Integer),
            3 => Ok(Kind::Float),
            4 => Ok(Kind::Bool),
            tag => Err(DecodeError::UnknownTag(tag)),
        }
    }
}

impl Field {
    /// The type of the value.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Field::String(_) => Kind::String,
            Field::Bytes(_) => Kind::Bytes,
            Field::Integer(_) => Kind::Integer,
            Field::Float(_) => Kind::Float,
            Field::Bool(_) => Kind::Bool,
        }
    }

    /// Bytes of the encoding.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Field::String(text) => 5 + text.len(),
            Field::Bytes(bytes) => 5 + bytes.len(),
            Field::Integer(_) | Field::Float(_) => 9,
            Field::Bool(_) => 2,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind().tag());
        match self {
            Field::String(text) => encode_bytes(text.as_bytes(), out),
            Field::Bytes(bytes) => encode_bytes(bytes, out),
            Field::Integer(value) => out.extend_from_slice(&value.to_le_bytes()),
            Field::Float(value) => out.extend_from_slice(&value.0.to_bits().to_le_bytes()),
            Field::Bool(value) => out.push(u8::from(*value)),
        }
    }
}

impl From<&str> for Field {
    fn from(text: &str) -> Field {
        Field::String(text.to_owned())
    }
}

impl From<i64> for Field {
    fn from(value: i64) -> Field {
        Field::Integer(value)
    }
}

impl From<bool> for Field {
    fn from(value: bool) -> Field {
        Field::Bool(value)
    }
}

/// A field where it is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FieldRef<'a> {
    String(&'a str),
    Bytes(&'a [u8]),
    Integer(i64),
    Float(Float),
    Bool(bool),
}

/// Takes the first `N` bytes off `input`.
pub(crate) fn take_array<const N: usize>(input: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (array, rest) = input.split_first_chunk().ok_or(DecodeError::Truncated)?;
    *input = rest;
    Ok(*array)
}

/// Takes bytes behind their length off `input`.
pub(crate) fn take_bytes<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let length = u32::from_le_bytes(take_array(input)?) as usize;
    let (bytes, rest) = input.split_at_checked(length).ok_or(DecodeError::Truncated)?;
    *input = rest;
    Ok(bytes)
}

impl<'a> FieldRef<'a> {
    /// Takes one field off `input`.
    pub(crate) fn read(input: &mut &'a [u8]) -> Result<FieldRef<'a>, DecodeError> {
        let [tag] = take_array(input)?;
        Ok(match Kind::of_tag(tag)? {
            Kind::String => {
                let text = std::str::from_utf8(take_bytes(input)?);
                FieldRef::String(text.map_err(|_| DecodeError::NotCanonical("text is not UTF-8"))?)
            }
            Kind::Bytes => FieldRef::Bytes(take_bytes(input)?),
            Kind::Integer => FieldRef::Integer(i64::from_le_bytes(take_array(input)?)),
            Kind::Float => {
                let bits = u64::from_le_bytes(take_array(input)?);
                let float = Float::new(f64::from_bits(bits));
                let canonical = float.filter(|float| float.0.to_bits() == bits);
                FieldRef::Float(canonical.ok_or(DecodeError::NotCanonical("NaN or -0.0"))?)
            }
            Kind::Bool => match take_array(input)? {
                [0] => FieldRef::Bool(false),
                [1] => FieldRef::Bool(true),
                [tag] => return Err(DecodeError::UnknownTag(tag)),
            },
        })
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            FieldRef::String(_) => Kind::String,
            FieldRef::Bytes(_) => Kind::Bytes,
            FieldRef::Integer(_) => Kind::Integer,
            FieldRef::Float(_) => Kind::Float,
            FieldRef::Bool(_) => Kind::Bool,
        }
    }

    pub(crate) fn equals(self, field: &Field) -> bool {
        match (self, field) {
            (FieldRef::String(a), Field::String(b)) => a == b,
            (FieldRef::Bytes(a), Field::Bytes(b)) => a == b,
            (FieldRef::Integer(a), Field::Integer(b)) => a == *b,
            (FieldRef::Float(a), Field::Float(b)) => a == *b,
            (FieldRef::Bool(a), Field::Bool(b)) => a == *b,
            _ => false,
        }
    }

    /// The value with memory of its own.
    pub(crate) fn to_field(self) -> Field {
        match self {
            FieldRef::String(text) => Field::String(text.to_owned()),
            FieldRef::Bytes(bytes) => Field::Bytes(Bytes::copy_from_slice(bytes)),
            FieldRef::Integer(value) => Field::Integer(value),
            FieldRef::Float(value) => Field::Float(value),
            FieldRef::Bool(value) => Field::Bool(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_float_has_one_encoding() {
        let float = |value| Float::new(value).unwrap();
        assert_eq!(Float::new(f64::NAN), None);
        assert_eq!(float(-0.0), float(0.0));
        assert_eq!(float(-0.0).get().to_bits(), 0);
        for value in [1.5, -1.5, f64::MIN_POSITIVE / 4.0, f64::INFINITY, f64::NEG_INFINITY, -1e300]
        {
            assert_eq!(float(value).get().to_bits(), value.to_bits());
        }
        for bits in [f64::NAN.to_bits(), (-0.0f64).to_bits(), f64::NAN.to_bits() | 1] {
            let mut encoded = vec![3];
            encoded.extend_from_slice(&bits.to_le_bytes());
            assert!(FieldRef::read(&mut &encoded[..]).is_err());
        }
    }

    #[test]
    fn values_of_different_types_are_never_equal() {
        let mut encoded = Vec::new();
        Field::Integer(1).encode(&mut encoded);
        let one = FieldRef::read(&mut &encoded[..]).unwrap();
        assert!(one.equals(&Field::Integer(1)) && !one.equals(&Field::Integer(2)));
        assert!(!one.equals(&Field::Bool(true)));
        assert!(!one.equals(&Field::Float(Float::new(1.0).unwrap())));
    }
}
