//! A data directory that was taken back to an older state, as others showed with its own signature: a note in it keeps every
//! further start from it. Without the note each start would be found out again, but for so many as a directory knows its boots.

use super::{RunError, panicked};
use std::fs;
use std::io;
use std::path::Path;

/// The note's file in the data directory.
const NOTE_NAME: &str = "taken-back";

/// Whether a replica may start on a data directory.
pub(super) fn check(data: &Path) -> Result<(), RunError> {
    let note = data.join(NOTE_NAME);
    match fs::read_to_string(&note) {
        Ok(what) => Err(RunError::Barred { what: what.trim_end().to_owned(), note }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Takes a note of how a run ended, if that was it.
pub(super) fn note(data: &Path, error: &RunError) {
    let RunError::TakenBack(what) = error else { return };
    if let Err(error) = panicked::write_note(data, NOTE_NAME, &format!("{what}\n")) {
        tracing::error!("that it was taken back cannot be noted in the data directory: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_back_is_not_started_again() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path();
        note(data, &RunError::Halted("for another reason".into()));
        assert!(check(data).is_ok());
        note(data, &RunError::TakenBack("it is older than what it said".into()));
        let words = check(data).unwrap_err().to_string();
        for told in ["it is older than what it said", &data.join(NOTE_NAME).display().to_string()] {
            assert!(words.contains(told), "{words}");
        }
    }
}
