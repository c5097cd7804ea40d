use super::*;
use Told::{Committed, Nothing, Unknown};

const ACCOUNTS: [&str; 3] = ["a", "b", "c"];

/// What is asked: to move what these accounts held, to what they hold then; to compare others; to look at these.
#[derive(Clone, Default)]
struct One {
    at: u64,
    lasts: u64,
    told: Option<Told>,
    moves: Vec<(&'static str, &'static str, &'static str)>,
    compares: Vec<(&'static str, &'static str)>,
    looks: Vec<(&'static str, &'static str)>,
    ranges: Vec<(&'static str, &'static str)>,
}

fn text(value: &str) -> String {
    value.to_owned()
}

fn some(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| text(value))
}

impl One {
    fn operation(&self) -> Operation {
        let (mut steps, mut results) = (Vec::new(), Vec::new());
        for (key, before, _) in &self.moves {
            if !before.is_empty() {
                steps.push(Step::Cmp { key: text(key), value: some(before) });
                results.push(StepReturn::Done);
            }
        }
        for (key, value) in &self.compares {
            steps.push(Step::Cmp { key: text(key), value: some(value) });
            results.push(StepReturn::Done);
        }
        for (key, before, after) in &self.moves {
            let (key, value) = (text(key), text(after));
            steps.push(match before.is_empty() {
                true => Step::Insert { key, value },
                false => Step::Write { key, value, only_if_present: false },
            });
            results.push(StepReturn::Done);
        }
        for (key, value) in &self.looks {
            steps.push(Step::Read { key: text(key) });
            results.push(StepReturn::Value(some(value)));
        }
        if !self.ranges.is_empty() {
            let (start, end) = (text("a"), Some(text("z")));
            steps.push(Step::Range { start, end, limit: 10, reverse: false });
            let found = self.ranges.iter().filter(|(_, value)| !value.is_empty());
            let entries = found.map(|(key, value)| (text(key), text(value))).collect();
            results.push(StepReturn::Entries { entries, more: false });
        }
        let told = self.told.unwrap_or(Committed);
        Operation {
            process: 0,
            invoked: self.at,
            ended: (told != Unknown).then_some(self.at + self.lasts),
            call: Call::Store(store::Call::Transaction { steps }),
            outcome: match told {
                Committed => Outcome::Ok(Return::Store(store::Return::Committed(results))),
                Nothing => Outcome::Ok(Return::Store(store::Return::Failed(0))),
                Unknown => Outcome::Unknown,
            },
        }
    }

    fn told(self, told: Told) -> One {
        One { told: Some(told), ..self }
    }

    fn lasting(self, lasts: u64) -> One {
        One { lasts, ..self }
    }
}

