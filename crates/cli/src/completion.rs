//! `perdura completion`: what shells complete, from the definitions of the commands.

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;
use std::io::Write;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Where shells look for it:
  perdura completion bash > ~/.local/share/bash-completion/completions/perdura
  perdura completion zsh > DIR/_perdura (DIR is one of those in $fpath)
  perdura completion fish > ~/.config/fish/completions/perdura.fish
  eval (perdura completion elvish | slurp) (in rc.elv)
  perdura completion powershell | Out-String | Invoke-Expression (in $PROFILE)";

/// Print what a shell needs to complete commands and options
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

/// Runs the command, for a program of these commands.
pub fn run(arguments: &Arguments, mut command: Command) -> Result<ExitCode> {
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
