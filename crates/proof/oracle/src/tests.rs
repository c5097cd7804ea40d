//! The judge is judged: good histories pass, and bad ones of each kind do not.

use super::*;

fn operation(process: u64, invoked: u64, ended: u64, call: Call, result: Return) -> Operation {
    Operation { process, invoked, ended: Some(ended), call, outcome: Outcome::Ok(result) }
}

fn get(process: u64, invoked: u64, ended: u64, key: &str, value: Option<&str>) -> Operation {
    let call = Call::Get { key: key.into() };
    operation(process, invoked, ended, call, Return::Value(value.map(Into::into)))
}

fn put(process: u64, invoked: u64, ended: u64, key: &str, value: &str) -> Operation {
    let call = Call::Put { key: key.into(), value: value.into() };
    operation(process, invoked, ended, call, Return::Put)
}

fn unknown_put(process: u64, invoked: u64, key: &str, value: &str) -> Operation {
    let call = Call::Put { key: key.into(), value: value.into() };
    Operation { process, invoked, ended: None, call, outcome: Outcome::Unknown }
}

fn judge(operations: Vec<Operation>) -> Verdict {
    let history = History { operations };
    let again = History::from_json_lines(&history.to_json_lines()).unwrap();
    assert_eq!(again, history, "JSON lines go both ways");
    check(&history, DEFAULT_BUDGET)
}

fn good(operations: Vec<Operation>) {
    assert_eq!(judge(operations), Verdict::Linearizable);
}

fn bad(operations: Vec<Operation>) {
    assert!(matches!(judge(operations), Verdict::Violated(_)));
}

#[test]
fn one_after_the_other() {
    good(vec![]);
    good(vec![put(1, 0, 1, "a", "x"), get(2, 2, 3, "a", Some("x"))]);
    bad(vec![put(1, 0, 1, "a", "x"), get(2, 2, 3, "a", None)]);
    bad(vec![get(2, 2, 3, "a", Some("never written"))]);
    // A lost write.
    bad(vec![put(1, 0, 1, "a", "x"), put(1, 2, 3, "a", "y"), get(2, 4, 5, "a", Some("x"))]);
}

#[test]
fn concurrent_operations_go_either_way_but_the_same_way_for_all() {
    good(vec![put(1, 0, 9, "a", "x"), get(2, 1, 2, "a", None), get(2, 3, 4, "a", Some("x"))]);
    // A stale read after a newer one was returned.
    bad(vec![put(1, 0, 9, "a", "x"), get(2, 1, 2, "a", Some("x")), get(3, 3, 4, "a", None)]);
    // Two writers, two readers who see them in different orders.
    bad(vec![
        put(1, 0, 10, "a", "x"),
        put(2, 0, 10, "a", "y"),
        get(3, 11, 12, "a", Some("x")),
        get(3, 13, 14, "a", Some("y")),
    ]);
}

#[test]
fn what_timed_out_may_happen_later_or_never_but_not_twice() {
    good(vec![unknown_put(1, 0, "a", "x"), get(2, 5, 6, "a", None)]);
    good(vec![
        unknown_put(1, 0, "a", "x"),
        get(2, 5, 6, "a", None),
        put(2, 7, 8, "a", "y"),
        get(2, 9, 10, "a", Some("y")),
        get(2, 90, 91, "a", Some("x")),
    ]);
    // It happened, was overwritten, and happened again.
    bad(vec![
        unknown_put(1, 0, "a", "x"),
        get(2, 5, 6, "a", Some("x")),
        put(2, 7, 8, "a", "y"),
        get(2, 9, 10, "a", Some("x")),
    ]);
    // It happened before it was called.
    bad(vec![get(2, 0, 1, "a", Some("x")), unknown_put(1, 5, "a", "x")]);
}

#[test]
fn what_was_refused_never_happens() {
    let mut refused = unknown_put(1, 0, "a", "x");
    refused.outcome = Outcome::Refused;
    good(vec![refused.clone(), get(2, 5, 6, "a", None)]);
    bad(vec![refused, get(2, 5, 6, "a", Some("x"))]);
}