/// At such a time.
fn moves(at: u64, moves: &[(&'static str, &'static str, &'static str)]) -> One {
    One { at, lasts: 5, moves: moves.to_vec(), ..One::default() }
}

fn sees(at: u64, values: [&'static str; 3]) -> One {
    let looks = ACCOUNTS.into_iter().zip(values).collect();
    One { at, lasts: 5, looks, ..One::default() }
}

fn opens(at: u64) -> One {
    moves(at, &[("a", "", "100b0"), ("b", "", "100b0"), ("c", "", "100b0")])
}

fn judge(all: &[One]) -> Result<(), String> {
    let operations: Vec<Operation> = all.iter().map(One::operation).collect();
    check(&operations)
}

#[track_caller]
fn is_found(all: &[One], what: &str) {
    let found = judge(all).expect_err("it is found");
    assert!(found.contains(what), "{found}");
}

#[test]
fn what_one_order_explains_is_accepted() {
    judge(&[]).unwrap();
    let ranges = vec![("a", "90b1"), ("b", "110b1"), ("c", "100b0")];
    let late = One { ranges: ranges.clone(), ..sees(70, ["90b1", "110b1", "100b0"]) };
    judge(&[
        sees(0, ["", "", ""]),
        opens(10),
        // Somebody else wanted to.
        moves(20, &[("a", "", "100b9"), ("b", "", "100b9"), ("c", "", "100b9")]).told(Nothing),
        sees(30, ["100b0", "100b0", "100b0"]),
        moves(40, &[("a", "100b0", "90b1"), ("b", "100b0", "110b1")]),
        moves(50, &[("a", "100b0", "80b2"), ("b", "100b0", "120b2")]).told(Nothing),
        // Before or after what they meet.
        sees(40, ["100b0", "100b0", "100b0"]),
        sees(40, ["90b1", "110b1", "100b0"]).lasting(10),
        late,
        // Nobody knows of the one, and all of the other is there, long after it was asked for.
        moves(80, &[("a", "90b1", "0b3"), ("c", "100b0", "190b3")]).told(Unknown),
        moves(80, &[("b", "110b1", "100b4"), ("c", "100b0", "110b4")]).told(Unknown),
        sees(90, ["90b1", "110b1", "100b0"]),
        moves(100, &[("b", "100b4", "90b5"), ("a", "90b1", "100b5")]),
        sees(110, ["100b5", "90b5", "110b4"]),
    ])
    .unwrap();
}

#[test]
fn money_that_is_made_or_lost_is_found() {
    let made = moves(20, &[("a", "100b0", "100b1"), ("b", "100b0", "110b1")]);
    is_found(&[opens(0), made, sees(40, ["100b1", "110b1", "100b0"])], "310 of 300 is there");
    is_found(&[opens(0), sees(40, ["100b0", "", "100b0"])], "others are not");
    let range = vec![("a", "100b0"), ("b", "100b0")];
    is_found(&[opens(0), One { ranges: range, ..moves(40, &[]) }], "others are not");
    is_found(&[opens(0), One { ranges: vec![("x", "100b0")], ..moves(40, &[]) }], "no account");
}

#[test]
fn what_nobody_wrote_or_nobody_committed_is_found_where_it_is_seen() {
    is_found(&[opens(0), sees(40, ["100b7", "100b0", "100b0"])], "nobody wrote it");
    let aborted = moves(20, &[("a", "100b0", "90b1"), ("b", "100b0", "110b1")]).told(Nothing);
    let seen = sees(40, ["90b1", "110b1", "100b0"]);
    is_found(&[opens(0), aborted.clone(), seen], "did not commit");
    // Also by who compares with it.
    let next = moves(40, &[("a", "90b1", "80b2"), ("c", "100b0", "110b2")]);
    is_found(&[opens(0), aborted, next], "did not commit");
}

#[test]
fn an_update_that_is_lost_is_found() {
    let one = moves(20, &[("a", "100b0", "90b1"), ("b", "100b0", "110b1")]);
    let other = moves(30, &[("a", "100b0", "80b2"), ("c", "100b0", "120b2")]);
    is_found(&[opens(0), one.clone(), other], "took the place of");
    // What was acknowledged is not there when everything is read back.
    is_found(&[opens(0), one.clone(), sees(40, ["100b0", "100b0", "100b0"])], "no order explains");
    // It was never opened, and something was moved.
    is_found(&[one], "nobody wrote it");
}

#[test]
fn half_of_a_transaction_is_found() {
    for told in [Committed, Unknown] {
        let half = moves(20, &[("a", "100b0", "90b1"), ("b", "100b0", "110b1")]).told(told);
        let then = moves(30, &[("b", "110b1", "100b2"), ("c", "100b0", "110b2")]);
        // One write of it is there, the other is not.
        let sees = One { looks: vec![("a", "100b0"), ("b", "110b1")], ..moves(40, &[]) };
        is_found(&[opens(0), half.clone(), sees], "no order explains");
        let sees = One { looks: vec![("a", "100b0"), ("b", "100b2")], ..moves(40, &[]) };
        is_found(&[opens(0), half.clone(), then.clone(), sees], "no order explains");
        // Somebody else took the place of what it wrote over.
        let over = moves(50, &[("a", "100b0", "99b3"), ("c", "110b2", "111b3")]);
        is_found(&[opens(0), half, then, over], "took the place of");
    }
}

#[test]
fn an_old_state_that_is_seen_after_a_newer_one_was_acknowledged_is_found() {
    let moved = moves(20, &[("a", "100b0", "90b1"), ("b", "100b0", "110b1")]);
    let old = ["100b0", "100b0", "100b0"];
    is_found(&[opens(0), moved.clone(), sees(26, old)], "ended before");
    judge(&[opens(0), moved.clone(), sees(25, old)]).unwrap();
    // Nor after somebody has seen the newer one, though it is not acknowledged.
    let moved = moved.told(Unknown);
    let new = sees(30, ["90b1", "110b1", "100b0"]);
    is_found(&[opens(0), moved.clone(), new.clone(), sees(40, old)], "no order explains");
    judge(&[opens(0), moved, new.lasting(20), sees(40, old)]).unwrap();
}

#[test]
fn a_look_at_one_account_is_held_against_the_others() {
    let moved = moves(20, &[("a", "100b0", "90b1"), ("b", "100b0", "110b1")]).told(Unknown);
    let get = |at, value: &str| {
        let mut operation = sees(at, ["", "", ""]).operation();
        operation.call = Call::Store(store::Call::Get { key: text("b") });
        operation.outcome = Outcome::Ok(Return::Store(store::Return::Value(some(value))));
        operation
    };
    let history = |value| {
        let sees = sees(40, ["90b1", "110b1", "100b0"]).operation();
        [opens(0).operation(), moved.operation(), sees, get(50, value)]
    };
    check(&history("110b1")).unwrap();
    assert!(check(&history("100b0")).unwrap_err().contains("no order explains"));
    assert!(check(&history("100b5")).unwrap_err().contains("nobody wrote it"));
    let mut unheard = history("100b0");
    unheard[3].outcome = Outcome::Unknown;
    check(&unheard).unwrap();
}

#[test]
fn two_that_see_two_updates_in_different_orders_are_found() {
    let one = moves(20, &[("a", "100b0", "100b1")]).lasting(100);
    let other = moves(20, &[("b", "100b0", "100b2")]).lasting(100);
    let first = sees(20, ["100b1", "100b0", "100b0"]).lasting(100);
    let second = sees(20, ["100b0", "100b2", "100b0"]).lasting(100);
    judge(&[opens(0), one.clone(), other.clone(), first.clone()]).unwrap();
    is_found(&[opens(0), one, other, first, second], "no order explains");
}

#[test]
fn two_that_each_look_at_what_the_other_one_writes_are_found() {
    let one = moves(20, &[("a", "100b0", "100b1")]).lasting(100);
    let other = moves(20, &[("b", "100b0", "100b2")]).lasting(100);
    let of_b = One { compares: vec![("b", "100b0")], ..one };
    let of_a = One { compares: vec![("a", "100b0")], ..other.clone() };
    judge(&[opens(0), of_b.clone(), other]).unwrap();
    is_found(&[opens(0), of_b.clone(), of_a], "no order explains");
    // The same with a read.
    let of_a = One { looks: vec![("a", "100b0")], ..moves(20, &[("b", "100b0", "100b2")]) };
    is_found(&[opens(0), of_b, of_a.lasting(100)], "no order explains");
}

#[test]
fn what_all_replicas_hold_adds_up() {
    let held = |values: &[&str]| {
        let accounts = (0..).map(|account: u32| account.to_string());
        accounts.zip(values.iter().map(|value| text(value))).collect::<Vec<_>>()
    };
    let right = ["100b0", "90b1", "110b1", "50b7", "150b7", "100b0"];
    let adds_up = |values: &[&str], banks| adds_up(&held(values), banks);
    adds_up(&right, 1).unwrap();
    adds_up(&[], 2).unwrap();
    adds_up(&[right, right].concat(), 2).unwrap();
    let more = ["100b0", "90b1", "110b1", "50b7", "150b7", "101b8"];
    assert_eq!(adds_up(&more, 1).unwrap_err(), "601 of 600 is there");
    assert!(adds_up(&right[..5], 1).unwrap_err().contains("5 accounts"));
    assert!(adds_up(&[right, right].concat(), 1).is_err());
    assert!(adds_up(&["1", "90b1", "110b1", "50b7", "150b7", "100b0"], 1).is_err());
}

#[test]
fn what_is_no_bank_is_said_to_be_none() {
    let mut strange = opens(0).operation();
    strange.call = Call::Store(store::Call::Delete { key: text("a") });
    assert!(check(&[strange]).unwrap_err().contains("no transaction of a bank"));
    let mut failed = sees(0, ["", "", ""]).operation();
    failed.outcome = Outcome::Ok(Return::Store(store::Return::Failed(1)));
    assert!(check(&[failed]).unwrap_err().contains("a step that cannot fail"));
    let mut short = opens(0).operation();
    short.outcome = Outcome::Ok(Return::Store(store::Return::Committed(Vec::new())));
    assert!(check(&[short]).is_err());
}

/// A comparison fails only where something else was there while it was asked for, or may have been.
#[test]
fn what_was_there_all_the_time_fails_nothing() {
    let first = || moves(20, &[("a", "100b0", "90b1"), ("b", "100b0", "110b1")]);
    let fails =
        |at: u64| moves(at, &[("a", "90b1", "80b2"), ("b", "110b1", "120b2")]).told(Nothing);
    let over = |at: u64| moves(at, &[("a", "90b1", "70b3"), ("b", "110b1", "130b3")]);
    is_found(&[opens(10), first(), fails(30)], "held Some(\"90b1\") all the time");
    is_found(&[opens(10), first(), fails(30), over(40)], "all the time");
    is_found(&[opens(10), first(), fails(30), over(40).told(Unknown)], "all the time");
    // It was not there yet, not any more, or nobody can tell.
    judge(&[opens(10), first(), fails(22)]).unwrap();
    judge(&[opens(10), first(), over(32), fails(30)]).unwrap();
    judge(&[opens(10), first(), over(26).told(Unknown), fails(30)]).unwrap();
    judge(&[opens(10), first().told(Unknown), fails(30)]).unwrap();
    judge(&[opens(10), fails(30)]).unwrap();
    // An account that is not open, and may have been opened.
    let opening = || opens(10).told(Nothing);
    is_found(&[opening()], "held None all the time");
    judge(&[opening(), moves(12, &[("a", "", "100b8"), ("b", "", "100b8"), ("c", "", "100b8")])])
        .unwrap();
}
