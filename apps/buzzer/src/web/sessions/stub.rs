//! A network that keeps sessions, for tests, and does nothing else.

use crate::network::{
    Changed, CreateError, Failure, FollowError, LoginError, Name, Network, NewPost, Origin, Page,
    Password, PostError, PostId, PostKey, Profile, Proof, Session, SessionError, SessionKey, Shown,
};
use async_trait::async_trait;
use std::sync::Mutex;

#[derive(Default)]
pub(super) struct OnlySessions(Mutex<Vec<(SessionKey, Session)>>);

impl OnlySessions {
    pub(super) fn kept(&self) -> Vec<(SessionKey, Session)> {
        self.0.lock().unwrap().clone()
    }
}

fn not_here() -> Failure {
    Failure::Broken("this network has sessions only".to_owned())
}

#[async_trait]
impl Network for OnlySessions {
    async fn create_account(
        &self,
        _: &Name,
        _: &Password,
        _: &Origin,
    ) -> Result<Proof, CreateError> {
        Err(not_here().into())
    }

    async fn check_password(
        &self,
        _: &Name,
        _: &Password,
        _: &Origin,
    ) -> Result<Proof, LoginError> {
        Err(not_here().into())
    }

    async fn change_password(
        &self,
        _: &Name,
        _: &Password,
        _: &Password,
        _: &Origin,
    ) -> Result<Changed, LoginError> {
        Err(not_here().into())
    }

    async fn delete_account(&self, _: &Name, _: &Proof) -> Result<bool, Failure> {
        Err(not_here())
    }

    async fn continue_deletions(&self) -> Result<usize, Failure> {
        Err(not_here())
    }

    async fn follow(&self, _: &Name, _: &Name) -> Result<bool, FollowError> {
        Err(not_here().into())
    }

    async fn unfollow(&self, _: &Name, _: &Name) -> Result<bool, Failure> {
        Err(not_here())
    }

    async fn follows(&self, _: &Name, _: &Name) -> Result<bool, Failure> {
        Err(not_here())
    }

    async fn followers(
        &self,
        _: &Name,
        _: Option<&Name>,
        _: u32,
    ) -> Result<Page<Name, Name>, Failure> {
        Err(not_here())
    }

    async fn friends(
        &self,
        _: &Name,
        _: Option<&Name>,
        _: u32,
    ) -> Result<Page<Name, Name>, Failure> {
        Err(not_here())
    }

    async fn post(&self, _: &Name, _: &NewPost) -> Result<(), PostError> {
        Err(not_here().into())
    }

    async fn delete_post(&self, _: &PostId) -> Result<bool, Failure> {
        Err(not_here())
    }

    async fn read_post(&self, _: &PostId) -> Result<Option<Shown>, Failure> {
        Err(not_here())
    }

    async fn posts(
        &self,
        _: &Name,
        _: Option<PostKey>,
        _: u32,
    ) -> Result<Page<Shown, PostKey>, Failure> {
        Err(not_here())
    }

    async fn timeline(
        &self,
        _: &Name,
        _: Option<&PostId>,
        _: u32,
    ) -> Result<Page<Shown, PostId>, Failure> {
        Err(not_here())
    }

    async fn profile(&self, _: &Name) -> Result<Option<Profile>, Failure> {
        Err(not_here())
    }

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

    async fn check_health(&self) -> Result<(), Failure> {
        Err(not_here())
    }

    async fn close(&self) {}
}
