//! `perdura-lab simulate --bug NAME`: runs with a mistake in them, to measure what is detected.

use clap::Args;
use perdura_cli::{Usage, say};
use perdura_protocol::seeded::Bug;

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

/// Switches a mistake on, if one is given.
///
/// # Errors
/// [`Usage`]: this build has none.
pub fn activate(bug: Option<Bug>) -> Result<(), Usage> {
    bug.map_or(Ok(()), Bug::activate).map_err(|error| Usage(format!("--bug: {error}")))
}

impl Mistake {
    /// Switches the bug on that is asked for. False when only the list is, which it prints.
    ///
    /// # Errors
    /// As [`activate`].
    pub fn apply(&self) -> Result<bool, Usage> {
        activate(self.bug)?;
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
