//! Records of what each version of a service was asked, answered and stored, which an author keeps: a program that was changed is held against
//! what the older one wrote, as replicas will.

mod format;
mod make;
mod replay;

use crate::check::{Finding, Step as Asked};
use crate::random::Random;
use crate::run::{Answer, Sent};
use crate::words::{InWords, debug_as_display};
use bytes::Bytes;
use format::{Damage, Of, parse};
use perdura_typed::Service;
use std::fmt::{self, Debug};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest record that is written, bytes: it stands in version control, and may be looked at.
const RECORD_BYTES: usize = 200_000;

/// The largest one that is read: whatever is above was not written here.
const READ_BYTES: u64 = 4 * RECORD_BYTES as u64;

/// A state, by its segments.
type State = Vec<Bytes>;

/// A record. Numbers are those of lines.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Recorded {
    first: (usize, State),
    runs: Vec<Vec<Step>>,
}

/// A step of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Step {
    line: usize,
    sent: Sent,
    // What it said.
    asked: String,
    // Words are escaped as in the file.
    answer: Answer,
    // What that said.
    answered: String,
    // After it.
    state: Option<(usize, State)>,
}

/// Why a service is not held to go on where an older program of it was.
#[derive(Clone, PartialEq, Eq)]
pub enum RecordError {
    /// There was no record of some version, and there is now.
    Written(Vec<PathBuf>),
    /// The program does something else than the one that wrote a record.
    Changed(Box<Changed>),
    /// There is a record of a version that this program does not know.
    Newer {
        /// The record.
        file: PathBuf,
        /// The program's newest version.
        newest: u16,
    },
    /// A file is no record of this service and version, or not as it was written.
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where, from 1 on.
        line: usize,
        /// What is wrong there.
        why: String,
    },
    /// A file or a directory cannot be read or written.
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// Something was found already while the service ran to be recorded: [`crate::check`] looks for more of it.
    Wrong(Box<Finding>),
    /// Run again at once, it did otherwise: [`crate::check`] says more.
    Unsteady {
        /// The version under which it ran.
        version: u16,
        /// What was otherwise.
        change: Change,
    },
    /// The first state, or each command with its answer and the state after it, is larger than a record may be.
    TooLarge {
        /// The version under which it ran.
        version: u16,
    },
}

/// What is otherwise than it was recorded.
#[derive(Clone, PartialEq, Eq)]
pub struct Changed {
    /// The record.
    pub file: PathBuf,
    /// Its version.
    pub version: u16,
    /// The line of the record, from 1 on.
    pub line: usize,
    /// The command or the query, if it is one: what it says now, or said when it was recorded.
    pub asked: Option<String>,
    /// What came of it.
    pub change: Change,
}

/// In which way.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Change {
    /// A command or a query is none any more.
    #[error("its bytes are no command or query any more")]
    NotRead,
    /// A command or a query is one of a later version.
    #[error("it came with version {0} now, by what `since` or `query_since` says")]
    Since(u16),
    /// An answer cannot be read, as clients of the older program have to, or of this one those of the older.
    #[error("its answer, which was {0}, cannot be read any more")]
    AnswerNotRead(String),
    /// Another answer.
    #[error("it was answered with {recorded}, and now with {now}")]
    Answer {
        /// What was recorded.
        recorded: String,
        /// What came.
        now: String,
    },
    /// It panics.
    #[error("it panics: {0}")]
    Panic(String),
    /// The first state is another one.
    #[error(
        "the state that it begins with is another one ({0}): does `Default` give something else?"
    )]
    FirstState(String),
    /// The state after a command is another one.
    #[error("the state after it is another one ({0})")]
    State(String),
    /// A state does not restore.
    #[error(
        "a state does not restore ({0}): are there more parts in `parts` or fewer, or is one of another type, or in another place?"
    )]
    NotRestored(String),
    /// Something in a state is not read as what it was stored as.
    #[error("a state has what this program stores in another way: {0}")]
    Unfaithful(String),
    /// A state that was restored is not what it was restored from.
    #[error("a state that was restored is another one ({0})")]
    RestoredState(String),
    /// After a state was restored it does otherwise.
    #[error("after the state in line {line} was restored, {change}")]
    Restored {
        /// Of which state.
        line: usize,
        /// What it does.
        change: Box<Change>,
    },
    /// After a state was restored, and the version in force raised, it does what may not be.
    #[error("after the state in line {line} was restored, and raised to version {to}, {fault}")]
    Raised {
        /// Of which state.
        line: usize,
        /// The version that was in force then.
        to: u16,
        /// What it does.
        fault: crate::check::Fault,
    },
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Changed { file, version, line, asked, change } = self;
        write!(f, "{}, line {line}: version {version} is not what it was: ", file.display())?;
        if let Some(asked) = asked {
            write!(f, "{asked}: ")?;
        }
        write!(
            f,
            "{change}\nLet it do what it did: a type that was sent or stored never changes, and what a command does otherwise depends on \
             `context.version()`. Only if no cluster ever ran the program that wrote this record, delete it, and it is written anew"
        )
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Written(files) => {
                let files: Vec<String> =
                    files.iter().map(|file| file.display().to_string()).collect();
                write!(
                    f,
                    "there was no record of what the service does, and now there is: commit {}, and run this again",
                    files.join(" and ")
                )
            }
            RecordError::Changed(changed) => write!(f, "{changed}"),
            RecordError::Newer { file, newest } => write!(
                f,
                "{} is there, and this program's newest version is {newest}: it is an older one than that which wrote the record, and `VERSION` is \
                 never lowered",
                file.display()
            ),
            RecordError::Damaged { file, line, why } => write!(
                f,
                "{}, line {line}: {why}. Take the file back from version control as it was written",
                file.display()
            ),
            RecordError::Io { path, why } => write!(f, "{}: {why}", path.display()),
            RecordError::Wrong(finding) => {
                write!(f, "nothing is recorded: {finding}; `check` looks for more of that")
            }
            RecordError::Unsteady { version, change } => write!(
                f,
                "nothing is recorded: run again, under version {version} too, the service did otherwise: {change}; `check` says more of that"
            ),
            RecordError::TooLarge { version } => write!(
                f,
                "nothing is recorded: under version {version} no step fits a record of {RECORD_BYTES} bytes, together with the first state and the one \
                 after it: let the first state be smaller, or draw smaller commands"
            ),
        }
    }
}

