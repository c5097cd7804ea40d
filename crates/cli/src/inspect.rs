//! `perdura inspect`: what is on disk, item by item. Reads only; also copies, and directories in
//! use.

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use perdura_durability::FileDisk;
use perdura_durability::inspect::{inspect_checkpoint, inspect_log, read_superblock};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shows what is on a replica's disk, record by record, and verifies checksums. Changes nothing.
///
/// Exit code 1 if anything does not verify. The last group of a log may be torn by a crash; that
/// alone is no damage, and is cut when the replica starts.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A file of the log, or all of a data directory's
    Log {
        /// As in DIR/replica-0/data, or DIR/replica-0/data/log/0000000000000001
        path: PathBuf,
    },
    /// A checkpoint, or all of a data directory's. Pieces that did not change are in the files of
    /// older checkpoints, which are looked for beside it
    Checkpoint {
        /// As in DIR/replica-0/data, or DIR/replica-0/data/checkpoint/00000000000000016384
        path: PathBuf,
    },
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (path, directory) = match &arguments.command {
        Command::Log { path } => (path, "log"),
        Command::Checkpoint { path } => (path, "checkpoint"),
    };
    let files = files(path, directory)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut intact = true;
    for file in files {
        writeln!(out, "{}", file.display())?;
        if let Some(role) = beside_checkpoints(&arguments.command, path, &file)? {
            writeln!(out, "  {role}")?;
            continue;
        }
        let root = crate::config::files::directory_of(&file);
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let mut disk = FileDisk::read_only(&root);
        let mut written = Ok(());
        let inspected = match &arguments.command {
            Command::Log { .. } => inspect_log(&mut disk, &name, &mut |item| {
                written = std::mem::replace(&mut written, Ok(()))
                    .and_then(|()| writeln!(out, "  {item}"));
            }),
            Command::Checkpoint { .. } => inspect_checkpoint(&disk, &name, &mut |item| {
                written = std::mem::replace(&mut written, Ok(()))
                    .and_then(|()| writeln!(out, "  {item}"));
            }),
        };
        written?;
        let verifies = *inspected.as_ref().unwrap_or(&false);
        if let Err(error) = inspected {
            writeln!(out, "  ERROR: {error}")?;
        }
        // A replica that runs writes a new checkpoint over the file of one that it needs no more. What failed
        // may also be damage that the newer one shares: only another look tells.
        if !verifies && beside_checkpoints(&arguments.command, path, &file)?.is_some() {
            writeln!(
                out,
                "  a newer one took its place meanwhile, perhaps in its file: inspect again"
            )?;
        }
        intact &= verifies;
    }
    out.flush()?;
    if !intact {
        eprintln!("perdura: not everything verifies");
    }
    Ok(if intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a file among the checkpoints of a data directory is that is no checkpoint by itself.
fn beside_checkpoints(command: &Command, path: &Path, file: &Path) -> Result<Option<&'static str>> {
    if matches!(command, Command::Log { .. }) || path.is_file() {
        return Ok(None);
    }
    let data = crate::config::files::directory_of(&crate::config::files::directory_of(file));
    let superblock = read_superblock(&mut FileDisk::read_only(&data))?;
    let slot = file.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok());
    let (Some(superblock), Some(slot)) = (superblock, slot) else { return Ok(None) };
    let linked = superblock.links.iter().any(|link| link.file.0 == slot);
    Ok(match superblock.checkpoints.iter().any(|name| name.slot.0 == slot) {
        true => None,
        false if linked => Some("kept for pieces that checkpoints link to; verified with these"),
        false => Some("no checkpoint: being removed, or removed at the next start"),
    })
}

/// `path` if it is a file; the numbered files in it, or in `directory` in it, if it is a directory.
fn files(path: &Path, directory: &str) -> Result<Vec<PathBuf>> {
    let found = std::fs::metadata(path).with_context(|| {
        format!("cannot find {}; give a file, or a replica's data directory", path.display())
    })?;
    if found.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let within = path.join(directory);
    let directory = if within.is_dir() { within } else { path.to_owned() };
    let mut numbered = Vec::new();
    for entry in std::fs::read_dir(&directory)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok());
        if let Some(number) = number {
            numbered.push((number, path));
        }
    }
    ensure!(
        !numbered.is_empty(),
        "there is nothing to inspect in {}; give a file, or a replica's data directory",
        directory.display()
    );
    numbered.sort();
    Ok(numbered.into_iter().map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_durability::{
        Expectation, Identity, NewState, Options, PieceName, format, open, storage,
    };
    use perdura_protocol::configuration::Durability;
    use perdura_protocol::{ClusterId, Digest, ReplicaId, Slot};
    use std::ops::ControlFlow;

    /// Two checkpoints of the same state, of which only the newer is kept.
    fn directory_with_links(data: &Path) {
        let (cluster, parameters) = (ClusterId([1; 16]), Digest::of(b"parameters"));
        let (replica, incarnation, boot_id) = (ReplicaId(0), 0, [0; 16]);
        let expected = Expectation { cluster, replica, incarnation, parameters, boot_id };
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
        let options =
            Options { small_state_bytes: 0, retained_checkpoints: 0, ..Options::default() };
        let mut opened = open(disk, &expected, &options).unwrap();
        let piece = vec![7; 1000];
        for slot in [1, 2].map(Slot) {
            let state = NewState {
                slot,
                digest: Digest::of(&slot.0.to_le_bytes()),
                manifest: b"manifest",
                pieces: &[PieceName::of(&piece).unwrap()],
                content: &mut |_| piece.clone().into(),
                pace: &mut |_| ControlFlow::Continue(()),
            };
            opened.checkpoints.store(state, Slot(0)).unwrap();
        }
        storage::close(opened.log, opened.checkpoints).unwrap();
    }

    #[test]
    fn of_a_data_directory_only_checkpoints_are_taken_for_checkpoints() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        directory_with_links(&data);
        let older = data.join(format!("checkpoint/{:020}", 1));
        let newer = data.join(format!("checkpoint/{:020}", 2));
        let unnamed = data.join(format!("checkpoint/{:020}", 3));
        let all = Command::Checkpoint { path: data.clone() };
        for path in [data.clone(), data.join("checkpoint")] {
            let role = |file| beside_checkpoints(&all, &path, file).unwrap();
            assert_eq!(role(&newer), None);
            assert!(role(&older).unwrap().contains("kept for pieces"));
            assert!(role(&unnamed).unwrap().contains("removed"));
        }
        assert_eq!(beside_checkpoints(&all, &older, &older).unwrap(), None, "asked for by name");
        let log = Command::Log { path: data.clone() };
        assert_eq!(beside_checkpoints(&log, &data, &older).unwrap(), None);
        assert_eq!(run(&Arguments { command: all }).unwrap(), ExitCode::SUCCESS);
        std::fs::remove_file(older).unwrap();
        let all = Command::Checkpoint { path: data };
        assert_eq!(run(&Arguments { command: all }).unwrap(), ExitCode::FAILURE);
    }
}
