//! What the program says of itself: help, completion, manual pages; and where it is told of its cluster.

use crate::common::{Cluster, Ran, fitting_helps, program, run};
use std::process::Command;

#[test]
fn help_fits_in_a_hundred_columns() {
    let commands = fitting_helps(program);
    for some in ["kv put", "replica reinit", "client add", "bench failover", "space endwait"] {
        let words: Vec<&str> = some.split(' ').collect();
        assert!(commands.iter().any(|command| *command == words), "no {some} in {commands:?}");
    }
}

#[test]
fn completion_is_there_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completion", shell]).ok();
        for word in ["delete-range", "reinit", "in-flight"] {
            assert!(script.contains(word), "no {word} for {shell}");
        }
    }
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), run(&["completion", "bash"]).ok()).unwrap();
    // It is read, and completes a command, and an option.
    let complete = "source \"$1\" && COMP_WORDS=(\"${@:2}\") COMP_CWORD=$(($# - 2)) && \
        _perdura perdura \"${@: -1}\" && echo \"${COMPREPLY[@]}\"";
    for (words, whole) in
        [(&["perdura", "he"][..], "health"), (&["perdura", "kv", "put", "--base"], "--base64")]
    {
        let mut bash = Command::new("bash");
        bash.args(["-c", complete, "bash"]).arg(script.path()).args(words);
        let out = Ran::from(bash.output().unwrap()).ok();
        assert!(out.split_whitespace().any(|word| word == whole), "{words:?}: {out}");
    }
    let read = Command::new("bash").arg("-n").arg(script.path()).output().unwrap();
    Ran::from(read).ok();
}

#[test]
fn each_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("share/man1");
    let write = || run(&["man", dir.to_str().unwrap()]);
    let commands = fitting_helps(program);
    assert!(write().ok().contains(&format!("wrote {} pages to {}", commands.len(), dir.display())));
    for command in &commands {
        let name = [&["perdura".to_owned()], &command[..]].concat().join("-");
        let page = std::fs::read_to_string(dir.join(format!("{name}.1"))).unwrap();
        for part in [".TH", ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
            assert!(page.contains(part), "no {part} in the page of {name}: {page}");
        }
    }
    // What is there already is replaced, if it is a page of ours.
    std::fs::write(dir.join("perdura.1"), "old").unwrap();
    std::fs::write(dir.join("perdurable.1"), "other").unwrap();
    write().ok();
    assert!(std::fs::read_to_string(dir.join("perdura.1")).unwrap().len() > 1000);
    assert_eq!(std::fs::read_to_string(dir.join("perdurable.1")).unwrap(), "other");
    std::fs::remove_file(dir.join("perdura-kv.1")).unwrap();
    std::fs::create_dir(dir.join("perdura-kv.1")).unwrap();
    write().failed(1, &["cannot write", "perdura-kv.1", "give a directory"]);
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    run(&["man", file.join("below").to_str().unwrap()])
        .failed(1, &["cannot make", "give a directory"]);
}

#[test]
fn the_cluster_may_be_named_by_a_variable() {
    let (cluster, other) = (Cluster::init(&["--crash", "1"]), Cluster::init(&["--byzantine", "1"]));
    let with = |arguments: &[&str]| -> Ran {
        let mut command = program();
        command.args(arguments).env("PERDURA_CLUSTER", cluster.dir());
        command.output().unwrap().into()
    };
    let replicas = |ran: Ran| {
        let said: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        said["replicas"].as_array().unwrap().len()
    };
    let dir = other.dir().display().to_string();
    assert_eq!(replicas(with(&["status", "--json"])), 3);
    assert_eq!(replicas(with(&["status", "--json", "--cluster", &dir])), 4);
    assert_eq!(replicas(with(&["health", "--json", "--timeout", "100ms"])), 3);
    with(&["kv", "get", "key", "--timeout", "100ms"]).failed(4, &[]);
    with(&["client", "add", "bob", "--timeout", "100ms"]).failed(1, &["may not be registered"]);
    assert!(cluster.path("client-bob.toml.pending").exists());
    with(&["client", "key", "--key-out", &format!("{dir}/eve.toml")]).ok();
    with(&["replica", "reinit", "--id", "7"]).failed(2, &["0 to 2"]);
    // Who names none is told of it, where it would do.
    run(&["limit", "--state-mib", "1"]).failed(2, &["--cluster <DIR>", "PERDURA_CLUSTER"]);
    let key = run(&["kv", "get"]);
    key.failed(2, &["<KEY>", "PERDURA_CLUSTER"]);
    let key = with(&["kv", "get"]);
    key.failed(2, &["<KEY>"]);
    assert!(!key.error.contains("PERDURA_CLUSTER"), "{key:?}");
}
