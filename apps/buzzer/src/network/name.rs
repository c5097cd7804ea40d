//! Names of accounts, passwords, and texts of posts, as far as they are valid.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Fewest characters of a name.
pub const NAME_LEAST: usize = 3;

/// Most characters of a name.
pub const NAME_MOST: usize = 20;

/// Fewest characters of a password.
pub const PASSWORD_LEAST: usize = 8;

/// Most bytes of a password: it is hashed, which takes time.
pub const PASSWORD_MOST: usize = 256;

/// Most characters of a post.
pub const TEXT_MOST: usize = 280;

/// What somebody typed cannot be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InputError {
    /// Not a name.
    #[error("A name has {NAME_LEAST} to {NAME_MOST} characters: a to z, digits, and _.")]
    Name,
    /// Not a password.
    #[error(
        "A password has at least {PASSWORD_LEAST} characters, and at most {PASSWORD_MOST} bytes."
    )]
    Password,
    /// A post without a text.
    #[error("A post needs a text.")]
    Empty,
    /// A post with too much text.
    #[error("A post has at most {TEXT_MOST} characters; this one has {0}.")]
    Long(usize),
    /// A character that is not for texts.
    #[error("A post has no control characters.")]
    Control,
    /// Not a post's key.
    #[error("This is no key of a post; it has 20 hexadecimal digits.")]
    Key,
}

/// The name of an account: 3 to 20 of a to z, 0 to 9 and _.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// The name that is written so; capital letters are taken for small ones.
    ///
    /// # Errors
    /// When it is none.
    pub fn new(text: &str) -> Result<Name, InputError> {
        let name = text.trim().to_ascii_lowercase();
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if !(NAME_LEAST..=NAME_MOST).contains(&name.len()) || !name.bytes().all(fits) {
            return Err(InputError::Name);
        }
        Ok(Name(name))
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = InputError;

    fn try_from(text: String) -> Result<Name, InputError> {
        Name::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

/// A password that is long enough. It is not shown.
#[derive(Clone)]
pub struct Password(String);

impl Password {
    /// A password for a new account, or one that may be that of an account.
    ///
    /// # Errors
    /// When it is too short or too long.
    pub fn new(text: impl Into<String>) -> Result<Password, InputError> {
        let text = text.into();
        if text.chars().count() < PASSWORD_LEAST || text.len() > PASSWORD_MOST {
            return Err(InputError::Password);
        }
        Ok(Password(text))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

/// The text of a post: 1 to 280 characters, not all of them blank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Text(String);

impl Text {
    /// The text without blanks around it, with line feeds at the ends of its lines.
    ///
    /// # Errors
    /// When nothing is left, or too much, or it has control characters.
    pub fn new(text: &str) -> Result<Text, InputError> {
        let text = text.replace("\r\n", "\n");
        let text = text.trim();
        match text.chars().count() {
            0 => return Err(InputError::Empty),
            1..=TEXT_MOST => {}
            count => return Err(InputError::Long(count)),
        }
        if text.chars().any(|one| one.is_control() && one != '\n' && one != '\t') {
            return Err(InputError::Control);
        }
        Ok(Text(text.to_owned()))
    }

    /// As it was typed.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Text> for String {
    fn from(text: Text) -> String {
        text.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded() {
        for name in ["abc", "a_1", "x2345678901234567890", "Alice", " bob "] {
            assert!(Name::new(name).is_ok(), "{name}");
        }
        for name in ["", "ab", "x23456789012345678901", "a/b", "a!b", "ärger", "a b", "../x"] {
            assert_eq!(Name::new(name), Err(InputError::Name), "{name}");
        }
        assert_eq!(Name::new("Alice").unwrap().as_str(), "alice");
    }

    #[test]
    fn texts_are_bounded_by_characters() {
        assert!(Text::new(&"ß".repeat(280)).is_ok());
        assert_eq!(Text::new(&"ß".repeat(281)), Err(InputError::Long(281)));
        assert_eq!(Text::new(" \r\n "), Err(InputError::Empty));
        assert_eq!(Text::new("a\u{0}b"), Err(InputError::Control));
        assert_eq!(Text::new(" a\r\nb ").unwrap().as_str(), "a\nb");
    }

    #[test]
    fn passwords_are_bounded_and_not_shown() {
        assert!(Password::new("1234567").is_err());
        assert!(Password::new("x".repeat(257)).is_err());
        assert_eq!(format!("{:?}", Password::new("12345678").unwrap()), "Password");
    }
}
