//! Sessions: one key by their ids, and one with their owners', so that they end with an account.

use super::super::error::{Failure, SessionError};
use super::super::keys::{self, Kind};
use super::super::name::Name;
use super::super::session::{SESSIONS_OF_AN_ACCOUNT, Session, SessionKey};
use super::super::values::SessionValue;
use super::{Perdura, Written, now_ms};
use bytes::Bytes;

/// Sessions of an account that are read: servers that add some at once may go beyond what it may have.
const SESSIONS_READ: u32 = 2 * SESSIONS_OF_AN_ACCOUNT as u32;

fn value_of(session: &Session) -> Bytes {
    let Session { owner, expires_ms, content } = session.clone();
    SessionValue { expires_ms, owner, content }.write()
}

fn end_of(session: &Session) -> Bytes {
    Bytes::copy_from_slice(&session.expires_ms.to_be_bytes())
}

fn end_in(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_be_bytes)
}

impl Perdura {
    pub(super) async fn add_session(
        &self,
        key: &SessionKey,
        session: &Session,
    ) -> Result<(), SessionError> {
        let owner = &session.owner;
        for old in self.too_many(owner, key).await? {
            self.end_session_of(owner, &old).await?;
        }
        let mut add = self.begin();
        add.cmp(keys::active(owner), keys::THERE);
        add.write(keys::session(key), value_of(session));
        add.write(keys::session_of(owner, key), end_of(session));
        match self.write(add).await? {
            Written::Done(_) => Ok(()),
            Written::Failed(_) => Err(SessionError::NoAccount),
        }
    }

    /// Not where it was ended meanwhile, by another page of the same visitor or by a change of the password: it would live again.
    pub(super) async fn update_session(
        &self,
        key: &SessionKey,
        session: &Session,
    ) -> Result<(), SessionError> {
        let mut update = self.begin();
        update.update(keys::session(key), value_of(session));
        update.update(keys::session_of(&session.owner, key), end_of(session));
        match self.write(update).await? {
            Written::Done(_) => Ok(()),
            Written::Failed(_) => Err(SessionError::Over),
        }
    }

    /// Sessions of an account that have ended, and those that end first of the ones that are too many beside this one.
    async fn too_many(
        &self,
        owner: &Name,
        beside: &SessionKey,
    ) -> Result<Vec<SessionKey>, Failure> {
        let now_ms = now_ms();
        let mut others = self.sessions_of(owner).await?;
        others.retain(|(key, _)| key != beside);
        others.sort_unstable_by_key(|(_, expires_ms)| *expires_ms);
        let most = SESSIONS_OF_AN_ACCOUNT - 1;
        let first_that_stays = others.len().saturating_sub(most);
        let ended = others.partition_point(|(_, expires_ms)| *expires_ms <= now_ms);
        others.truncate(first_that_stays.max(ended));
        Ok(others.into_iter().map(|(key, _)| key).collect())
    }

    /// Sessions of an account, with their ends.
    async fn sessions_of(&self, owner: &Name) -> Result<Vec<(SessionKey, u64)>, Failure> {
        let entries = self.range(keys::all(owner, Kind::Sessions).limit(SESSIONS_READ)).await?;
        let session = |(key, value): (Bytes, Bytes)| {
            let digits = keys::last_part(&key).and_then(SessionKey::of_digits);
            let text = || Failure::Broken("a key of a session is none".to_owned());
            Ok((digits.ok_or_else(text)?, end_in(&value)))
        };
        entries.entries.iter().map(session).collect()
    }

    pub(super) async fn find_session(&self, key: &SessionKey) -> Result<Option<Session>, Failure> {
        let Some(value) = self.get(keys::session(key)).await? else { return Ok(None) };
        let SessionValue { expires_ms, owner, content } = SessionValue::read(value)?;
        Ok(Some(Session { owner, expires_ms, content }).filter(|one| one.expires_ms > now_ms()))
    }

    pub(super) async fn end_session(&self, key: &SessionKey) -> Result<(), Failure> {
        let Some(value) = self.get(keys::session(key)).await? else { return Ok(()) };
        self.end_session_of(&SessionValue::read(value)?.owner, key).await
    }

    async fn end_session_of(&self, owner: &Name, key: &SessionKey) -> Result<(), Failure> {
        let mut end = self.begin();
        end.delete(keys::session(key));
        end.delete(keys::session_of(owner, key));
        self.write(end).await.map(|_| ())
    }

    /// Ends all sessions of an account; whether there were none.
    pub(super) async fn end_sessions(&self, owner: &Name) -> Result<bool, Failure> {
        let sessions = self.sessions_of(owner).await?;
        for (key, _) in &sessions {
            self.end_session_of(owner, key).await?;
        }
        Ok(sessions.is_empty())
    }
}
