//! `perdura inspect`: what is on disk, item by item. Reads only; also copies, and directories in
//! use.
//!
//! Which checkpoints there have to be in a data directory its superblock says, not the files that
//! are there. It is read before these are listed, and again where something does not verify: a
//! replica that runs may have stored a newer checkpoint meanwhile, and writes over files, or
//! removes them, once the superblock names them no more. A file that it still names is as it was
//! put in place, so what fails there is damage.

use crate::called;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use perdura_cluster::config::files::directory_of;
use perdura_durability::inspect::{
    CheckpointItem, InspectError, PieceVerdict, inspect_checkpoint, inspect_log, read_superblock,
};
use perdura_durability::{FileDisk, Superblock};
use perdura_protocol::Slot;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const CHECKPOINT_DIRECTORY: &str = "checkpoint";
const SUPERBLOCK: &str = "superblock";

const BY_FILES: &str = "every file is taken for a checkpoint, though some may be there only for \
                        pieces that others link to, and fail for that";

const EXIT_CODES: &str = "\
Changes nothing. Exit code 1 if anything shown does not verify, or a checkpoint
is not there that the superblock names. The last group of a log may be torn by a
crash; that alone is no damage, and is cut when the replica starts.

A replica that runs writes to its files and replaces them meanwhile, and that
can be the cause, too. For a verdict stop it first, or inspect a copy that was
made while it was stopped.";

/// What is on a replica's disk, record by record, verifying checksums
#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A file of the log, or all of a data directory's
    #[command(after_help = EXIT_CODES)]
    Log {
        /// As in DIR/replica-0/data, or DIR/replica-0/data/log/0000000000000001
        path: PathBuf,
    },
    /// A checkpoint, or all that a data directory's superblock names. Pieces that did not change
    /// are in the files of older checkpoints, which are looked for beside it
    #[command(after_help = EXIT_CODES)]
    Checkpoint {
        /// As in DIR/replica-0/data, or DIR/replica-0/data/checkpoint/00000000000000016384
        path: PathBuf,
    },
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let intact = match &arguments.command {
        Command::Log { path } => inspect_logs(path, &mut out)?,
        Command::Checkpoint { path } => inspect_checkpoints(path, &mut out)?,
    };
    out.flush()?;
    if !intact {
        tell!("{}: not everything verifies", called::name());
    }
    Ok(if intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn inspect_logs(path: &Path, out: &mut impl Write) -> Result<bool> {
    let mut files = vec![path.to_owned()];
    if !is_file(path)? {
        let within = path.join("log");
        let directory = if within.is_dir() { &within } else { path };
        files = numbered(directory)?;
        ensure_any(&files, directory)?;
    }
    let mut intact = true;
    for file in files {
        writeln!(out, "{}", file.display())?;
        let (mut disk, name) = disk_of(&file);
        let mut written = Ok(());
        let inspected = inspect_log(&mut disk, &name, &mut |item| {
            if written.is_ok() {
                written = writeln!(out, "  {item}");
            }
        });
        written?;
        if let Err(error) = &inspected {
            writeln!(out, "  ERROR: {error}")?;
        }
        intact &= inspected.unwrap_or(false);
    }
    Ok(intact)
}

fn inspect_checkpoints(path: &Path, out: &mut impl Write) -> Result<bool> {
    if is_file(path)? {
        let data = DataDirectory::around(&directory_of(path))?;
        return data.inspect_file(path, out);
    }
    let within = path.join(CHECKPOINT_DIRECTORY);
    let (directory, data) = match within.is_dir() || path.join(SUPERBLOCK).is_file() {
        true => (within, DataDirectory::read(path.to_owned())?),
        false => (path.to_owned(), DataDirectory::around(path)?),
    };
    let mut files = numbered(&directory)?;
    let mut intact = true;
    match &data.superblock {
        Some(superblock) if superblock.checkpoints.is_empty() => {
            writeln!(out, "{}\n  names no checkpoint", data.path.join(SUPERBLOCK).display())?;
        }
        Some(superblock) => {
            let name = |slot: Slot| directory.join(format!("{:020}", slot.0));
            files.extend(superblock.checkpoints.iter().map(|named| name(named.slot)));
            files = in_order(files);
        }
        None if data.path.join(SUPERBLOCK).is_file() => {
            intact = false;
            let file = data.path.join(SUPERBLOCK);
            writeln!(out, "{}\n  ERROR: does not verify, or is of a newer format", file.display())?;
            writeln!(out, "  {BY_FILES}")?;
        }
        None => {
            ensure_any(&files, &directory)?;
            writeln!(out, "{}\n  no superblock: {BY_FILES}", data.path.display())?;
        }
    }
    for file in files {
        intact &= match data.role(&file) {
            Role::Checkpoint => data.inspect_file(&file, out)?,
            role => {
                writeln!(out, "{}\n  {role}", file.display())?;
                true
            }
        };
    }
    Ok(intact)
}

/// What a file of a checkpoint is there for.
#[derive(PartialEq, Eq, Debug)]
enum Role {
    Checkpoint,
    /// For pieces that these checkpoints link to.
    Linked(Vec<Slot>),
    Unnamed,
}

impl Role {
    fn of(slot: Slot, superblock: &Superblock) -> Role {
        if superblock.checkpoints.iter().any(|name| name.slot == slot) {
            return Role::Checkpoint;
        }
        let links = superblock.links.iter().filter(|link| link.file == slot);
        let checkpoints: Vec<Slot> = links.map(|link| link.checkpoint).collect();
        if checkpoints.is_empty() { Role::Unnamed } else { Role::Linked(checkpoints) }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Checkpoint => write!(f, "a checkpoint"),
            Role::Linked(checkpoints) => write!(
                f,
                "kept for pieces that checkpoints link to, which are verified with these: {}",
                list(checkpoints)
            ),
            Role::Unnamed => write!(
                f,
                "not (yet or any more) named by the superblock: being put in place, or removed now \
                 or at the next start"
            ),
        }
    }
}

