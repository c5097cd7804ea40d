//! The program, on virtual time and on real processes.

mod attack;
mod bad_input;
mod paper;
#[path = "../../cli/tests/common/processes.rs"]
mod processes;
mod simulate;

use processes::Ran;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program, to be given arguments.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perdura-lab"));
    command.stdin(Stdio::null()).env_remove("RUST_BACKTRACE");
    command
}

/// Runs the program to its end.
fn run<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Ran {
    program().args(arguments).output().unwrap().into()
}

/// `perdura`, beside the program, where the tests of all of the workspace have it built.
fn perdura() -> Command {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_perdura-lab")).with_file_name("perdura");
    assert!(
        path.is_file(),
        "there is no {}: build it with `cargo build --bin perdura` and the profile of this test, or test with \
         `cargo test -p perdura-cli -p perdura-lab`",
        path.display()
    );
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).env_remove("RUST_BACKTRACE");
    command
}
