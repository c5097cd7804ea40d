//! Protocol scenarios as readable text, in `scenarios/` at the root of the repository.
//!
//! A scenario is a row of blocks: commands, a line `----`, what came of them, an empty line. Lines
//! that begin with `#` are for the reader. The first command is `group`. With
//! `PERDURA_REWRITE=1` the test writes what comes instead of comparing it; the difference is for
//! review.
//!
//! | command | what it does |
//! |---|---|
//! | `group U,R [depth N]` | starts a group with these fault bounds on a calm network |
//! | `put KEY VALUE`, `get KEY`, `del KEY`, `fast KEY` | a client's call (`fast`: not ordered), to its end |
//! | `load N` | N puts, one after the other |
//! | `kill I`, `crash I`, `crash all` | a process ends; a machine stops, what was not synced is lost |
//! | `start I`, `start all` | from what is on disk |
//! | `cut I`, `mend I` | takes a replica off the network, and back |
//! | `lose-disk I` | the disk is gone; the administrator orders a new incarnation and starts it |
//! | `run MS` | virtual time passes |
//! | `status` | where each replica stands |
//! | `end` | all is started and comes to rest; every checker judges |

use crate::options::{Mode, Options};
use crate::plan::{FaultPlan, NetworkPlan, Plan, WorkloadPlan};
use crate::violation::Violation;
use crate::world::World;
use bytes::Bytes;
use perdura_protocol::configuration::Durability;
use perdura_protocol::{Faults, Scheme};
use perdura_store::StoreCommand;
use std::fmt::Write;

/// Why a scenario did not run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// A line that is no command.
    #[error("{0:?} is no command of a scenario")]
    Unknown(String),
    /// A command before `group`.
    #[error("the first command is `group U,R`")]
    NoGroup,
    /// A rule was broken.
    #[error(transparent)]
    Violated(#[from] Box<Violation>),
}

/// Runs a scenario; returns it with what came of each block.
///
/// # Errors
/// When a line is no command, or a rule is broken.
pub fn run(text: &str) -> Result<String, ScenarioError> {
    let mut out = String::new();
    let mut stage = Stage::default();
    let mut answers = String::new();
    let mut skipping = false;
    for line in text.lines() {
        match line {
            "----" => {
                let _ = writeln!(out, "----\n{answers}");
                answers.clear();
                skipping = true;
            }
            "" if skipping => skipping = false,
            _ if skipping => {}
            "" => out.push('\n'),
            _ => {
                let _ = writeln!(out, "{line}");
                if !line.starts_with('#') {
                    stage.command(line, &mut answers)?;
                }
            }
        }
    }
    while out.ends_with("\n\n") {
        out.pop();
    }
    Ok(out)
}

#[derive(Default)]
struct Stage {
    world: Option<World>,
    loaded: u64,
}

impl Stage {
    fn command(&mut self, line: &str, out: &mut String) -> Result<(), ScenarioError> {
        let unknown = || ScenarioError::Unknown(line.to_owned());
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["group", bounds, rest @ ..] = &words[..] {
            let depth = match rest {
                [] => 8,
                ["depth", depth] => depth.parse().map_err(|_| unknown())?,
                _ => return Err(unknown()),
            };
            self.world = Some(group(bounds, depth).ok_or_else(unknown)?);
            self.guarded(World::begin_by_hand)?;
            let n = self.world.as_ref().map_or(0, World::n);
            let _ = writeln!(out, "{n} replicas");
            return Ok(());
        }
        let number = |text: &str| text.parse::<u64>().map_err(|_| unknown());
        let command = match &words[..] {
            ["put", key, value] => Some((put(key, value), false)),
            ["get", key] => Some((get(key), false)),
            ["fast", key] => Some((get(key), true)),
            ["del", key] => Some((StoreCommand::Delete { key: bytes(key) }, false)),
            _ => None,
        };
        if let Some((command, fast)) = command {
            let mut end = String::new();
            self.guarded(|world| end = world.call_to_its_end(command, fast))?;
            let _ = writeln!(out, "{end}");
            return Ok(());
        }
        match &words[..] {
            ["load", count] => return self.load(number(count)?, out),
            ["run", ms] => {
                let ms = number(ms)?;
                self.guarded(|world| world.run_for(ms * 1000))?;
            }
            ["status"] => self.guarded(|world| out.push_str(&world.status()))?,
            ["end"] => {
                self.guarded(|world| {
                    world.all_is_well();
                    world.come_to_rest();
                    world.judge();
                })?;
                let _ = writeln!(out, "all replicas are equal, and every rule was kept");
            }
            [what, "all"] => {
                let n = self.world.as_ref().map_or(0, World::n);
                for replica in 0..n {
                    self.replica(what, replica).ok_or_else(unknown)??;
                }
            }
            [what, replica] => {
                let replica = number(replica)? as usize;
                self.replica(what, replica).ok_or_else(unknown)??;
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn replica(&mut self, what: &str, replica: usize) -> Option<Result<(), ScenarioError>> {
        let act: fn(&mut World, usize) = match what {
            "kill" => World::crash_process,
            "crash" => World::crash_machine,
            "start" => World::start,
            "cut" => World::cut_off,
            "mend" => World::mend,
            "lose-disk" => World::wipe,
            _ => return None,
        };
        let exists = self.world.as_ref().is_some_and(|world| replica < world.n());
        exists.then(|| self.guarded(|world| act(world, replica)))
    }

    fn load(&mut self, count: u64, out: &mut String) -> Result<(), ScenarioError> {
        let mut done = 0;
        for _ in 0..count {
            self.loaded += 1;
            let command = put(&format!("k{}", self.loaded % 20), &format!("v{}", self.loaded));
            let mut end = String::new();
            self.guarded(|world| end = world.call_to_its_end(command, false))?;
            done += u64::from(end.starts_with("ok"));
        }
        let _ = writeln!(out, "{done} of {count} ok");
        Ok(())
    }

    fn guarded(&mut self, body: impl FnOnce(&mut World)) -> Result<(), ScenarioError> {
        let world = self.world.as_mut().ok_or(ScenarioError::NoGroup)?;
        world.guarded(body)?;
        Ok(())
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> StoreCommand {
    StoreCommand::Put { key: bytes(key), value: bytes(value) }
}

fn get(key: &str) -> StoreCommand {
    StoreCommand::Get { key: bytes(key) }
}

/// A group on a calm network, in which nothing happens by itself.
fn group(bounds: &str, depth: u64) -> Option<World> {
    let (u, r) = bounds.split_once(',')?;
    let faults = Faults::new(u.parse().ok()?, r.parse().ok()?).ok()?;
    let plan = Plan {
        faults,
        mode: Mode::Liveness,
        scheme: Scheme::KeyedHash,
        durability: Durability::Sync,
        depth,
        checkpoint_interval: 64,
        log_file_bytes: 16 * 1024,
        flush_us: 500,
        long_rounds: false,
        drift: 0,
        network: NetworkPlan::CALM,
        workload: WorkloadPlan {
            clients: 1,
            callers: 1,
            keys: 1,
            think_us: 0,
            reads: 0,
            fast_reads: 0,
            short_deadlines: 0,
            value_bytes: 16,
        },
        chaos: FaultPlan { interval_us: 1, down_us: 1, wipes: false, kinds: u64::MAX },
        liars: Vec::new(),
        attacks: Vec::new(),
    };
    Some(World::new(&Options::new(1, 0), plan, None))
}
