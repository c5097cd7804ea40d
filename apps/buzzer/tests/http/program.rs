//! The program's command line.

use super::world::{World, buzzer, perdura};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

fn serve(cluster: &Path, listen: &str) -> Output {
    buzzer().args(["serve", "--listen", listen, "--cluster"]).arg(cluster).output().unwrap()
}

#[track_caller]
fn failed(output: &Output, words: &[&str]) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    for word in words {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
}

#[test]
fn bad_surroundings_are_told() {
    let dir = tempfile::tempdir().unwrap();
    failed(&serve(dir.path(), "127.0.0.1:0"), &["cluster.toml"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    failed(&serve(dir.path(), &address), &["cannot listen on", "--listen"]);
    let make = |name: &str, options: &[&str]| {
        let path = dir.path().join(name);
        let mut init = Command::new(perdura());
        let made = init.arg("init").arg(&path).args(["--crash", "1"]).args(options).output();
        assert!(made.as_ref().unwrap().status.success(), "{made:?}");
        path
    };
    let hashed = make("hashed", &["--partitions", "2"]);
    failed(&serve(&hashed, "127.0.0.1:0"), &["spread by hash", "--partition-by range:8000"]);
    let cut = make("cut", &["--partitions", "2", "--partition-by", "range:8000/m"]);
    failed(&serve(&cut, "127.0.0.1:0"), &["in the middle", "--partition-by range:8000"]);
    let tuples = make("tuples", &["--service", "tuples"]);
    failed(&serve(&tuples, "127.0.0.1:0"), &["tuple spaces"]);
}

#[test]
fn the_bounds_of_partitions_are_told() {
    let output = buzzer().args(["bounds", "--partitions", "4"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "--partitions 4 --partition-by range:4000,8000,c000\n");
}

#[test]
fn it_stops_when_it_is_told_and_goes_on_with_what_was_there() {
    let mut world = World::start(&["--logs", "json"]);
    let browser = super::browser::Browser::new(world.url());
    browser.sign_up("alice");
    browser.post("it lasts");
    let said = world.app().said();
    let logs = said.lines().filter(|line| line.starts_with('{'));
    assert!(logs.clone().count() > 0);
    for line in logs {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string());
    }
    world.stop_app();
    world.start_app(&[]);
    let browser = super::browser::Browser::new(world.url());
    browser.get("/u/alice").is(200).has(&["it lasts"]);
}
