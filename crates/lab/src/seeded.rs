//! `perdura-lab simulate --bug NAME`: runs with a mistake in them, to measure what is detected. Only in
//! builds with the feature `seeded-bugs`.

use clap::Args;
use perdura_cli::say;
use perdura_protocol::seeded::Bug;

/// Which mistake.
#[derive(Args)]
pub struct Mistake {
    /// Switch a seeded bug on, and stop at the first violation
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
    pub fn apply(&self) -> bool {
        if let Some(bug) = self.bug {
            bug.activate();
        }
        if self.list_bugs {
            for bug in Bug::ALL {
                say!("{}\t{}\t{}", bug.name(), bug.rule(), bug.what());
            }
        }
        !self.list_bugs
    }

    /// A violation was found: with a bug switched on, that is all there is to find.
    pub fn found(&self) {
        if self.bug.is_some() {
            std::process::exit(1);
        }
    }
}
