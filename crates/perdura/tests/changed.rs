//! A service that gets a newer version, replica by replica, and what its operator and its clients are told meanwhile.

use crate::processes::{Ran, wait_for};
use crate::program;
use perdura::{Cluster, Context, Faults, Parts, QueryContext, Replica, RunError, Running, Service};
use perdura::{Shutdown, blocking::Client};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::thread::JoinHandle;

/// A number, as the program of this version has it.
#[derive(Default)]
struct Counter<const VERSION: u16>(u64);

#[derive(Serialize, Deserialize, Debug)]
enum Command {
    Add(u64),
    Fail,
    // Version 2 brought it.
    Clear,
}

impl<const VERSION: u16> Service for Counter<VERSION> {
    const NAME: &'static str = "counter";
    const VERSION: u16 = VERSION;
    type Command = Command;
    type Query = ();
    type Reply = u64;
    type Error = ();

    fn execute(&mut self, _: &Context<'_>, command: Command) -> Result<u64, ()> {
        match command {
            Command::Add(more) => self.0 = self.0.checked_add(more).ok_or(())?,
            Command::Fail => panic!("that must not be"),
            Command::Clear => self.0 = 0,
        }
        Ok(self.0)
    }

    fn query(&self, _: &QueryContext, (): ()) -> Result<u64, ()> {
        Ok(self.0)
    }

    fn since(command: &Command) -> u16 {
        if matches!(command, Command::Clear) { 2 } else { 1 }
    }

    fn parts(&mut self, parts: &mut Parts) {
        parts.value(&mut self.0);
    }
}

/// Three replicas in this process.
struct Group {
    cluster: Cluster,
    running: [Option<Started>; 3],
}

type Started = (Shutdown, JoinHandle<Result<(), RunError>>);

impl Group {
    fn new(directory: &Path) -> Group {
        let builder = Cluster::builder(directory.join("cluster")).faults(Faults::crash(1).unwrap());
        let cluster = builder.create::<Counter<1>>().unwrap();
        Group { cluster, running: [const { None }; 3] }
    }

    fn start<const VERSION: u16>(&mut self, id: usize) {
        let replica = Replica::open(self.cluster.replica_dir(id));
        let replica: Running = replica.service::<Counter<VERSION>>().unwrap();
        let shutdown = Shutdown::new();
        let asked = shutdown.clone();
        let thread = std::thread::spawn(move || replica.run(&asked));
        self.running[id] = Some((shutdown, thread));
    }

    fn stop(&mut self, id: usize) {
        let (shutdown, thread) = self.running[id].take().unwrap();
        shutdown.request();
        thread.join().unwrap().unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = program();
        command.args(arguments).arg("--cluster").arg(self.cluster.dir());
        command.output().unwrap().into()
    }

    fn wait_until_active(&self) {
        wait_for("all to be there", || {
            let status = self.run(&["status", "--json"]).out;
            (status.matches("\"state\":\"active\"").count() == 3).then_some(())
        });
    }
}

#[test]
fn a_version_that_not_all_programs_know_is_not_raised_and_who_lacks_it_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut group = Group::new(directory.path());
    group.start::<2>(0);
    (1..3).for_each(|id| group.start::<1>(id));
    group.wait_until_active();
    let upgrade = ["upgrade", "--yes"];
    for arguments in [&upgrade[..], &["upgrade", "--dry-run"]] {
        group.run(arguments).failed(
            1,
            &[
                "nothing can be raised yet",
                "The newest that any of them knows: rules 3, service 2; replicas 1, 2 can run only rules 3, service 1",
            ],
        );
    }
    // Who was made for the newer one is told what is missing.
    let client = Client::<Counter<2>>::open(group.cluster.dir()).unwrap();
    assert_eq!(client.execute(&Command::Add(7)).unwrap(), 7);
    let early = client.execute(&Command::Clear).unwrap_err();
    assert!(early.is_refusal());
    let said = early.to_string();
    for part in ["no such command", "came with version 2", "version 1 seems", "`upgrade` raises"] {
        assert!(said.contains(part), "{said}");
    }
    for id in 1..3 {
        group.stop(id);
        group.start::<2>(id);
        group.wait_until_active();
    }
    assert!(group.run(&upgrade).ok().contains("raised to: rules 3, service 2"));
    assert_eq!(client.execute(&Command::Clear).unwrap(), 0);
    assert!(group.run(&upgrade).ok().contains("there is nothing to raise"));
    client.close();
    (0..3).for_each(|id| group.stop(id));
}

#[test]
fn a_panic_says_at_which_command_and_where_the_way_out_stands() {
    let directory = tempfile::tempdir().unwrap();
    let mut group = Group::new(directory.path());
    (0..3).for_each(|id| group.start::<1>(id));
    group.wait_until_active();
    let client = Client::<Counter<1>>::open(group.cluster.dir()).unwrap();
    let asked = client.clone();
    let caller = std::thread::spawn(move || asked.execute(&Command::Fail));
    let over = wait_for("two to end", || {
        let is_over = |id: &usize| group.running[*id].as_ref().unwrap().1.is_finished();
        let over: Vec<usize> = (0..3).filter(is_over).collect();
        (over.len() >= 2).then_some(over)
    });
    for id in &over {
        let (_, thread) = group.running[*id].take().unwrap();
        let words = thread.join().unwrap().unwrap_err().to_string();
        for part in [
            "the service panicked in `execute` at slot ",
            ", for command ",
            "that must not be",
            "comes again at each start",
            "docs/operations/trouble.md, \"A service that panics\"",
        ] {
            assert!(words.contains(part), "{words}");
        }
    }
    client.close();
    assert!(caller.join().unwrap().is_err());
    for (shutdown, thread) in group.running.iter_mut().filter_map(Option::take) {
        shutdown.request();
        // Two decide, so it executed the command as well, or did not.
        let _ = thread.join().unwrap();
    }
}
