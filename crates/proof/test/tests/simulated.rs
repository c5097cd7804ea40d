//! A small bank in simulated groups: one that is right, and some that are wrong, each on purpose.

use perdura_test::{Broken, Random, Simulation, Step, Summary, simulate};
use perdura_typed::{Context, Parts, QueryContext, Service, Sharded};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

const RIGHT: u8 = 0;
/// A transfer loses what is odd.
const LOSES_MONEY: u8 = 1;
/// A reply has the machine's clock in it.
const CLOCK: u8 = 2;
/// What is answered is not in snapshots.
const FORGETS: u8 = 3;
/// A command that some clients send panics.
const PANICS: u8 = 4;
/// What stands beside the accounts is empty after a restore, and no answer shows it.
const INDEX: u8 = 5;

#[derive(Serialize, Deserialize, Debug)]
enum Command {
    Deposit(u8, u64),
    Transfer(u8, u8, u64),
}

#[derive(Default)]
struct Bank<const WRONG: u8> {
    accounts: Sharded<u8, u64>,
    total: u64,
    commands: u64,
    // Accounts that there are.
    index: BTreeSet<u8>,
}

impl<const WRONG: u8> Service for Bank<WRONG> {
    const NAME: &'static str = "bank";
    const VERSION: u16 = 2;
    type Command = Command;
    type Query = ();
    type Reply = Vec<u64>;
    type Error = String;

