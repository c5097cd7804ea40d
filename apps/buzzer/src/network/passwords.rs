//! Hashing of passwords, which takes time and memory on purpose: on threads of their own, few at a time.

use super::error::Failure;
use super::name::Password;
use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Passwords that are hashed at a time; each takes 19 MiB.
const AT_A_TIME: usize = 2;

/// Passwords that wait for that; more are turned away.
const WAITING: usize = 64;

/// Why a password was not hashed.
#[derive(Debug)]
pub enum HashError {
    /// Too many are waiting.
    Busy,
    /// No password can be hashed.
    Failed(Failure),
}

/// Hashes passwords.
pub struct Passwords {
    running: Semaphore,
    waiting: Semaphore,
    /// The hash of no password: what is compared with where there is no account takes as long.
    decoy: Arc<str>,
}

fn hash_now(password: &[u8]) -> Result<String, Failure> {
    let hash = Argon2::default().hash_password(password);
    hash.map(|hash| hash.to_string()).map_err(|error| Failure::broken(&error))
}

impl Passwords {
    /// With nothing under way.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn new() -> Result<Passwords, Failure> {
        let mut nothing = [0; 32];
        getrandom::fill(&mut nothing).map_err(|error| Failure::Broken(error.to_string()))?;
        Ok(Passwords {
            running: Semaphore::new(AT_A_TIME),
            waiting: Semaphore::new(WAITING),
            decoy: hash_now(&nothing)?.into(),
        })
    }

    /// In its turn, on a thread that may be kept.
    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, HashError> {
        let _waiting = self.waiting.try_acquire().map_err(|_| HashError::Busy)?;
        let _running = self.running.acquire().await.map_err(|_| HashError::Busy)?;
        let done = tokio::task::spawn_blocking(work).await;
        let done = done.unwrap_or_else(|error| Err(Failure::Broken(error.to_string())));
        done.map_err(HashError::Failed)
    }

    /// What is kept of a password.
    ///
    /// # Errors
    /// [`HashError`].
    pub async fn hash(&self, password: &Password) -> Result<String, HashError> {
        let password = password.clone();
        self.in_turn(move || hash_now(password.as_bytes())).await
    }

    /// Whether a password has this hash; without one it has not, and it takes as long.
    ///
    /// # Errors
    /// [`HashError`].
    pub async fn fits(&self, password: &Password, hash: Option<&str>) -> Result<bool, HashError> {
        let has_hash = hash.is_some();
        let hash: Arc<str> = hash.map_or_else(|| Arc::clone(&self.decoy), Arc::from);
        let password = password.clone();
        let fits = self.in_turn(move || {
            let hash = PasswordHash::new(&hash).map_err(|error| Failure::broken(&error))?;
            Ok(Argon2::default().verify_password(password.as_bytes(), &hash).is_ok())
        });
        Ok(fits.await? && has_hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_password_fits_its_hash() {
        let passwords = Passwords::new().ok().unwrap();
        let password = Password::new("correct horse").unwrap();
        let hash = passwords.hash(&password).await.ok().unwrap();
        assert!(hash.starts_with("$argon2id$"));
        assert!(passwords.fits(&password, Some(&hash)).await.ok().unwrap());
        let other = Password::new("correct house").unwrap();
        assert!(!passwords.fits(&other, Some(&hash)).await.ok().unwrap());
        assert!(!passwords.fits(&password, None).await.ok().unwrap());
    }
}
