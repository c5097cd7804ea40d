//! Hashing of passwords, which takes time and memory on purpose: on threads of their own, few at a time.

use super::error::Failure;
use super::name::Password;
use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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

/// A place among those that wait; it is had until the password is hashed, also where nobody waits for that any more.
pub struct HashingPermit {
    _permit: OwnedSemaphorePermit,
}

/// Hashes passwords.
pub struct Passwords {
    running: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
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
            running: Arc::new(Semaphore::new(AT_A_TIME)),
            waiting: Arc::new(Semaphore::new(WAITING)),
            decoy: hash_now(&nothing)?.into(),
        })
    }

    /// A place, before anything is done that would be in vain without one.
    ///
    /// # Errors
    /// [`HashError::Busy`].
    pub fn place(&self) -> Result<HashingPermit, HashError> {
        let place = Arc::clone(&self.waiting).try_acquire_owned();
        place.map(|permit| HashingPermit { _permit: permit }).map_err(|_| HashError::Busy)
    }

    /// In its turn, on a thread that may be kept.
    async fn in_turn<T: Send + 'static>(
        &self,
        place: HashingPermit,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, HashError> {
        let running = Arc::clone(&self.running).acquire_owned().await;
        let running = running.map_err(|_| HashError::Busy)?;
        let done = tokio::task::spawn_blocking(move || {
            // Here, where it goes on when nobody waits for it any more.
            let _held = (place, running);
            work()
        });
        let done = done.await;
        let done = done.unwrap_or_else(|error| Err(Failure::Broken(error.to_string())));
        done.map_err(HashError::Failed)
    }

    /// What is kept of a password.
    ///
    /// # Errors
    /// [`HashError`].
    pub async fn hash(
        &self,
        place: HashingPermit,
        password: &Password,
    ) -> Result<String, HashError> {
        let password = password.clone();
        self.in_turn(place, move || hash_now(password.as_bytes())).await
    }

    /// Whether a password has this hash; without one it has not, and it takes as long.
    ///
    /// # Errors
    /// [`HashError`].
    pub async fn fits(
        &self,
        place: HashingPermit,
        password: &Password,
        hash: Option<&str>,
    ) -> Result<bool, HashError> {
        let has_hash = hash.is_some();
        let hash: Arc<str> = hash.map_or_else(|| Arc::clone(&self.decoy), Arc::from);
        let password = password.clone();
        let fits = self.in_turn(place, move || {
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
        let place = passwords.place().ok().unwrap();
        let hash = passwords.hash(place, &password).await.ok().unwrap();
        assert!(hash.starts_with("$argon2id$"));
        let fits = async |password: &Password, hash| {
            passwords.fits(passwords.place().ok().unwrap(), password, hash).await.ok().unwrap()
        };
        assert!(fits(&password, Some(&hash)).await);
        let other = Password::new("correct house").unwrap();
        assert!(!fits(&other, Some(&hash)).await);
        assert!(!fits(&password, None).await);
    }

    /// Whoever asks and hangs up has his place as long as his password is hashed.
    #[tokio::test]
    async fn no_more_are_hashed_than_have_places() {
        let passwords = Arc::new(Passwords::new().ok().unwrap());
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let work = {
            let passwords = Arc::clone(&passwords);
            async move {
                let place = passwords.place()?;
                let wait_for_it = move || {
                    let _ = wait.recv();
                    Ok(())
                };
                passwords.in_turn(place, wait_for_it).await
            }
        };
        let task = tokio::spawn(work);
        while passwords.running.available_permits() == AT_A_TIME {
            tokio::task::yield_now().await;
        }
        task.abort();
        assert!(task.await.is_err());
        assert_eq!(passwords.running.available_permits(), AT_A_TIME - 1);
        let places: Vec<HashingPermit> = std::iter::from_fn(|| passwords.place().ok()).collect();
        assert_eq!(places.len(), WAITING - 1);
        drop((places, release));
        while passwords.running.available_permits() < AT_A_TIME {
            tokio::task::yield_now().await;
        }
        assert_eq!(passwords.waiting.available_permits(), WAITING);
    }
}