/// A data directory, or what is there of one.
struct DataDirectory {
    path: PathBuf,
    // As it was read first; `None` where there is none that can be read.
    superblock: Option<Superblock>,
}

impl DataDirectory {
    fn read(path: PathBuf) -> Result<DataDirectory> {
        let superblock = read_superblock(&mut FileDisk::read_only(&path))?;
        Ok(DataDirectory { path, superblock })
    }

    /// That whose checkpoints are in `directory`, or `directory` itself if it has another name.
    fn around(directory: &Path) -> Result<DataDirectory> {
        // As `.` it would have no name.
        let directory = std::fs::canonicalize(directory)?;
        let is_part = directory.file_name().is_some_and(|name| name == CHECKPOINT_DIRECTORY);
        DataDirectory::read(if is_part { directory_of(&directory) } else { directory })
    }

    fn role(&self, file: &Path) -> Role {
        match (&self.superblock, slot_of(file)) {
            (Some(superblock), Some(slot)) => Role::of(slot, superblock),
            _ => Role::Checkpoint,
        }
    }

    /// Shows a file, as a checkpoint. Returns whether it verifies, and is what the superblock
    /// names, if it names it.
    fn inspect_file(&self, file: &Path, out: &mut impl Write) -> Result<bool> {
        writeln!(out, "{}", file.display())?;
        let (disk, name) = disk_of(file);
        let own = slot_of(file);
        let checkpoints = self.superblock.iter().flat_map(|superblock| &superblock.checkpoints);
        let named = checkpoints.into_iter().find(|name| Some(name.slot) == own);
        let (mut written, mut another, mut failed) = (Ok(()), false, BTreeSet::new());
        let inspected = inspect_checkpoint(&disk, &name, &mut |item| {
            match &item {
                CheckpointItem::Header { slot, digest, .. } => {
                    another =
                        named.is_some_and(|name| (name.slot, name.digest) != (*slot, *digest));
                }
                CheckpointItem::Piece { verdict: PieceVerdict::Valid, .. } => {}
                CheckpointItem::Piece { place, linked: true, .. } => {
                    failed.insert(place.file);
                }
                CheckpointItem::Piece { .. } => failed.extend(own),
            }
            if written.is_ok() {
                written = writeln!(out, "  {item}");
            }
        });
        written?;
        if another {
            writeln!(out, "  ERROR: not the state that the superblock names")?;
        }
        match &inspected {
            Err(InspectError::Disk(error))
                if named.is_some() && error.source.kind() == ErrorKind::NotFound =>
            {
                writeln!(out, "  ERROR: the superblock names it, and there is no such file")?;
            }
            Err(error) => writeln!(out, "  ERROR: {error}")?,
            Ok(_) => {}
        }
        if another || inspected.is_err() {
            failed.extend(own);
        }
        self.explain(own, failed, out)?;
        Ok(inspected.unwrap_or(false) && !another)
    }

