//! Why the network did not do what it was asked for.

use std::fmt;
use std::time::Duration;

/// What any call may end with.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The store did not do it: nothing happened. It can be tried again.
    #[error("the store does not answer, and nothing happened: {0}")]
    Unavailable(String),
    /// The store did not say: it may have happened, or still happen. What can be sent again does no harm if it is.
    #[error("the store did not say whether it happened: {0}")]
    Indeterminate(String),
    /// What is in the store, or in this program, is not as it should be. Trying again does not help.
    #[error("{0}")]
    Broken(String),
}

impl Failure {
    pub(super) fn broken(error: &dyn std::error::Error) -> Failure {
        Failure::Broken(format!("what is in the store cannot be read: {error}"))
    }
}

/// A pause in words. It is rounded up: whoever waits for so long does not come too early.
pub(crate) struct Pause(pub(crate) Duration);

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_millis().div_ceil(1_000).max(1);
        let (count, unit) =
            if seconds < 120 { (seconds, "second") } else { (seconds.div_ceil(60), "minute") };
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} {unit}{plural}")
    }
}

/// Why there is no new account.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CreateError {
    /// There is an account of this name, or one is being deleted. Choose another.
    #[error("This name is taken.")]
    Taken,
    /// Where its data would be there is no room for more accounts. Whoever runs the store can make room.
    #[error("There is no room for new accounts at this moment. Try again later.")]
    Full,
    /// Too many passwords are being looked at. Try again soon.
    #[error("Too many people are logging in at this moment. Try again soon.")]
    Busy,
    /// The store failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why somebody is not logged in.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoginError {
    /// There is no account with this name and this password.
    #[error("The name or the password is wrong.")]
    Wrong,
    /// Too many logins with this name failed, where whoever asks is or where nobody is known.
    #[error("Too many logins with this name failed. Try again in {}.", Pause(*.0))]
    Throttled(Duration),
    /// Too many passwords are being looked at. Try again soon.
    #[error("Too many people are logging in at this moment. Try again soon.")]
    Busy,
    /// The store failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why somebody does not follow another.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FollowError {
    /// There is no account of this name.
    #[error("There is no account of this name.")]
    Nobody,
    /// Whoever asks has no account, or it is being deleted.
    #[error("This account is not there any more.")]
    NoAccount,
    /// Nobody follows himself.
    #[error("You cannot follow yourself.")]
    Oneself,
    /// Whoever asks follows as many as he may.
    #[error("You follow {} accounts already, and nobody can follow more.", super::FRIENDS)]
    TooMany,
    /// Too many follows of whoever asks are under way. Try again when they are done.
    #[error(
        "Other follows of yours are not done yet, and this one was not begun. Try again in a moment."
    )]
    AtOnce,
    /// Too many wait to follow somebody. Try again soon.
    #[error(
        "Too many people follow somebody at this moment. Nothing was changed. Try again in a moment."
    )]
    Busy,
    /// The store failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why there is no new post.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// Whoever posts has no account, or it is being deleted.
    #[error("This account is not there any more.")]
    NoAccount,
    /// What it answers is not there.
    #[error("The post that this one answers is not there any more.")]
    AnswersNothing,
    /// Its key is not newer than that of what it answers. Take another.
    #[error("This post is dated before the one that it answers.")]
    BeforeAnswered,
    /// There is another post under this key. Take another.
    #[error("Another post was sent with this form.")]
    KeyTaken,
    /// Where its author's data is there is no room for more posts: what there is, logins and deletions need. Whoever runs the store can make room.
    #[error(
        "There is no room for new posts at this moment, so this one was not posted. Try again later; all else works."
    )]
    Full,
    /// The store failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why a session is not kept.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SessionError {
    /// Its owner has no account, or it is being deleted.
    #[error("this account is gone, or another one by now")]
    NoAccount,
    /// It was ended, or it never was.
    #[error("this session is over")]
    Over,
    /// The store failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_rounded_up() {
        let told = |pause_ms| Pause(Duration::from_millis(pause_ms)).to_string();
        assert_eq!([told(0), told(1_000), told(1_001)], ["1 second", "1 second", "2 seconds"]);
        assert_eq!([told(119_000), told(119_001)], ["119 seconds", "2 minutes"]);
        assert_eq!([told(299_999), told(3_600_000)], ["5 minutes", "60 minutes"]);
        let late = LoginError::Throttled(Duration::from_millis(1_900)).to_string();
        assert!(late.ends_with("Try again in 2 seconds."), "{late}");
    }
}
