//! Cold restarts of a whole group of real processes, of which `u` lose their disks: what was
//! acknowledged is there again, in whatever order and however late the others start (rules D1, D8).
//! A round:
//!
//! 1. Two clients write, with several callers each, until every replica has stored a checkpoint of
//!    what they wrote, and more is in the logs.
//! 2. All replicas are killed at once, one of the clients with them, and `u` replicas lose their
//!    data directories. The other client goes on waiting.
//! 3. All replicas are started, in an order and with pauses that are drawn. Those without their data
//!    have to refuse; the others have to serve, with every acknowledged write and no half of one.
//! 4. The lost ones are replaced, and `u` others are killed. Those that are left need the replaced
//!    ones; they have to have the same state, all that was written, and to take more.
//!
//! The first to lose its disk is the leader, then come those that have not yet.
//!
//! The group and the draws follow from `PERDURA_SEED`; with `PERDURA_ALL=1` all groups have their turn. `PERDURA_ROUNDS` sets
//! the rounds (default 4).

use crate::common::load::{Load, Script};
use crate::common::{Cluster, Random, drawn, rounds, seed, wait_for};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// Callers of a client, each with one write in flight.
const CALLERS: usize = 8;

/// Answers awaited where the load has to be under way.
const ANSWERS: usize = 50;

/// Longest value, bytes.
const VALUE_BYTES: u64 = 4000;

/// What a caller knows of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unknown,
    Happened,
    Refused,
}

/// A transaction that writes a key of its own, and its number to the caller's key.
struct Write {
    value: String,
    fate: Fate,
}

struct Caller {
    name: String,
    writes: Vec<Write>,
}

impl Caller {
    fn key(&self, number: usize) -> String {
        format!("{}/{number}", self.name)
    }

    fn latest_key(&self) -> String {
        format!("{}/latest", self.name)
    }
}

/// The callers of a client. One that does not know what became of its write writes no more.
struct Writers {
    callers: Vec<Caller>,
    idle: Vec<usize>,
    random: Random,
}

impl Script for Writers {
    fn next(&mut self) -> Option<Value> {
        let index = self.idle.pop()?;
        let caller = &mut self.callers[index];
        let number = caller.writes.len();
        let key = caller.key(number);
        let mut value = format!("{key} ").repeat(VALUE_BYTES as usize / key.len());
        value.truncate(1 + self.random.below(VALUE_BYTES) as usize);
        let line = json!({"id": [index, number], "op": "txn", "ops": [
            {"write": {"key": key, "value": value}},
            {"write": {"key": caller.latest_key(), "value": number.to_string()}},
        ]});
        caller.writes.push(Write { value, fate: Fate::Unknown });
        Some(line)
    }

    fn answered(&mut self, answer: &Value) {
        let id = |place: usize| answer["id"][place].as_u64().unwrap() as usize;
        let fate = match answer["outcome"].as_str() {
            Some("ok") => Fate::Happened,
            Some("refused") => Fate::Refused,
            _ => return,
        };
        self.callers[id(0)].writes[id(1)].fate = fate;
        self.idle.push(id(0));
    }
}

/// Everything that was written, or may have been.
#[derive(Default)]
struct Ledger {
    callers: Vec<Caller>,
}

impl Ledger {
    fn enter(&mut self, writers: Writers) {
        self.callers.extend(writers.callers);
    }

    /// Of a client that waited long enough: everything happened.
    #[track_caller]
    fn enter_finished(&mut self, load: Load<Writers>) {
        let writers = load.finish();
        let mut writes = writers.callers.iter().flat_map(|caller| &caller.writes);
        assert!(writes.all(|write| write.fate == Fate::Happened));
        self.enter(writers);
    }

    /// A key that is there once a client has finished.
    fn latest_key(&self) -> String {
        self.callers.last().unwrap().latest_key()
    }

    fn count(&self, fate: Fate) -> usize {
        let writes = self.callers.iter().flat_map(|caller| &caller.writes);
        writes.filter(|write| write.fate == fate).count()
    }

    /// That the store holds this, and nothing else.
    #[track_caller]
    fn check(&mut self, cluster: &Cluster) {
        let mut found = cluster.entries();
        for caller in &mut self.callers {
            let mut latest = None;
            for number in 0..caller.writes.len() {
                let key = caller.key(number);
                let value = found.remove(&key);
                let write = &mut caller.writes[number];
                match (write.fate, value) {
                    (Fate::Happened, None) => panic!("{key} was acknowledged and is gone"),
                    (Fate::Refused, Some(_)) => panic!("{key} was refused and is there"),
                    (_, None) => {}
                    (_, Some(value)) => {
                        assert!(value == write.value, "{key} is not what was written: {value}");
                        // Who saw it once has to see it again.
                        write.fate = Fate::Happened;
                        latest = Some(number.to_string());
                    }
                }
            }
            let key = caller.latest_key();
            assert_eq!(found.remove(&key), latest, "{key}: a write that happened in part");
        }
        assert!(found.is_empty(), "nobody wrote {:?}", found.keys());
    }
}

