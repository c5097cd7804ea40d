//! The entrance, as a program uses it.

mod changed;
mod ledger;
mod operated;
#[path = "../../cli/tests/common/processes.rs"]
mod processes;
mod slow;
mod store;

use std::path::Path;
use std::process::{Command, Stdio};

/// The example, to be given arguments. Cargo builds it beside what tests it.
fn program() -> Command {
    let own = std::env::current_exe().unwrap();
    let built = own.parent().and_then(Path::parent).unwrap().join("examples/ledger");
    let mut command = Command::new(built);
    command.stdin(Stdio::null()).env_remove("RUST_BACKTRACE").env_remove("PERDURA_CLUSTER");
    command
}
