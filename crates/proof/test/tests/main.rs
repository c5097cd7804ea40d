//! A service that is right, and each thing that may be wrong with one, put in on purpose.

mod recorded;
mod simulated;
mod stored;

use perdura_test::{Answers, Fault, Finding, Random, Step, check};
use perdura_typed::{Context, Parts, QueryContext, Service, Sharded};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Serialize, Deserialize, Debug)]
enum Command {
    Add(u8, u64),
    Refuse(u8),
}

/// Counts by name; `WRONG` is what is wrong with it.
#[derive(Default)]
struct Counts<const WRONG: u8> {
    counts: Sharded<u8, u64>,
    total: u64,
    lost: u64,
    refused: u64,
}

const RIGHT: u8 = 0;
const CLOCK: u8 = 1;
const ORDER: u8 = 2;
const LOST: u8 = 3;
const PANIC: u8 = 4;
const REFUSAL: u8 = 5;
const LARGE: u8 = 6;
const STATE: u8 = 7;

impl<const WRONG: u8> Service for Counts<WRONG> {
    const NAME: &'static str = "counts";
    type Command = Command;
    type Query = ();
    type Reply = Vec<u64>;
    type Error = Vec<u8>;

    fn execute(&mut self, context: &Context<'_>, command: Command) -> Result<Vec<u64>, Vec<u8>> {
        let (name, amount) = match command {
            Command::Refuse(name) => {
                self.refused += 1;
                self.counts.remove(&name);
                self.total = 0;
                return Err(vec![name; if WRONG == LARGE && name == 7 { 5_000 } else { 5 }]);
            }
            Command::Add(name, amount) => (name, amount),
        };
        assert!(WRONG != PANIC || name != 7, "seven");
        self.total += amount;
        self.lost += 1;
        let count = self.counts.get(&name).unwrap_or(0) + amount;
        self.counts.insert(name, count);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let all: HashMap<u8, u64> = self.counts.iter().collect();
        if WRONG == STATE {
            self.lost = now;
        }
        Ok(match WRONG {
            CLOCK => vec![count, now],
            ORDER => all.into_values().collect(),
            LOST => vec![count, self.lost],
            REFUSAL => vec![count, self.refused],
            _ => vec![count, context.time_ms(), u64::from(context.random()[0])],
        })
    }

    fn query(&self, _: &QueryContext, (): ()) -> Result<Vec<u64>, Vec<u8>> {
        Ok(vec![self.total, self.counts.iter().map(|(_, count)| count).sum()])
    }

    fn parts(&mut self, parts: &mut Parts) {
        parts.map(&mut self.counts);
        parts.value(&mut self.total);
        if WRONG != LOST {
            parts.value(&mut self.lost);
        }
        if WRONG != REFUSAL {
            parts.value(&mut self.refused);
        }
    }
}

fn finding<const WRONG: u8>() -> Option<Finding> {
    let step = |random: &mut Random| match random.below(10) {
        0 => Step::Query(()),
        1 => Step::Command(Command::Refuse(random.below(20) as u8)),
        _ => Step::Command(Command::Add(random.below(20) as u8, random.below(100))),
    };
    check::<Counts<WRONG>>(1..4, step).err().map(|finding| *finding)
}

fn found<const WRONG: u8>() -> Option<Fault> {
    finding::<WRONG>().map(|finding| finding.fault)
}

#[test]
fn what_is_right_passes() {
    assert_eq!(found::<RIGHT>(), None);
}

#[test]
fn what_is_wrong_is_found() {
    assert!(matches!(found::<CLOCK>(), Some(Fault::AnswersDiffer(_))));
    assert_eq!(found::<STATE>(), Some(Fault::StatesDiffer));
    // What is restored, or not given what was refused, has maps of its own.
    let order = found::<ORDER>();
    assert!(
        matches!(order, Some(Fault::AnswersDiffer(_) | Fault::RestoredAnswersDiffer(_))),
        "{order:?}"
    );
    assert!(matches!(found::<LOST>(), Some(Fault::RestoredAnswersDiffer(_))));
    assert_eq!(found::<PANIC>(), Some(Fault::Panic("seven".to_owned())));
    assert!(matches!(found::<REFUSAL>(), Some(Fault::RefusalChanges(_))));
    assert!(matches!(found::<LARGE>(), Some(Fault::Unfit(_))));
}

#[test]
fn what_is_found_is_said_in_the_services_own_words() {
    let lost = finding::<LOST>().unwrap();
    let Fault::RestoredAnswersDiffer(Answers { first, then }) = &lost.fault else {
        panic!("{lost}")
    };
    assert!(first.starts_with("Ok([") && then.starts_with("Ok([") && first != then, "{lost}");
    let said = lost.to_string();
    assert!(said.contains(" (Add(") && said.contains(" at first, then Ok(["), "{said}");
    // As a test prints it.
    assert_eq!(said, format!("{lost:?}"));
    let panicked = finding::<PANIC>().unwrap();
    assert!(panicked.asked.is_some_and(|asked| asked.starts_with("Add(7, ")));
}

/// What is new, and of which nothing is drawn that there was before.
#[derive(Default)]
struct New;

impl Service for New {
    const NAME: &'static str = "new";
    const VERSION: u16 = 2;
    type Command = String;
    type Query = ();
    type Reply = String;
    type Error = ();

    fn execute(&mut self, _: &Context<'_>, command: String) -> Result<String, ()> {
        Ok(command)
    }

    fn query(&self, _: &QueryContext, (): ()) -> Result<String, ()> {
        Ok(String::new())
    }

    fn since(_: &String) -> u16 {
        2
    }

    fn parts(&mut self, _: &mut Parts) {}
}

#[test]
fn what_is_never_drawn_is_told() {
    let finding = check::<New>(0..1, |_| Step::Command(String::new())).unwrap_err();
    assert!(finding.version == 1 && finding.asked.is_none(), "{finding}");
    assert!(finding.to_string().contains("none is there under this version"), "{finding}");
}
