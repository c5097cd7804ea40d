//! `perdura man`: manual pages, from the definitions of the commands.

use anyhow::{Context, Result};
use clap::{Args, Command, ValueHint};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// What to do where a page cannot be written.
const ELSEWHERE: &str = "give a directory in which you may make files";

/// Write manual pages, one for each command
///
/// They are named perdura.1, perdura-kv.1, perdura-kv-put.1 and so on. Those that are there are replaced, and other files are
/// left alone.
#[derive(Args)]
pub struct Arguments {
    /// The directory for them, made if it is missing
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

/// Runs the command, for a program of these commands.
pub fn run(arguments: &Arguments, command: Command) -> Result<ExitCode> {
    let dir = &arguments.dir;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let name = command.get_name().to_owned();
    let source = format!("{name} {}", command.get_version().unwrap_or_default());
    fs::create_dir_all(dir)
        .with_context(|| format!("cannot make {}; {ELSEWHERE}", dir.display()))?;
    let (mut left, mut count) = (vec![command], 0);
    while let Some(command) = left.pop() {
        let page = Man::new(command.clone()).source(&source).manual("Perdura");
        let path = dir.join(page.get_filename());
        fs::write(&path, text_of(&page, &command)?)
            .with_context(|| format!("cannot write {}; {ELSEWHERE}", path.display()))?;
        count += 1;
        left.extend(command.get_subcommands().filter(|below| !below.is_hide_set()).cloned());
    }
    let first = dir.join(format!("{name}.1"));
    say!("wrote {count} pages to {}; `man -l {}` shows the first", dir.display(), first.display());
    Ok(ExitCode::SUCCESS)
}

fn text_of(page: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    if let Some(notes) = command.get_after_help() {
        of_notes(&notes.to_string()).to_writer(&mut text)?;
    }
    Ok(text)
}

/// What stands below the options: prose is filled, and lines that begin with a space are examples, which stay as they are.
fn of_notes(notes: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["NOTES"]);
    let mut is_example = false;
    for line in notes.lines() {
        if line.is_empty() {
            roff.control("PP", []);
            continue;
        }
        if is_example != line.starts_with(' ') {
            is_example = !is_example;
            roff.control(if is_example { "nf" } else { "fi" }, []);
        }
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}
