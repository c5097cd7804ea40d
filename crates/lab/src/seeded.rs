//! `perdura-lab simulate --bug NAME`: runs with a mistake in them, to measure what is detected.

use clap::Args;
use perdura_cli::say;
use perdura_protocol::seeded::{Bug, NotBuiltIn};

/// Which mistake.
#[derive(Args)]
pub struct Mistake {
    /// Switch a seeded bug on, and stop at the first violation; only builds for tests have them
    #[arg(long, value_name = "NAME", value_parser = parse)]
    bug: Option<Bug>,
    /// List the seeded bugs: name, rule and what is wrong, separated by tabs
    #[arg(long)]
    list_bugs: bool,
}

/// A mistake by its name.
pub fn parse(name: &str) -> Result<Bug, String> {
    Bug::parse(name).ok_or_else(|| "no such bug; see --list-bugs".to_owned())
}

impl Mistake {
    /// Switches the bug on that is asked for. False when only the list is, which it prints.
    ///
    /// # Errors
    /// [`NotBuiltIn`].
    pub fn apply(&self) -> Result<bool, NotBuiltIn> {
        self.bug.map_or(Ok(()), Bug::activate)?;
        if self.list_bugs {
            for bug in Bug::ALL {
                say!("{}\t{}\t{}", bug.name(), bug.rule(), bug.what());
            }
        }
        Ok(!self.list_bugs)
    }

    /// A violation was found: with a bug switched on, that is all there is to find.
    pub fn found(&self) {
        if self.bug.is_some() {
            std::process::exit(1);
        }
    }
}
