//! A service that panics: whose fault that was is said, and where. All that the replica said of itself is on disk, what
//! was half executed is lost with its memory, and nothing of it has left.
//!
//! The command was decided, so it runs again at every replay. A note in the data directory says at which slot the
//! service panicked, how often, and in which program: the digest of its file, for a service has no other mark that
//! surely changes when it is mended. After the second time at one slot that program is not started there any more. Another
//! one is, and so is the same one when somebody removes the note.

use super::RunError;
use perdura_execution::ServicePanic;
use perdura_protocol::{Digest, Slot};
use std::any::Any;
use std::fs::{self, File};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// The note's file in the data directory.
const NOTE_NAME: &str = "service-panicked";

/// So often may one program panic at one slot: once may have been an accident.
const TIMES: u32 = 2;

/// The panic of a service, if that is what a thread ended with.
pub(super) fn of_service(payload: &(dyn Any + Send)) -> Option<Box<ServicePanic>> {
    payload.downcast_ref().cloned().map(Box::new)
}

/// Does something of which a panic of the service is an error, and any other goes on.
pub(super) fn catching<T>(work: impl FnOnce() -> Result<T, RunError>) -> Result<T, RunError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(payload) => match of_service(&*payload) {
            Some(panic) => Err(RunError::Service(panic)),
            None => resume_unwind(payload),
        },
    }
}

/// What the note says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Note {
    slot: Slot,
    times: u32,
    program: Digest,
    // For whoever reads it.
    what: String,
}

impl Note {
    fn text(&self) -> String {
        let Note { slot, times, program, what } = self;
        // All in one line.
        let what = what.escape_debug();
        format!(
            "# The service of this replica panicked. Remove this file to let the same program try again.\n\
             slot = {slot}\ntimes = {times}\nprogram = {program}\nwhat = {what}\n"
        )
    }

    fn read(text: &str) -> Option<Note> {
        let field = |name: &str| {
            let of = |line: &'_ str| -> Option<String> {
                let (found, value) = line.split_once(" = ")?;
                (found == name).then(|| value.to_owned())
            };
            text.lines().find_map(of)
        };
        Some(Note {
            slot: Slot(field("slot")?.parse().ok()?),
            times: field("times")?.parse().ok()?,
            program: Digest(perdura_protocol::ids::from_hex(&field("program")?)?),
            what: field("what")?,
        })
    }
}

/// The note in a data directory, and where it is.
fn found(data: &Path) -> io::Result<(PathBuf, Option<Note>)> {
    let path = data.join(NOTE_NAME);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((path, None)),
        Err(error) => return Err(error),
    };
    let note = Note::read(&text);
    if note.is_none() {
        tracing::warn!(
            "{} says nothing that is understood: as if it were not there",
            path.display()
        );
    }
    Ok((path, note))
}

/// The program that runs, even if its file was replaced meanwhile.
fn program() -> io::Result<Digest> {
    fs::read("/proc/self/exe").map(|program| Digest::of(&program))
}

/// Whether this program may run the service of a data directory.
pub(super) fn check(data: &Path) -> Result<(), RunError> {
    let (path, note) = found(data)?;
    match note {
        Some(Note { slot, times, program: of, what }) if times >= TIMES && of == program()? => {
            Err(RunError::ServiceBarred { slot, what, note: path })
        }
        _ => Ok(()),
    }
}

/// Takes a note of how a run ended, if that was a panic of the service.
pub(super) fn note(data: &Path, error: RunError) -> RunError {
    let RunError::Service(panic) = error else { return error };
    match add(data, &panic) {
        Ok((times, note)) if times >= TIMES => RunError::ServiceAgain { panic, note },
        Ok(_) => RunError::Service(panic),
        Err(error) => {
            tracing::error!(
                "that the service panicked cannot be noted in the data directory: {error}"
            );
            RunError::Service(panic)
        }
    }
}

fn add(data: &Path, panic: &ServicePanic) -> io::Result<(u32, PathBuf)> {
    let (path, before) = found(data)?;
    let (slot, program) = (panic.slot, program()?);
    let before = before.filter(|note| note.slot == slot && note.program == program);
    let times = before.map_or(0, |note| note.times).saturating_add(1);
    let note = Note { slot, times, program, what: panic.to_string() };
    write_note(data, NOTE_NAME, &note.text())?;
    Ok((times, path))
}

/// Writes a note into a data directory. As all that replaces something there: it is whole on disk before it does (rule D3).
pub(super) fn write_note(data: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = data.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, data.join(name))?;
    File::open(data)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_execution::Call;

    fn panic_at(slot: u64) -> ServicePanic {
        let (call, slot, text) = (Call::Execute, Slot(slot), "a\nb".to_owned());
        ServicePanic { call, slot, command: None, read: None, segment: None, text }
    }

    fn again(data: &Path, slot: u64) -> bool {
        let ended = note(data, RunError::Service(Box::new(panic_at(slot))));
        matches!(ended, RunError::ServiceAgain { .. })
    }

    #[test]
    fn the_second_time_at_one_slot_bars_this_program_until_the_note_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path();
        let barred = || check(data).map_err(|error| error.to_string());
        assert_eq!(barred(), Ok(()));
        assert!(!again(data, 7) && barred().is_ok(), "once may be an accident");
        assert!(!again(data, 8) && barred().is_ok(), "it is another slot");
        assert!(again(data, 8));
        let words = barred().unwrap_err();
        let path = data.join(NOTE_NAME);
        for told in ["slot 8", "`execute`", &path.display().to_string()] {
            assert!(words.contains(told), "{words}");
        }
        // Another program may try, and has its own two times.
        let note = Note::read(&fs::read_to_string(&path).unwrap()).unwrap();
        let other = Note { program: Digest::of(b"another"), ..note };
        fs::write(&path, other.text()).unwrap();
        assert!(barred().is_ok() && !again(data, 8) && barred().is_ok() && again(data, 8));
        fs::remove_file(&path).unwrap();
        assert!(barred().is_ok() && !again(data, 8));
    }

    #[test]
    fn a_note_that_was_edited_to_nonsense_is_as_none() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(NOTE_NAME), "slot = eight\n").unwrap();
        assert!(check(root.path()).is_ok() && !again(root.path(), 8) && again(root.path(), 8));
    }
}
