//! How a program ends: what is said of an error, and the exit code: 0 done, 1 failed, 2 used wrongly.

use std::process::ExitCode;
use std::time::Duration;

/// How long the end waits for who reads the last words.
const PATIENCE: Duration = Duration::from_secs(1);

/// The command line asks for something that makes no sense: exit code 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (see --help)", self.0)
    }
}

impl std::error::Error for Usage {}

/// The exit code of the program `name`, which says what went wrong on standard error.
#[must_use]
pub fn exit_code(name: &str, done: anyhow::Result<ExitCode>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::FAILURE,
        Err(error) => {
            tell_in_time(format!("{name}: {}", text_of(&error)));
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

/// Says it on standard error, as far as that takes it: a log that nobody reads may be stuck there, and the process ends all the
/// same.
fn tell_in_time(text: String) {
    let (said, wait) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().spawn(move || {
        tell!("{text}");
        let _ = said.send(());
    });
    if thread.is_ok() {
        let _ = wait.recv_timeout(PATIENCE);
    }
}

/// An error and its causes, less those whose text an earlier one includes.
fn text_of(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whoever read our output has gone; there is nobody to tell.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
