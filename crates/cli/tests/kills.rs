//! kill -9 of real processes under load: of any one replica, of the leader, of all at once; each
//! followed by a restart. Every answer goes into a history that must be linearizable (rules A1,
//! D1, E4), so an acknowledged write that is gone, or one that happened twice, is found.
//!
//! `PERDURA_ROUNDS` sets the kills per group (default 3; `make kills` does 20).

mod common;

use common::load::{Load, Script};
use common::{Cluster, Random, rounds};
use perdura_simulator::linearizability::{
    Call, DEFAULT_BUDGET, History, Operation, Outcome, Return, Step, StepReturn, Verdict, check,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Callers with one operation in flight each.
const CALLERS: usize = 12;

/// Few keys, so that operations meet.
const KEYS: u64 = 6;

/// Answers awaited before and after each kill.
const ANSWERS: usize = 150;

struct Book {
    random: Random,
    // One clock for calls and returns.
    time: u64,
    open: BTreeMap<u64, (u64, Call)>,
    history: History,
    ok: usize,
    next: u64,
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
        self.ok += usize::from(matches!(outcome, Outcome::Ok(_)));
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
    let book = Book {
        random: Random(seed),
        time: 0,
        open: BTreeMap::new(),
        history: History::default(),
        ok: 0,
        next: 0,
    };
    let load = Load::start(&cluster, CALLERS, "20", book);
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
    let Book { history, ok, .. } = load.finish();
    let all = history.operations.len();
    match check(&history, DEFAULT_BUDGET) {
        Verdict::Linearizable => {}
        verdict => panic!("{bounds:?}: {verdict:?}"),
    }
    println!("{bounds:?}: {rounds} kills, {all} operations, {ok} ok, linearizable");
    assert!(ok > rounds * ANSWERS);
}

#[test]
fn a_crash_group_keeps_every_acknowledged_operation() {
    kills(&["--crash", "1"], 1);
}

#[test]
fn a_byzantine_group_keeps_every_acknowledged_operation() {
    kills(&["--byzantine", "1"], 2);
}

#[test]
fn a_group_of_six_keeps_every_acknowledged_operation() {
    kills(&["--faults", "2,1"], 3);
}
