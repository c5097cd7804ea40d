//! What a service was asked and answered, in its own words.

use crate::check::Step;
use bytes::Bytes;
use perdura_typed::{Service, Typed};
use std::fmt::Debug;

/// Characters of a command or an answer that are shown where many are, or two beside each other.
const LONGEST: usize = 400;

/// A service whose commands, queries and replies can be shown. All are whose types have `Debug`.
pub(crate) trait InWords: Service {
    /// A command or a query; none if these bytes are neither.
    fn asked(bytes: &[u8]) -> Option<String>;

    /// An answer; none if these bytes are none.
    fn answered(bytes: &[u8]) -> Option<String>;

    /// A command or a query that was not encoded yet.
    fn drawn(step: &Step<Self>) -> String;
}

impl<S> InWords for S
where
    S: Service,
    S::Command: Debug,
    S::Query: Debug,
    S::Reply: Debug,
{
    fn asked(bytes: &[u8]) -> Option<String> {
        Some(match Typed::<S>::asked(bytes)? {
            Ok(command) => format!("{command:?}"),
            Err(query) => format!("{query:?}"),
        })
    }

    fn answered(bytes: &[u8]) -> Option<String> {
        Typed::<S>::answered(bytes).map(|answer| format!("{answer:?}"))
    }

    fn drawn(step: &Step<S>) -> String {
        match step {
            Step::Command(command) => format!("{command:?}"),
            Step::Query(query) => format!("{query:?}"),
        }
    }
}

/// A command or a query.
pub(crate) fn of_asked<S: InWords>(bytes: &[u8]) -> String {
    cut(S::asked(bytes).unwrap_or_else(|| of_bytes(bytes)))
}

/// An answer, or why there was none.
pub(crate) fn of_answer<S: InWords>(answer: &Result<Bytes, String>) -> String {
    match answer {
        Ok(bytes) => cut(S::answered(bytes).unwrap_or_else(|| of_bytes(bytes))),
        Err(words) => cut(format!("refused: {words}")),
    }
}

/// Bytes that mean nothing.
pub(crate) fn of_bytes(bytes: &[u8]) -> String {
    let first = Bytes::copy_from_slice(&bytes[..bytes.len().min(64)]);
    format!("{first:?} ({} bytes)", bytes.len())
}

/// In one line, and its beginning alone where it is long.
pub(crate) fn cut(words: String) -> String {
    let mut line = String::new();
    for (index, character) in words.chars().enumerate() {
        if index == LONGEST {
            line.push_str(" ... (");
            line.push_str(&words.len().to_string());
            line.push_str(" bytes)");
            break;
        }
        match character.is_control() {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line
}

/// `Debug` as `Display`, since that is what a test prints that ends in an error.
macro_rules! debug_as_display {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
        impl std::error::Error for $name {}
    )*};
}
pub(crate) use debug_as_display;
