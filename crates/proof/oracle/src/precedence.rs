//! Who has to come before whom (Adya, "Weak consistency", 1999): whoever wrote what another one read or wrote over, whoever read what
//! another one wrote over, and whoever had ended when the other began. An order of all is one without a cycle.

use std::collections::{BTreeMap, VecDeque};

/// From when to when a transaction went on, in a unit of the caller's choice.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The transaction's number.
    pub node: usize,
    /// When it was asked for.
    pub invoked: u64,
    /// When it had ended, if that is known.
    pub ended: Option<u64>,
}

/// Transactions by number, and for each who has to come behind it, and why.
#[derive(Debug)]
pub struct Precedence<Why> {
    /// Moments of real time are nodes too.
    is_moment: Vec<bool>,
    edges: Vec<Vec<(usize, Why)>>,
    count: u64,
}

impl<Why> Default for Precedence<Why> {
    fn default() -> Precedence<Why> {
        Precedence { is_moment: Vec::new(), edges: Vec::new(), count: 0 }
    }
}

impl<Why: Copy> Precedence<Why> {
    /// One more transaction; returns its number. The first one's is 0, and until [`Precedence::real_time`] they ascend by one.
    pub fn add(&mut self) -> usize {
        self.node(false)
    }

    fn node(&mut self, is_moment: bool) -> usize {
        self.is_moment.push(is_moment);
        self.edges.push(Vec::new());
        self.edges.len() - 1
    }

    /// One has to come before another. That it comes before itself says nothing.
    pub fn before(&mut self, from: usize, to: usize, why: Why) {
        if from != to {
            self.count += 1;
            self.edges[from].push((to, why));
        }
    }

    /// How often one was said to come before another, or before a moment.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// A moment comes behind all that ended by then and the moment before it; what begins comes behind the last moment.
    pub fn real_time(&mut self, spans: impl IntoIterator<Item = Span>, why: Why) {
        let mut times: Vec<(u64, bool, usize)> = Vec::new();
        for span in spans {
            times.push((span.invoked, false, span.node));
            times.extend(span.ended.map(|ended| (ended, true, span.node)));
        }
        // What began as another one ended may have come first.
        times.sort_unstable();
        let mut last: Option<usize> = None;
        for (_, is_end, node) in times {
            if is_end {
                let moment = self.node(true);
                self.before(node, moment, why);
                if let Some(last) = last {
                    self.before(last, moment, why);
                }
                last = Some(moment);
            } else if let Some(last) = last {
                self.before(last, node, why);
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
    fn through(&self, start: usize, left: &[bool]) -> Option<Vec<(usize, Why)>> {
        let mut came: BTreeMap<usize, (usize, Why)> = BTreeMap::new();
        let mut row = VecDeque::from([start]);
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

    /// Transactions that each have to come before the next, for the reason beside them, and the last before the first; as few as
    /// there are. Reads every edge for each transaction in or behind a cycle.
    #[must_use]
    pub fn cycle(&self) -> Option<Vec<(usize, Why)>> {
        let left = self.left();
        let nodes = (0..left.len()).filter(|node| left[*node] && !self.is_moment[*node]);
        let mut shortest =
            nodes.filter_map(|node| self.through(node, &left)).min_by_key(Vec::len)?;
        shortest.retain(|(node, _)| !self.is_moment[*node]);
        Some(shortest)
    }
}
