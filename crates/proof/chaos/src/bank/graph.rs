//! Which transaction has to come before which, by what they wrote and saw and by the clients' clocks; an order of all is one without a
//! cycle.

use super::Transaction;
use super::versions::{Flaw, Versions};
use perdura_oracle::precedence::{Precedence, Span};
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

/// Some that each have to come before the next, and the last before the first; as few as there are.
pub(super) fn cycle<'a>(all: &[Transaction<'a>], versions: &Versions<'a>) -> Option<Flaw> {
    let mut order = Precedence::default();
    // A transaction's number is its place among all.
    for _ in all {
        order.add();
    }
    for (account, writers) in versions.writers() {
        for pair in writers.windows(2) {
            order.before(pair[0], pair[1], Why::Wrote(account));
        }
    }
    for index in versions.happened() {
        for (account, value) in &all[index].saw {
            let (wrote, wrote_over) = versions.around(account, *value);
            if let Some(writer) = wrote {
                order.before(writer, index, Why::Wrote(account));
            }
            if let Some(writer) = wrote_over {
                order.before(index, writer, Why::Saw(account));
            }
        }
    }
    let span = |node: usize| Span { node, invoked: all[node].invoked, ended: all[node].ended };
    order.real_time(versions.happened().map(span), Why::RealTime);
    let shown = order.cycle()?;
    let words = shown.iter().enumerate().map(|(place, (_, why))| format!("({}) {why} ", place + 1));
    Some((words.collect::<String>() + "(1)", shown.iter().map(|(node, _)| *node).collect()))
}
