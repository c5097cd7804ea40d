//! What stands behind the store's keys. Each value says in which version it is written; there is one.
//!
//! Accounts, posts and failed logins are JSON, so that operators can read them; a session is its own content behind a few bytes.

use super::error::Failure;
use super::name::Name;
use super::origin::OriginHash;
use super::post::PostId;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const VERSION: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    v: u8,
    #[serde(flatten)]
    content: T,
}

/// An account.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AccountValue {
    /// The password's hash, as a PHC string.
    pub hash: String,
    /// When it was made, milliseconds since 1970.
    pub made_ms: u64,
    /// There while it is being deleted: when that began, and so which deletion it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleting_ms: Option<u64>,
}

/// A post.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PostValue {
    /// What it says.
    pub text: String,
    /// What it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<PostId>,
}

/// Passwords that were wrong one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct FailuresValue {
    pub failed: u32,
    /// When the last one was, milliseconds since 1970; of a known origin when somebody was there last.
    pub last_ms: u64,
}

/// What there is of an origin.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct OriginValue {
    pub origin: OriginHash,
    #[serde(flatten)]
    pub failures: FailuresValue,
    /// Whether the right password was shown there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub known: bool,
}

/// Passwords with a name that were wrong, and where.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct LoginsValue {
    /// From all origins together that are not known; those of values that have no origins, as earlier programs wrote them, are taken for such.
    #[serde(flatten)]
    pub unknown: FailuresValue,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<OriginValue>,
}

/// A session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SessionValue {
    pub expires_ms: u64,
    pub owner: Name,
    pub content: Bytes,
}

/// A value's bytes.
///
/// # Errors
/// When they cannot be written, which no value of these kinds gives cause for.
pub fn write<T: Serialize>(content: &T) -> Result<Bytes, Failure> {
    let versioned = Versioned { v: VERSION, content };
    serde_json::to_vec(&versioned).map(Bytes::from).map_err(|error| Failure::broken(&error))
}

/// The value with these bytes.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let versioned: Versioned<T> =
        serde_json::from_slice(bytes).map_err(|error| Failure::broken(&error))?;
    if versioned.v != VERSION {
        return Err(newer(versioned.v));
    }
    Ok(versioned.content)
}

fn newer(version: u8) -> Failure {
    Failure::Broken(format!(
        "a value is of version {version}, and this program knows {VERSION}; run a newer program"
    ))
}

impl SessionValue {
    pub(super) fn write(&self) -> Bytes {
        let owner = self.owner.as_str().as_bytes();
        let mut out = BytesMut::with_capacity(10 + owner.len() + self.content.len());
        out.put_u8(VERSION);
        out.put_u64(self.expires_ms);
        // Names have at most 20 bytes.
        out.put_u8(owner.len() as u8);
        out.put_slice(owner);
        out.put_slice(&self.content);
        out.freeze()
    }

    pub(super) fn read(mut bytes: Bytes) -> Result<SessionValue, Failure> {
        let short = || Failure::Broken("a session's value is cut off".to_owned());
        let version = bytes.try_get_u8().map_err(|_| short())?;
        if version != VERSION {
            return Err(newer(version));
        }
        let expires_ms = bytes.try_get_u64().map_err(|_| short())?;
        let length = usize::from(bytes.try_get_u8().map_err(|_| short())?);
        if bytes.len() < length {
            return Err(short());
        }
        let owner = bytes.split_to(length);
        let owner = std::str::from_utf8(&owner).map_err(|error| Failure::broken(&error))?;
        let owner = Name::new(owner).map_err(|error| Failure::broken(&error))?;
        Ok(SessionValue { expires_ms, owner, content: bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written() {
        let post = PostValue {
            text: "a \"b\"\n<c>".to_owned(),
            answers: Some("bob/0123456789abcdef0123".parse().unwrap()),
        };
        assert_eq!(read::<PostValue>(&write(&post).unwrap()).unwrap(), post);
        let account = AccountValue { hash: "$argon2id$".to_owned(), made_ms: 5, deleting_ms: None };
        assert_eq!(read::<AccountValue>(&write(&account).unwrap()).unwrap(), account);
        let owner = Name::new("alice").unwrap();
        let session = SessionValue { expires_ms: 9, owner, content: Bytes::from_static(b"\0x") };
        assert_eq!(SessionValue::read(session.write()).unwrap(), session);
    }

    #[test]
    fn logins_are_read_as_they_were_written_and_as_they_were_before_they_had_origins() {
        let unknown = FailuresValue { failed: 3, last_ms: 17 };
        let before = read::<LoginsValue>(br#"{"v":1,"failed":3,"last_ms":17}"#).unwrap();
        assert_eq!(before, LoginsValue { unknown, origins: Vec::new() });
        let text = br#"{"v":1,"failed":3,"last_ms":17,"origins":[{"origin":"0123456789abcdef","failed":0,"last_ms":16,"known":true},{"origin":"fedcba9876543210","failed":3,"last_ms":17}]}"#;
        let value = read::<LoginsValue>(text).unwrap();
        assert_eq!((value.unknown, value.origins.len()), (unknown, 2));
        assert!(value.origins[0].known && !value.origins[1].known);
        assert_eq!(value.origins[1].failures, unknown);
        assert_eq!(write(&value).unwrap(), Bytes::from_static(text));
    }

    #[test]
    fn other_versions_and_damage_are_told() {
        let failure = read::<PostValue>(br#"{"v":2,"text":"x"}"#).unwrap_err();
        assert!(failure.to_string().contains("version 2"), "{failure}");
        assert!(read::<PostValue>(b"{").is_err());
        for bytes in [&b""[..], b"\x02", b"\x01\0\0\0\0\0\0\0\x09\x05al"] {
            assert!(SessionValue::read(Bytes::from_static(bytes)).is_err());
        }
    }
}
