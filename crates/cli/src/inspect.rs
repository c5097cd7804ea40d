//! `perdura inspect`: what is on disk, item by item. Reads only; also copies, and directories in
//! use.

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use perdura_durability::FileDisk;
use perdura_durability::inspect::{inspect_checkpoint, inspect_log};
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
    /// A checkpoint, or all of a data directory's
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
        match inspected {
            Ok(verifies) => intact &= verifies,
            Err(error) => {
                intact = false;
                writeln!(out, "  ERROR: {error}")?;
            }
        }
    }
    out.flush()?;
    if !intact {
        eprintln!("perdura: not everything verifies");
    }
    Ok(if intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
