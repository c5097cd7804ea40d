use super::*;
use crate::operation::{Call as Any, Outcome, Return as AnyReturn};

mod every_order;

use every_order::finds_an_order;

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

fn wait(from: u64, to: u64, wait_ms: u64, value: &str) -> Operation {
    operation(from, Some(to), Call::In { wait_ms }, found(value))
}

/// With clocks that are never off, and as of a queue to which nothing comes back.
fn check(operations: &[Operation]) -> Result<(), String> {
    let flaw = super::find_flaw(operations, &Clocks::exact());
    flaw.map_err(|flaw| super::in_words(operations, flaw))
}

fn good(operations: &[Operation]) {
    if let Err(why) = check(operations) {
        panic!("{why}");
    }
    assert!(finds_an_order(operations));
}

fn bad(operations: &[Operation], what: &str) {
    let why = check(operations).unwrap_err();
    assert!(why.contains(what), "{why}");
    assert!(!finds_an_order(operations));
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
    bad(&with(&[rdp(10, 20, "a"), rdp(10, 20, "b")]), "order");
    let third = [out(1, 9, "c"), rdp(10, 20, "c"), inp_unknown(19)];
    bad(&with(&[&third[..], &[rdp(10, 20, "a"), rdp(10, 20, "b")]].concat()), "all but one");
    good(&with(&[rdp(10, 20, "a"), rdp(10, 20, "b"), inp_unknown(19)]));
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

#[test]
fn what_is_taken_at_once_has_nothing_between() {
    let puts = [out(1, 2, "a"), out(3, 4, "b"), out(5, 6, "c")];
    let with = |more: &[Operation]| [&puts, more].concat();
    bad(&with(&[in_all(10, 20, &["a", "c"], false), inp(10, 20, "b")]), "order");
    good(&with(&[in_all(10, 20, &["b", "c"], false), inp(10, 20, "a")]));
    good(&with(&[in_all(10, 20, &["a", "b"], true), inp(10, 20, "c")]));
    // Nor two that are taken at once.
    bad(&with(&[in_all(10, 20, &["a", "c"], true), in_all(10, 20, &["b"], false)]), "order");
    // One was still the head when another was gone.
    let two = [out(1, 2, "a"), out(3, 4, "b"), in_all(5, 30, &["a", "b"], false)];
    good(&[&two[..], &[rdp(10, 11, "a"), rdp(20, 21, "a")]].concat());
    bad(&[&two[..], &[rdp(10, 11, "a"), rdp(20, 21, "b")]].concat(), "");
}

#[test]
fn what_is_put_at_once_has_nothing_between() {
    let both = Call::Out { values: vec![text("a"), text("c")] };
    let both = operation(1, Some(9), both, Some(Return::Inserted { first: None }));
    let with = |more: &[Operation]| [&[both.clone(), out(1, 9, "b")], more].concat();
    bad(&with(&[inp(10, 11, "a"), inp(12, 13, "b"), inp(14, 15, "c")]), "order");
    bad(&with(&[in_all(10, 11, &["a", "b", "c"], false)]), "order");
    good(&with(&[in_all(10, 11, &["b", "a", "c"], false)]));
    good(&with(&[in_all(10, 11, &["a", "c"], true), inp(12, 13, "b")]));
}

#[test]
fn whether_more_is_left_is_held_against_what_was_there_at_that_moment() {
    let first = [out(1, 2, "a"), in_all(10, 20, &["a"], true)];
    let with = |more: &[Operation]| [&first, more].concat();
    bad(&with(&[]), "more was there");
    bad(&with(&[out(21, 22, "b")]), "more was there");
    good(&with(&[out(15, 22, "b")]));
    good(&with(&[out_unknown(15, "b")]));
    bad(&with(&[out_unknown(21, "b")]), "more was there");
    // The one that is left can have been taken before, or not.
    bad(&with(&[out(3, 4, "b"), inp(5, 12, "b"), rdp(14, 15, "a")]), "");
    good(&with(&[out(3, 4, "b"), inp(5, 16, "b"), rdp(14, 15, "a")]));
    // Nothing is left at the moment of the taking, and not at another one of the call.
    let last = [out(1, 2, "a"), in_all(10, 20, &["a"], false), rdp(15, 16, "a")];
    let with = |more: &[Operation]| [&last, more].concat();
    bad(&with(&[out(11, 12, "b"), inp(30, 31, "b")]), "");
    good(&with(&[out(11, 17, "b"), inp(30, 31, "b")]));
    bad(&[in_all(1, 2, &[], true)], "does not fit");
}

#[test]
fn a_wait_that_ends_with_nothing_ends_when_its_time_is_over_and_nothing_is_there() {
    const MS: u64 = 1_000;
    good(&[wait(0, 3_000 * MS, 3_000, "")]);
    bad(&[wait(0, MS, 3_000, "")], "before its time");
    // It was not woken.
    let stays = [wait(0, 3_000 * MS, 3_000, ""), out(500 * MS, 501 * MS, "a")];
    bad(&stays, "nobody can have taken it");
    good(&[&stays[..], &[inp(600 * MS, 3_000 * MS, "a")]].concat());
    // It need not wait where something is there.
    good(&[out(1, 2, "a"), wait(3, 4, 3_000, "a")]);
    let rd = |to| operation(0, Some(to), Call::Rd { wait_ms: 10 }, found(""));
    good(&[rd(10 * MS)]);
    bad(&[rd(9 * MS)], "before its time");
    // Agreed time is within the skew.
    let early = [wait(0, 2_500 * MS, 3_000, "")];
    bad(&early, "before its time");
    let clocks = Clocks::new(perdura_protocol::Faults::new(1, 1).unwrap(), 500, &[]);
    super::check(&early, &clocks).unwrap();
    assert!(super::check(&[wait(0, 2_499 * MS, 3_000, "")], &clocks).is_err());
    assert!(super::check(&stays, &clocks).is_err());
}

/// It was offered to one who waited and did not say that it has it.
#[test]
fn what_comes_back_has_no_order_and_is_had_once() {
    let exact = Clocks::exact();
    for ended in [None, Some(9)] {
        let mut waits = operation(1, ended, Call::In { wait_ms: 9 }, None);
        if ended.is_some() {
            waits.outcome = Outcome::Refused;
        }
        let puts = [out(2, 3, "a"), out(4, 5, "b"), waits];
        let history = |more: &[Operation]| [&puts, more].concat();
        let overtaken = history(&[inp(6, 7, "b"), inp(8, 9, "a")]);
        super::check(&overtaken, &exact).unwrap();
        assert!(is_judged_in_part(&overtaken) && !is_judged_in_part(&overtaken[..2]));
        let twice = history(&[inp(6, 7, "b"), inp(8, 9, "b")]);
        assert!(super::check(&twice, &exact).is_err());
        assert!(super::check(&history(&[inp(6, 7, "c")]), &exact).is_err());
    }
}
