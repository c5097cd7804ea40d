//! The program that experiments start as replicas: `perdura`, which is another one than this.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// Its name. Processor time is looked up for processes of this name only.
const NAME: &str = "perdura";

/// The program that was named, or the one beside this one.
pub fn program(named: Option<&Path>) -> Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => {
            let own = std::env::current_exe().context("cannot find this program's own file")?;
            own.with_file_name(NAME)
        }
    };
    let file = path.display();
    ensure!(
        path.is_file(),
        "there is no program {file}, whose replicas are measured; build it with `cargo build --release --bin \
         perdura`, or as this program was built, or name one with --perdura FILE"
    );
    ensure!(
        path.file_name().is_some_and(|name| name == NAME),
        "{file}: it has to be named `{NAME}`, since the processor time of replicas is found by that name"
    );
    // What is looked up in PATH if it has no directory is not what was found here.
    std::path::absolute(&path).with_context(|| format!("cannot find {file}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_or_has_another_name_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        let error = program(Some(&path)).unwrap_err().to_string();
        assert!(error.contains("cargo build") && error.contains("--perdura"), "{error}");
        std::fs::write(&path, "").unwrap();
        assert_eq!(program(Some(&path)).unwrap(), path);
        let other = directory.path().join("other");
        std::fs::write(&other, "").unwrap();
        assert!(program(Some(&other)).unwrap_err().to_string().contains("named `perdura`"));
    }
}
