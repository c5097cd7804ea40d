//! Where sessions are kept: with the network, under a hash of their ids.

use super::visitor;
use crate::network::{Failure, Name, Network, Proof, Session, SessionError, SessionKey};
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use time::OffsetDateTime;
use tokio::sync::Semaphore;
use tower_sessions::session::{Id, Record};
use tower_sessions::session_store::{Error, Result};
use tower_sessions::{Expiry, SessionStore};

/// What a session's owner is called in it; there are no sessions without one.
pub(super) const OWNER: &str = "name";

/// ... and the proof of his password, as it was when he logged in.
pub(super) const PROOF: &str = "proof";

/// A session ends when it was not used for so long.
const SESSION_DAYS: i64 = 14;

/// So many are written again at a time; they may wait for a partition that is down.
const WRITTEN_AT_A_TIME: usize = 64;

/// When sessions end.
pub(super) fn expiry() -> Expiry {
    Expiry::OnInactivity(time::Duration::days(SESSION_DAYS))
}

/// Keeps sessions with a network.
#[derive(Clone)]
pub(super) struct Kept {
    network: Arc<dyn Network>,
    /// Room for sessions that are written again behind their pages.
    room: Arc<Semaphore>,
}

impl Kept {
    pub(super) fn with(network: Arc<dyn Network>) -> Kept {
        Kept { network, room: Arc::new(Semaphore::new(WRITTEN_AT_A_TIME)) }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

pub(super) fn key_of(id: &Id) -> SessionKey {
    SessionKey::of(&id.0.to_be_bytes())
}

fn failed(error: impl fmt::Display) -> Error {
    Error::Backend(error.to_string())
}

fn session_of(record: &Record) -> Result<Session> {
    let owner = record.data.get(OWNER).and_then(|name| name.as_str()).unwrap_or_default();
    let owner = Name::new(owner).map_err(|error| Error::Encode(error.to_string()))?;
    let expires_ms = record.expiry_date.unix_timestamp_nanos() / 1_000_000;
    let content = serde_json::to_vec(&record.data);
    Ok(Session {
        owner,
        expires_ms: u64::try_from(expires_ms).unwrap_or(0),
        content: content.map(Bytes::from).map_err(|error| Error::Encode(error.to_string()))?,
    })
}

fn record_of(id: Id, session: &Session) -> Result<Record> {
    let data = serde_json::from_slice(&session.content);
    let expiry_ns = i128::from(session.expires_ms) * 1_000_000;
    Ok(Record {
        id,
        data: data.map_err(|error| Error::Decode(error.to_string()))?,
        expiry_date: OffsetDateTime::from_unix_timestamp_nanos(expiry_ns)
            .map_err(|error| Error::Decode(error.to_string()))?,
    })
}

#[async_trait]
impl SessionStore for Kept {
    // Ids are of 128 bits by chance: none comes twice.
    async fn create(&self, record: &mut Record) -> Result<()> {
        let proof = record.data.get(PROOF).cloned().map(serde_json::from_value).transpose();
        let proof: Option<Proof> = proof.map_err(|error| Error::Encode(error.to_string()))?;
        let (key, session) = (key_of(&record.id), session_of(record)?);
        let created = self.network.create_session(&key, &session, proof.as_ref()).await;
        created.inspect_err(|error| tracing::warn!(%error, "a session is not kept")).map_err(failed)
    }

    async fn save(&self, record: &Record) -> Result<()> {
        // It was to end and could not be: that was told, or it ends with its account.
        let Ok(session) = session_of(record) else { return Ok(()) };
        // All that changes is until when it lasts. No page waits for that, or fails for it: what it did is done. The next one tries again, unless the session is over.
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else { return Ok(()) };
        let (network, key) = (Arc::clone(&self.network), key_of(&record.id));
        tokio::spawn(async move {
            let _room = room;
            match network.save_session(&key, &session).await {
                Ok(()) | Err(SessionError::Over) => {}
                Err(error) => tracing::warn!(%error, "a session is not written again"),
            }
        });
        Ok(())
    }

    async fn load(&self, id: &Id) -> Result<Option<Record>> {
        let session = self.network.load_session(&key_of(id)).await.map_err(failed)?;
        session.map(|session| record_of(*id, &session)).transpose()
    }

    async fn delete(&self, id: &Id) -> Result<()> {
        self.network.delete_session(&key_of(id)).await.map_err(failed)
    }
}

/// Logs somebody in who has shown elsewhere who he is, as a load generator has; what the session's cookie says.
///
/// # Errors
/// When the session cannot be kept.
pub async fn open_session(
    network: Arc<dyn Network>,
    name: &Name,
) -> std::result::Result<String, Failure> {
    let failed = |error: tower_sessions::session::Error| {
        Failure::Unavailable(format!("the session: {error}"))
    };
    let session = tower_sessions::Session::new(None, Arc::new(Kept::with(network)), Some(expiry()));
    visitor::log_in(&session, name, None).await?;
    session.save().await.map_err(failed)?;
    let id = session.id().ok_or_else(|| Failure::Broken("a session has no id".to_owned()))?;
    Ok(id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was() {
        let data = [(OWNER.to_owned(), "alice".into()), ("csrf".to_owned(), "x".into())];
        let expiry_date = OffsetDateTime::from_unix_timestamp(1_900_000_000).unwrap();
        let record = Record { id: Id(-5), data: data.into_iter().collect(), expiry_date };
        let session = session_of(&record).unwrap();
        assert_eq!(session.owner.as_str(), "alice");
        assert_eq!(record_of(record.id, &session).unwrap(), record);
    }

    #[test]
    fn there_is_none_without_an_owner() {
        let expiry_date = OffsetDateTime::UNIX_EPOCH;
        let record = Record { id: Id(1), data: Default::default(), expiry_date };
        assert!(session_of(&record).is_err());
    }
}
