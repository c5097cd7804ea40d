//! Sessions of those who are logged in. What is in one is the web's affair.

use super::error::{Failure, SessionError};
use super::name::Name;
use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Sessions that an account has at a time; a further one takes the place of that which ends first.
pub const SESSIONS_OF_AN_ACCOUNT: usize = 20;

/// Under what a session is kept: a hash of its id. The id, which is in a cookie, is not in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionKey(pub(super) [u8; 32]);

impl SessionKey {
    /// That of the session with this id.
    #[must_use]
    pub fn of(id: &[u8]) -> SessionKey {
        SessionKey(blake3::derive_key("perdura buzzer 2026 key of a session", id))
    }

    pub(super) fn of_digits(digits: &str) -> Option<SessionKey> {
        Some(SessionKey(*blake3::Hash::from_hex(digits).ok()?.as_bytes()))
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from(self.0).to_hex())
    }
}

/// Of which account somebody showed the password, as it was then: with another password, or of the same name again, it is another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Proof(String);

impl Proof {
    /// Of the account that is kept so.
    #[must_use]
    pub fn of(account: &[u8]) -> Proof {
        let hash = blake3::derive_key("perdura buzzer 2026 proof of an account", account);
        Proof(blake3::Hash::from(hash).to_hex().to_string())
    }
}

/// What a change of a password came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// Of the account as it is now.
    pub proof: Proof,
    /// Whether all its sessions are over; else some are left.
    pub all_ended: bool,
}

/// A session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// Who is logged in.
    pub owner: Name,
    /// Until when, milliseconds since 1970.
    pub expires_ms: u64,
    /// What else is known of it.
    pub content: Bytes,
}

/// Where sessions are kept.
#[async_trait]
pub trait Sessions: Send + Sync + 'static {
    /// Keeps a new session, unless its owner's account is another one than that of the proof by now. An account has up to [`SESSIONS_OF_AN_ACCOUNT`].
    async fn create_session(
        &self,
        key: &SessionKey,
        session: &Session,
        proof: Option<&Proof>,
    ) -> Result<(), SessionError>;

    /// Keeps what a session is now, unless it was ended.
    async fn save_session(&self, key: &SessionKey, session: &Session) -> Result<(), SessionError>;

    /// A session, if it is there and has not ended.
    async fn load_session(&self, key: &SessionKey) -> Result<Option<Session>, Failure>;

    /// Ends a session.
    async fn delete_session(&self, key: &SessionKey) -> Result<(), Failure>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let key = SessionKey::of(b"id");
        assert_eq!(SessionKey::of_digits(&key.to_string()), Some(key));
        assert_ne!(key, SessionKey::of(b"ie"));
        assert_eq!(SessionKey::of_digits("zz"), None);
    }
}
