//! The form of a post, which has the post's key in it: sent twice it is the same post.

use super::visitor::now_ms;
use crate::network::{Failure, Name, PostId, PostKey};
use serde::Deserialize;

/// A form is good for ten minutes: a post is dated by it.
const FRESH_MS: u64 = 600_000;

/// One whose outcome is not known can be sent again for a day.
const AGAIN_MS: u64 = 86_400_000;

/// Clocks of servers may differ by this.
const SKEW_MS: u64 = 60_000;

/// Why a key is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyError {
    /// It is too old.
    Old,
    /// It is of a time that is yet to come.
    Early,
}

/// What was typed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PostForm {
    pub(crate) csrf: String,
    pub(crate) key: String,
    pub(crate) text: String,
    /// What it answers, as `author/key`; may be empty.
    pub(crate) answers: String,
    /// There if it was sent before.
    pub(crate) again: String,
}

/// The form as it is shown.
#[derive(Clone, Debug)]
pub(crate) struct Compose {
    pub(crate) csrf: String,
    pub(crate) key: String,
    pub(crate) text: String,
    pub(crate) answers: String,
    /// Whom it answers.
    pub(crate) whom: Option<Name>,
    /// What is wrong with what was typed.
    pub(crate) problem: Option<String>,
}

/// A key for a post of now, newer than what it answers.
pub(crate) fn new_key(answered: Option<&PostId>) -> Result<PostKey, Failure> {
    let mut tie = [0; 4];
    getrandom::fill(&mut tie).map_err(|error| Failure::Broken(error.to_string()))?;
    let after_ms = answered.map_or(0, |id| id.key.time_ms() + 1);
    Ok(PostKey::new(now_ms().max(after_ms), u32::from_be_bytes(tie)))
}

/// That a post may have this key now.
pub(crate) fn check_key(key: PostKey, now_ms: u64, sent_before: bool) -> Result<(), KeyError> {
    let oldest_ms = now_ms.saturating_sub(if sent_before { AGAIN_MS } else { FRESH_MS });
    match key.time_ms() {
        time_ms if time_ms < oldest_ms => Err(KeyError::Old),
        time_ms if time_ms > now_ms + SKEW_MS => Err(KeyError::Early),
        _ => Ok(()),
    }
}

impl Compose {
    /// An empty form.
    pub(crate) fn new(csrf: &str, answers: Option<&PostId>) -> Result<Compose, Failure> {
        Ok(Compose {
            csrf: csrf.to_owned(),
            key: new_key(answers)?.to_string(),
            text: String::new(),
            answers: answers.map(PostId::to_string).unwrap_or_default(),
            whom: answers.map(|id| id.author.clone()),
            problem: None,
        })
    }

    /// The form with what was typed, under a new key, and what is wrong with it.
    pub(crate) fn with(self, text: &str, problem: String) -> Compose {
        Compose { text: text.to_owned(), problem: Some(problem), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posts_are_of_now() {
        let now_ms = 1_700_000_000_000;
        let at = |time_ms| PostKey::new(time_ms, 9);
        assert_eq!(check_key(at(now_ms), now_ms, false), Ok(()));
        assert_eq!(check_key(at(now_ms - FRESH_MS), now_ms, false), Ok(()));
        assert_eq!(check_key(at(now_ms - FRESH_MS - 1), now_ms, false), Err(KeyError::Old));
        assert_eq!(check_key(at(now_ms - FRESH_MS - 1), now_ms, true), Ok(()));
        assert_eq!(check_key(at(now_ms - AGAIN_MS - 1), now_ms, true), Err(KeyError::Old));
        assert_eq!(check_key(at(now_ms + SKEW_MS + 1), now_ms, true), Err(KeyError::Early));
    }

    #[test]
    fn an_answer_is_newer_than_what_it_answers() {
        let key = PostKey::new(now_ms() + 30_000, u32::MAX);
        let answered = PostId { author: Name::new("alice").unwrap(), key };
        assert!(new_key(Some(&answered)).unwrap().time_ms() > key.time_ms());
    }
}
