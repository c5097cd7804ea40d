//! Accounts: making them, checking their passwords, and what there is to see of them.

use super::super::error::{CreateError, Failure, LoginError};
use super::super::keys::{self, KeyKind};
use super::super::name::{Name, Password};
use super::super::origin::Origin;
use super::super::passwords::{HashError, HashingPermit};
use super::super::session::{Changed, Proof};
use super::super::values::{self, AccountValue, LoginsValue};
use super::super::{COUNTED_FOLLOWERS, COUNTED_POSTS, Count, FRIENDS, Profile};
use super::fullness::NO_ACCOUNTS;
use super::logins::Noted;
use super::{Entries, Perdura, now_ms};
use argon2::password_hash::phc::PasswordHash;
use bytes::Bytes;

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

fn counted(entries: &Entries) -> Count {
    Count { counted: u32::try_from(entries.entries.len()).unwrap_or(u32::MAX), more: entries.more }
}

impl Perdura {
    pub(super) async fn create(
        &self,
        name: &Name,
        password: &Password,
        origin: &Origin,
    ) -> Result<Proof, CreateError> {
        if self.is_full(&keys::account(name), NO_ACCOUNTS) {
            return Err(CreateError::Full);
        }
        if self.get(keys::account(name)).await?.is_some() {
            return Err(CreateError::Taken);
        }
        let hash = self.hash(password).await?;
        self.insert_account(name, hash, Some(origin)).await
    }

    /// Takes over an account from elsewhere: `hash` is that of its password, as a PHC string (`$argon2id$...`). Hashing is what takes long with many.
    ///
    /// # Errors
    /// As [`crate::network::Network::create_account`]; [`Failure::Broken`] if it is no such string.
    pub async fn import_account(&self, name: &Name, hash: &str) -> Result<(), CreateError> {
        PasswordHash::new(hash).map_err(|error| Failure::broken(&error))?;
        self.insert_account(name, hash.to_owned(), None).await.map(|_| ())
    }

    /// What [`Perdura::import_account`] takes of a password.
    ///
    /// # Errors
    /// [`CreateError::Busy`], and where it cannot be hashed.
    pub async fn hash(&self, password: &Password) -> Result<String, CreateError> {
        Ok(self.passwords.hash(self.passwords.place()?, password).await?)
    }

    /// Makes an account. Where it is made is an origin that is known, as if somebody had logged in from there.
    async fn insert_account(
        &self,
        name: &Name,
        hash: String,
        origin: Option<&Origin>,
    ) -> Result<Proof, CreateError> {
        let account = AccountValue { hash, made_ms: now_ms(), deleting_ms: None };
        let account = values::write(&account)?;
        let mut create = self.begin();
        create.insert(keys::account(name), account.clone());
        create.insert(keys::active(name), keys::THERE);
        if let Some(origin) = origin {
            let logins = LoginsValue::default().with_success(&origin.of(name), now_ms());
            create.write(keys::logins(name), values::write(&logins)?);
        }
        match self.write(create).await?.failed() {
            None => Ok(Proof::of(&account)),
            Some(_) => Err(CreateError::Taken),
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
        origin: &Origin,
    ) -> Result<Proof, LoginError> {
        self.reach(name).await?;
        let place = self.passwords.place()?;
        let noted = self.note_login(name, origin).await?;
        let account = self.account_if_right(place, password, &noted).await?;
        let account = account.ok_or(LoginError::Wrong)?;
        self.note_success(name, &account, noted).await;
        Ok(Proof::of(&account))
    }

    /// The account whose password was noted, if it is the right one.
    async fn account_if_right(
        &self,
        place: HashingPermit,
        password: &Password,
        noted: &Noted,
    ) -> Result<Option<Bytes>, LoginError> {
        let fits = self.passwords.fits(place, password, noted.hash()).await?;
        Ok(noted.account.as_ref().filter(|_| fits).map(|(account, _)| account.clone()))
    }

    pub(super) async fn change(
        &self,
        name: &Name,
        password: &Password,
        new: &Password,
        origin: &Origin,
    ) -> Result<Changed, LoginError> {
        self.reach(name).await?;
        let (place, place_of_new) = (self.passwords.place()?, self.passwords.place()?);
        let noted = self.note_login(name, origin).await?;
        let (account, noted) = match self.account_if_right(place, password, &noted).await? {
            Some(_) => (self.write_password(name, &noted, place_of_new, new).await?, noted),
            None => {
                // Sent again, it was changed before, and nobody heard of it. That is another guess.
                let noted = self.note_login(name, origin).await?;
                let account = self.account_if_right(place_of_new, new, &noted).await?;
                (account.ok_or(LoginError::Wrong)?, noted)
            }
        };
        self.note_success(name, &account, noted).await;
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
        noted: &Noted,
        place: HashingPermit,
        new: &Password,
    ) -> Result<Bytes, LoginError> {
        let (there, account) = noted.account.clone().ok_or(LoginError::Wrong)?;
        let hash = self.passwords.hash(place, new).await?;
        let changed = values::write(&AccountValue { hash, ..account })?;
        let mut change = self.begin();
        change.cmp(keys::account(name), there);
        change.write(keys::account(name), changed.clone());
        match self.write(change).await.map(|outcome| outcome.failed()) {
            Ok(None) => Ok(changed),
            // Somebody else changed it meanwhile.
            Ok(Some(_)) => Err(LoginError::Wrong),
            Err(failure @ Failure::Indeterminate(_)) => match self.get(keys::account(name)).await {
                Ok(now) if now.as_ref() == Some(&changed) => Ok(changed),
                _ => Err(failure.into()),
            },
            Err(failure) => Err(failure.into()),
        }
    }

    pub(super) async fn profile_of(&self, name: &Name) -> Result<Option<Profile>, Failure> {
        let mut look = self.begin();
        let active = look.read(keys::active(name));
        let posts = look.read_range(keys::all(name, KeyKind::Posts).limit(COUNTED_POSTS));
        let followers =
            look.read_range(keys::all(name, KeyKind::Followers).limit(COUNTED_FOLLOWERS));
        let friends = look.read_range(keys::all(name, KeyKind::Friends).limit(FRIENDS as u32));
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
