//! Which transaction has to come before which, by what the partitions' orders and the clients' clocks say; an order of all is one
//! without a cycle.

use super::Node;
use super::replay::{Reads, Replayed};
use perdura_oracle::precedence::{Precedence, Span};
use std::collections::BTreeMap;
use std::fmt;

/// Why one comes before another; a partition and a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why<'a> {
    /// It wrote what the other one wrote over.
    WriteWrite(usize, &'a str),
    /// It wrote what the other one read.
    WriteRead(usize, &'a str),
    /// It read what the other one wrote over.
    ReadWrite(usize, &'a str),
    /// It had ended when the other one began.
    RealTime,
}

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::WriteWrite(partition, key) => write!(f, "-ww {key} in {partition}->"),
            Why::WriteRead(partition, key) => write!(f, "-wr {key} in {partition}->"),
            Why::ReadWrite(partition, key) => write!(f, "-rw {key} in {partition}->"),
            Why::RealTime => f.write_str("-real time->"),
        }
    }
}

/// The graph.
#[derive(Debug, Default)]
pub(super) struct Graph<'a> {
    numbers: BTreeMap<Node, usize>,
    nodes: BTreeMap<usize, Node>,
    order: Precedence<Why<'a>>,
}

impl<'a> Graph<'a> {
    fn number(&mut self, node: Node) -> usize {
        if let Some(number) = self.numbers.get(&node) {
            return *number;
        }
        let number = self.order.add();
        self.numbers.insert(node, number);
        self.nodes.insert(number, node);
        number
    }

    fn before(&mut self, from: Node, to: Node, why: Why<'a>) {
        let (from, to) = (self.number(from), self.number(to));
        self.order.before(from, to, why);
    }

    /// How often one comes before another.
    pub fn count(&self) -> u64 {
        self.order.count()
    }

    /// What a partition's order says, of those that count.
    pub fn partition(
        &mut self,
        partition: usize,
        replayed: &'a Replayed,
        counts: impl Fn(Node) -> bool,
    ) {
        for (key, writes) in &replayed.writes {
            for pair in writes.windows(2) {
                self.before(pair[0].1, pair[1].1, Why::WriteWrite(partition, key));
            }
        }
        for (place, node, reads) in replayed.reads.iter().filter(|(_, node, _)| counts(*node)) {
            match reads {
                Reads::Key(key) => {
                    if let Some((key, writes)) = replayed.writes.get_key_value(key) {
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
        key: &'a str,
        writes: &[(usize, Node)],
    ) {
        let next = writes.partition_point(|(at, _)| *at < place);
        if let Some((_, writer)) = next.checked_sub(1).map(|last| writes[last]) {
            self.before(writer, node, Why::WriteRead(partition, key));
        }
        if let Some((_, writer)) = writes.get(next) {
            self.before(node, *writer, Why::ReadWrite(partition, key));
        }
    }

    /// What real time says: when each was asked for, and when it ended, if it is known.
    pub fn real_time(&mut self, spans: &[(Node, u64, Option<u64>)]) {
        let spans: Vec<Span> = spans
            .iter()
            .map(|(node, invoked, ended)| Span {
                node: self.number(*node),
                invoked: *invoked,
                ended: *ended,
            })
            .collect();
        self.order.real_time(spans, Why::RealTime);
    }

    /// Some of them that each have to come before the next, and the last one before the first.
    pub fn cycle(&self) -> Option<Vec<String>> {
        let cycle = self.order.cycle()?;
        Some(cycle.into_iter().map(|(node, why)| format!("{} {why}", self.nodes[&node])).collect())
    }
}
