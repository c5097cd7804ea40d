//! Sessions: one key by their ids, and one with their owners', so that they end with an account.

use super::super::error::{Failure, SessionError};
use super::super::keys::{self, KeyKind};
use super::super::name::Name;
use super::super::session::{Proof, SESSIONS_OF_AN_ACCOUNT, Session, SessionKey};
use super::super::values::SessionValue;
use super::{Perdura, now_ms};
use bytes::Bytes;
use futures_util::future::join_all;

/// Sessions of an account that are read: servers that add some at once may go beyond what it may have.
const SESSIONS_READ: u32 = 2 * SESSIONS_OF_AN_ACCOUNT as u32;

/// A session, and when it ends, milliseconds since 1970.
type Ending = (SessionKey, u64);

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
        proof: Option<&Proof>,
    ) -> Result<(), SessionError> {
        let owner = &session.owner;
        let old = self.too_many(owner, key).await?;
        let ended = old.iter().map(|old| self.end_session_of(owner, old, None));
        for ended in join_all(ended).await {
            if let Err(error) = ended {
                // With the next login; one that is over is none in any case.
                tracing::warn!(%error, "an old session is left");
            }
        }
        let mut add = self.begin();
        add.cmp(keys::active(owner), keys::THERE);
        if let Some(proof) = proof {
            let account = self.get(keys::account(owner)).await?;
            let Some(account) = account.filter(|account| Proof::of(account) == *proof) else {
                return Err(SessionError::NoAccount);
            };
            add.cmp(keys::account(owner), account);
        }
        add.write(keys::session(key), value_of(session));
        add.write(keys::session_of(owner, key), end_of(session));
        match self.write(add).await?.failed() {
            None => Ok(()),
            Some(_) => Err(SessionError::NoAccount),
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
        match self.write(update).await?.failed() {
            None => Ok(()),
            Some(_) => Err(SessionError::Over),
        }
    }

    /// Sessions of an account that have ended, and those that end first of the ones that are too many beside this one.
    async fn too_many(
        &self,
        owner: &Name,
        beside: &SessionKey,
    ) -> Result<Vec<SessionKey>, Failure> {
        let now_ms = now_ms();
        let (mut others, _) = self.sessions_of(owner, None).await?;
        others.retain(|(key, _)| key != beside);
        others.sort_unstable_by_key(|(_, expires_ms)| *expires_ms);
        let most = SESSIONS_OF_AN_ACCOUNT - 1;
        let first_that_stays = others.len().saturating_sub(most);
        let ended = others.partition_point(|(_, expires_ms)| *expires_ms <= now_ms);
        others.truncate(first_that_stays.max(ended));
        Ok(others.into_iter().map(|(key, _)| key).collect())
    }

    /// Sessions of an account behind one, with their ends, and whether there are more.
    async fn sessions_of(
        &self,
        owner: &Name,
        after: Option<&SessionKey>,
    ) -> Result<(Vec<Ending>, bool), Failure> {
        let all = keys::all(owner, KeyKind::Sessions).limit(SESSIONS_READ);
        let range = match after {
            Some(after) => all.after(&keys::session_of(owner, after)),
            None => all,
        };
        let entries = self.range(range).await?;
        let session = |(key, value): (Bytes, Bytes)| {
            let digits = keys::last_part(&key).and_then(SessionKey::of_digits);
            let text = || Failure::Broken("a key of a session is none".to_owned());
            Ok((digits.ok_or_else(text)?, end_in(&value)))
        };
        let sessions: Result<Vec<_>, Failure> = entries.entries.iter().map(session).collect();
        Ok((sessions?, entries.more))
    }

    pub(super) async fn find_session(&self, key: &SessionKey) -> Result<Option<Session>, Failure> {
        let Some(value) = self.get(keys::session(key)).await? else { return Ok(None) };
        let SessionValue { expires_ms, owner, content } = SessionValue::read(value)?;
        Ok(Some(Session { owner, expires_ms, content }).filter(|one| one.expires_ms > now_ms()))
    }

    pub(super) async fn end_session(&self, key: &SessionKey) -> Result<(), Failure> {
        let Some(value) = self.get(keys::session(key)).await? else { return Ok(()) };
        self.end_session_of(&SessionValue::read(value)?.owner, key, None).await
    }

    /// Only while the account is kept so, if that is given.
    async fn end_session_of(
        &self,
        owner: &Name,
        key: &SessionKey,
        account: Option<&Bytes>,
    ) -> Result<(), Failure> {
        let mut end = self.begin();
        if let Some(account) = account {
            end.cmp(keys::account(owner), account.clone());
        }
        end.delete(keys::session(key));
        end.delete(keys::session_of(owner, key));
        self.write(end).await.map(|_| ())
    }

    /// Ends all sessions of an account, while it is kept so if that is given; whether there were none. One that cannot be ended keeps no other from it.
    pub(super) async fn end_sessions(
        &self,
        owner: &Name,
        account: Option<&Bytes>,
    ) -> Result<bool, Failure> {
        let (mut after, mut were_none, mut failed) = (None, true, None);
        loop {
            let (sessions, more) = self.sessions_of(owner, after.as_ref()).await?;
            were_none &= sessions.is_empty();
            let ended = sessions.iter().map(|(key, _)| self.end_session_of(owner, key, account));
            failed = failed.or(join_all(ended).await.into_iter().find_map(Result::err));
            after = sessions.last().map(|(key, _)| *key).filter(|_| more);
            if after.is_none() {
                return failed.map_or(Ok(were_none), Err);
            }
        }
    }
}
