//! kill -9 of real processes under load: of any one replica, of the leader, of all at once; each
//! followed by a restart. Every answer goes into a history that must be linearizable (rules A1,
//! D1, E4), so an acknowledged write that is gone, or one that happened twice, is found.
//!
//! Outages, too: all are killed while one lags behind, and one of the others stays away. As many as
//! are needed run again, so they have to go on.
//!
//! The group and the draws follow from `PERDURA_SEED`; with `PERDURA_ALL=1` all groups have their turn. `PERDURA_ROUNDS` sets
//! the kills per group (default 3, and 2 outages; `make kills` does 60).

use crate::common::load::{Load, Script};
use crate::common::{Cluster, Random, drawn, rounds, seed, wait_for};
use perdura_oracle::{
    Call, DEFAULT_BUDGET, History, Operation, Outcome, Return, Step, StepReturn, Verdict, check,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Callers with one operation in flight each.
const CALLERS: usize = 12;

/// Few keys, so that operations meet.
const KEYS: u64 = 6;

/// Answers awaited before and after each kill.
const ANSWERS: usize = 150;

/// So many answers are awaited at most while a replica is cut off: several to a slot, and at times
/// more slots than are in agreement at once.
const MISSED: u64 = 120;

struct Book {
    random: Random,
    // One clock for calls and returns.
    time: u64,
    open: BTreeMap<u64, (u64, Call)>,
    history: History,
    ok: usize,
    next: u64,
    // The first operation sent since the last outage, and when one from there on was ok.
    since: u64,
    resumed: Option<Instant>,
}

impl Book {
    fn new(seed: u64) -> Book {
        Book {
            random: Random(seed),
            time: 0,
            open: BTreeMap::new(),
            history: History::default(),
            ok: 0,
            next: 0,
            since: 0,
            resumed: None,
        }
    }

    /// No replica runs. What was sent before may have been done before.
    fn interrupted(&mut self) {
        self.since = self.next;
        self.resumed = None;
    }

    /// That all of it is linearizable.
    #[track_caller]
    fn judge(&self, bounds: &[&str]) {
        match check(&self.history, DEFAULT_BUDGET) {
            Verdict::Linearizable => {}
            verdict => panic!("{bounds:?}: {verdict:?}"),
        }
    }
}

fn draw(random: &mut Random, number: u64) -> (Value, Call) {
    let key = format!("key{}", random.below(KEYS));
    let value = format!("value{number}");
    match random.below(10) {
        0..=3 => {
            let line = json!({"id": number, "op": "put", "key": key, "value": value});
            (line, Call::Put { key, value })
        }
        4..=6 => (json!({"id": number, "op": "get", "key": key}), Call::Get { key }),
        7 => (json!({"id": number, "op": "del", "key": key}), Call::Delete { key }),
        8 => {
            // Takes the key's place only if it is absent.
            let line =
                json!({"id": number, "op": "cas", "key": key, "expect": null, "value": value});
            let steps = vec![
                Step::Cmp { key: key.clone(), value: None },
                Step::Write { key, value, only_if_present: false },
            ];
            (line, Call::Transaction { steps })
        }
        _ => {
            let other = format!("key{}", random.below(KEYS));
            let operations =
                json!([{"read": {"key": key}}, {"write": {"key": other, "value": value}}]);
            let line = json!({"id": number, "op": "txn", "ops": operations});
            let steps =
                vec![Step::Read { key }, Step::Write { key: other, value, only_if_present: false }];
            (line, Call::Transaction { steps })
        }
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// What an answer line says, in the history's words.
fn outcome(call: &Call, answer: &Value) -> Outcome {
    match answer["outcome"].as_str() {
        Some("refused") => return Outcome::Refused,
        Some("ok") => {}
        _ => return Outcome::Unknown,
    }
    let result = &answer["result"];
    Outcome::Ok(match call {
        Call::Put { .. } => Return::Put,
        Call::Get { .. } => Return::Value(text(&result["value"])),
        Call::Delete { .. } => Return::Deleted(result["deleted"].as_bool().unwrap()),
        Call::Transaction { .. } if result["committed"] == false => Return::Failed(0),
        Call::Transaction { steps } => Return::Committed(
            steps
                .iter()
                .enumerate()
                .map(|(index, step)| match step {
                    Step::Read { .. } => {
                        StepReturn::Value(text(&result["results"][index]["value"]))
                    }
                    _ => StepReturn::Done,
                })
                .collect(),
        ),
    })
}

impl Script for Book {
    fn next(&mut self) -> Option<Value> {
        let number = self.next;
        self.next += 1;
        let (line, call) = draw(&mut self.random, number);
        self.time += 1;
        self.open.insert(number, (self.time, call));
        Some(line)
    }

    fn answered(&mut self, answer: &Value) {
        let number = answer["id"].as_u64().unwrap();
        let (invoked, call) = self.open.remove(&number).expect("one answer for each line");
        self.time += 1;
        let outcome = outcome(&call, answer);
        if matches!(outcome, Outcome::Ok(_)) {
            self.ok += 1;
            if number >= self.since {
                self.resumed.get_or_insert_with(Instant::now);
            }
        }
        let ended = (outcome != Outcome::Unknown).then_some(self.time);
        let process = number % CALLERS as u64;
        self.history.operations.push(Operation { process, invoked, ended, call, outcome });
    }
}

fn kills(bounds: &[&str], seed: u64) {
    // Checkpoints often, so that kills meet them, truncation and restarts from them.
    let flags = [bounds, &["--checkpoint-interval", "64"]].concat();
    let mut cluster = Cluster::start_all(&flags);
    cluster.wait_until_active();
    let mut random = Random(seed);
    let rounds = rounds(3);
    let load = Load::start(&cluster, CALLERS, "20", Book::new(seed));
    for round in 0..rounds {
        load.await_answers(ANSWERS);
        match round % 3 {
            0 => {
                let id = random.below(cluster.len() as u64) as usize;
                cluster.kill(id);
                load.await_answers(ANSWERS);
                cluster.start(id);
            }
            1 => {
                let id = cluster.leader();
                cluster.kill(id);
                load.await_answers(ANSWERS);
                cluster.start(id);
            }
            _ => {
                cluster.kill_all();
                for id in 0..cluster.len() {
                    cluster.start(id);
                }
                load.await_answers(ANSWERS);
            }
        }
        cluster.wait_until_active();
    }
    let book = load.finish();
    book.judge(bounds);
    let (all, ok) = (book.history.operations.len(), book.ok);
    println!("{bounds:?}: {rounds} kills, {all} operations, {ok} ok, linearizable");
    assert!(ok > rounds * ANSWERS);
}

/// Cuts one off while others go on, then kills all, and starts all but another one. Gives that one,
/// and how long the others were silent.
fn outage(
    cluster: &mut Cluster,
    load: &Load<Book>,
    random: &mut Random,
    without_leader: bool,
) -> (usize, Duration) {
    let cut = random.below(cluster.len() as u64) as usize;
    let halted = random.below(2) == 0;
    let missed = 1 + random.below(MISSED) as usize;
    if halted {
        cluster.halt(cut);
    } else {
        cluster.kill(cut);
    }
    load.await_answers(missed);
    let leader = cluster.leader_in_logs();
    cluster.kill_all();
    load.script(Book::interrupted);
    let mut others: Vec<usize> = (0..cluster.len()).filter(|id| *id != cut).collect();
    // Where the one that was cut off still leads, any other stays away.
    let may_stay_away = |id: &usize| leader == cut || (*id == leader) == without_leader;
    let mut candidates: Vec<usize> = others.iter().copied().filter(may_stay_away).collect();
    let away = random.take(&mut candidates);
    others.retain(|id| *id != away);
    others.push(cut);
    for id in random.shuffled(others) {
        cluster.start(id);
    }
    let started = Instant::now();
    let resumed = wait_for("an answer after an outage", || load.script(|book| book.resumed));
    let silence = resumed.saturating_duration_since(started);
    let (how, silence_ms) = (if halted { "halted" } else { "killed" }, silence.as_millis());
    println!(
        "  {cut} {how} for {missed} answers, {leader} led, {away} stayed away: \
         silent for {silence_ms} ms"
    );
    load.await_answers(ANSWERS);
    (away, silence)
}

fn outages(bounds: &[&str], seed: u64) {
    // A short pipeline, so that who is cut off is soon beyond its reach; and checkpoints are rare, so
    // that batches have to help, not a whole state.
    let flags = [bounds, &["--depth", "8", "--checkpoint-interval", "4096"]].concat();
    let mut cluster = Cluster::start_all(&flags);
    cluster.wait_until_active();
    let mut random = Random(seed);
    let rounds = rounds(2);
    let load = Load::start(&cluster, CALLERS, "20", Book::new(seed));
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        load.await_answers(ANSWERS);
        let (away, silence) = outage(&mut cluster, &load, &mut random, round % 2 == 0);
        longest = longest.max(silence);
        cluster.start(away);
        cluster.wait_until_active();
    }
    let book = load.finish();
    book.judge(bounds);
    let (all, ok) = (book.history.operations.len(), book.ok);
    let longest_ms = longest.as_millis();
    println!(
        "{bounds:?}: {rounds} outages, {all} operations, {ok} ok, linearizable, \
         silent for {longest_ms} ms at most"
    );
    assert!(ok > rounds * ANSWERS);
}

#[test]
fn a_group_keeps_every_acknowledged_operation() {
    let groups: [&[&str]; 3] = [&["--crash", "1"], &["--byzantine", "1"], &["--faults", "2,1"]];
    drawn(&groups).into_iter().for_each(|bounds| kills(bounds, seed()));
}

#[test]
fn a_group_goes_on_when_enough_run_after_an_outage() {
    let groups: [&[&str]; 2] = [&["--crash", "1"], &["--byzantine", "1"]];
    drawn(&groups).into_iter().for_each(|bounds| outages(bounds, seed()));
}
