//! Where sessions are kept: with the network, under a hash of their ids.

#[cfg(test)]
mod stub;

use super::visitor;
use crate::network::{Failure, Name, Proof, Session, SessionError, SessionKey, Sessions};
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

/// ... and when he did so, milliseconds since 1970.
pub(super) const BEGUN: &str = "begun_ms";

/// A session ends when it was not used for so long, ...
const SESSION_DAYS: i64 = 14;

/// ... and so long after it began in any case: who has come by the cookie of somebody who comes every day does not have it for ever.
const MOST_MS: u64 = 90 * 86_400_000;

/// So many are written again at a time; they may wait for a partition that is down.
const WRITTEN_AT_A_TIME: usize = 64;

/// When sessions end.
pub(super) fn expiry() -> Expiry {
    Expiry::OnInactivity(time::Duration::days(SESSION_DAYS))
}

/// Keeps sessions with a network.
#[derive(Clone)]
pub(super) struct Kept {
    network: Arc<dyn Sessions>,
    /// Room for sessions that are written again behind their pages.
    room: Arc<Semaphore>,
}

impl Kept {
    pub(super) fn with(network: Arc<dyn Sessions>) -> Kept {
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
    let expires_ms = u64::try_from(expires_ms).unwrap_or(0);
    let begun_ms = record.data.get(BEGUN).and_then(|begun| begun.as_u64());
    let latest_ms = begun_ms.map_or(u64::MAX, |begun_ms| begun_ms.saturating_add(MOST_MS));
    let content = serde_json::to_vec(&record.data);
    Ok(Session {
        owner,
        expires_ms: expires_ms.min(latest_ms),
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

/// An id of 128 bits by chance: none comes twice, and nobody guesses one. From the system's source, as all tokens are: what the sessions' layer draws comes from a
/// generator in this process.
fn new_id() -> Result<Id> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(Id(i128::from_be_bytes(bytes)))
}

#[async_trait]
impl SessionStore for Kept {
    // Every session gets its id here: the layer takes what stands in the record afterwards.
    async fn create(&self, record: &mut Record) -> Result<()> {
        record.id = new_id()?;
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
    network: Arc<dyn Sessions>,
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

    fn record(data: &[(&str, serde_json::Value)], expires_s: i64) -> Record {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let expiry_date = OffsetDateTime::from_unix_timestamp(expires_s).unwrap();
        Record { id: Id(1), data, expiry_date }
    }

    #[test]
    fn one_that_is_used_ends_all_the_same() {
        let end_ms = |begun: Option<u64>| {
            let begun = begun.map(|begun_ms| (BEGUN, begun_ms.into()));
            let data: Vec<_> = begun.into_iter().chain([(OWNER, "alice".into())]).collect();
            session_of(&record(&data, 1_900_000_000)).unwrap().expires_ms
        };
        let expires_ms = 1_900_000_000_000;
        assert_eq!(end_ms(None), expires_ms);
        assert_eq!(end_ms(Some(expires_ms - MOST_MS + 5)), expires_ms);
        assert_eq!(end_ms(Some(expires_ms - MOST_MS - 5)), expires_ms - 5);
        assert_eq!(end_ms(Some(u64::MAX)), expires_ms);
    }

    #[tokio::test]
    async fn the_system_draws_their_ids() {
        let network = Arc::new(stub::InMemory::default());
        let kept = Kept::with(Arc::clone(&network) as _);
        let keys = || network.kept().into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        // What the layer drew is not looked at.
        let drawn = record(&[(OWNER, "alice".into())], 1_900_000_000);
        let (mut one, mut other) = (drawn.clone(), drawn);
        kept.create(&mut one).await.unwrap();
        kept.create(&mut other).await.unwrap();
        assert!(one.id != Id(1) && other.id != Id(1) && one.id != other.id);
        assert_eq!(keys(), [key_of(&one.id), key_of(&other.id)]);
        // The cookie says what was drawn here, also where another session takes the place of one.
        kept.delete(&one.id).await.unwrap();
        kept.delete(&other.id).await.unwrap();
        let session = tower_sessions::Session::new(None, Arc::new(kept), Some(expiry()));
        let mut before = None;
        for name in ["alice", "bob"] {
            visitor::log_in(&session, &Name::new(name).unwrap(), None).await.unwrap();
            session.save().await.unwrap();
            assert_eq!(keys(), [key_of(&session.id().unwrap())]);
            assert_ne!(session.id(), before);
            before = session.id();
        }
    }

    #[test]
    fn there_is_none_without_an_owner() {
        let expiry_date = OffsetDateTime::UNIX_EPOCH;
        let record = Record { id: Id(1), data: Default::default(), expiry_date };
        assert!(session_of(&record).is_err());
    }
}
