//! Posts, and the keys by which they are ordered.

use super::name::{InputError, Name, Text};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Bits of a key that break ties among posts of one millisecond.
const TIE_BITS: u32 = 32;

/// Bits of a key that are a time in milliseconds: enough until the year 10889.
const TIME_BITS: u32 = 48;

/// Hexadecimal digits of a key.
const DIGITS: usize = ((TIME_BITS + TIE_BITS) / 4) as usize;

const LARGEST: u128 = (1 << (TIME_BITS + TIE_BITS)) - 1;

/// What tells the posts of one author apart, and has their order: when one was written, and bits by chance. Greater ones are newer. Whoever
/// posts chooses it before, so that the same post that is sent twice is one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PostKey(u128);

impl PostKey {
    /// Of this time, milliseconds since 1970, and these bits.
    #[must_use]
    pub fn new(time_ms: u64, tie: u32) -> PostKey {
        let time = u128::from(time_ms).min((1 << TIME_BITS) - 1);
        PostKey(time << TIE_BITS | u128::from(tie))
    }

    /// When the post was written, milliseconds since 1970.
    #[must_use]
    pub fn time_ms(self) -> u64 {
        (self.0 >> TIE_BITS) as u64
    }

    /// Its digits in the store, where the newest post comes first.
    pub(super) fn inverted(self) -> String {
        format!("{:0DIGITS$x}", LARGEST - self.0)
    }

    /// The key with these digits in the store.
    pub(super) fn of_inverted(digits: &str) -> Option<PostKey> {
        digits.parse::<PostKey>().ok().map(|PostKey(inverted)| PostKey(LARGEST - inverted))
    }
}

impl fmt::Display for PostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0DIGITS$x}", self.0)
    }
}

impl FromStr for PostKey {
    type Err = InputError;

    fn from_str(digits: &str) -> Result<PostKey, InputError> {
        let fits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() != DIGITS || !digits.bytes().all(fits) {
            return Err(InputError::Key);
        }
        u128::from_str_radix(digits, 16).map(PostKey).map_err(|_| InputError::Key)
    }
}

/// Which post: `author/key`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PostId {
    /// Who wrote it.
    pub author: Name,
    /// Which of his.
    pub key: PostKey,
}

impl fmt::Display for PostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.author, self.key)
    }
}

impl FromStr for PostId {
    type Err = InputError;

    fn from_str(text: &str) -> Result<PostId, InputError> {
        let (author, key) = text.split_once('/').ok_or(InputError::Key)?;
        Ok(PostId { author: Name::new(author)?, key: key.parse()? })
    }
}

impl TryFrom<String> for PostId {
    type Error = InputError;

    fn try_from(text: String) -> Result<PostId, InputError> {
        text.parse()
    }
}

impl From<PostId> for String {
    fn from(id: PostId) -> String {
        id.to_string()
    }
}

/// Newest first; of two of one key that of the lesser author. So a place in a timeline is that of one post.
impl Ord for PostId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.key.cmp(&self.key).then_with(|| self.author.cmp(&other.author))
    }
}

impl PartialOrd for PostId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A post to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewPost {
    /// Its key; a post that is sent again under the same one is the same post.
    pub key: PostKey,
    /// What it says.
    pub text: Text,
    /// What it answers.
    pub answers: Option<PostId>,
}

/// A post.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Post {
    /// Which.
    pub id: PostId,
    /// What it says.
    pub text: String,
    /// What it answers; that may be deleted.
    pub answers: Option<PostId>,
}

/// A post with what it answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The post.
    pub post: Post,
    /// What it answers; none if it answers nothing, or if that is deleted.
    pub answered: Option<Post>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_keys_come_first_in_the_store() {
        let keys = [(0, 0), (0, u32::MAX), (1, 0), (1_700_000_000_000, 7), (u64::MAX, u32::MAX)];
        let keys = keys.map(|(time_ms, tie)| PostKey::new(time_ms, tie));
        for pair in keys.windows(2) {
            assert!(pair[0] < pair[1]);
            assert!(pair[0].inverted() > pair[1].inverted());
        }
        for key in keys {
            assert_eq!(PostKey::of_inverted(&key.inverted()), Some(key));
            assert_eq!(key.to_string().parse(), Ok(key));
            assert_eq!(key.to_string().len(), 20);
        }
    }

    #[test]
    fn keys_are_read_strictly() {
        for digits in
            ["", "0", "0123456789ABCDEF0123", "+123456789abcdef0123", "0123456789abcdef01234"]
        {
            assert_eq!(digits.parse::<PostKey>(), Err(InputError::Key), "{digits}");
        }
        assert!("alice/0123456789abcdef0123".parse::<PostId>().is_ok());
        assert!("alice".parse::<PostId>().is_err());
    }

    #[test]
    fn posts_are_ordered_newest_first() {
        let id = |author, time_ms| PostId {
            author: Name::new(author).unwrap(),
            key: PostKey::new(time_ms, 0),
        };
        assert!(id("zoe", 2) < id("amy", 1));
        assert!(id("amy", 2) < id("zoe", 2));
    }
}