debug_as_display!(Changed, RecordError);

/// Holds a service against records of what it did under each of its versions, `version-1.txt` and so on in a directory that is committed with
/// the program (a relative path begins where `Cargo.toml` is). What replicas wrote with an older program has to be read by this one, and to
/// give the same:
///
/// - each recorded command and query is still one under its version, has the same answer, which can be read, and leaves the same state;
/// - each recorded state restores, and the service goes on from there as it did;
/// - and it can be raised to all newer versions.
///
/// A version of which there is no record gets one, of what `step` chooses, once all others hold. That is an error too, so that nobody forgets to
/// commit it.
///
/// # Errors
/// The first thing that is otherwise.
pub fn recorded<S>(
    directory: impl AsRef<Path>,
    mut step: impl FnMut(&mut Random) -> Asked<S>,
) -> Result<(), Box<RecordError>>
where
    S: Service,
    S::Command: Debug,
    S::Query: Debug,
    S::Reply: Debug,
{
    let directory = directory.as_ref();
    nothing_newer(directory, S::VERSION)?;
    let mut missing = Vec::new();
    for version in 1..=S::VERSION {
        let file = directory.join(name(version));
        match read(&file)? {
            Some(bytes) => hold::<S>(&file, version, bytes)?,
            None => missing.push((version, file)),
        }
    }
    let mut texts = Vec::new();
    for (version, file) in missing {
        texts.push((made::<S>(version, &mut step)?, file));
    }
    for (text, file) in &texts {
        write(file, text).map_err(io_at(file))?;
    }
    let written: Vec<PathBuf> = texts.into_iter().map(|(_, file)| file).collect();
    if written.is_empty() { Ok(()) } else { Err(Box::new(RecordError::Written(written))) }
}

/// The name of the file of a version.
fn name(version: u16) -> String {
    format!("version-{version}.txt")
}

/// No record is of a version above the newest one.
fn nothing_newer(directory: &Path, newest: u16) -> Result<(), Box<RecordError>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(io_at(directory))?,
    };
    for entry in entries {
        let file = entry.map_err(io_at(directory))?.path();
        let called = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let version = called.strip_prefix("version-").and_then(|rest| rest.strip_suffix(".txt"));
        let version: Option<u64> = version.and_then(|version| version.parse().ok());
        if version.is_some_and(|version| version > u64::from(newest)) {
            return Err(Box::new(RecordError::Newer { file, newest }));
        }
    }
    Ok(())
}

/// Holds a service against the record of a version.
fn hold<S: InWords>(file: &Path, version: u16, bytes: Vec<u8>) -> Result<(), Box<RecordError>> {
    let damaged =
        |Damage { line, why }| Box::new(RecordError::Damaged { file: file.to_owned(), line, why });
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        damaged(Damage { line, why: "it is no text".to_owned() })
    })?;
    let record = parse(&text, Of { service: S::NAME, version }).map_err(damaged)?;
    replay::hold::<S>(version, &record).map_err(|differs| {
        let replay::Differs { line, asked, change } = differs;
        let changed = Changed { file: file.to_owned(), version, line, asked, change };
        Box::new(RecordError::Changed(Box::new(changed)))
    })
}

/// The record of a version, which holds against the service at once.
fn made<S: InWords>(
    version: u16,
    step: &mut impl FnMut(&mut Random) -> Asked<S>,
) -> Result<String, Box<RecordError>> {
    let text = make::record::<S>(version, step)?;
    let record = parse(&text, Of { service: S::NAME, version });
    let record = record.unwrap_or_else(|damage| panic!("a record is not as written: {damage:?}"));
    match replay::hold::<S>(version, &record) {
        Ok(()) => Ok(text),
        Err(replay::Differs { change, .. }) => {
            Err(Box::new(RecordError::Unsteady { version, change }))
        }
    }
}

fn io_at(path: &Path) -> impl Fn(io::Error) -> Box<RecordError> {
    move |error| Box::new(RecordError::Io { path: path.to_owned(), why: error.to_string() })
}

/// What is in a file, if there is one; no more of it than any record has.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Box<RecordError>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(io_at(path))?,
    };
    let mut bytes = Vec::new();
    file.take(READ_BYTES).read_to_end(&mut bytes).map_err(io_at(path))?;
    Ok(Some(bytes))
}

/// Writes a file as a whole, or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(directory)?;
    // Tests beside this one may write the same.
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&beside, path)).inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}
