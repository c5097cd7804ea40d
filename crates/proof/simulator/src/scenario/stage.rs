//! What the commands of a scenario do. A function for each table of commands; `None` is "no such
//! command".

use super::ScenarioError;
use crate::options::ServiceKind;
use crate::options::{Mode, SimulationOptions};
use crate::plan::{FaultPlan, NetworkPlan, Plan, WorkloadPlan};
use crate::world::World;
use crate::world::by_hand::{During, Filter, swap};
use bytes::Bytes;
use perdura_adversary::{Attack, Strategy};
use perdura_protocol::configuration::{Durability, Schedule};
use perdura_protocol::{AdminCommand, Faults, Scheme, Versions};
use perdura_replica::node::StateTransfer;
use perdura_store::StoreCommand;
use std::fmt::Write;

/// What became of a line; none if it is no command.
type Done = Option<Result<(), ScenarioError>>;

/// A scenario on its way.
pub(super) struct Stage {
    world: Option<World>,
    writer: Option<Box<dyn std::io::Write>>,
    loaded: u64,
}

impl Stage {
    pub fn new(writer: Option<Box<dyn std::io::Write>>) -> Stage {
        Stage { world: None, writer, loaded: 0 }
    }

    /// Carries out a line; what comes of it goes to `out`.
    pub fn command(&mut self, line: &str, out: &mut String) -> Result<(), ScenarioError> {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0] != "group" && self.world.is_none() {
            return Err(ScenarioError::NoGroup);
        }
        let kinds = [
            Stage::group,
            Stage::look,
            Stage::calls,
            Stage::processes,
            Stage::links,
            Stage::disks,
            Stage::people,
        ];
        let done = kinds.iter().find_map(|kind| kind(self, &words, out));
        done.unwrap_or_else(|| Err(ScenarioError::Unknown(line.to_owned())))?;
        for told in self.world.as_mut().map(World::told).unwrap_or_default() {
            let _ = writeln!(out, "{told}");
        }
        Ok(())
    }

    fn group(&mut self, words: &[&str], out: &mut String) -> Done {
        let ["group", bounds, options @ ..] = words else { return None };
        let (u, r) = bounds.split_once(',')?;
        let mut plan = calm(Faults::new(u.parse().ok()?, r.parse().ok()?).ok()?);
        let mut strangers = 0;
        for option in options.chunks(2) {
            match option {
                ["depth", depth] => plan.depth = number(depth)?,
                ["schedule", name] => plan.schedule = Schedule::parse(name)?,
                ["interval", slots] => plan.checkpoint_interval = number(slots)?,
                ["clients", count] => plan.workload.clients = number(count)? as usize,
                ["rules", version] => {
                    let rules = u16::try_from(number(version)?).ok()?;
                    plan.versions = Versions { rules, service: 1 };
                }
                ["strangers", count] => strangers = number(count)? as usize,
                ["attacker", name] => plan.attacks.push(Attack::parse(name)?),
                _ => return None,
            }
        }
        let known = plan.workload.clients.checked_sub(strangers)?;
        let mut world = World::new(&SimulationOptions::new(1, 0), plan, self.writer.take());
        world.forget_clients(known);
        let _ = writeln!(out, "{} replicas", world.n());
        self.world = Some(world);
        Some(self.guarded(World::begin_by_hand))
    }

    fn look(&mut self, words: &[&str], out: &mut String) -> Done {
        match words {
            ["run", ms] => {
                let ms = number(ms)?;
                Some(self.guarded(|world| world.run_for(ms * 1000)))
            }
            ["status"] => Some(self.guarded(|world| out.push_str(&world.status()))),
            ["order", words @ ..] if words.len() < 2 => {
                let key = words.first().copied();
                Some(self.guarded(|world| out.push_str(&world.executions(key))))
            }
            ["end"] => {
                let result = self.guarded(World::end_by_hand);
                if result.is_ok() {
                    let _ = writeln!(out, "all replicas are equal, and every rule was kept");
                }
                Some(result)
            }
            _ => None,
        }
    }

    fn calls(&mut self, words: &[&str], out: &mut String) -> Done {
        match words {
            ["calls"] => {
                return Some(self.guarded(|world| out.push_str(&world.calls_meanwhile(false))));
            }
            ["await"] => {
                return Some(self.guarded(|world| out.push_str(&world.calls_meanwhile(true))));
            }
            ["call", "revoke", client] => {
                let client = self.client(client)?;
                return Some(self.guarded(|world| world.revoke_meanwhile(client)));
            }
            _ => {}
        }
        let (client, words) = match self.client(words[0]) {
            Some(client) => (client, &words[1..]),
            None => (0, words),
        };
        if let ["call", words @ ..] = words {
            let (command, fast) = call(words)?;
            return Some(self.guarded(|world| world.call_meanwhile(client, command, fast)));
        }
        if let ["load", count] = words {
            return Some(self.load(client, number(count)?, out));
        }
        let (command, fast) = call(words)?;
        let mut end = String::new();
        let result = self.guarded(|world| end = world.call_to_its_end(client, command, fast));
        let _ = writeln!(out, "{end}");
        Some(result)
    }

    fn processes(&mut self, words: &[&str], _: &mut String) -> Done {
        let [what, which] = words else { return None };
        let act: fn(&mut World, usize) = match *what {
            "kill" => World::crash_process,
            "crash" => World::crash_machine,
            "start" => World::start,
            "cut" => World::cut_off,
            "mend" => World::mend,
            _ => return None,
        };
        let n = self.world.as_ref()?.n();
        let which = if *which == "all" { 0..n } else { one(self.replica(which)?) };
        Some(self.guarded(|world| which.for_each(|replica| act(world, replica))))
    }

    fn links(&mut self, words: &[&str], _: &mut String) -> Done {
        match words {
            ["release"] => Some(self.guarded(World::release)),
            ["drop"] => Some(self.guarded(World::drop_held)),
            [what @ ("hold" | "tape"), from, to, kind] => {
                let tag = if *kind == "any" { None } else { Some(Filter::tag(kind)?) };
                let (from, to) = (self.station(from)?, self.station(to)?);
                let copy = *what == "tape";
                Some(self.guarded(|world| world.hold(Filter { from, to, tag }, copy)))
            }
            _ => None,
        }
    }

    fn disks(&mut self, words: &[&str], _: &mut String) -> Done {
        let [_, which, ..] = words else { return None };
        let replica = self.replica(which)?;
        match words {
            ["rot", _, directory @ ("log" | "checkpoint"), text] => {
                Some(self.guarded(|world| world.rot(replica, directory, text)))
            }
            ["empty", _] => Some(self.guarded(|world| world.empty(replica, None))),
            ["empty", _, "log"] => Some(self.guarded(|world| world.empty(replica, Some("log")))),
            ["lose-disk", _] => Some(self.guarded(|world| world.wipe(replica))),
            ["slow-disk", _, ms] => {
                let ms = number(ms)?;
                Some(self.guarded(|world| world.replicas[replica].slow_us = ms * 1000))
            }
            ["fail-flush", _] => Some(self.guarded(|world| world.fail_flush(replica))),
            ["crash-in", _, what, count] => {
                let during = match *what {
                    "append" => During::Append,
                    "checkpoint" => During::Checkpoint,
                    "recovery" => During::Recovery,
                    _ => return None,
                };
                let count = if *count == "done" { None } else { Some(number(count)?) };
                Some(self.guarded(|world| world.crash_during(replica, during, count)))
            }
            ["crash-at-output", _, count] => {
                let count = number(count)?;
                Some(self.guarded(|world| world.crash_at_output(replica, count)))
            }
            _ => None,
        }
    }

    fn people(&mut self, words: &[&str], out: &mut String) -> Done {
        let mut answer = None;
        let result = match words {
            ["liar", replica, strategy] => {
                let (replica, strategy) = (self.replica(replica)?, Strategy::parse(strategy)?);
                self.guarded(|world| world.corrupt(replica, strategy))
            }
            ["attack", hostile, ms] => {
                let (hostile, ms) = (number(hostile.strip_prefix('h')?)? as usize, number(ms)?);
                let exists = hostile < self.world.as_ref()?.hostile.len();
                exists.then(|| self.guarded(|world| world.attack_for(hostile, ms * 1000)))?
            }
            ["restart", client] => {
                let client = self.client(client)?;
                self.guarded(|world| world.restart_client(client))
            }
            ["restart", client, times] => {
                let client = self.client(client)?;
                return Some(self.restart(client, number(times)?, out));
            }
            ["revoke", client] => {
                let client = self.client(client)?;
                self.guarded(|world| answer = Some(world.order_revocation(client)))
            }
            ["add", client] => {
                let client = self.client(client)?;
                self.guarded(|world| answer = Some(world.order_registration(client)))
            }
            ["raise", rules, service] => {
                let version = |word: &str| u16::try_from(number(word)?).ok();
                let versions = Versions { rules: version(rules)?, service: version(service)? };
                let command = AdminCommand::RaiseVersions(versions);
                self.guarded(|world| answer = Some(world.order(command)))
            }
            ["limit", mib] => {
                let bytes = number(mib)? << 20;
                let command = AdminCommand::RaiseStateLimit { bytes };
                self.guarded(|world| answer = Some(world.order(command)))
            }
            ["clients"] => {
                self.guarded(|world| answer = Some(world.order(AdminCommand::ListClients)))
            }
            ["rotate"] => self.guarded(|world| answer = Some(world.order_rotation())),
            ["steal", client] => {
                let client = self.client(client)?;
                self.guarded(|world| answer = Some(world.order_as_thief(client)))
            }
            ["terms"] => self.guarded(|world| out.push_str(&world.terms())),
            ["who", client] => {
                let client = self.client(client)?;
                self.guarded(|world| answer = Some(world.who_knows(client)))
            }
            _ => return None,
        };
        if let Some(answer) = answer {
            let _ = writeln!(out, "{answer}");
        }
        Some(result)
    }

    fn load(&mut self, client: usize, count: u64, out: &mut String) -> Result<(), ScenarioError> {
        let mut done = 0;
        for _ in 0..count {
            self.loaded += 1;
            let command = put(&format!("k{}", self.loaded % 20), &format!("v{}", self.loaded));
            let mut end = String::new();
            self.guarded(|world| end = world.call_to_its_end(client, command, false))?;
            done += u64::from(end.starts_with("ok"));
        }
        let _ = writeln!(out, "{done} of {count} ok");
        Ok(())
    }

    fn restart(
        &mut self,
        client: usize,
        times: u64,
        out: &mut String,
    ) -> Result<(), ScenarioError> {
        let mut done = 0;
        for time in 1..=times {
            let command = put("session", &time.to_string());
            let mut end = String::new();
            self.guarded(|world| {
                world.restart_client(client);
                end = world.call_to_its_end(client, command, false);
            })?;
            done += u64::from(end == "ok");
        }
        let _ = writeln!(out, "{done} of {times} ok");
        Ok(())
    }

    fn guarded(&mut self, body: impl FnOnce(&mut World)) -> Result<(), ScenarioError> {
        let world = self.world.as_mut().ok_or(ScenarioError::NoGroup)?;
        world.guarded(body)?;
        Ok(())
    }

    fn replica(&self, word: &str) -> Option<usize> {
        let replica = number(word)? as usize;
        (replica < self.world.as_ref()?.n()).then_some(replica)
    }

    fn client(&self, word: &str) -> Option<usize> {
        let client = number(word.strip_prefix('c')?)? as usize;
        // The last is the administrator.
        (client + 1 < self.world.as_ref()?.clients.len()).then_some(client)
    }

    /// The station that a word names; the inner none is any.
    fn station(&self, word: &str) -> Option<Option<usize>> {
        if word == "any" {
            return Some(None);
        }
        let world = self.world.as_ref()?;
        (0..world.network.stations()).find(|station| world.name(*station) == word).map(Some)
    }
}

