//! What users do wrong: a clear error each time, with the right exit code.

use crate::processes::{Ran, fitting_helps};
use crate::{program, run};

#[test]
fn bad_flags_are_explained_with_exit_code_2() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["unheard"], "unheard"),
        (&["simulate", "--seed", "1", "--durability", "none"], "sync or async"),
        (&["attack", "--cluster", "x", "--attack", "shout"], "garbage-signatures"),
        (&["attack", "--attack", "flood"], "--cluster"),
        (&["paper", "dura-fig8"], "dura-fig8"),
        (&["paper", "dura-fig9", "--settings", "sync,fast"], "sync-disk"),
        (&["paper", "dura-table1", "--callers", "0"], "0"),
    ];
    for (arguments, words) in cases {
        run(arguments).failed(2, &[words]);
    }
}

#[test]
fn help_is_there_for_everything_and_fits() {
    let commands = fitting_helps(program);
    for some in [&["simulate"][..], &["attack"], &["paper", "dura-fig9"], &["paper", "dura-fig11"]]
    {
        assert!(commands.iter().any(|command| command == some), "no {some:?} in {commands:?}");
    }
    assert!(run(&["--version"]).ok().starts_with("perdura-lab "));
}

#[test]
fn a_program_that_is_not_there_is_named_with_what_builds_it() {
    let directory = tempfile::tempdir().unwrap();
    let (missing, out) = (directory.path().join("perdura"), directory.path().join("out"));
    for experiment in ["dura-table1", "dura-fig10"] {
        let mut command = program();
        command.args(["paper", experiment, "--perdura"]).arg(&missing).arg("--out").arg(&out);
        Ran::from(command.output().unwrap())
            .failed(1, &["there is no program", "cargo build", "--perdura FILE"]);
        assert!(!out.exists());
    }
}
