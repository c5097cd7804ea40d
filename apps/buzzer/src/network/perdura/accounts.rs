//! Accounts: making them, checking their passwords, and what there is to see of them.

use super::super::error::{CreateError, Failure, LoginError};
use super::super::keys::{self, Kind};
use super::super::name::{Name, Password};
use super::super::passwords::{HashError, Place};
use super::super::session::{Changed, Proof};
use super::super::values::{self, AccountValue, LoginsValue};
use super::super::{COUNTED_FOLLOWERS, COUNTED_POSTS, Count, FRIENDS, Profile};
use super::{Entries, Perdura, Written, now_ms};
use argon2::password_hash::phc::PasswordHash;
use bytes::Bytes;
use std::time::Duration;

/// So many logins may fail without a pause; ...
const FREE_FAILURES: u32 = 5;

/// ... then there is one of a second, doubled with each more, ...
const PAUSE_MS: u64 = 1_000;

/// ... up to this: the owner waits too.
const PAUSE_MOST_MS: u64 = 300_000;

/// Failures are forgotten after an hour without one.
const FORGOTTEN_MS: u64 = 3_600_000;

/// Tries to note a login before it is looked at, where others log in with the same name at the same time.
const NOTE_TRIES: usize = 8;

impl From<HashError> for CreateError {
    fn from(error: HashError) -> CreateError {
        match error {
            HashError::Busy => CreateError::Busy,
            HashError::Failed(failure) => CreateError::Failed(failure),
        }
    }
}

impl From<HashError> for LoginError {
    fn from(error: HashError) -> LoginError {
        match error {
            HashError::Busy => LoginError::Busy,
            HashError::Failed(failure) => LoginError::Failed(failure),
        }
    }
}

impl LoginsValue {
    /// For how long nobody is let in.
    fn pause(self, now_ms: u64) -> Option<Duration> {
        let doublings = self.failed.checked_sub(FREE_FAILURES)?.min(16);
        let pause_ms = (PAUSE_MS << doublings).min(PAUSE_MOST_MS);
        let left_ms = (self.last_ms + pause_ms).checked_sub(now_ms).filter(|left| *left > 0)?;
        // Where clocks differ it is not longer than it would be.
        Some(Duration::from_millis(left_ms.min(pause_ms)))
    }

    fn with_another(self, now_ms: u64) -> LoginsValue {
        let is_old = now_ms.saturating_sub(self.last_ms) > FORGOTTEN_MS;
        let failed = if is_old { 0 } else { self.failed };
        LoginsValue { failed: failed.saturating_add(1), last_ms: now_ms }
    }
}

/// A login that was counted.
struct Noted {
    /// The account, if there is one that lets in, and as it stands in the store.
    account: Option<(Bytes, AccountValue)>,
    /// Where it was counted.
    logins: Bytes,
}

impl Noted {
    /// That of the password, if there is an account.
    fn hash(&self) -> Option<&str> {
        self.account.as_ref().map(|(_, account)| &*account.hash)
    }
}

fn counted(entries: &Entries) -> Count {
    Count { counted: u32::try_from(entries.entries.len()).unwrap_or(u32::MAX), more: entries.more }
}

impl Perdura {
    pub(super) async fn create(
        &self,
        name: &Name,
        password: &Password,
    ) -> Result<Proof, CreateError> {
        if self.get(keys::account(name)).await?.is_some() {
            return Err(CreateError::Taken);
        }
        let hash = self.hash(password).await?;
        self.insert_account(name, hash).await
    }

    /// Takes over an account from elsewhere: `hash` is that of its password, as a PHC string (`$argon2id$...`). Hashing is what takes long with many.
    ///
    /// # Errors
    /// As [`crate::network::Network::create_account`]; [`Failure::Broken`] if it is no such string.
    pub async fn import_account(&self, name: &Name, hash: &str) -> Result<(), CreateError> {
        PasswordHash::new(hash).map_err(|error| Failure::broken(&error))?;
        self.insert_account(name, hash.to_owned()).await.map(|_| ())
    }

    /// What [`Perdura::import_account`] takes of a password.
    ///
    /// # Errors
    /// [`CreateError::Busy`], and where it cannot be hashed.
    pub async fn hash(&self, password: &Password) -> Result<String, CreateError> {
        Ok(self.passwords.hash(self.passwords.place()?, password).await?)
    }

    async fn insert_account(&self, name: &Name, hash: String) -> Result<Proof, CreateError> {
        let account = AccountValue { hash, made_ms: now_ms(), deleting_ms: None };
        let account = values::write(&account)?;
        let mut create = self.begin();
        create.insert(keys::account(name), account.clone());
        create.insert(keys::active(name), keys::THERE);
        match self.write(create).await? {
            Written::Done(_) => Ok(Proof::of(&account)),
            Written::Failed(_) => Err(CreateError::Taken),
        }
    }

    /// Waits for the partition of an account before a place is taken that others need while that is down.
    async fn reach(&self, name: &Name) -> Result<(), Failure> {
        self.get(keys::account(name)).await.map(|_| ())
    }

    pub(super) async fn check(
        &self,
        name: &Name,
        password: &Password,
    ) -> Result<Proof, LoginError> {
        self.reach(name).await?;
        let place = self.passwords.place()?;
        let noted = self.note_login(name).await?;
        let fits = self.passwords.fits(place, password, noted.hash()).await?;
        let Some((account, _)) = noted.account.filter(|_| fits) else {
            return Err(LoginError::Wrong);
        };
        // That it was not in vain has been noted or not; who is in is in.
        if let Err(error) = self.delete(noted.logins).await {
            tracing::warn!(%error, "failed logins of an account that logged in are still noted");
        }
        Ok(Proof::of(&account))
    }