/// How the replicas come back.
#[derive(Clone, Copy, Debug)]
enum Manner {
    AtOnce,
    OneByOne,
    /// One comes seconds after the others.
    Late,
    /// One is killed while it recovers, and starts once more.
    KilledAgain,
}

const MANNERS: [Manner; 4] = [Manner::AtOnce, Manner::OneByOne, Manner::Late, Manner::KilledAgain];

/// What is left where a disk was lost.
#[derive(Clone, Copy, Debug)]
enum Left {
    Nothing,
    EmptyDirectory,
    /// A disk with a new file system.
    NewDisk,
}

struct Run {
    group: String,
    cluster: Cluster,
    ledger: Ledger,
    random: Random,
    round: usize,
    /// Of replicas that may be lost at once.
    u: usize,
    /// Who has not lost its disk since all had.
    spared: Vec<usize>,
    /// How often each replica was replaced.
    replaced: Vec<u64>,
}

/// Part of what is tested: nothing is awaited by it.
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// What is in a directory, but for its lock; none if it is not there.
fn content(directory: &Path) -> Option<BTreeSet<String>> {
    let names = std::fs::read_dir(directory).ok()?;
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    Some(names.filter(|name| name != "lock").collect())
}

impl Run {
    fn all(&self) -> Vec<usize> {
        (0..self.cluster.len()).collect()
    }

    fn load(&mut self, client: &str) -> Load<Writers> {
        let name = |index: usize| format!("round{}/{client}/caller{index}", self.round);
        let caller = |index: usize| Caller { name: name(index), writes: Vec::new() };
        let callers = (0..CALLERS).map(caller).collect();
        // Of its own: how much is written is not repeated.
        let random = Random(self.random.below(u64::MAX));
        let writers = Writers { callers, idle: (0..CALLERS).collect(), random };
        Load::start(&self.cluster, CALLERS, "90s", writers)
    }

    /// Who is lost in this round.
    fn draw_lost(&mut self) -> Vec<usize> {
        let mut lost = Vec::new();
        while lost.len() < self.u {
            let id = match self.spared.is_empty() {
                false => self.random.take(&mut self.spared),
                true => {
                    let leader = self.cluster.leader();
                    self.spared = self.all();
                    self.spared.retain(|id| *id != leader);
                    leader
                }
            };
            self.spared.retain(|other| *other != id);
            if !lost.contains(&id) {
                lost.push(id);
            }
        }
        lost
    }

    /// The last slot that any replica knows to be decided.
    fn decided(&self) -> u64 {
        let status = self.cluster.status();
        status.iter().filter_map(|replica| replica["decided"].as_u64()).max().unwrap()
    }

    /// Writes until there are new checkpoints, and more than those in the logs.
    fn write_past_checkpoints(&self, loads: [&Load<Writers>; 2]) {
        let from = self.decided();
        wait_for("a checkpoint of every replica", || {
            let status = self.cluster.status();
            let mut stored = status.iter().map(|replica| replica["checkpoint"]["slot"].as_u64());
            stored.all(|slot| slot > Some(from)).then_some(())
        });
        for load in loads {
            load.await_answers(ANSWERS);
        }
    }

    fn lose(&mut self, id: usize) -> Left {
        let data = self.cluster.path(&format!("replica-{id}/data"));
        let checkpoints = content(&data.join("checkpoint")).unwrap();
        assert!(!checkpoints.is_empty() && content(&data.join("log")).is_some());
        std::fs::remove_dir_all(&data).unwrap();
        let left = [Left::Nothing, Left::EmptyDirectory, Left::NewDisk];
        let left = left[self.random.below(3) as usize];
        match left {
            Left::Nothing => {}
            Left::EmptyDirectory => std::fs::create_dir(&data).unwrap(),
            Left::NewDisk => std::fs::create_dir_all(data.join("lost+found")).unwrap(),
        }
        left
    }

    /// Starts all of them; gives the order.
    fn start_all(&mut self, manner: Manner, lost: &[usize]) -> Vec<usize> {
        let order = self.random.shuffled(self.all());
        let survivors: Vec<usize> = order.iter().copied().filter(|id| !lost.contains(id)).collect();
        let one = survivors[self.random.below(survivors.len() as u64) as usize];
        for id in order.iter().copied() {
            match manner {
                Manner::Late if id == one => continue,
                Manner::OneByOne => pause(self.random.below(500)),
                _ => {}
            }
            self.cluster.start(id);
        }
        match manner {
            Manner::AtOnce | Manner::OneByOne => {}
            Manner::Late => {
                pause(2000 + self.random.below(2000));
                self.cluster.start(one);
            }
            Manner::KilledAgain => {
                pause(self.random.below(400));
                self.cluster.kill(one);
                pause(self.random.below(400));
                self.cluster.start(one);
            }
        }
        order
    }

