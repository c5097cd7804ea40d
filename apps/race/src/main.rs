//! The program `buzzer-race`: Buzzer on Perdura against Retwis on Redis (Augustus, EuroSys 2013, section 4.4), with one load generator for both.

#![forbid(unsafe_code)]

mod causality;
mod chart;
mod load;
mod loading;
mod machine;
mod on_perdura;
mod on_redis;
mod processes;
mod race;
mod report;
mod retwis;
mod serve;
mod social;
mod store;
mod survival;
mod systems;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Buzzer on Perdura against Retwis on Redis: which is faster, and what each keeps of what it was told
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(race::Race),
    Causality(causality::Causality),
    Survival(survival::Survival),
    #[command(hide = true)]
    ServeRetwis(serve::Serve),
}

/// Says how far it is, on standard error.
fn tell(what: fmt::Arguments<'_>) {
    // Nobody has to read it.
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// What directories with data of one run begin with.
const RUN: &str = "run-";

/// A directory for results and data, which is made if it is not there, for one run at a time: as long as the file is held. What is left of a run that was killed is
/// removed.
fn directory(path: &Path) -> Result<(PathBuf, File)> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
    let path = path.canonicalize()?;
    let file = File::open(&path)?;
    if file.try_lock().is_err() {
        bail!("another run uses {}: wait for its end, or name another with --out", path.display());
    }
    for entry in std::fs::read_dir(&path)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(RUN) {
            let name = entry.path();
            tell(format_args!("{} is left of a run that was killed: removed", name.display()));
            std::fs::remove_dir_all(name)?;
        }
    }
    Ok((path, file))
}

/// Carries a command out, unless a signal comes first; then all that it started is ended and removed, as it is when it fails.
async fn until_interrupted(work: impl Future<Output = Result<()>>) -> Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let code = tokio::select! {
        done = work => return done.map(|()| ExitCode::SUCCESS),
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
        _ = hang_up.recv() => 129,
    };
    tell(format_args!("buzzer-race: interrupted; servers are ended, and their data is removed"));
    Ok(ExitCode::from(code))
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new()?;
    // On this thread, which lives as long as the program: processes that it starts are bound to it.
    runtime.block_on(async {
        match arguments.command {
            Command::Run(race) => until_interrupted(race::run(race)).await,
            Command::Causality(causality) => until_interrupted(causality::run(causality)).await,
            Command::Survival(survival) => until_interrupted(survival::run(survival)).await,
            Command::ServeRetwis(serve) => serve::run(serve).await.map(|()| ExitCode::SUCCESS),
        }
    })
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("buzzer-race: {error:#}");
            ExitCode::FAILURE
        }
    }
}
