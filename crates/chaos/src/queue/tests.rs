use super::*;
use crate::operation::{Call as Any, Outcome, Return as AnyReturn};
use perdura_simulator::Random;
use std::collections::VecDeque;

fn operation(from: u64, to: Option<u64>, call: Call, answer: Option<Return>) -> Operation {
    let outcome = answer.map_or(Outcome::Unknown, |answer| Outcome::Ok(AnyReturn::Queue(answer)));
    Operation { process: 0, invoked: from, ended: to, call: Any::Queue(call), outcome }
}

fn text(value: &str) -> String {
    value.to_owned()
}

fn out(from: u64, to: u64, value: &str) -> Operation {
    let call = Call::Out { values: vec![text(value)] };
    operation(from, Some(to), call, Some(Return::Inserted { first: None }))
}

fn out_unknown(from: u64, value: &str) -> Operation {
    operation(from, None, Call::Out { values: vec![text(value)] }, None)
}

fn found(value: &str) -> Option<Return> {
    let item = (!value.is_empty()).then(|| Item { value: text(value), number: None });
    Some(Return::Found { item })
}

/// Nothing, if `value` is empty.
fn inp(from: u64, to: u64, value: &str) -> Operation {
    operation(from, Some(to), Call::Inp, found(value))
}

fn inp_unknown(from: u64) -> Operation {
    operation(from, None, Call::Inp, None)
}

fn rdp(from: u64, to: u64, value: &str) -> Operation {
    operation(from, Some(to), Call::Rdp { fast: true }, found(value))
}

fn in_all(from: u64, to: u64, values: &[&str], more: bool) -> Operation {
    let items = values.iter().map(|value| Item { value: text(value), number: None }).collect();
    let limit = if more { values.len() as u32 } else { 9 };
    operation(from, Some(to), Call::InAll { limit }, Some(Return::FoundAll { items, more }))
}

fn good(operations: &[Operation]) {
    if let Err(why) = check(operations) {
        panic!("{why}");
    }
    assert!(BruteForce::finds_an_order(operations));
}

fn bad(operations: &[Operation], what: &str) {
    let why = check(operations).unwrap_err();
    assert!(why.contains(what), "{why}");
    assert!(!BruteForce::finds_an_order(operations));
}

#[test]
fn a_value_that_was_never_put_is_found() {
    bad(&[inp(1, 2, "a")], "never put");
    bad(&[inp(1, 2, "a"), out(3, 4, "a")], "where it was not");
    let mut refused = out(1, 2, "a");
    refused.outcome = Outcome::Refused;
    assert!(check(&[refused, inp(3, 4, "a")]).unwrap_err().contains("refused"));
}

#[test]
fn a_value_that_is_taken_twice_is_found() {
    bad(&[out(1, 2, "a"), inp(3, 9, "a"), inp(3, 9, "a")], "taken twice");
    bad(&[out(1, 2, "a"), inp(3, 4, "a"), in_all(5, 6, &["a"], false)], "taken twice");
    bad(&[out(1, 2, "a"), inp(3, 4, "a"), rdp(5, 6, "a")], "seen");
}

#[test]
fn a_violated_order_is_found() {
    let puts = [out(1, 2, "a"), out(3, 4, "b")];
    let with = |more: &[Operation]| [&puts, more].concat();
    bad(&with(&[inp(5, 6, "b"), inp(7, 8, "a")]), "order");
    // The first one is never taken.
    bad(&with(&[inp(5, 6, "b")]), "nobody can have taken it");
    good(&with(&[inp(5, 7, "b"), inp(6, 8, "a")]));
    good(&with(&[inp(5, 6, "b"), inp_unknown(6)]));
    bad(&with(&[inp(5, 6, "b"), inp_unknown(7)]), "nobody can have taken it");
    // A put without an outcome may come late.
    let (unknown, second) = (out_unknown(1, "a"), out(3, 4, "b"));
    good(&[unknown.clone(), second.clone(), inp(5, 6, "b"), inp(7, 8, "a")]);
    bad(&[unknown, second, inp(2, 3, "a"), inp(5, 6, "b"), inp(7, 8, "a")], "taken twice");
}

