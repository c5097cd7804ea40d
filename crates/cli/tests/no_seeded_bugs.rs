//! A normal build knows nothing of seeded bugs: not one of their names.

#![cfg(not(feature = "seeded-bugs"))]

#[test]
fn a_normal_build_has_no_seeded_bugs() {
    let bytes = std::fs::read(env!("CARGO_BIN_EXE_perdura")).unwrap();
    for name in ["lower-lock-wins", "quorum-off-by-one", "list-bugs"] {
        let found = bytes.windows(name.len()).any(|part| part == name.as_bytes());
        assert!(!found, "{name} is in the binary");
    }
}
