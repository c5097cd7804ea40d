//! `perdura kv batch` as a load that goes on by itself: each answer brings the next line.

use super::{Cluster, wait_for};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// What is sent, and what becomes of it.
pub trait Script: Send + 'static {
    /// The next line; none as long as nobody has anything to send.
    fn next(&mut self) -> Option<Value>;
    /// The answer to one of the lines.
    fn answered(&mut self, answer: &Value);
}

struct Shared<S> {
    script: S,
    // None once nothing more is sent.
    input: Option<ChildStdin>,
    stopping: bool,
    sent: usize,
    answered: usize,
}

impl<S: Script> Shared<S> {
    fn send(&mut self) {
        let Some(input) = self.input.as_mut().filter(|_| !self.stopping) else { return };
        let Some(line) = self.script.next() else { return };
        self.sent += 1;
        if writeln!(input, "{line}").and_then(|()| input.flush()).is_err() {
            self.input = None; // Killed; otherwise the lack of an answer is noticed.
        }
    }
}

pub struct Load<S> {
    child: Child,
    shared: Arc<Mutex<Shared<S>>>,
    reader: JoinHandle<()>,
}

impl<S: Script> Load<S> {
    /// So many lines in flight, each of which is answered within `timeout`.
    pub fn start(cluster: &Cluster, in_flight: usize, timeout: &str, script: S) -> Load<S> {
        let number = in_flight.to_string();
        let mut command =
            cluster.command(&["kv", "batch", "--in-flight", &number, "--timeout", timeout]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take();
        let mut shared = Shared { script, input, stopping: false, sent: 0, answered: 0 };
        for _ in 0..in_flight {
            shared.send();
        }
        let shared = Arc::new(Mutex::new(shared));
        let reader = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || read(answers, &shared))
        };
        Load { child, shared, reader }
    }

    fn shared(&self) -> MutexGuard<'_, Shared<S>> {
        self.shared.lock().unwrap()
    }

    /// What the script knows, while more is answered.
    pub fn script<T>(&self, ask: impl FnOnce(&mut S) -> T) -> T {
        ask(&mut self.shared().script)
    }

    #[track_caller]
    pub fn await_answers(&self, count: usize) {
        let until = self.shared().answered + count;
        wait_for("answers", || (self.shared().answered >= until).then_some(()));
    }

    /// Lets every line be answered.
    #[track_caller]
    pub fn finish(mut self) -> S {
        self.shared().stopping = true;
        wait_for("all answers", || {
            let shared = self.shared();
            (shared.answered == shared.sent).then_some(())
        });
        self.shared().input = None;
        assert!(self.child.wait().unwrap().success());
        self.into_script()
    }

    /// kill -9: what was not answered never will be.
    pub fn kill(mut self) -> S {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.into_script()
    }

    fn into_script(self) -> S {
        self.reader.join().unwrap();
        Arc::into_inner(self.shared).unwrap().into_inner().unwrap().script
    }
}

fn read<S: Script>(mut answers: BufReader<ChildStdout>, shared: &Mutex<Shared<S>>) {
    let mut line = String::new();
    // A line without its end is no answer: its writer was killed.
    while answers.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
        let answer = serde_json::from_str(&line).unwrap();
        line.clear();
        let mut shared = shared.lock().unwrap();
        shared.script.answered(&answer);
        shared.answered += 1;
        shared.send();
    }
}
