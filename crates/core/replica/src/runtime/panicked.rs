//! A service that panics: whose fault that was is said, and where. All that the replica said of itself is on disk, what
//! was half executed is lost with its memory, and nothing of it has left.
//!
//! The command was decided, so it runs again at every replay. A note in the data directory says at which slot the
//! service panicked, how often, and in which program: the digest of its file, for a service has no other mark that
//! surely changes when it is mended. After the second time at one slot that program is not started there any more. Another
//! one is, and so is the same one when somebody removes the note. Of what is fatal to this replica alone no note is taken.

use super::{DataDisk, RunError, give_up};
use perdura_durability::{Checkpoints, Log};
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
    asking(work).unwrap_or_else(|panic| Err(ended_by(panic)))
}

/// How a run ends for this.
pub(super) fn ended_by(panic: Box<ServicePanic>) -> RunError {
    if panic.fatal { RunError::FatalHere(panic) } else { RunError::Service(panic) }
}

/// Asks the service something, for who has to go on after its panic.
pub(super) fn asking<T>(work: impl FnOnce() -> T) -> Result<T, Box<ServicePanic>> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|payload| of_service(&*payload).unwrap_or_else(|| resume_unwind(payload)))
}

/// Closes the data directory of a run that ends for this, if neither disk nor threads are at fault: as after any other run. What
/// the threads gave back is here.
pub(super) fn close(
    error: RunError,
    log: Option<Log<DataDisk>>,
    checkpoints: Option<Checkpoints<DataDisk>>,
) -> RunError {
    match (log, checkpoints) {
        (Some(log), Some(checkpoints))
            if matches!(error, RunError::Service(_) | RunError::FatalHere(_)) =>
        {
            give_up(log, checkpoints, error)
        }
        _ => error,
    }
}

/// What the note says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Note {
    slot: Slot,
    times: u32,
    program: Digest,
    // At which other slots this program panicked before, and how often: while a state is stored, at one slot or the
    // other, whichever thread asks first.
    earlier: Vec<(Slot, u32)>,
    // For whoever reads it; in one line, for a panic is shown so.
    what: String,
}

/// So many other slots a note names.
const EARLIER: usize = 8;

impl Note {
    /// What is to be noted of a panic, after what was noted before.
    fn after(before: Option<Note>, panic: &ServicePanic, program: Digest) -> Note {
        let before = before.filter(|note| note.program == program);
        let mut earlier =
            before.map_or_else(Vec::new, |Note { slot, times, mut earlier, .. }| {
                earlier.push((slot, times));
                earlier
            });
        let slot = panic.slot;
        let here = earlier.iter().position(|(at, _)| *at == slot).map(|at| earlier.remove(at));
        let times = here.map_or(0, |(_, times)| times).saturating_add(1);
        earlier.drain(..earlier.len().saturating_sub(EARLIER));
        Note { slot, times, program, earlier, what: panic.to_string() }
    }

    fn text(&self) -> String {
        let Note { slot, times, program, earlier, what } = self;
        let earlier: Vec<String> =
            earlier.iter().map(|(slot, times)| format!("{slot}:{times}")).collect();
        let earlier = earlier.join(" ");
        format!(
            "# The service of this replica panicked. Remove this file to let the same program try again.\n\
             slot = {slot}\ntimes = {times}\nprogram = {program}\nearlier = {earlier}\nwhat = {what}\n"
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
        let pair = |text: &str| -> Option<(Slot, u32)> {
            let (slot, times) = text.split_once(':')?;
            Some((Slot(slot.parse().ok()?), times.parse().ok()?))
        };
        // Notes of 0.1.0 have none.
        let earlier = field("earlier").unwrap_or_default();
        Some(Note {
            slot: Slot(field("slot")?.parse().ok()?),
            times: field("times")?.parse().ok()?,
            program: Digest(perdura_protocol::ids::from_hex(&field("program")?)?),
            earlier: earlier.split_whitespace().filter_map(pair).collect(),
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
        Some(Note { slot, times, program: of, what, earlier: _ })
            if times >= TIMES && of == program()? =>
        {
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
    let note = Note::after(before, panic, program()?);
    let times = note.times;
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
        ServicePanic { call, slot, command: None, read: None, segment: None, text, fatal: false }
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
    fn panics_at_other_slots_in_between_are_not_forgotten_and_not_kept_without_end() {
        let program = Digest::of(b"this");
        let after = |slots: &[u64]| {
            let next = |note, slot: &u64| Some(Note::after(note, &panic_at(*slot), program));
            slots.iter().fold(None, next).unwrap()
        };
        assert_eq!((after(&[7, 8]).times, after(&[7, 8, 9, 8]).times), (1, 2));
        let many = after(&(10..30).collect::<Vec<u64>>());
        assert_eq!((many.times, many.earlier.len()), (1, EARLIER));
        assert_eq!(Note::read(&many.text()), Some(many));
    }

    #[test]
    fn a_note_that_was_edited_to_nonsense_is_as_none() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(NOTE_NAME), "slot = eight\n").unwrap();
        assert!(check(root.path()).is_ok() && !again(root.path(), 8) && again(root.path(), 8));
    }
}
