//! Who has to come before whom (Adya, "Weak consistency", 1999): whoever wrote what another one read or wrote over, whoever read what
//! another one wrote over, and whoever had ended when the other began. An order of all is one without a cycle.

use super::Node;
use super::replay::{Reads, Replayed};
use std::collections::BTreeMap;
use std::fmt;

/// Why one comes before another.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Why {
    /// It wrote what the other one wrote over.
    WriteWrite(usize, String),
    /// It wrote what the other one read.
    WriteRead(usize, String),
    /// It read what the other one wrote over.
    ReadWrite(usize, String),
    /// It had ended when the other one began.
    RealTime,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::WriteWrite(partition, key) => write!(f, "-ww {key} in {partition}->"),
            Why::WriteRead(partition, key) => write!(f, "-wr {key} in {partition}->"),
            Why::ReadWrite(partition, key) => write!(f, "-rw {key} in {partition}->"),
            Why::RealTime => f.write_str("-real time->"),
        }
    }
}

/// The graph. Nodes without a transaction stand for moments.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: Vec<Option<Node>>,
    numbers: BTreeMap<Node, usize>,
    edges: Vec<Vec<(usize, Why)>>,
    pub count: u64,
}

impl Graph {
    fn add(&mut self, node: Option<Node>) -> usize {
        self.nodes.push(node);
        self.edges.push(Vec::new());
        self.nodes.len() - 1
    }

    fn number(&mut self, node: Node) -> usize {
        if let Some(number) = self.numbers.get(&node) {
            return *number;
        }
        let number = self.add(Some(node));
        self.numbers.insert(node, number);
        number
    }

    fn edge(&mut self, from: usize, to: usize, why: Why) {
        if from != to {
            self.count += 1;
            self.edges[from].push((to, why));
        }
    }

    fn before(&mut self, from: Node, to: Node, why: Why) {
        let (from, to) = (self.number(from), self.number(to));
        self.edge(from, to, why);
    }

    /// What a partition's order says, of those that count.
    pub fn partition(
        &mut self,
        partition: usize,
        replayed: &Replayed,
        counts: impl Fn(Node) -> bool,
    ) {
        for (key, writes) in &replayed.writes {
            for pair in writes.windows(2) {
                self.before(pair[0].1, pair[1].1, Why::WriteWrite(partition, key.clone()));
            }
        }
        for (place, node, reads) in replayed.reads.iter().filter(|(_, node, _)| counts(*node)) {
            match reads {
                Reads::Key(key) => {
                    if let Some(writes) = replayed.writes.get(key) {
                        self.read(partition, (*place, *node), key, writes);
                    }
                }
                Reads::Range(start, end) => {
                    let from = replayed.writes.range(start.clone()..);
                    let within =
                        from.take_while(|(key, _)| end.as_ref().is_none_or(|end| *key < end));
                    for (key, writes) in within {
                        self.read(partition, (*place, *node), key, writes);
                    }
                }
            }
        }
    }

    fn read(
        &mut self,
        partition: usize,
        (place, node): (usize, Node),
        key: &str,
        writes: &[(usize, Node)],
    ) {
        let next = writes.partition_point(|(at, _)| *at < place);
        if let Some((_, writer)) = next.checked_sub(1).map(|last| writes[last]) {
            self.before(writer, node, Why::WriteRead(partition, key.to_owned()));
        }
        if let Some((_, writer)) = writes.get(next) {
            self.before(node, *writer, Why::ReadWrite(partition, key.to_owned()));
        }
    }

    /// What real time says: when each was asked for, and when it ended, if it is known.
    pub fn real_time(&mut self, spans: &[(Node, u64, Option<u64>)]) {
        let mut moments: Vec<(u64, bool, Node)> = Vec::new();
        for (node, invoked, ended) in spans {
            moments.push((*invoked, false, *node));
            moments.extend(ended.map(|ended| (ended, true, *node)));
        }
        moments.sort();
        let mut last: Option<usize> = None;
        for (_, is_end, node) in moments {
            let number = self.number(node);
            if is_end {
                let moment = self.add(None);
                self.edge(number, moment, Why::RealTime);
                if let Some(last) = last {
                    self.edge(last, moment, Why::RealTime);
                }
                last = Some(moment);
            } else if let Some(last) = last {
                self.edge(last, number, Why::RealTime);
            }
        }
    }

    /// Some of them that each have to come before the next, and the last one before the first.
    pub fn cycle(&self) -> Option<Vec<String>> {
        let mut before = vec![0usize; self.nodes.len()];
        for (to, _) in self.edges.iter().flatten() {
            before[*to] += 1;
        }
        let mut free: Vec<usize> = (0..before.len()).filter(|node| before[*node] == 0).collect();
        while let Some(node) = free.pop() {
            for (to, _) in &self.edges[node] {
                before[*to] -= 1;
                if before[*to] == 0 {
                    free.push(*to);
                }
            }
        }
        // Each that is left has one that is left before it.
        let mut at = before.iter().position(|count| *count > 0)?;
        let mut came: BTreeMap<usize, (usize, &Why)> = BTreeMap::new();
        for (from, edges) in self.edges.iter().enumerate().filter(|(from, _)| before[*from] > 0) {
            for (to, why) in edges.iter().filter(|(to, _)| before[*to] > 0) {
                came.entry(*to).or_insert((from, why));
            }
        }
        let mut seen = vec![false; self.nodes.len()];
        while !seen[at] {
            seen[at] = true;
            at = came.get(&at)?.0;
        }
        let (first, mut words) = (at, Vec::new());
        loop {
            let (from, why) = came.get(&at)?;
            if let Some(node) = &self.nodes[at] {
                words.push(format!("{why} {node}"));
            }
            at = *from;
            if at == first {
                words.reverse();
                return Some(words);
            }
        }
    }
}
