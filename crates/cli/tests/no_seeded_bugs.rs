//! A normal build knows nothing of seeded bugs: not the option, not one of their names.

#![cfg(not(feature = "seeded-bugs"))]

use std::process::Command;

#[test]
fn a_normal_build_has_no_seeded_bugs() {
    let binary = env!("CARGO_BIN_EXE_perdura");
    let refused =
        Command::new(binary).args(["simulate", "--seed", "1", "--bug", "lower-lock-wins"]).output();
    assert_eq!(refused.unwrap().status.code(), Some(2));
    let bytes = std::fs::read(binary).unwrap();
    for name in ["lower-lock-wins", "quorum-off-by-one", "list-bugs"] {
        let found = bytes.windows(name.len()).any(|part| part == name.as_bytes());
        assert!(!found, "{name} is in the binary");
    }
}