    pub(super) async fn change(
        &self,
        name: &Name,
        password: &Password,
        new: &Password,
    ) -> Result<Changed, LoginError> {
        self.reach(name).await?;
        let (place, place_of_new) = (self.passwords.place()?, self.passwords.place()?);
        let noted = self.note_login(name).await?;
        let fits = self.passwords.fits(place, password, noted.hash()).await?;
        let account = if fits {
            self.write_password(name, noted, place_of_new, new).await?
        } else if self.passwords.fits(place_of_new, new, noted.hash()).await? {
            // Sent again: it was changed before, and nobody heard of it.
            if let Err(error) = self.delete(noted.logins).await {
                tracing::warn!(%error, "a change of a password that was sent again is noted as a login that failed");
            }
            noted.account.map(|(account, _)| account).ok_or(LoginError::Wrong)?
        } else {
            return Err(LoginError::Wrong);
        };
        let ended = self.end_sessions(name, Some(&account)).await;
        if let Err(error) = &ended {
            tracing::warn!(%error, "sessions of an account whose password was changed are left");
        }
        Ok(Changed { proof: Proof::of(&account), all_ended: ended.is_ok() })
    }

    /// Writes another password of an account; what is kept of it then.
    async fn write_password(
        &self,
        name: &Name,
        noted: Noted,
        place: Place,
        new: &Password,
    ) -> Result<Bytes, LoginError> {
        let Some((there, account)) = noted.account else { return Err(LoginError::Wrong) };
        let hash = self.passwords.hash(place, new).await?;
        let changed = values::write(&AccountValue { hash, ..account })?;
        let mut change = self.begin();
        change.cmp(keys::account(name), there);
        change.write(keys::account(name), changed.clone());
        change.delete(noted.logins);
        match self.write(change).await {
            Ok(Written::Done(_)) => Ok(changed),
            // Somebody else changed it meanwhile.
            Ok(Written::Failed(_)) => Err(LoginError::Wrong),
            Err(failure @ Failure::Indeterminate(_)) => match self.get(keys::account(name)).await {
                Ok(now) if now.as_ref() == Some(&changed) => Ok(changed),
                _ => Err(failure.into()),
            },
            Err(failure) => Err(failure.into()),
        }
    }

    /// Counts a login as one that failed, before it is looked at: so many at once are no way around the count.
    async fn note_login(&self, name: &Name) -> Result<Noted, LoginError> {
        for _ in 0..NOTE_TRIES {
            let mut look = self.begin();
            let account = look.read(keys::account(name));
            let of_account = look.read(keys::logins(name));
            let of_nobody = look.read(keys::logins_of_nobody(name));
            let found = self.read(look).await?;
            let account: Option<Bytes> = found.get(account);
            let (key, noted) = match account {
                Some(_) => (keys::logins(name), found.get(of_account)),
                None => (keys::logins_of_nobody(name), found.get(of_nobody)),
            };
            let before: LoginsValue = match &noted {
                Some(bytes) => values::read(bytes)?,
                None => LoginsValue::default(),
            };
            let now_ms = now_ms();
            if let Some(pause) = before.pause(now_ms) {
                return Err(LoginError::Throttled(pause));
            }
            let mut note = self.begin();
            note.unchanged(keys::account(name), account.clone());
            note.unchanged(key.clone(), noted);
            note.write(key.clone(), values::write(&before.with_another(now_ms))?);
            if let Written::Failed(_) = self.write(note).await? {
                continue;
            }
            let Some(bytes) = account else { return Ok(Noted { account: None, logins: key }) };
            let value: AccountValue = values::read(&bytes)?;
            let lets_in = value.deleting_ms.is_none();
            return Ok(Noted { account: lets_in.then_some((bytes, value)), logins: key });
        }
        Err(LoginError::Busy)
    }

    pub(super) async fn profile_of(&self, name: &Name) -> Result<Option<Profile>, Failure> {
        let mut look = self.begin();
        let active = look.read(keys::active(name));
        let posts = look.read_range(keys::all(name, Kind::Posts).limit(COUNTED_POSTS));
        let followers = look.read_range(keys::all(name, Kind::Followers).limit(COUNTED_FOLLOWERS));
        let friends = look.read_range(keys::all(name, Kind::Friends).limit(FRIENDS as u32));
        let found = self.read(look).await?;
        if found.get(active).is_none() {
            return Ok(None);
        }
        Ok(Some(Profile {
            name: name.clone(),
            posts: counted(&found.get(posts)),
            followers: counted(&found.get(followers)),
            friends: counted(&found.get(friends)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let after = |failed| LoginsValue { failed, last_ms: 1_000_000 }.pause(1_000_000);
        assert_eq!(after(4), None);
        assert_eq!(after(5), Some(Duration::from_secs(1)));
        assert_eq!(after(7), Some(Duration::from_secs(4)));
        assert_eq!(after(30), Some(Duration::from_secs(300)));
        assert_eq!(after(u32::MAX), Some(Duration::from_secs(300)));
        assert_eq!(LoginsValue { failed: 5, last_ms: 1_000 }.pause(2_000), None);
    }

    #[test]
    fn failures_are_forgotten() {
        let before = LoginsValue { failed: 9, last_ms: 0 };
        assert_eq!(before.with_another(FORGOTTEN_MS).failed, 10);
        assert_eq!(before.with_another(FORGOTTEN_MS + 1).failed, 1);
    }
}
