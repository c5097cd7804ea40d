//! Counting passwords that are wrong: each is counted before it is looked at, so that many at once are no way around the count, and taken back if it was right.

use super::super::error::{Failure, LoginError};
use super::super::keys;
use super::super::logins::{ORIGINS, ORIGINS_OF_NOBODY};
use super::super::name::Name;
use super::super::origin::{Origin, Source};
use super::super::values::{self, AccountValue, LoginsValue};
use super::{Perdura, now_ms};
use bytes::Bytes;

/// Tries to count one, where others show passwords of the same name at the same time.
const TRIES: usize = 8;

/// A password that was counted.
pub(super) struct Noted {
    /// The account, if there is one that lets in, and as it stands in the store.
    pub account: Option<(Bytes, AccountValue)>,
    /// Where it was counted.
    key: Bytes,
    /// What stands there since.
    logins: Bytes,
    source: Source,
}

impl Noted {
    /// That of the password, if there is an account.
    pub(super) fn hash(&self) -> Option<&str> {
        self.account.as_ref().map(|(_, account)| &*account.hash)
    }
}

fn logins_in(value: Option<&Bytes>) -> Result<LoginsValue, Failure> {
    value.map_or_else(|| Ok(LoginsValue::default()), |bytes| values::read(bytes))
}

impl Perdura {
    /// Counts a password as a wrong one, unless there is a pause for whoever shows it.
    pub(super) async fn note_login(
        &self,
        name: &Name,
        origin: &Origin,
    ) -> Result<Noted, LoginError> {
        let source = origin.of(name);
        for _ in 0..TRIES {
            let mut look = self.begin();
            let account = look.read(keys::account(name));
            let of_account = look.read(keys::logins(name));
            let of_nobody = look.read(keys::logins_of_nobody(name));
            let found = self.read(look).await?;
            let account: Option<Bytes> = found.get(account);
            let (key, noted, origins) = match account {
                Some(_) => (keys::logins(name), found.get(of_account), ORIGINS),
                None => (keys::logins_of_nobody(name), found.get(of_nobody), ORIGINS_OF_NOBODY),
            };
            let (before, now_ms) = (logins_in(noted.as_ref())?, now_ms());
            if let Some(pause) = before.pause(&source, now_ms) {
                return Err(LoginError::Throttled(pause));
            }
            let logins = values::write(&before.with_failure(&source, now_ms, origins))?;
            let mut note = self.begin();
            note.unchanged(keys::account(name), account.clone());
            note.unchanged(key.clone(), noted);
            note.write(key.clone(), logins.clone());
            if self.write(note).await?.failed().is_some() {
                continue;
            }
            let Some(bytes) = account else {
                return Ok(Noted { account: None, key, logins, source });
            };
            let value: AccountValue = values::read(&bytes)?;
            let account = value.deleting_ms.is_none().then_some((bytes, value));
            return Ok(Noted { account, key, logins, source });
        }
        Err(LoginError::Busy)
    }

    /// Notes that a password was the right one, while its account is kept so. Who is in is in: that this is not noted is no reason to let nobody in.
    pub(super) async fn note_success(&self, name: &Name, account: &Bytes, noted: Noted) {
        let Noted { key, logins, source, .. } = noted;
        match self.try_to_note_success(name, account, (key, Some(logins)), &source).await {
            Ok(true) => {}
            Ok(false) => tracing::warn!(%name, "a login is still noted as one that failed"),
            Err(error) => {
                tracing::warn!(%name, %error, "a login is still noted as one that failed");
            }
        }
    }

    /// Whether it is noted, or the account is another one by now.
    async fn try_to_note_success(
        &self,
        name: &Name,
        account: &Bytes,
        (key, mut logins): (Bytes, Option<Bytes>),
        source: &Source,
    ) -> Result<bool, Failure> {
        for _ in 0..TRIES {
            let value = logins_in(logins.as_ref())?.with_success(source, now_ms());
            let mut note = self.begin();
            note.cmp(keys::account(name), account.clone());
            note.unchanged(key.clone(), logins);
            note.write(key.clone(), values::write(&value)?);
            match self.write(note).await?.failed() {
                None | Some(0) => return Ok(true),
                Some(_) => logins = self.get(key.clone()).await?,
            }
        }
        Ok(false)
    }
}