    /// What it means that something fails in `failed` while `own` is inspected, which may be no
    /// checkpoint any more.
    fn explain(
        &self,
        own: Option<Slot>,
        failed: BTreeSet<Slot>,
        out: &mut impl Write,
    ) -> Result<()> {
        if failed.is_empty() {
            return Ok(());
        }
        let now = read_superblock(&mut FileDisk::read_only(&self.path))?;
        let (Some(now), Some(own)) = (now, own) else { return Ok(()) };
        if Role::of(own, &now) == Role::Checkpoint {
            return Ok(());
        }
        let mut unnamed = Vec::new();
        for file in failed {
            match Role::of(file, &now) {
                Role::Unnamed => unnamed.push(file),
                role => writeln!(out, "  what fails in {:020} is damage: it is {role}", file.0)?,
            }
        }
        if unnamed.is_empty() {
            return Ok(());
        }
        let was_named = |superblock| Role::of(own, superblock) != Role::Unnamed;
        let why = match self.superblock.as_ref().is_some_and(was_named) {
            true => "a newer checkpoint took its place, perhaps in its file".to_owned(),
            false => Role::Unnamed.to_string(),
        };
        writeln!(
            out,
            "  {why}; what fails in {} may be damage that checkpoints share: inspect the data \
             directory {}",
            list(&unnamed),
            self.path.display()
        )?;
        Ok(())
    }
}

fn list(slots: &[Slot]) -> String {
    let names: Vec<String> = slots.iter().map(|slot| format!("{:020}", slot.0)).collect();
    names.join(", ")
}

fn slot_of(file: &Path) -> Option<Slot> {
    file.file_name().and_then(|name| name.to_str()?.parse().ok()).map(Slot)
}

/// The directory of a file, to be read from, and the file's name in it.
fn disk_of(file: &Path) -> (FileDisk, String) {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    (FileDisk::read_only(&directory_of(file)), name)
}

fn is_file(path: &Path) -> Result<bool> {
    let found = std::fs::metadata(path).with_context(|| {
        format!("cannot find {}; give a file, or a replica's data directory", path.display())
    })?;
    Ok(found.is_file())
}

/// The files in `directory` whose names are numbers, in their order.
fn numbered(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?,
    };
    let paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    Ok(in_order(paths))
}

/// Those whose names are numbers, each once, by number.
fn in_order(files: Vec<PathBuf>) -> Vec<PathBuf> {
    let numbered = files.into_iter().filter_map(|file| Some((slot_of(&file)?, file)));
    let numbered: BTreeSet<(Slot, PathBuf)> = numbered.collect();
    numbered.into_iter().map(|(_, file)| file).collect()
}

