//! The social network itself: what can be asked of it, and what it says. It knows nothing of HTTP.
//!
//! [`Network`] is what there is to do; [`Perdura`] does it on a partitioned store.
//!
//! Invariants, of every implementation:
//! - A post that answers another is seen by nobody who cannot see that one too, unless it was deleted.
//! - What was told to be done is seen by whoever asks later.
//! - What is sent again because its outcome is not known happens once: posts have keys, all else is as it is.

mod error;
pub mod keys;
mod logins;
mod merge;
mod name;
mod origin;
mod passwords;
mod perdura;
mod post;
mod session;
pub mod values;

pub(crate) use error::Pause;
pub use error::{CreateError, Failure, FollowError, LoginError, PostError, SessionError};
pub use keys::bounds;
pub use name::{
    InputError, NAME_LEAST, NAME_MOST, Name, PASSWORD_LEAST, PASSWORD_MOST, Password, TEXT_MOST,
    Text,
};
pub use origin::Origin;
pub use passwords::{HashError, HashingPermit, Passwords};
pub use perdura::{OpenError, Perdura, Settings};
pub use post::{NewPost, Post, PostId, PostKey, Shown};
pub use session::{Changed, Proof, SESSIONS_OF_AN_ACCOUNT, Session, SessionKey, Sessions};

use async_trait::async_trait;

/// Accounts that one can follow. A timeline is one transaction, and has a range for each of them.
pub const FRIENDS: usize = 256;

/// Entries of a page at most.
pub const PAGE_MOST: u32 = 100;

/// Up to so many followers are counted.
pub const COUNTED_FOLLOWERS: u32 = 1000;

/// Up to so many posts are counted: to count them is to read them.
pub const COUNTED_POSTS: u32 = 100;

/// Some of many, and where the next ones begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<T, C> {
    /// In their order.
    pub items: Vec<T>,
    /// What to ask for the next page with; none if there are no more.
    pub next: Option<C>,
}

/// A number, up to a bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count {
    /// How many were counted.
    pub counted: u32,
    /// Whether there are more.
    pub more: bool,
}

/// What there is to see of an account.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Whose.
    pub name: Name,
    /// Its posts.
    pub posts: Count,
    /// Who follows it.
    pub followers: Count,
    /// Whom it follows.
    pub friends: Count,
}

/// A social network. It keeps the sessions of those who are logged in too.
#[async_trait]
pub trait Network: Sessions {
    /// Makes an account. Its origin is known from then on.
    async fn create_account(
        &self,
        name: &Name,
        password: &Password,
        origin: &Origin,
    ) -> Result<Proof, CreateError>;

    /// Whether there is an account with this name and this password. Takes as long if there is none of this name. After some failures there is a pause for their
    /// origin, longer with each, and after many for all origins of which none is known or a session.
    async fn check_password(
        &self,
        name: &Name,
        password: &Password,
        origin: &Origin,
    ) -> Result<Proof, LoginError>;

    /// Gives an account another password, if this one is its password, which is looked at as by [`Network::check_password`], and ends its sessions. Sent again, with
    /// an account that has the new one already, it ends what is left of them.
    async fn change_password(
        &self,
        name: &Name,
        password: &Password,
        new: &Password,
        origin: &Origin,
    ) -> Result<Changed, LoginError>;

    /// Begins to delete an account: nobody can log in with it, follow it, or post with it any more, and its sessions are over. [`Network::continue_deletions`] does
    /// the rest. Not where it is another account than that of the proof by now; whether it began.
    async fn delete_account(&self, name: &Name, proof: &Proof) -> Result<bool, Failure>;

    /// Goes on with what is left of accounts that are being deleted, for some time; how many are left.
    async fn continue_deletions(&self) -> Result<usize, Failure>;

    /// `who` follows `whom` from now on; whether he did not before.
    async fn follow(&self, who: &Name, whom: &Name) -> Result<bool, FollowError>;

    /// `who` does not follow `whom` any more; whether he did.
    async fn unfollow(&self, who: &Name, whom: &Name) -> Result<bool, Failure>;

    /// Whether `who` follows `whom`.
    async fn follows(&self, who: &Name, whom: &Name) -> Result<bool, Failure>;

    /// Who follows an account, by name.
    async fn followers(
        &self,
        of: &Name,
        after: Option<&Name>,
        limit: u32,
    ) -> Result<Page<Name, Name>, Failure>;

    /// Whom an account follows, by name.
    async fn friends(
        &self,
        of: &Name,
        after: Option<&Name>,
        limit: u32,
    ) -> Result<Page<Name, Name>, Failure>;

    /// Posts something. Sent again under the same key it is the same post.
    async fn post(&self, author: &Name, new: &NewPost) -> Result<(), PostError>;

    /// Deletes a post; whether it was there.
    async fn delete_post(&self, id: &PostId) -> Result<bool, Failure>;

    /// A post, if it is there.
    async fn read_post(&self, id: &PostId) -> Result<Option<Shown>, Failure>;

    /// What answers a post, the oldest first, from behind that one on; none if the post is not there.
    async fn answers(
        &self,
        to: &PostId,
        after: Option<&PostId>,
        limit: u32,
    ) -> Result<Option<Page<Shown, PostId>>, Failure>;

    /// The posts of an account, the newest first, from behind that of a key on.
    async fn posts(
        &self,
        of: &Name,
        after: Option<PostKey>,
        limit: u32,
    ) -> Result<Page<Shown, PostKey>, Failure>;

    /// The posts of an account and of all that it follows, the newest first, from behind that one on.
    async fn timeline(
        &self,
        of: &Name,
        after: Option<&PostId>,
        limit: u32,
    ) -> Result<Page<Shown, PostId>, Failure>;

    /// The newest posts of all accounts, from behind that one on, as far back as they are kept together; where very much is posted at a time some of them.
    async fn newest(
        &self,
        after: Option<&PostId>,
        limit: u32,
    ) -> Result<Page<Shown, PostId>, Failure>;

    /// What there is to see of an account, if there is one.
    async fn profile(&self, name: &Name) -> Result<Option<Profile>, Failure>;

    /// Whether the whole store answers.
    async fn check_health(&self) -> Result<(), Failure>;

    /// Says what is over, and closes connections. Nothing is asked of it afterwards.
    async fn close(&self);
}
