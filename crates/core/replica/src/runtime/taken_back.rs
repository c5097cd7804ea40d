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

/// It was found out: this is noted at once, for the process may be killed where it stands.
pub(super) fn found(data: &Path, what: String) -> RunError {
    tracing::error!("{what}");
    if let Err(error) = panicked::write_note(data, NOTE_NAME, &format!("{what}\n")) {
        tracing::error!("that it was taken back cannot be noted in the data directory: {error}");
    }
    RunError::TakenBack(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_back_is_not_started_again() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path();
        assert!(check(data).is_ok());
        let ended = found(data, "it is older than what it said".into());
        assert!(ended.to_string().contains("stopped for good"), "{ended}");
        let words = check(data).unwrap_err().to_string();
        for told in ["it is older than what it said", &data.join(NOTE_NAME).display().to_string()] {
            assert!(words.contains(told), "{words}");
        }
    }
}