fn ensure_any(files: &[PathBuf], directory: &Path) -> Result<()> {
    ensure!(
        !files.is_empty(),
        "there is nothing to inspect in {}; give a file, or a replica's data directory",
        directory.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_durability::{
        Checkpoints, Expectation, Identity, NewState, PieceName, StorageOptions, format, open,
    };
    use perdura_protocol::configuration::Durability;
    use perdura_protocol::{ClusterId, Digest, ReplicaId};
    use std::ops::ControlFlow;

    /// Makes a data directory and hands its checkpoints to `then`.
    fn with_checkpoints(data: &Path, then: impl FnOnce(Checkpoints<FileDisk>)) {
        let (cluster, parameters) = (ClusterId([1; 16]), Digest::of(b"parameters"));
        let (replica, incarnation, boot_id) = (ReplicaId(0), 0, [0; 16]);
        let nonce = [0; 16];
        let expected = Expectation { cluster, replica, incarnation, parameters, boot_id, nonce };
        let identity = Identity {
            cluster,
            replica,
            incarnation,
            parameters,
            durability: Durability::Sync,
            checksum_key: [2; 32],
            must_recover: None,
        };
        let mut disk = FileDisk::create_directory(data).unwrap();
        format(&mut disk, &identity).unwrap();
        let options = StorageOptions {
            small_state_bytes: 0,
            retained_checkpoints: 0,
            ..StorageOptions::default()
        };
        let opened = open(disk, &expected, &options).unwrap();
        then(opened.checkpoints);
    }

    /// Stores a state of pieces of 1000 equal bytes each, and lets go what it replaces.
    fn store(checkpoints: &mut Checkpoints<FileDisk>, slot: u64, pieces: &[u8]) {
        let content: Vec<Vec<u8>> = pieces.iter().map(|byte| vec![*byte; 1000]).collect();
        let names: Vec<PieceName> =
            content.iter().map(|piece| PieceName::of(piece).unwrap()).collect();
        let state = NewState {
            slot: Slot(slot),
            digest: Digest::of(&slot.to_le_bytes()),
            manifest: b"manifest",
            pieces: &names,
            content: &mut |index| content[index].clone().into(),
            pace: &mut |_| ControlFlow::Continue(()),
        };
        checkpoints.store(state, Slot(0)).unwrap();
        checkpoints.remove_old(&mut || ControlFlow::Continue(())).unwrap();
    }

    /// Two checkpoints of the same state, of which only the newer is kept.
    fn directory_with_links(root: &tempfile::TempDir) -> PathBuf {
        let data = root.path().join("data");
        with_checkpoints(&data, |mut checkpoints| {
            store(&mut checkpoints, 1, &[7]);
            store(&mut checkpoints, 2, &[7]);
        });
        data
    }

    fn file(data: &Path, slot: u64) -> PathBuf {
        data.join(format!("checkpoint/{slot:020}"))
    }

    fn inspected(path: &Path) -> (bool, String) {
        let mut out = Vec::new();
        let intact = inspect_checkpoints(path, &mut out).unwrap();
        let command = Command::Checkpoint { path: path.to_owned() };
        let code = if intact { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        assert_eq!(run(&Arguments { command }).unwrap(), code);
        (intact, String::from_utf8(out).unwrap())
    }

    /// What is printed, and what is done when its first line is complete.
    struct Interrupted<F> {
        text: Vec<u8>,
        then: Option<F>,
    }

    impl<F: FnOnce()> Write for Interrupted<F> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.text.extend_from_slice(bytes);
            if bytes.contains(&b'\n')
                && let Some(then) = self.then.take()
            {
                then();
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn inspected_while(path: &Path, then: impl FnOnce()) -> (bool, String) {
        let mut out = Interrupted { text: Vec::new(), then: Some(then) };
        let intact = inspect_checkpoints(path, &mut out).unwrap();
        assert!(out.then.is_none());
        (intact, String::from_utf8(out.text).unwrap())
    }

    #[test]
    fn of_a_data_directory_only_checkpoints_are_taken_for_checkpoints() {
        let root = tempfile::tempdir().unwrap();
        let data = directory_with_links(&root);
        std::fs::write(file(&data, 3), "half of a checkpoint").unwrap();
        for path in [data.clone(), data.join("checkpoint")] {
            let (intact, text) = inspected(&path);
            assert!(intact, "{text}");
            let links = format!("link to, which are verified with these: {:020}\n", 2);
            assert!(text.contains(&links) && text.contains("1 of them linked"), "{text}");
            assert!(text.contains("not (yet or any more) named by the superblock"), "{text}");
        }
        assert!(inspected(&file(&data, 1)).0, "asked for by name");
        std::fs::remove_file(file(&data, 1)).unwrap();
        let (intact, text) = inspected(&data);
        assert!(!intact && text.contains("THAT FILE IS NOT HERE"), "{text}");
    }

    #[test]
    fn a_checkpoint_that_the_superblock_names_has_to_be_there() {
        let root = tempfile::tempdir().unwrap();
        let data = directory_with_links(&root);
        std::fs::remove_file(file(&data, 2)).unwrap();
        let missing = format!("{:020}\n  ERROR: the superblock names it", 2);
        for path in [data.clone(), data.join("checkpoint")] {
            let (intact, text) = inspected(&path);
            assert!(!intact && text.contains("kept for pieces"), "{text}");
            assert!(text.contains(&missing), "{text}");
        }
        std::fs::remove_dir_all(data.join("checkpoint")).unwrap();
        let (intact, text) = inspected(&data);
        assert!(!intact && text.contains(&missing), "{text}");
    }

    #[test]
    fn a_checkpoint_has_to_be_the_one_that_the_superblock_names() {
        let root = tempfile::tempdir().unwrap();
        let data = directory_with_links(&root);
        std::fs::copy(file(&data, 1), file(&data, 2)).unwrap();
        let (intact, text) = inspected(&data);
        assert!(!intact && text.contains("not the state that the superblock names"), "{text}");
    }

    #[test]
    fn a_fresh_data_directory_has_no_checkpoint() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        with_checkpoints(&data, drop);
        let (intact, text) = inspected(&data);
        assert!(intact && text.contains("superblock\n  names no checkpoint"), "{text}");
    }

    #[test]
    fn without_a_superblock_it_goes_by_the_files() {
        let root = tempfile::tempdir().unwrap();
        let data = directory_with_links(&root);
        let checkpoints = |text: &str| text.matches("checkpoint at slot").count();
        std::fs::write(data.join("superblock"), [0; 16384]).unwrap();
        let (intact, text) = inspected(&data);
        assert!(!intact && text.contains("superblock\n  ERROR: does not verify"), "{text}");
        assert_eq!(checkpoints(&text), 2, "{text}");
        std::fs::remove_file(data.join("superblock")).unwrap();
        for path in [data.clone(), data.join("checkpoint")] {
            let (intact, text) = inspected(&path);
            assert!(intact && text.contains("no superblock: every file"), "{text}");
            assert_eq!(checkpoints(&text), 2, "{text}");
        }
    }

    #[test]
    fn what_was_replaced_meanwhile_leads_to_the_data_directory() {
        for of_all in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let data = root.path().join("data");
            with_checkpoints(&data, |mut checkpoints| {
                store(&mut checkpoints, 1, &[7]);
                let path = if of_all { data.clone() } else { file(&data, 1) };
                let (intact, text) = inspected_while(&path, || store(&mut checkpoints, 2, &[8]));
                assert!(!intact && text.contains("a newer checkpoint took its place"), "{text}");
                assert!(text.contains("inspect the data directory"), "{text}");
            });
            assert!(inspected(&data).0);
        }
    }

    #[test]
    fn damage_of_a_file_that_is_only_linked_to_meanwhile_is_told_as_such() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        with_checkpoints(&data, |mut checkpoints| {
            store(&mut checkpoints, 1, &[7, 8]);
            let mut content = std::fs::read(file(&data, 1)).unwrap();
            let rotten = content.windows(9).position(|bytes| bytes == [8; 9]).unwrap();
            content[rotten] ^= 1;
            std::fs::write(file(&data, 1), content).unwrap();
            let (intact, text) =
                inspected_while(&file(&data, 1), || store(&mut checkpoints, 2, &[7, 9]));
            assert!(!intact && text.contains("CHECKSUM FAILS"), "{text}");
            let role =
                format!("{:020} is damage: it is kept for pieces that checkpoints link to", 1);
            assert!(text.contains(&role) && text.contains(&format!("these: {:020}", 2)), "{text}");
            assert!(!text.contains("inspect the data directory"), "{text}");
        });
    }
}