    /// A replica without its data says what to do, and leaves everything as it is.
    fn refused(&mut self, id: usize, logged: usize, left: Option<BTreeSet<String>>) {
        assert_eq!(self.cluster.ended(id), Some(1));
        let said = self.cluster.log(id).split_off(logged);
        for words in [&format!("replica {id}: "), "data directory", "perdura replica reinit"] {
            assert!(said.contains(words), "no {words:?} in {said:?}");
        }
        assert_eq!(content(&self.cluster.path(&format!("replica-{id}/data"))), left);
    }

    fn replace(&mut self, id: usize) {
        self.replaced[id] += 1;
        let reinit = ["replica", "reinit", "--timeout", "60s", "--id", &id.to_string()];
        let said = self.cluster.run(&reinit).ok();
        let incarnation = format!("replica {id} is in incarnation {} ", self.replaced[id]);
        assert!(said.contains(&incarnation), "no {incarnation:?} in {said}");
        self.cluster.start(id);
        self.cluster.wait_until_active();
    }

    /// Waits until all that run have said the digest of their state after the same slot, one above
    /// `from`. No two may differ in one.
    fn agree(&self, running: usize, from: u64) {
        let mut digests: BTreeMap<u64, BTreeMap<u64, String>> = BTreeMap::new();
        wait_for("the same state on all replicas", || {
            for replica in self.cluster.status() {
                let boundary = &replica["boundary"];
                let Some(slot) = boundary["slot"].as_u64().filter(|slot| *slot > from) else {
                    continue;
                };
                let digest = boundary["digest"].as_str().unwrap().to_owned();
                let of_slot = digests.entry(slot).or_default();
                of_slot.insert(replica["id"].as_u64().unwrap(), digest.clone());
                assert!(of_slot.values().all(|other| *other == digest), "{slot}: {of_slot:?}");
            }
            let agreed = digests.values().any(|of_slot| of_slot.len() == running);
            // Who passed one over digests the next; what is read in order brings it nearer.
            agreed.then_some(()).or_else(|| {
                self.cluster
                    .run(&["kv", "get", &self.ledger.latest_key(), "--timeout", "60s"])
                    .ok();
                None
            })
        });
    }

    fn round(&mut self, manner: Manner) {
        let (ends, waits) = (self.load("ends"), self.load("waits"));
        self.write_past_checkpoints([&ends, &waits]);
        let lost = self.draw_lost();
        self.cluster.kill_all();
        self.ledger.enter(ends.kill());
        let left: Vec<Left> = lost.iter().map(|id| self.lose(*id)).collect();
        let content = |id: &usize| content(&self.cluster.path(&format!("replica-{id}/data")));
        let before = |id: &usize| (*id, self.cluster.log(*id).len(), content(id));
        let before: Vec<_> = lost.iter().map(before).collect();

        let order = self.start_all(manner, &lost);
        let name = format!("{}, round {}", self.group, self.round);
        println!("{name}: {lost:?} lost ({left:?}), started {order:?}, {manner:?}");
        waits.await_answers(ANSWERS);
        self.ledger.enter_finished(waits);
        self.ledger.check(&self.cluster);
        for (id, logged, left) in before {
            self.refused(id, logged, left);
        }

        for id in &lost {
            self.replace(*id);
        }
        let mut others = self.all();
        others.retain(|id| !lost.contains(id));
        let killed: Vec<usize> = (0..self.u).map(|_| self.random.take(&mut others)).collect();
        for id in &killed {
            self.cluster.kill(*id);
        }
        self.ledger.check(&self.cluster);
        let from = self.decided();
        let after = self.load("after");
        after.await_answers(ANSWERS);
        self.ledger.enter_finished(after);
        self.agree(self.cluster.len() - self.u, from);
        self.ledger.check(&self.cluster);
        let (there, not) = (self.ledger.count(Fate::Happened), self.ledger.count(Fate::Unknown));
        println!("{name}: without {killed:?}; {there} writes are there, {not} never happened");
        for id in killed {
            self.cluster.start(id);
        }
        self.cluster.wait_until_active();
    }
}

fn cold_restarts(bounds: &[&str], u: usize, usual_rounds: usize) {
    let seed = seed();
    let group = bounds.join(" ");
    println!("{group}: PERDURA_SEED={seed}");
    let flags = [bounds, &["--checkpoint-interval", "64", "--checkpoint-mib", "1"]].concat();
    let cluster = Cluster::start_all(&flags);
    cluster.wait_until_active();
    let mut run = Run {
        group,
        ledger: Ledger::default(),
        random: Random(seed),
        round: 0,
        u,
        spared: Vec::new(),
        replaced: vec![0; cluster.len()],
        cluster,
    };
    let manners = run.random.shuffled(MANNERS.to_vec());
    for round in 0..rounds(usual_rounds) {
        run.round = round;
        run.round(manners[round % manners.len()]);
    }
}

#[test]
fn a_group_comes_back_with_as_many_disks_lost_as_it_tolerates() {
    let groups: [(&[&str], usize, usize); 3] =
        [(&["--byzantine", "1"], 1, 4), (&["--crash", "1"], 1, 4), (&["--crash", "2"], 2, 2)];
    for (bounds, u, rounds) in drawn(&groups) {
        cold_restarts(bounds, u, rounds);
    }
}