#[test]
fn an_empty_answer_while_something_was_there_is_found() {
    bad(&[out(1, 2, "a"), inp(3, 4, ""), inp(5, 6, "a")], "");
    good(&[out(1, 4, "a"), inp(3, 5, ""), inp(5, 6, "a")]);
    // One value or the other was there, all the time.
    let relay = |second| [out(1, 2, "a"), inp(3, 20, ""), out(second, 9, "b"), inp(10, 11, "a")];
    bad(&relay(8), "found nothing");
    good(&[out(1, 2, "a"), inp(3, 20, ""), inp(10, 11, "a"), out(12, 13, "b")]);
    // It is gone, and one who does not know may have taken it; two cannot have been.
    good(&[out(1, 2, "a"), inp_unknown(3), inp(4, 5, "")]);
    bad(&[out(1, 2, "a"), inp(4, 5, ""), inp_unknown(6)], "nobody can have taken it");
    bad(
        &[out(1, 2, "a"), out(1, 2, "b"), inp_unknown(3), inp(4, 5, "")],
        "nobody can have taken it",
    );
    // The taker can have come while the question was under way.
    good(&[out(1, 2, "a"), inp(4, 9, ""), inp_unknown(6)]);
}

#[test]
fn who_reads_the_head_says_something_of_the_order() {
    let puts = [out(1, 9, "a"), out(1, 9, "b")];
    let with = |more: &[Operation]| [&puts, more].concat();
    good(&with(&[rdp(10, 11, "a"), rdp(12, 13, "a"), inp_unknown(14), rdp(20, 21, "b")]));
    bad(&with(&[rdp(10, 11, "a"), rdp(12, 13, "b"), rdp(14, 15, "a")]), "");
    bad(&with(&[rdp(10, 11, "a"), rdp(12, 13, "b")]), "nobody can have taken it");
    bad(&with(&[rdp(10, 11, "a"), inp(12, 13, "b"), inp(12, 13, "a"), rdp(14, 15, "b")]), "");
    // Through a third: a before b by the head, b before c by the head, c before a by the puts.
    bad(
        &[
            out(1, 2, "c"),
            out(3, 30, "a"),
            out(1, 30, "b"),
            rdp(40, 90, "a"),
            rdp(31, 32, "b"),
            rdp(94, 95, "b"),
            rdp(45, 99, "c"),
            inp_unknown(1),
            inp_unknown(1),
            inp_unknown(1),
        ],
        "",
    );
}

#[test]
fn numbers_of_tuples_give_the_order_of_the_queue() {
    let put = |from, value: &str, number| {
        let call = Call::Out { values: vec![text(value)] };
        operation(from, Some(9), call, Some(Return::Inserted { first: Some(number) }))
    };
    let take = |from, value: &str, number| {
        let item = Some(Item { value: text(value), number: Some(number) });
        operation(from, Some(from + 1), Call::Inp, Some(Return::Found { item }))
    };
    let puts = [put(1, "a", 1), put(2, "b", 2)];
    let verdict = |more: &[Operation]| check(&[&puts, more].concat());
    verdict(&[take(10, "a", 1), take(20, "b", 2)]).unwrap();
    assert!(verdict(&[take(10, "b", 2), take(20, "a", 1)]).unwrap_err().contains("order"));
    assert!(verdict(&[take(10, "a", 3)]).unwrap_err().contains("two numbers"));
    assert!(check(&[put(1, "a", 1), put(1, "b", 1)]).unwrap_err().contains("one number"));
}

#[test]
fn several_at_once_are_put_and_taken_in_their_order() {
    let values = vec![text("a"), text("b")];
    let put = |answer: Option<Return>| {
        let to = answer.is_some().then_some(2);
        operation(1, to, Call::Out { values: values.clone() }, answer)
    };
    let sure = put(Some(Return::Inserted { first: Some(4) }));
    good(&[sure.clone(), in_all(3, 4, &["a", "b"], false)]);
    bad(&[sure.clone(), in_all(3, 4, &["b", "a"], false)], "");
    bad(&[sure.clone(), in_all(3, 4, &["a"], false)], "");
    good(&[sure.clone(), in_all(3, 4, &["a"], true), inp(5, 6, "b"), inp(7, 8, "")]);
    // All or none.
    bad(&[put(None), inp(3, 4, "b"), inp(5, 6, "")], "nobody can have taken it");
    bad(&[put(None), inp(3, 4, "a"), inp(5, 6, "")], "");
    good(&[put(None), inp(3, 4, "")]);
}

/// Tries every order.
struct BruteForce<'a> {
    operations: &'a [Operation],
    done: Vec<bool>,
    queue: VecDeque<String>,
}

