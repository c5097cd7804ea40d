//! kill -9 of real processes under load: of any one replica, of the leader, of all at once; each
//! followed by a restart. Every answer goes into a history that must be linearizable (rules A1,
//! D1, E4), so an acknowledged write that is gone, or one that happened twice, is found.
//!
//! `PERDURA_ROUNDS` sets the kills per group (default 3; `make kills` does 20).

mod common;

use common::{Cluster, program, wait_for};
use perdura_simulator::linearizability::{
    Call, DEFAULT_BUDGET, History, Operation, Outcome, Return, Step, StepReturn, Verdict, check,
};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Callers with one operation in flight each.
const CALLERS: usize = 12;

/// Few keys, so that operations meet.
const KEYS: u64 = 6;

/// Answers awaited before and after each kill.
const ANSWERS: usize = 150;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[derive(Default)]
struct Book {
    // One clock for calls and returns.
    time: u64,
    open: std::collections::BTreeMap<u64, (u64, Call)>,
    history: History,
    answered: usize,
    ok: usize,
    next: u64,
    stopping: bool,
}

/// `perdura kv batch` as a load.
struct Load {
    child: Child,
    input: Arc<Mutex<Option<ChildStdin>>>,
    book: Arc<Mutex<Book>>,
    reader: JoinHandle<()>,
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

impl Load {
    fn start(cluster: &Cluster, seed: u64) -> Load {
        let mut child = program()
            .args([
                "kv",
                "batch",
                "--in-flight",
                &CALLERS.to_string(),
                "--timeout",
                "20",
                "--cluster",
            ])
            .arg(cluster.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = Arc::new(Mutex::new(child.stdin.take()));
        let answers = BufReader::new(child.stdout.take().unwrap());
        let book = Arc::new(Mutex::new(Book::default()));
        let random = Mutex::new(Random(seed));
        for _ in 0..CALLERS {
            send(&input, &book, &random);
        }
        let reader = {
            let (input, book) = (Arc::clone(&input), Arc::clone(&book));
            std::thread::spawn(move || {
                for line in answers.lines() {
                    note(&book, &line.unwrap());
                    send(&input, &book, &random);
                }
            })
        };
        Load { child, input, book, reader }
    }

    fn answered(&self) -> usize {
        self.book.lock().unwrap().answered
    }

    fn await_answers(&self, count: usize) {
        let until = self.answered() + count;
        wait_for("answers", || (self.answered() >= until).then_some(()));
    }

    /// Lets every operation end, and gives the history.
    fn finish(mut self) -> (History, usize) {
        self.book.lock().unwrap().stopping = true;
        wait_for("all answers", || self.book.lock().unwrap().open.is_empty().then_some(()));
        *self.input.lock().unwrap() = None;
        self.reader.join().unwrap();
        assert!(self.child.wait().unwrap().success());
        let mut book = self.book.lock().unwrap();
        (std::mem::take(&mut book.history), book.ok)
    }
}

fn send(input: &Mutex<Option<ChildStdin>>, book: &Mutex<Book>, random: &Mutex<Random>) {
    let mut input = input.lock().unwrap();
    let Some(pipe) = input.as_mut() else { return };
    let line = {
        let mut book = book.lock().unwrap();
        if book.stopping {
            return;
        }
        let number = book.next;
        book.next += 1;
        let (line, call) = draw(&mut random.lock().unwrap(), number);
        book.time += 1;
        let invoked = book.time;
        book.open.insert(number, (invoked, call));
        line
    };
    writeln!(pipe, "{line}").unwrap();
    pipe.flush().unwrap();
}

fn note(book: &Mutex<Book>, line: &str) {
    let answer: Value = serde_json::from_str(line).unwrap();
    let mut book = book.lock().unwrap();
    let number = answer["id"].as_u64().unwrap();
    let (invoked, call) = book.open.remove(&number).expect("one answer for each line");
    book.time += 1;
    let ended = book.time;
    let outcome = outcome(&call, &answer);
    book.answered += 1;
    book.ok += usize::from(matches!(outcome, Outcome::Ok(_)));
    let ended = (outcome != Outcome::Unknown).then_some(ended);
    let process = number % CALLERS as u64;
    book.history.operations.push(Operation { process, invoked, ended, call, outcome });
}

fn rounds() -> usize {
    std::env::var("PERDURA_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

fn kills(bounds: &[&str], seed: u64) {
    // Checkpoints often, so that kills meet them, truncation and restarts from them.
    let flags = [bounds, &["--checkpoint-interval", "64"]].concat();
    let mut cluster = Cluster::start_all(&flags);
    cluster.wait_until_active();
    let mut random = Random(seed);
    let load = Load::start(&cluster, seed);
    for round in 0..rounds() {
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
                for id in 0..cluster.len() {
                    cluster.kill(id);
                }
                for id in 0..cluster.len() {
                    cluster.start(id);
                }
                load.await_answers(ANSWERS);
            }
        }
        cluster.wait_until_active();
    }
    let (history, ok) = load.finish();
    let all = history.operations.len();
    match check(&history, DEFAULT_BUDGET) {
        Verdict::Linearizable => {}
        verdict => panic!("{bounds:?}: {verdict:?}"),
    }
    println!("{bounds:?}: {} kills, {all} operations, {ok} ok, linearizable", rounds());
    assert!(ok > rounds() * ANSWERS);
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