fn number(word: &str) -> Option<u64> {
    word.parse().ok()
}

fn one(replica: usize) -> std::ops::Range<usize> {
    replica..replica + 1
}

fn call(words: &[&str]) -> Option<(StoreCommand, bool)> {
    match words {
        ["put", key, value] => Some((put(key, value), false)),
        ["get", key] => Some((StoreCommand::Get { key: bytes(key) }, false)),
        ["fast", key] => Some((StoreCommand::Get { key: bytes(key) }, true)),
        ["del", key] => Some((StoreCommand::Delete { key: bytes(key) }, false)),
        ["swap", key, old, new] => Some((swap(bytes(key), bytes(old), bytes(new)), false)),
        _ => None,
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> StoreCommand {
    StoreCommand::Put { key: bytes(key), value: bytes(value) }
}

/// A group on a calm network, in which nothing happens by itself.
fn calm(faults: Faults) -> Plan {
    Plan {
        service: ServiceKind::KeyValue,
        versions: Versions::NEW,
        faults,
        mode: Mode::Liveness,
        scheme: Scheme::KeyedHash,
        durability: Durability::Sync,
        depth: 8,
        checkpoint_interval: 64,
        checkpoint_bytes: 1 << 20,
        checkpoint_stretch: 1,
        checkpoint_ms: None,
        schedule: Schedule::Coordinated,
        state_transfer: StateTransfer::default(),
        log_file_bytes: 16 * 1024,
        flush_us: 500,
        slow_digests: 1,
        stages: Vec::new(),
        astray: false,
        long_rounds: false,
        drift: 0,
        network: NetworkPlan::CALM,
        workload: WorkloadPlan {
            clients: 1,
            callers: 1,
            keys: 1,
            think_us: 0,
            bursts: 0,
            reads: 0,
            fast_reads: 0,
            short_deadlines: 0,
            value_bytes: 16,
            costly: false,
        },
        shrunk: 0,
        chaos: FaultPlan { interval_us: 1, down_us: 1, lasting: 0, wipes: false, kinds: u64::MAX },
        liars: Vec::new(),
        attacks: Vec::new(),
        attack_us: 100_000,
    }
}
