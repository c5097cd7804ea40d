//! How this program is called. It is `perdura`, or one with a service of its own, which has another name and some of the same commands: what
//! crates below say of them names `perdura`, and is shown with the name under which whoever reads it has them.

use clap::{Arg, Command};
use std::sync::OnceLock;

/// A program with a service of its own.
struct Own {
    name: String,
    commands: Vec<String>,
}

static OWN: OnceLock<Own> = OnceLock::new();

/// From here on this is the program of that name, which has these commands.
pub fn set(name: &str, commands: &Command) {
    let commands = commands.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    // Twice would be twice the same.
    let _ = OWN.set(Own { name: name.to_owned(), commands });
}

/// The program's name.
pub fn name() -> &'static str {
    OWN.get().map_or("perdura", |own| &own.name)
}

/// A text for whoever called this program, with the names that its commands have here.
pub fn here(text: &str) -> String {
    OWN.get().map_or_else(|| text.to_owned(), |own| own.named(text))
}

/// The help of a command and of those below it, with the same names.
pub fn in_help(mut command: Command) -> Command {
    if let Some(about) = command.get_about().map(|text| here(&text.to_string())) {
        command = command.about(about);
    }
    if let Some(about) = command.get_long_about().map(|text| here(&text.to_string())) {
        command = command.long_about(about);
    }
    let in_argument = |mut argument: Arg| {
        if let Some(help) = argument.get_help().map(|text| here(&text.to_string())) {
            argument = argument.help(help);
        }
        match argument.get_long_help().map(|text| here(&text.to_string())) {
            Some(help) => argument.long_help(help),
            None => argument,
        }
    };
    command.mut_args(in_argument).mut_subcommands(in_help)
}

impl Own {
    /// The text, in which commands are in backticks.
    fn named(&self, text: &str) -> String {
        let mut pieces = text.split("`perdura ");
        let mut named = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let command = piece.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
            let is_own = self.commands.iter().any(|one| one == command);
            let name = if is_own { &self.name } else { "perdura" };
            named.push_str(&format!("`{name} {piece}"));
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_has_is_named_as_it_is_here() {
        let commands = ["init", "replica"].map(str::to_owned).to_vec();
        let own = Own { name: "ledger".to_owned(), commands };
        for (given, named) in [
            ("", ""),
            ("no file; `perdura init` makes one", "no file; `ledger init` makes one"),
            (
                "`perdura replica reinit`, `perdura init D`",
                "`ledger replica reinit`, `ledger init D`",
            ),
            ("`perdura kv get`", "`perdura kv get`"),
            ("`perdura initial`", "`perdura initial`"),
            ("/var/lib/perdura init", "/var/lib/perdura init"),
        ] {
            assert_eq!(own.named(given), named);
        }
    }
}
