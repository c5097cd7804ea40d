//! How a program ends: what is said of an error, and the exit code: 0 done, 1 failed, 2 used wrongly; of one command for a service 3 no,
//! 4 refused, 5 indeterminate.

use crate::called;
use std::process::ExitCode;
use std::time::Duration;

/// How long the end waits for who reads the last words.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The command line asks for something that makes no sense: exit code 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (see --help)", self.0)
    }
}

impl std::error::Error for Usage {}

/// The exit codes of one command for a service, for its help.
pub const OF_ONE: &str = "Exit codes: 0 done, 3 no (there is no such key or tuple, or it is not as it has to be), 4 refused (nothing happened, for certain; \
    also where no replica can be reached), 5 indeterminate (it may have happened, or may yet), 2 used wrongly, 1 otherwise failed. With --json the \
    result is one line on standard output; of 4 and 5 it is {\"outcome\":\"refused\" or \"indeterminate\",\"error\":\"...\"}.";

/// It was carried out, and the answer is no.
const NO: u8 = 3;

/// The exit code of what was carried out.
#[must_use]
pub fn carried_out(yes: bool) -> ExitCode {
    if yes { ExitCode::SUCCESS } else { ExitCode::from(NO) }
}

/// One command got no answer: what is said of it, and the exit code.
pub fn unanswered(error: &impl std::fmt::Display, refused: bool, json: bool) -> ExitCode {
    let (outcome, code) = if refused { ("refused", 4) } else { ("indeterminate", 5) };
    if json {
        say!("{}", serde_json::json!({"outcome": outcome, "error": error.to_string()}));
    }
    tell_in_time(&error.to_string());
    ExitCode::from(code)
}

/// The exit code of the program `name`, which says what went wrong on standard error.
#[must_use]
pub fn exit_code(name: &str, done: anyhow::Result<ExitCode>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::FAILURE,
        Err(error) => {
            tell_line(format!("{name}: {}", called::here(&text_of(&error))));
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

/// Says it on standard error in the name of this program, as far as that takes it: a log that nobody reads may be stuck there, and the
/// process goes on, or ends, all the same.
pub(crate) fn tell_in_time(text: &str) {
    tell_line(format!("{}: {}", called::name(), called::here(text)));
}

fn tell_line(text: String) {
    let (said, wait) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().spawn(move || {
        tell!("{text}");
        let _ = said.send(());
    });
    if thread.is_ok() {
        let _ = wait.recv_timeout(TIMEOUT);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_happened_is_no_refusal() {
        let error = std::io::Error::other("x");
        assert_eq!(unanswered(&error, true, false), ExitCode::from(4));
        assert_eq!(unanswered(&error, false, false), ExitCode::from(5));
        assert_eq!((carried_out(true), carried_out(false)), (ExitCode::SUCCESS, ExitCode::from(3)));
    }
}
