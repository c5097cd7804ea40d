//! A `kv batch` that a test talks to.

use super::{Cluster, wait_for_end};
use serde_json::Value;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// A `kv batch` that is fed while it runs.
pub struct Batch {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Batch {
    pub fn start(cluster: &Cluster, arguments: &[&str]) -> Batch {
        let mut command = cluster.command(&["kv", "batch"]);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Batch { child, input, output }
    }

    pub fn send(&mut self, line: impl Display) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    pub fn receive(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "batch ended");
        serde_json::from_str(&line).unwrap()
    }

    pub fn ask(&mut self, line: &Value) -> Value {
        self.send(line);
        self.receive()
    }

    /// No more lines; the rest of the answers.
    pub fn finish(mut self) -> Vec<Value> {
        drop(self.input.take());
        let lines = self.output.lines();
        let rest = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        assert_eq!(wait_for_end(&mut self.child).code(), Some(0));
        rest
    }
}
