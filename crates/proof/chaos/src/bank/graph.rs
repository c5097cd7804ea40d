//! Who has to come before whom (Adya, "Weak consistency", 1999): whoever wrote what another one saw or wrote over, whoever saw what
//! another one wrote over, and whoever had ended when the other began. An order of all is one without a cycle.

use super::Transaction;
use super::versions::{Flaw, Versions};
use std::collections::BTreeMap;
use std::fmt;

/// Why one comes before another.
#[derive(Clone, Copy, Debug)]
enum Why<'a> {
    /// It wrote what the other one saw, or wrote over.
    Wrote(&'a str),
    /// It saw what the other one wrote over.
    Saw(&'a str),
    /// It had ended when the other one began.
    RealTime,
}

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Wrote(account) => write!(f, "wrote {account} before"),
            Why::Saw(account) => write!(f, "saw {account} before it was written by"),
            Why::RealTime => f.write_str("ended before"),
        }
    }
}

/// Nodes are transactions by their number, and behind them moments.
struct Graph<'a> {
    edges: Vec<Vec<(usize, Why<'a>)>>,
}

impl<'a> Graph<'a> {
    fn edge(&mut self, from: usize, to: usize, why: Why<'a>) {
        if from != to {
            self.edges[from].push((to, why));
        }
    }

    /// A moment comes behind all that ended by then and the moment before it; what begins comes behind the last moment.
    fn real_time(&mut self, all: &[Transaction<'a>], versions: &Versions<'a>) {
        let mut moments: Vec<(u64, bool, usize)> = Vec::new();
        for index in versions.happened() {
            moments.push((all[index].invoked, false, index));
            moments.extend(all[index].ended.map(|ended| (ended, true, index)));
        }
        // What began as another one ended may have come first.
        moments.sort_unstable();
        let mut last: Option<usize> = None;
        for (_, is_end, index) in moments {
            if is_end {
                let moment = self.edges.len();
                self.edges.push(Vec::new());
                self.edge(index, moment, Why::RealTime);
                if let Some(last) = last {
                    self.edge(last, moment, Why::RealTime);
                }
                last = Some(moment);
            } else if let Some(last) = last {
                self.edge(last, index, Why::RealTime);
            }
        }
    }

    /// What is left when all are taken away that have nobody before them: cycles, and what comes behind them.
    fn left(&self) -> Vec<bool> {
        let mut before = vec![0_usize; self.edges.len()];
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
        before.iter().map(|count| *count > 0).collect()
    }

    /// A shortest cycle through this node.
    fn through(&self, start: usize, left: &[bool]) -> Option<Vec<(usize, Why<'a>)>> {
        let mut came: BTreeMap<usize, (usize, Why<'a>)> = BTreeMap::new();
        let mut row = std::collections::VecDeque::from([start]);
        while let Some(node) = row.pop_front() {
            for (to, why) in self.edges[node].iter().filter(|(to, _)| left[*to]) {
                if came.contains_key(to) {
                    continue;
                }
                came.insert(*to, (node, *why));
                row.push_back(*to);
            }
        }
        let (mut path, mut at) = (Vec::new(), start);
        loop {
            let (from, why) = *came.get(&at)?;
            path.push((from, why));
            at = from;
            if at == start {
                path.reverse();
                return Some(path);
            }
        }
    }
}

/// Some that each have to come before the next, and the last before the first; as few as there are.
pub(super) fn cycle<'a>(all: &[Transaction<'a>], versions: &Versions<'a>) -> Option<Flaw> {
    let mut graph = Graph { edges: vec![Vec::new(); all.len()] };
    for (account, writers) in versions.writers() {
        for pair in writers.windows(2) {
            graph.edge(pair[0], pair[1], Why::Wrote(account));
        }
    }
    for index in versions.happened() {
        for (account, value) in &all[index].saw {
            let (wrote, wrote_over) = versions.around(account, *value);
            if let Some(writer) = wrote {
                graph.edge(writer, index, Why::Wrote(account));
            }
            if let Some(writer) = wrote_over {
                graph.edge(index, writer, Why::Saw(account));
            }
        }
    }
    graph.real_time(all, versions);
    let left = graph.left();
    let nodes = (0..all.len()).filter(|node| left[*node]);
    let cycles = nodes.filter_map(|node| graph.through(node, &left));
    let shortest = cycles.min_by_key(Vec::len)?;
    let mut text = String::new();
    let mut shown = Vec::new();
    for (node, why) in &shortest {
        if *node < all.len() {
            shown.push(*node);
            text.push_str(&format!("({}) {why} ", shown.len()));
        }
    }
    Some((text + "(1)", shown))
}
