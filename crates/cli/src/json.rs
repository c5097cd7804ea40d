//! JSON as people and scripts write it. What a reader of JSON usually lets pass in silence is refused: a field that stands there twice, of which
//! one would not count, and an integer that has no place, which would become another number.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// What some programs put before text; it is no part of it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The value that `text` is.
///
/// # Errors
/// When it is no JSON, has a field twice in one object, or an integer below -2^63 or above 2^64 - 1; in words.
pub fn read(text: &[u8]) -> Result<Value, String> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let Strict(value) = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    match integers(text).find(|integer| !has_place(integer)) {
        None => Ok(value),
        Some(integer) => {
            let shown = String::from_utf8_lossy(integer);
            Err(format!(
                "{shown} is no integer from {} to {}; a string keeps it",
                i64::MIN,
                u64::MAX
            ))
        }
    }
}

fn has_place(integer: &[u8]) -> bool {
    let text = std::str::from_utf8(integer).unwrap_or_default();
    // -0 is a number, too, and 0.
    text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok()
}

/// The integers in JSON that was read: numbers with neither fraction nor exponent.
fn integers(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            match rest.first()? {
                b'"' => rest = &rest[string_bytes(rest)..],
                b'-' | b'0'..=b'9' => {
                    let part =
                        |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                    let end = rest.iter().position(|byte| !part(byte)).unwrap_or(rest.len());
                    let (number, behind) = rest.split_at(end);
                    rest = behind;
                    if number.iter().all(|byte| matches!(byte, b'-' | b'0'..=b'9')) {
                        return Some(number);
                    }
                }
                _ => rest = &rest[1..],
            }
        }
    })
}

/// Of the string with which `text` begins, with its quotation marks.
fn string_bytes(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        deserializer.deserialize_any(Reading)
    }
}

struct Reading;

impl<'de> Visitor<'de> for Reading {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Strict, E> {
        Ok(Strict(Value::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Strict, A::Error> {
        let mut all = Vec::new();
        while let Some(Strict(value)) = items.next_element()? {
            all.push(value);
        }
        Ok(Strict(Value::Array(all)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Strict, A::Error> {
        let mut all = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if all.contains_key(&name) {
                return Err(A::Error::custom(format!("the field {name:?} stands there twice")));
            }
            let Strict(value) = fields.next_value()?;
            all.insert(name, value);
        }
        Ok(Strict(Value::Object(all)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_read_is_what_is_there() {
        let text = r#" {"a":[1,-2,3.5,1e300,-0,true,null],"b":{"a":"\u0041\"\\"},"":18446744073709551615} "#;
        let usual: Value = serde_json::from_str(text).unwrap();
        assert_eq!(read(text.as_bytes()), Ok(usual));
        assert_eq!(read(b"\xef\xbb\xbf[\"x\"]"), Ok(json!(["x"])));
        assert_eq!(read(b"-9223372036854775808"), Ok(json!(i64::MIN)));
        // In a string, or with a fraction or an exponent, it is no integer.
        for other in [r#""99999999999999999999""#, "99999999999999999999.0", "1e30", r#""\"9e9""#] {
            assert!(read(other.as_bytes()).is_ok(), "{other}");
        }
    }

    #[test]
    fn what_would_not_count_or_become_something_else_is_refused() {
        for (text, told) in [
            (r#"{"a":1,"a":1}"#, "\"a\" stands there twice"),
            (r#"[{"write":{"key":"a","value":"1"},"write":{"key":"b","value":"2"}}]"#, "\"write\""),
            (r#"{"x":{"k":{"y":1,"\u0079":2}}}"#, "\"y\" stands there twice"),
            ("-9223372036854775809", "-9223372036854775809 is no integer"),
            (r#"["\\",18446744073709551616]"#, "18446744073709551616 is no integer"),
            (r#"{"id":123456789012345678901234567890}"#, "is no integer"),
            ("[1,]", "trailing comma"),
            ("{\"a\":1} x", "trailing characters"),
            ("", "EOF"),
        ] {
            let refused = read(text.as_bytes()).unwrap_err();
            assert!(refused.contains(told), "{text}: {refused}");
        }
    }
}