#[test]
fn deletes_tell_whether_the_key_was_there() {
    let delete = |invoked, ended, existed| {
        let call = Call::Delete { key: "a".into() };
        operation(1, invoked, ended, call, Return::Deleted(existed))
    };
    good(vec![delete(0, 1, false), put(1, 2, 3, "a", "x"), delete(4, 5, true)]);
    bad(vec![put(1, 2, 3, "a", "x"), delete(4, 5, false)]);
    // Two deletes of one value.
    bad(vec![put(1, 2, 3, "a", "x"), delete(4, 9, true), delete(5, 9, true)]);
}

fn cas(invoked: u64, ended: u64, expect: Option<&str>, value: &str, held: bool) -> Operation {
    let steps = vec![
        Step::Cmp { key: "a".into(), value: expect.map(Into::into) },
        Step::Write { key: "a".into(), value: value.into(), only_if_present: false },
    ];
    let result = if held {
        Return::Committed(vec![StepReturn::Done, StepReturn::Done])
    } else {
        Return::Failed(0)
    };
    operation(1, invoked, ended, Call::Transaction { steps }, result)
}

#[test]
fn of_two_concurrent_swaps_one_fails() {
    good(vec![cas(0, 9, None, "x", true), cas(0, 9, None, "y", false)]);
    bad(vec![cas(0, 9, None, "x", true), cas(0, 9, None, "y", true)]);
    bad(vec![cas(0, 1, None, "x", false)]);
}

fn write_both(invoked: u64, ended: u64, value: &str) -> Operation {
    let step =
        |key: &str| Step::Write { key: key.into(), value: value.into(), only_if_present: false };
    let call = Call::Transaction { steps: vec![step("a"), step("b")] };
    let result = Return::Committed(vec![StepReturn::Done, StepReturn::Done]);
    operation(1, invoked, ended, call, result)
}

fn range(invoked: u64, ended: u64, entries: &[(&str, &str)]) -> Operation {
    let steps = vec![Step::Range { start: "".into(), end: None, limit: 9, reverse: false }];
    let entries = entries.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let result = Return::Committed(vec![StepReturn::Entries { entries, more: false }]);
    operation(2, invoked, ended, Call::Transaction { steps }, result)
}

#[test]
fn transactions_are_seen_whole() {
    let both = [("a", "x"), ("b", "x")];
    good(vec![write_both(0, 9, "x"), range(1, 2, &[]), range(3, 4, &both)]);
    // Each key by itself is fine; half a transaction was seen.
    bad(vec![write_both(0, 9, "x"), range(1, 8, &[("a", "x")])]);
    bad(vec![
        write_both(0, 90, "x"),
        write_both(0, 90, "y"),
        range(1, 80, &[("a", "x"), ("b", "y")]),
    ]);
}

#[test]
fn a_range_misses_no_key() {
    good(vec![
        put(1, 0, 1, "a", "x"),
        put(1, 2, 3, "b", "y"),
        range(4, 5, &[("a", "x"), ("b", "y")]),
    ]);
    bad(vec![put(1, 0, 1, "a", "x"), put(1, 2, 3, "b", "y"), range(4, 5, &[("b", "y")])]);
}

#[test]
fn many_unknown_writes_do_not_blow_up() {
    let mut operations: Vec<Operation> =
        (0..60).map(|n| unknown_put(n, n, "a", &format!("lost {n}"))).collect();
    for n in 0..60u64 {
        operations.push(put(100, 100 + 4 * n, 101 + 4 * n, "a", &format!("kept {n}")));
        operations.push(get(100, 102 + 4 * n, 103 + 4 * n, "a", Some(&format!("kept {n}"))));
    }
    good(operations.clone());
    operations.push(get(100, 900, 901, "a", Some("lost 7")));
    good(operations.clone());
    operations.push(get(100, 902, 903, "a", Some("kept 3")));
    bad(operations);
}

#[test]
fn other_lines_are_refused() {
    assert!(<History>::from_json_lines("{}").unwrap_err().contains("line 1"));
}
