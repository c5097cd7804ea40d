//! Clients that come and go by the hundred, with one key: processes of one command each, of which some are killed, and so are those that
//! wait for a tuple. None of them may cost the others anything: all that nobody killed are served, and what is put is nobody's that is dead.

use super::{Injected, Scene};
use crate::course::lock;
use crate::service::Service;
use anyhow::{Context, Result, ensure};
use perdura_adversary::Random;
use std::collections::BTreeSet;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Processes that come and go.
const PROCESSES: usize = 100;

/// Of them at once.
const AT_ONCE: usize = 12;

/// Every so many of them are killed.
const KILLED: usize = 5;

/// Processes that wait and are killed.
const WAITERS: usize = 6;

/// Each has an answer within this time, on a busy machine too.
const TIMEOUT: &str = "60s";

/// The space of theirs.
const SPACE: &str = "fleet";

/// What exit codes of the program say.
const DONE: i32 = 0;
const REFUSED: i32 = 4;

struct Fleet<'a> {
    scene: &'a Scene,
    // What tells its keys and tuples from those of others.
    name: String,
}

impl Fleet<'_> {
    fn command(&self, of: &str, what: &str, arguments: &[&str]) -> Command {
        let mut command = self.scene.cluster.client_command(of, what);
        command.args(["--timeout", TIMEOUT]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, of: &str, what: &str, arguments: &[&str]) -> Result<Output> {
        self.command(of, what, arguments).output().context("cannot run the program")
    }

    /// The same of one that has to be served.
    fn served(&self, of: &str, what: &str, arguments: &[&str]) -> Result<String> {
        let output = self.run(of, what, arguments)?;
        ensure!(
            output.status.code() == Some(DONE),
            "`perdura {of} {what}` of a client that nobody killed ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// What process `number` of them writes.
    fn write(&self, number: usize) -> (&'static str, &'static str, Vec<String>) {
        match self.scene.service {
            Service::Partitions => {
                let [one, other] = both(&self.name, number);
                let insert =
                    |key: &str| format!("{{\"insert\":{{\"key\":\"{key}\",\"value\":\"1\"}}}}");
                ("kv", "txn", vec![format!("[{},{}]", insert(&one), insert(&other))])
            }
            Service::Kv => {
                ("kv", "put", vec![format!("{}-{number}", self.name), number.to_string()])
            }
            Service::Tuples => {
                ("space", "out", vec![SPACE.to_owned(), format!("[\"{}\",{number}]", self.name)])
            }
        }
    }

    /// Runs one that is killed within a tenth of a second, and whether it had ended by then.
    fn killed(&self, number: usize, after: Duration) -> Result<()> {
        let (of, what, arguments) = self.write(number);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let child = self.command(of, what, &arguments).spawn().context("cannot run the program")?;
        self.scene.course.sleep(after);
        kill(child);
        Ok(())
    }

    fn one(&self, number: usize, random: &mut Random) -> Result<()> {
        if number.is_multiple_of(KILLED) {
            return self.killed(number, Duration::from_millis(random.below(100)));
        }
        let (of, what, arguments) = self.write(number);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.served(of, what, &arguments).map(drop)
    }

    /// All of them, some at a time.
    fn come_and_go(&self, random: &mut Random) -> Result<()> {
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        std::thread::scope(|scope| {
            for lane in 0..AT_ONCE {
                let mut random = random.fork(&format!("lane {lane}"));
                let (next, failure) = (&next, &failure);
                scope.spawn(move || {
                    while lock(failure).is_none() && self.scene.course.ends().is_none() {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= PROCESSES {
                            return;
                        }
                        if let Err(error) = self.one(number, &mut random) {
                            lock(failure).get_or_insert(error);
                        }
                    }
                });
            }
        });
        match failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// What those wrote that were served is there, and is removed; how much of the others is.
    fn is_there(&self) -> Result<usize> {
        let served = PROCESSES - PROCESSES.div_ceil(KILLED);
        let count = match self.scene.service {
            Service::Partitions => self.whole()?,
            Service::Kv => {
                let prefix = ["--prefix", &self.name];
                let count = self.served("kv", "count", &prefix)?;
                self.served("kv", "delete-range", &["--prefix", &self.name, "--yes"])?;
                let count = count.split_whitespace().find_map(|word| word.parse().ok());
                count.context("`perdura kv count` gave no number")?
            }
            Service::Tuples => {
                let all = format!("[\"{}\",null]", self.name);
                let taken = self.served("space", "inall", &[SPACE, &all])?;
                taken.lines().count()
            }
        };
        ensure!(
            (served..=PROCESSES).contains(&count),
            "{served} clients were told that they had written, and {count} of their writes are there"
        );
        Ok(count - served)
    }

    /// How many of the transactions are there.
    fn whole(&self) -> Result<usize> {
        let prefix = ["--prefix", &self.name, "--keys-only", "--limit", "1000"];
        let found = self.served("kv", "scan", &prefix)?;
        let count = count_whole(&self.name, &found.lines().collect())?;
        self.served("kv", "delete-range", &["--prefix", &self.name, "--yes"])?;
        Ok(count)
    }

    /// What is put is nobody's that was killed while it waited for it, whether that waited to take it or for another's.
    fn dead_waiters(&self) -> Result<()> {
        let template = format!("[\"{}-wait\",null]", self.name);
        let wait = [SPACE, &template, "--wait", "1h"];
        let waiters: Vec<Child> = (0..WAITERS)
            .map(|_| self.command("space", "in", &wait).spawn().context("cannot run the program"))
            .collect::<Result<_>>()?;
        self.scene.course.sleep(Duration::from_secs(1));
        waiters.into_iter().for_each(kill);
        self.served("space", "out", &[SPACE, &format!("[\"{}-wait\",1]", self.name)])?;
        let taken = self.run("space", "in", &[SPACE, &template, "--wait", "30s"])?;
        ensure!(
            taken.status.code() == Some(DONE),
            "a tuple that was put after {WAITERS} who waited for it were killed is gone: {} {}",
            taken.status,
            String::from_utf8_lossy(&taken.stderr).trim()
        );
        Ok(())
    }
}

/// The two keys of a process, which are most often in two partitions.
fn both(name: &str, number: usize) -> [String; 2] {
    [format!("{name}-{number}-a"), format!("{name}-{number}-b")]
}

/// How many transactions of a fleet left these keys: of each both writes are there, or none, which is only so of one that was killed.
fn count_whole(name: &str, found: &BTreeSet<&str>) -> Result<usize> {
    let mut count = 0;
    for number in 0..PROCESSES {
        let there = both(name, number).map(|key| found.contains(&*key));
        ensure!(
            there[0] == there[1] && (there[0] || number.is_multiple_of(KILLED)),
            "of transaction {number} of {name}, which writes two keys, this is there: {there:?}"
        );
        count += usize::from(there[0]);
    }
    ensure!(found.len() == 2 * count, "{} keys of {count} transactions", found.len());
    Ok(count)
}

fn kill(mut child: Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

/// They come, and go.
pub(super) fn come_and_go(scene: &Scene, random: &mut Random) -> Result<Injected> {
    let fleet = Fleet { scene, name: format!("f{}", random.next()) };
    if scene.service == Service::Tuples {
        let created = fleet.run("space", "create", &[SPACE])?;
        let known = [Some(DONE), Some(REFUSED)].contains(&created.status.code());
        ensure!(known, "`perdura space create` ended with {}", created.status);
    }
    fleet.come_and_go(random)?;
    let more = fleet.is_there()?;
    if scene.service == Service::Tuples {
        fleet.dead_waiters()?;
    }
    Injected::fired(format!("{PROCESSES} processes, {more} of the killed ones had written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_that_is_there_by_half_or_was_served_and_is_not_there_is_found() {
        let served = |number: &usize| !number.is_multiple_of(KILLED);
        let all: Vec<String> = (0..PROCESSES).flat_map(|number| both("f", number)).collect();
        let left = |gone: &[String]| {
            let found = all.iter().filter(|key| !gone.contains(key)).map(String::as_str);
            count_whole("f", &found.collect())
        };
        assert_eq!(left(&[]).unwrap(), PROCESSES);
        let killed: Vec<usize> = (0..PROCESSES).filter(|number| !served(number)).collect();
        let of_killed: Vec<String> = killed.iter().flat_map(|number| both("f", *number)).collect();
        assert_eq!(left(&of_killed).unwrap(), PROCESSES - killed.len());
        assert!(left(&of_killed[..1]).unwrap_err().to_string().contains("[false, true]"));
        let first_served = (0..PROCESSES).find(served).unwrap();
        assert!(left(&both("f", first_served)).is_err());
        let stranger = all.iter().map(String::as_str).chain(["f-1-c"]).collect();
        assert!(count_whole("f", &stranger).is_err());
    }
}
