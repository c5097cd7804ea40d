//! What is wrong with a file of a cluster.

use std::fmt::Display;
use std::io;

/// Why a file was not read, or cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is none.
    #[error("there is no file {file}; {advice}")]
    Missing {
        /// Its path.
        file: String,
        /// Where it comes from.
        advice: &'static str,
    },
    /// There is none, and one in the directory above.
    #[error("there is no file {file}; there is one in the directory above: give {above}")]
    Above {
        /// Its path.
        file: String,
        /// That directory.
        above: String,
    },
    /// A file was given as a directory.
    #[error("{file} is a file, and a directory is wanted: the one that it stands in, perhaps")]
    NoDirectory {
        /// Its path.
        file: String,
    },
    /// It is another of a cluster's files.
    #[error("{file} is {is}, and {wanted} is wanted; {goes_to}")]
    OtherKind {
        /// Its path.
        file: String,
        /// What it is.
        is: &'static str,
        /// What it should be.
        wanted: &'static str,
        /// What takes such a file.
        goes_to: &'static str,
    },
    /// A directory was given as a file.
    #[error("{file} is a directory, and a file is wanted{}", instead.as_ref().map_or_else(String::new, |it| format!(": {it}, perhaps")))]
    Directory {
        /// Its path.
        file: String,
        /// One in it that is of the kind that is wanted.
        instead: Option<String>,
    },
    /// It is not UTF-8.
    #[error("{file} is not a text file; restore it from a copy")]
    NotText {
        /// Its path.
        file: String,
    },
    /// It, or a directory above it, belongs to somebody else.
    #[error(
        "cannot read {file}: permission denied to {user}, as whom this runs; `chown -R {user}` its directory, or run this as its owner"
    )]
    Forbidden {
        /// Its path.
        file: String,
        /// As whom this runs.
        user: String,
    },
    /// The operating system does not give it.
    #[error("cannot read {file}")]
    Unreadable {
        /// Its path.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// It is no TOML, or a field is missing, unknown, or of another type.
    #[error("{file}{place}: {message}; correct the file")]
    Syntax {
        /// Its path.
        file: String,
        /// The line and the field on it, as far as they are known. Not the line itself, which may hold a secret key.
        place: String,
        /// What was expected.
        message: String,
    },
    /// It is of a cluster of several partitions, and one replica group was meant.
    #[error(
        "{file}: the cluster has several partitions, each a replica group of its own, whose members `perdura server` runs; this works on \
         a cluster of one group only, and nothing was done"
    )]
    Partitioned {
        /// Its path.
        file: String,
    },
    /// A field has a value that it must not have, or contradicts another file: in words, with the file, the field and
    /// what to do.
    #[error("{0}")]
    Wrong(String),
}

impl ReadError {
    /// The same of a cluster's file for which a replica's or a server's asks: the cluster has been made, and only a copy is missing.
    #[must_use]
    pub(crate) fn of_a_host(self) -> ReadError {
        match self {
            ReadError::Missing { file, .. } => ReadError::Missing {
                file,
                advice: "copy it from another host of the cluster, or from where its files were made",
            },
            other => other,
        }
    }
}

/// Why a file was not written; what was there before is still there.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The disk is full or not writable.
    #[error("cannot write {file}")]
    Write {
        /// Its path.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// What was to be written could not be read back: a value is out of its bounds.
    #[error("{file} is not written, for it could not be read back: {why}")]
    NotReadBack {
        /// Its path.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// It could not be given its name.
    #[error("cannot rename {from} to {to}")]
    Rename {
        /// The name that it has.
        from: String,
        /// The name that it was to get.
        to: String,
        /// What the system says.
        source: io::Error,
    },
}

/// The operating system gives no random bytes: nothing secret can be made.
#[derive(Debug, thiserror::Error)]
#[error("the operating system gives no random bytes: {0}")]
pub struct EntropyError(pub(super) getrandom::Error);

/// Of what reads a file.
pub type Result<T, E = ReadError> = std::result::Result<T, E>;

/// Says where in a file something is wrong.
pub(super) trait Context<T> {
    /// What is there, or a [`ReadError::Wrong`] that begins with `place`.
    fn with_context(self, place: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for Option<T> {
    fn with_context(self, place: impl FnOnce() -> String) -> Result<T> {
        self.ok_or_else(|| ReadError::Wrong(place()))
    }
}

impl<T, E: Display> Context<T> for std::result::Result<T, E> {
    fn with_context(self, place: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| ReadError::Wrong(format!("{}: {error}", place())))
    }
}