    fn execute(&mut self, _: &Context<'_>, command: Command) -> Result<Vec<u64>, String> {
        self.commands += 1;
        let (Command::Deposit(to, _) | Command::Transfer(_, to, _)) = command;
        if WRONG == INDEX {
            self.index.insert(to);
        }
        match command {
            Command::Deposit(to, amount) => {
                assert!(WRONG != PANICS || amount % 50 != 7, "a bad amount");
                self.total += amount;
                self.accounts.insert(to, self.balance(to) + amount);
            }
            Command::Transfer(from, to, amount) => {
                let left = self.balance(from).checked_sub(amount).ok_or("too little is there")?;
                self.accounts.insert(from, left);
                let arrives = if WRONG == LOSES_MONEY { amount & !1 } else { amount };
                self.accounts.insert(to, self.balance(to) + arrives);
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
        Ok(match WRONG {
            CLOCK => vec![self.total, u64::from(now)],
            FORGETS => vec![self.total, self.commands],
            _ => vec![self.total],
        })
    }

    /// From version 2 on it says how many accounts there are, too.
    fn query(&self, context: &QueryContext, (): ()) -> Result<Vec<u64>, String> {
        Ok(match context.version() {
            1 => vec![self.total],
            _ => vec![self.total, self.accounts.len()],
        })
    }

    fn parts(&mut self, parts: &mut Parts) {
        parts.map(&mut self.accounts);
        parts.value(&mut self.total);
        if WRONG != FORGETS {
            parts.value(&mut self.commands);
        }
    }
}

impl<const WRONG: u8> Bank<WRONG> {
    fn balance(&self, of: u8) -> u64 {
        self.accounts.get(&of).unwrap_or(0)
    }

    fn is_whole(&self) -> Result<(), String> {
        let sum: u64 = self.accounts.iter().map(|(_, balance)| balance).sum();
        let indexed =
            WRONG != INDEX || self.accounts.iter().all(|(name, _)| self.index.contains(&name));
        if !indexed {
            return Err("an account is not in the index".to_owned());
        }
        if sum == self.total { Ok(()) } else { Err(format!("{sum} are there of {}", self.total)) }
    }
}

fn drawn<const WRONG: u8>(random: &mut Random) -> Step<Bank<WRONG>> {
    let (one, other) = (random.below(5) as u8, random.below(5) as u8);
    let amount = random.below(100);
    match random.below(10) {
        0..3 => Step::Query(()),
        3..6 => Step::Command(Command::Deposit(one, amount)),
        _ => Step::Command(Command::Transfer(one, other, amount)),
    }
}

fn bank<const WRONG: u8>() -> Simulation<Bank<WRONG>> {
    simulate(drawn::<WRONG>).invariant(Bank::is_whole).steps(2_000)
}

fn first_broken<const WRONG: u8>() -> Broken {
    *bank::<WRONG>().run(0..60).expect_err("it is wrong")
}

/// The rule that some run broke, and in which words.
fn broken<const WRONG: u8>() -> (&'static str, String) {
    let broken = first_broken::<WRONG>();
    (broken.rule, broken.to_string())
}

/// What a run writes down, and how it ends.
fn traced<const WRONG: u8>(seed: u64) -> (Vec<String>, Result<Summary, Box<Broken>>) {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let buffered = io::BufWriter::new(lines.clone());
    let end = bank::<WRONG>().trace(seed, Box::new(buffered));
    let bytes = std::mem::take(&mut *lines.0.lock().unwrap());
    (String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect(), end)
}

#[test]
fn what_is_right_goes_through_whatever_goes_wrong() {
    let summary = bank::<RIGHT>().run(0..40).unwrap();
    assert_eq!(summary.runs, 40);
    assert!(summary.answered > 40 * 50 && summary.unordered > 40, "{summary:?}");
    assert!(summary.faults > 40 && summary.lies > 40, "{summary:?}");
}

#[test]
fn what_is_wrong_is_found_and_said_in_the_services_own_words() {
    let (rule, words) = broken::<LOSES_MONEY>();
    assert_eq!(rule, "Invariant of the service");
    assert!(words.contains("after Transfer(") && words.contains(" are there of "), "{words}");
    let (rule, words) = broken::<CLOCK>();
    assert_eq!(rule, "Determinism of the service");
    assert!(words.contains("replica") && words.contains("others with Ok(["), "{words}");
    assert!(words.contains("run again, this seed ended otherwise"), "{words}");
    let (rule, words) = broken::<FORGETS>();
    assert!(["Determinism of the service", "EqualStates (D7)"].contains(&rule), "{words}");
    assert!(words.contains("not named in `parts`") && !words.contains("a clock"), "{words}");
    let (rule, words) = broken::<INDEX>();
    assert_eq!(rule, "Invariant of the service");
    assert!(words.contains("in the state of replica") && words.contains("the index"), "{words}");
    let (rule, words) = broken::<PANICS>();
    assert!(rule == "Assertion" && words.contains("a bad amount"), "{rule} {words}");
}

#[test]
fn a_seed_is_one_run() {
    let run = || bank::<RIGHT>().run(7..9).unwrap();
    assert_eq!(run(), run());
    let (lines, end) = traced::<RIGHT>(7);
    assert_eq!(end.unwrap().runs, 1);
    assert!(lines.len() > 1_000);
}

#[test]
fn a_trace_is_in_the_services_own_words_up_to_a_panic() {
    let broken = first_broken::<PANICS>();
    assert!(broken.what.starts_with("Deposit(") && broken.repeats == Some(true), "{broken}");
    let (lines, end) = traced::<PANICS>(broken.seed);
    let end = end.unwrap_err();
    assert_eq!((&end.what, end.step, end.repeats), (&broken.what, broken.step, None));
    let last = lines.last().unwrap();
    assert!(last.ends_with(&format!(" Assertion violated: {}", broken.what)), "{last}");
    assert!(last.contains("a bad amount") && !last.contains("\\x"), "{last}");
    let (lines, _) = traced::<RIGHT>(broken.seed);
    let ends: Vec<&String> = lines.iter().filter(|line| line.contains(" ends: ")).collect();
    assert!(ends.iter().any(|line| line.contains(" ends: Ok([")), "{ends:?}");
    assert!(ends.iter().all(|line| !line.contains("Service(b")), "{ends:?}");
}
