//! Mistakes of the library made on purpose that the simulator does not see: each fails a test of this suite, which runs in a process of its own, since a mistake is
//! switched on for all of it ([`crate::support::Partitions::of`] does so where the environment names one).

use perdura_protocol::seeded::ARE_BUILT_IN;
use std::process::Command;

/// The variable that names a mistake.
pub const NAMES_BUG: &str = "PERDURA_TEST_BUG";

const FOUND_BY: [(&str, &str); 1] =
    [("no-marks-left", "crowds::a_put_is_not_kept_waiting_by_readers_that_never_end")];

#[test]
fn mistakes_that_the_simulator_does_not_see_are_found() {
    if !ARE_BUILT_IN {
        panic!("run it with --features perdura-protocol/seeded-bugs");
    }
    let this = std::env::current_exe().expect("it runs");
    for (bug, test) in FOUND_BY {
        let passes = |named: &str| {
            let mut command = Command::new(&this);
            let output = command.args(["--exact", test]).env(NAMES_BUG, named).output();
            let output = output.expect("it runs again");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains("running 1 test"), "there is no test {test}: {said}");
            output.status.success()
        };
        assert!(passes(""), "{test} fails without it");
        assert!(!passes(bug), "{bug} is not found");
    }
}