impl BruteForce<'_> {
    fn finds_an_order(operations: &[Operation]) -> bool {
        let done = vec![false; operations.len()];
        BruteForce { operations, done, queue: VecDeque::new() }.goes_on()
    }

    fn goes_on(&mut self) -> bool {
        let operations = self.operations;
        let missing = |at: &usize| !self.done[*at] && operations[*at].ended.is_some();
        let missing: Vec<usize> = (0..operations.len()).filter(missing).collect();
        if missing.is_empty() {
            return true;
        }
        let until = missing.iter().filter_map(|at| operations[*at].ended).min();
        for (at, operation) in operations.iter().enumerate() {
            let late = until.is_some_and(|until| operation.invoked > until);
            if self.done[at] || late {
                continue;
            }
            let before = self.queue.clone();
            self.done[at] = true;
            if self.happens(operation) && self.goes_on() {
                return true;
            }
            self.done[at] = false;
            self.queue = before;
        }
        false
    }

    /// Whether its answer is the queue's.
    fn happens(&mut self, operation: &Operation) -> bool {
        let Any::Queue(call) = &operation.call else { panic!("of a queue") };
        let given = match call {
            Call::Out { values } => {
                self.queue.extend(values.iter().cloned());
                return true;
            }
            Call::Inp | Call::In { .. } => {
                let value = self.queue.pop_front().unwrap_or_default();
                found(&value)
            }
            Call::Rdp { .. } | Call::Rd { .. } => {
                found(self.queue.front().map_or("", String::as_str))
            }
            Call::InAll { limit } => {
                let most = self.queue.len().min(*limit as usize);
                let taken: Vec<String> = self.queue.drain(..most).collect();
                let taken: Vec<&str> = taken.iter().map(String::as_str).collect();
                let more = !self.queue.is_empty();
                let Outcome::Ok(answer) = in_all(0, 0, &taken, more).outcome else {
                    panic!("it has an answer")
                };
                return operation.outcome == Outcome::Ok(answer) || operation.ended.is_none();
            }
        };
        let given = given.map(|given| Outcome::Ok(AnyReturn::Queue(given)));
        Some(&operation.outcome) == given.as_ref() || operation.ended.is_none()
    }
}

/// Operations with the answers of a queue that carries them out at moments of their own; then some
/// answers are exchanged, or given earlier than they were.
fn random_history(random: &mut Random, with_readers: bool) -> Vec<Operation> {
    let count = random.between(4, 9) as usize;
    let longest = random.between(2, 12);
    let span = |random: &mut Random| {
        let from = random.below(30);
        let to = from + 1 + random.below(longest);
        (random.between(from, to), from, to)
    };
    let mut spans: Vec<(u64, u64, u64)> = (0..count).map(|_| span(random)).collect();
    spans.sort_unstable();
    let mut operations = Vec::new();
    let mut queue = VecDeque::new();
    for (number, (_, from, to)) in spans.into_iter().enumerate() {
        let unknown = random.percent(12);
        let happens = !unknown || random.percent(50);
        let mut one = match random.below(if with_readers { 11 } else { 8 }) {
            0..=3 => {
                let name = ["a", "b", "c", "d", "e", "f", "g", "h", "i"][number];
                if happens {
                    queue.push_back(name);
                }
                out(from, to, name)
            }
            4..=7 => inp(from, to, if happens { queue.pop_front() } else { None }.unwrap_or("")),
            _ => rdp(from, to, queue.front().unwrap_or(&"")),
        };
        if unknown {
            (one.ended, one.outcome) = (None, Outcome::Unknown);
        }
        operations.push(one);
    }
    for _ in 0..random.below(4) {
        let (one, other) = (random.below(count as u64), random.below(count as u64));
        damage(&mut operations, one as usize, other as usize, random);
    }
    operations
}

fn damage(operations: &mut [Operation], one: usize, other: usize, random: &mut Random) {
    let answers =
        |one: &Operation| one.ended.is_some() && !matches!(one.call, Any::Queue(Call::Out { .. }));
    if answers(&operations[one]) && answers(&operations[other]) && random.percent(60) {
        let outcome = operations[one].outcome.clone();
        operations[one].outcome = std::mem::replace(&mut operations[other].outcome, outcome);
    } else if let Some(ended) = operations[one].ended {
        let earlier = ended.saturating_sub(random.below(10));
        operations[one].ended = Some(earlier.max(operations[one].invoked));
    }
}

#[test]
fn it_says_of_small_histories_what_trying_every_order_says() {
    let mut random = Random::new(0x9ecd);
    let (mut orders, mut none) = (0, 0);
    for round in 0..30_000 {
        let operations = random_history(&mut random, round % 2 == 0);
        let verdict = check(&operations);
        let order = BruteForce::finds_an_order(&operations);
        let shown: Vec<String> = operations.iter().map(ToString::to_string).collect();
        assert_eq!(verdict.is_ok(), order, "{verdict:?}:\n{}", shown.join("\n"));
        if order { orders += 1 } else { none += 1 }
    }
    assert!(orders > 10_000 && none > 1_500, "{orders} with an order, {none} without");
}
