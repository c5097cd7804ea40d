//! Sessions that are kept in memory, for tests.

use crate::network::{Failure, Proof, Session, SessionError, SessionKey, Sessions};
use async_trait::async_trait;
use std::sync::Mutex;

#[derive(Default)]
pub(super) struct InMemory(Mutex<Vec<(SessionKey, Session)>>);

impl InMemory {
    pub(super) fn kept(&self) -> Vec<(SessionKey, Session)> {
        self.0.lock().unwrap().clone()
    }
}

#[async_trait]
impl Sessions for InMemory {
    async fn create_session(
        &self,
        key: &SessionKey,
        session: &Session,
        _: Option<&Proof>,
    ) -> Result<(), SessionError> {
        self.0.lock().unwrap().push((*key, session.clone()));
        Ok(())
    }

    async fn save_session(&self, key: &SessionKey, session: &Session) -> Result<(), SessionError> {
        let mut all = self.0.lock().unwrap();
        let kept = all.iter_mut().find(|(of, _)| of == key).ok_or(SessionError::Over)?;
        kept.1 = session.clone();
        Ok(())
    }

    async fn load_session(&self, key: &SessionKey) -> Result<Option<Session>, Failure> {
        let kept = self.kept();
        Ok(kept.into_iter().find(|(of, _)| of == key).map(|(_, session)| session))
    }

    async fn delete_session(&self, key: &SessionKey) -> Result<(), Failure> {
        self.0.lock().unwrap().retain(|(of, _)| of != key);
        Ok(())
    }
}
