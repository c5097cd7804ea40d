//! A ledger, and the programs that come after it: what each may change, and what each must not.

use perdura_test::{Change, Fault, Random, RecordError, Step, recorded};
use perdura_typed::{Context, Parts, QueryContext, Service, Sharded};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What the ledger does.
enum Deed {
    Deposit(String, u64),
    Withdraw(String, u64),
    Close(String),
    Forgive,
}

/// What one program of the ledger has otherwise than the first one.
trait Program: Default + Send + 'static {
    const VERSION: u16 = 1;
    /// What a refusal says.
    const WORDS: &'static str = "too little is there";
    /// Deposits become more.
    const INTEREST: u64 = 0;

    type Command: Serialize + DeserializeOwned + Debug + Into<Deed>;
    type Value: Serialize + DeserializeOwned + Default + From<u64> + Into<u64>;
    type Reply: Serialize + DeserializeOwned + Debug + From<u64>;

    fn since(_: &Self::Command) -> u16 {
        1
    }

    fn parts(ledger: &mut Ledger<Self>, parts: &mut Parts) {
        parts.map(&mut ledger.balances);
        parts.value(&mut ledger.total);
        parts.value(&mut ledger.deeds);
    }
}

#[derive(Default)]
struct Ledger<P: Program> {
    balances: Sharded<String, P::Value>,
    total: u64,
    deeds: u64,
    // Some programs have it.
    closed: u64,
    program: PhantomData<P>,
}

impl<P: Program> Service for Ledger<P> {
    const NAME: &'static str = "ledger";
    const VERSION: u16 = P::VERSION;
    type Command = P::Command;
    type Query = String;
    type Reply = P::Reply;
    type Error = String;

    fn execute(&mut self, _: &Context<'_>, command: P::Command) -> Result<P::Reply, String> {
        self.deeds += 1;
        match command.into() {
            Deed::Deposit(to, amount) => {
                let amount = amount + P::INTEREST;
                self.total += amount;
                let balance = self.balance(&to) + amount;
                self.balances.insert(to, P::Value::from(balance));
                Ok(balance.into())
            }
            Deed::Withdraw(from, amount) => {
                let left = self.balance(&from).checked_sub(amount).ok_or(P::WORDS)?;
                self.total -= amount;
                self.balances.insert(from, P::Value::from(left));
                Ok(left.into())
            }
            Deed::Close(name) => {
                self.closed += 1;
                let left = self.balances.remove(&name).ok_or("there is none")?.into();
                self.total -= left;
                Ok(left.into())
            }
            Deed::Forgive => Ok(0.into()),
        }
    }

    fn query(&self, _: &QueryContext, name: String) -> Result<P::Reply, String> {
        Ok(self.balance(&name).into())
    }

    fn since(command: &P::Command) -> u16 {
        P::since(command)
    }

    fn parts(&mut self, parts: &mut Parts) {
        P::parts(self, parts);
    }
}

impl<P: Program> Ledger<P> {
    fn balance(&self, name: &String) -> u64 {
        self.balances.get(name).map_or(0, Into::into)
    }
}

/// Commands of a program, and what each of them does.
macro_rules! commands {
    ($($name:ident { $($kind:ident($($field:ident: $type:ty),*) => $deed:expr),* $(,)? })*) => {$(
        #[derive(Serialize, Deserialize, Debug)]
        #[allow(dead_code)]
        enum $name { $($kind($($type),*)),* }

        impl From<$name> for Deed {
            fn from(command: $name) -> Deed {
                match command { $($name::$kind($($field),*) => $deed),* }
            }
        }
    )*};
}

commands! {
    Command {
        Deposit(to: String, amount: u64) => Deed::Deposit(to, amount),
        Withdraw(from: String, amount: u64) => Deed::Withdraw(from, amount),
        Close(name: String) => Deed::Close(name),
    }
    // With one more.
    Longer {
        Deposit(to: String, amount: u64) => Deed::Deposit(to, amount),
        Withdraw(from: String, amount: u64) => Deed::Withdraw(from, amount),
        Close(name: String) => Deed::Close(name),
        Forgive() => Deed::Forgive,
    }
    // A field has another type, of which some bytes are read as a number too.
    Signed {
        Deposit(to: String, amount: i64) => Deed::Deposit(to, amount.unsigned_abs()),
        Withdraw(from: String, amount: u64) => Deed::Withdraw(from, amount),
        Close(name: String) => Deed::Close(name),
    }
    // Or none.
    Worded {
        Deposit(to: String, amount: String) => Deed::Deposit(to, amount.len() as u64),
        Withdraw(from: String, amount: u64) => Deed::Withdraw(from, amount),
        Close(name: String) => Deed::Close(name),
    }
    Shorter {
        Deposit(to: String, amount: u64) => Deed::Deposit(to, amount),
        Withdraw(from: String, amount: u64) => Deed::Withdraw(from, amount),
    }
    Reordered {
        Withdraw(from: String, amount: u64) => Deed::Withdraw(from, amount),
        Deposit(to: String, amount: u64) => Deed::Deposit(to, amount),
        Close(name: String) => Deed::Close(name),
    }
}

/// A value that is stored in another way than a number.
#[derive(Serialize, Deserialize, Default)]
struct Spelled(String);

impl From<u64> for Spelled {
    fn from(number: u64) -> Spelled {
        Spelled(number.to_string())
    }
}

impl From<Spelled> for u64 {
    fn from(spelled: Spelled) -> u64 {
        spelled.0.parse().unwrap_or(0)
    }
}

/// A reply that is another one.
#[derive(Serialize, Deserialize, Debug)]
struct Balance {
    of: Vec<u64>,
}

impl From<u64> for Balance {
    fn from(balance: u64) -> Balance {
        Balance { of: vec![balance] }
    }
}

macro_rules! programs {
    ($($name:ident<$command:ty, $value:ty, $reply:ty> { $($rest:item)* })*) => {$(
        #[derive(Default)]
        struct $name;

        impl Program for $name {
            type Command = $command;
            type Value = $value;
            type Reply = $reply;
            $($rest)*
        }
    )*};
}

programs! {
    First<Command, u64, u64> {}
    Appended<Longer, u64, u64> {}
    FieldSigned<Signed, u64, u64> {}
    FieldWorded<Worded, u64, u64> {}
    VariantGone<Shorter, u64, u64> {}
    VariantsReordered<Reordered, u64, u64> {}
    ValueSpelled<Command, Spelled, u64> {}
    OtherReply<Command, u64, Balance> {}
    OtherWords<Command, u64, u64> {
        const WORDS: &'static str = "you are poor";
    }
    WithInterest<Command, u64, u64> {
        const INTEREST: u64 = 1;
    }
    Later<Command, u64, u64> {
        const VERSION: u16 = 2;
        fn since(command: &Command) -> u16 {
            if matches!(command, Command::Close(_)) { 2 } else { 1 }
        }
    }
    PartAdded<Command, u64, u64> {
        fn parts(ledger: &mut Ledger<Self>, parts: &mut Parts) {
            First::parts_of(ledger, parts);
            parts.value(&mut ledger.closed);
        }
    }
    PartGone<Command, u64, u64> {
        fn parts(ledger: &mut Ledger<Self>, parts: &mut Parts) {
            parts.map(&mut ledger.balances);
            parts.value(&mut ledger.total);
        }
    }
    PartsReordered<Command, u64, u64> {
        fn parts(ledger: &mut Ledger<Self>, parts: &mut Parts) {
            parts.map(&mut ledger.balances);
            parts.value(&mut ledger.deeds);
            parts.value(&mut ledger.total);
        }
    }
    // As it should be done.
    Second<Longer, u64, u64> {
        const VERSION: u16 = 2;
        fn since(command: &Longer) -> u16 {
            if matches!(command, Longer::Forgive()) { 2 } else { 1 }
        }
        fn parts(ledger: &mut Ledger<Self>, parts: &mut Parts) {
            First::parts_of(ledger, parts);
            if parts.version() >= 2 {
                parts.value(&mut ledger.closed);
            }
        }
    }
    // It has no use for what is in the state.
    SecondPanics<Longer, u64, u64> {
        const VERSION: u16 = 2;
        fn parts(ledger: &mut Ledger<Self>, parts: &mut Parts) {
            First::parts_of(ledger, parts);
            assert!(parts.version() < 2 || ledger.deeds == 0, "too many deeds");
        }
    }
}

impl First {
    /// The parts that the first program has.
    fn parts_of<P: Program>(ledger: &mut Ledger<P>, parts: &mut Parts) {
        parts.map(&mut ledger.balances);
        parts.value(&mut ledger.total);
        parts.value(&mut ledger.deeds);
    }
}

fn name(random: &mut Random) -> String {
    (*random.pick(&["ada", "ben", "cem", "dee"])).to_owned()
}

fn draw(random: &mut Random) -> Step<Ledger<First>> {
    let (name, amount) = (name(random), random.below(1_000));
    match random.below(10) {
        0 => Step::Query(name),
        1 => Step::Command(Command::Close(name)),
        2..5 => Step::Command(Command::Withdraw(name, amount)),
        _ => Step::Command(Command::Deposit(name, amount)),
    }
}

/// Chooses for a program whose records are there.
fn none<S: Service>(_: &mut Random) -> Step<S> {
    panic!("nothing is recorded")
}

/// A directory with the first program's record.
fn of_first() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let inner = directory.path().join("tests/recorded");
    let written = recorded::<Ledger<First>>(&inner, draw).unwrap_err();
    assert_eq!(*written, RecordError::Written(vec![inner.join("version-1.txt")]));
    assert_eq!(recorded::<Ledger<First>>(&inner, none), Ok(()));
    directory
}

fn within(directory: &TempDir) -> PathBuf {
    directory.path().join("tests/recorded")
}

fn held<P: Program>(directory: &TempDir) -> Result<(), Box<RecordError>> {
    recorded::<Ledger<P>>(within(directory), none)
}

/// What a program changed, and how it is said.
fn changed<P: Program>(directory: &TempDir) -> (Change, String) {
    let error = held::<P>(directory).expect_err("it is another program");
    let said = error.to_string();
    assert_eq!(said, format!("{error:?}"));
    match *error {
        RecordError::Changed(changed) => (changed.change, said),
        _ => panic!("{said}"),
    }
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_record_is_a_small_text_that_says_what_happened() {
    let directory = of_first();
    let file = within(&directory).join("version-1.txt");
    let lines = lines(&file);
    assert_eq!(lines[0], "perdura-record 1 ledger 1");
    let of = |word: &str| lines.iter().filter(|line| line.starts_with(word)).count();
    assert_eq!((of("run "), of("answer ")), (8, 8 * 40));
    assert_eq!((of("command ") + of("query "), of("state")), (8 * 40, 1 + 2 * 8));
    assert!(lines.iter().any(|line| line.contains("Deposit(\"ada\", ")));
    assert!(lines.iter().any(|line| line.ends_with("Err(\"too little is there\")")));
    assert!(fs::metadata(&file).unwrap().len() < 60_000);
    // Nothing else is left there.
    assert_eq!(fs::read_dir(within(&directory)).unwrap().count(), 1);
    let said = RecordError::Written(vec![file]).to_string();
    assert!(said.contains("version-1.txt, and run this again"), "{said}");
}

/// What this crate wrote at first: it goes on to read that, and a service to give the same, whatever of what stands below services is changed.
#[test]
fn what_was_committed_holds() -> Result<(), Box<RecordError>> {
    recorded::<Ledger<First>>("tests/recorded", draw)
}

#[test]
fn what_may_be_changed_passes() {
    let directory = of_first();
    assert_eq!(held::<Appended>(&directory), Ok(()));
    // A version more has a record of its own, and goes on from the states of the first.
    let draw = |random: &mut Random| match random.below(3) {
        0 => Step::Command(Longer::Forgive()),
        _ => Step::Command(Longer::Deposit(name(random), random.below(1_000))),
    };
    let second = within(&directory).join("version-2.txt");
    let written = recorded::<Ledger<Second>>(within(&directory), draw).unwrap_err();
    assert_eq!(*written, RecordError::Written(vec![second.clone()]));
    assert!(lines(&second).iter().any(|line| line.ends_with("Forgive")));
    assert_eq!(held::<Second>(&directory), Ok(()));
    // The older program is not held to what it cannot know.
    let newer = held::<First>(&directory).unwrap_err();
    assert_eq!(*newer, RecordError::Newer { file: second, newest: 1 });
    assert!(newer.to_string().contains("newest version is 1"), "{newer}");
}

#[test]
fn commands_that_are_read_otherwise_are_found() {
    let directory = of_first();
    let (change, said) = changed::<FieldSigned>(&directory);
    let Change::Answer { recorded, now } = &change else { panic!("{said}") };
    assert!(recorded.starts_with("Ok(") && now.starts_with("Ok(") && recorded != now, "{said}");
    assert!(said.contains("version-1.txt, line ") && said.contains(": Deposit(\""), "{said}");
    assert!(said.contains(", which was Deposit(\""), "{said}");
    assert!(said.contains("`context.version()`") && said.contains("delete it"), "{said}");
    let (change, said) = changed::<FieldWorded>(&directory);
    assert_eq!(change, Change::NotRead);
    // What it was when it was recorded.
    assert!(said.contains(": Deposit(\""), "{said}");
    let (change, said) = changed::<VariantGone>(&directory);
    assert_eq!(change, Change::NotRead);
    assert!(said.contains(": Close(\""), "{said}");
    let (change, said) = changed::<VariantsReordered>(&directory);
    assert!(matches!(change, Change::Answer { .. }), "{said}");
    assert!(said.contains(": Deposit(\"dee\", 106), which was Withdraw(\"dee\", 106): "), "{said}");
    let (change, said) = changed::<Later>(&directory);
    assert_eq!(change, Change::Since(2));
    assert!(said.contains("it came with version 2 now"), "{said}");
}

#[test]
fn answers_that_are_others_are_found() {
    let directory = of_first();
    let (change, said) = changed::<OtherReply>(&directory);
    assert!(matches!(change, Change::AnswerNotRead(_)), "{said}");
    let (change, _) = changed::<OtherWords>(&directory);
    let (recorded, now) = ("Err(\"too little is there\")".into(), "Err(\"you are poor\")".into());
    assert_eq!(change, Change::Answer { recorded, now });
    let (change, said) = changed::<WithInterest>(&directory);
    assert!(matches!(change, Change::Answer { .. }), "{said}");
}

#[test]
fn states_that_are_others_are_found() {
    let directory = of_first();
    let (change, said) = changed::<PartAdded>(&directory);
    assert!(matches!(change, Change::NotRestored(_)), "{said}");
    let (change, said) = changed::<PartGone>(&directory);
    assert!(matches!(change, Change::NotRestored(_)), "{said}");
    let (change, said) = changed::<PartsReordered>(&directory);
    assert!(matches!(change, Change::State(_)) && said.contains("segment 0 of 2"), "{said}");
    let (change, said) = changed::<ValueSpelled>(&directory);
    assert!(matches!(change, Change::Unfaithful(_)) && said.contains("Spelled"), "{said}");
    let (change, said) = changed::<SecondPanics>(&directory);
    let Change::Raised { to: 2, fault: Fault::Panic(words), .. } = change else { panic!("{said}") };
    assert_eq!(words, "too many deeds");
}

#[test]
fn what_was_not_written_here_is_refused() {
    let directory = of_first();
    let file = within(&directory).join("version-1.txt");
    let text = fs::read(&file).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        match *held::<First>(&directory).unwrap_err() {
            RecordError::Damaged { line, why, .. } => (line, why),
            other => panic!("{other}"),
        }
    };
    let (line, why) = refused(&text[..text.len() / 2]);
    assert!(line > 100, "{why}");
    // What is no text, and what is larger than any record.
    assert_eq!(refused(b"perdura-record 1 ledger 1\n\xff"), (2, "it is no text".to_owned()));
    assert_eq!(refused(&[b'\n'; 2_000_000]).0, 1);
    let edited = String::from_utf8(text.clone()).unwrap().replacen("answer 00", "answer 01", 1);
    assert!(refused(edited.as_bytes()).1.contains("edited"));
    let other = String::from_utf8(text).unwrap().replacen("ledger", "other", 1);
    assert!(refused(other.as_bytes()).1.contains("a directory of its own"));
    // A directory in its place.
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(matches!(*held::<First>(&directory).unwrap_err(), RecordError::Io { .. }));
}

/// Keeps what it is given.
#[derive(Default)]
struct Kept<const STEADY: bool> {
    texts: Sharded<u64, String>,
    next: u64,
}

impl<const STEADY: bool> Service for Kept<STEADY> {
    const NAME: &'static str = "kept";
    type Command = String;
    type Query = ();
    type Reply = String;
    type Error = ();

    fn execute(&mut self, _: &Context<'_>, text: String) -> Result<String, ()> {
        static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert!(text != "bad", "a bad text");
        self.next += 1;
        self.texts.insert(self.next, text.clone());
        Ok(if STEADY { text } else { count.to_string() })
    }

    fn query(&self, _: &QueryContext, (): ()) -> Result<String, ()> {
        Ok(String::new())
    }

    fn parts(&mut self, parts: &mut Parts) {
        parts.map(&mut self.texts);
        parts.value(&mut self.next);
    }
}

#[test]
fn what_is_large_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let draw = |random: &mut Random| {
        let length = if random.one_in(3) { 200_000 } else { 1_000 };
        Step::Command("x".repeat(length))
    };
    recorded::<Kept<true>>(&directory, draw).unwrap_err();
    let file = directory.path().join("version-1.txt");
    let size = fs::metadata(&file).unwrap().len();
    assert!((50_000..=200_000).contains(&size), "{size}");
    assert_eq!(recorded::<Kept<true>>(&directory, none), Ok(()));
    fs::remove_file(&file).unwrap();
    // One that takes most of a record stands in the last run.
    let draw = |_: &mut Random| Step::Command("x".repeat(30_000));
    recorded::<Kept<true>>(&directory, draw).unwrap_err();
    assert_eq!(recorded::<Kept<true>>(&directory, none), Ok(()));
    assert_eq!(lines(&file).iter().filter(|line| line.starts_with("command")).count(), 1);
    fs::remove_file(&file).unwrap();
    let draw = |_: &mut Random| Step::Command("x".repeat(200_000));
    let error = recorded::<Kept<true>>(&directory, draw).unwrap_err();
    assert_eq!(*error, RecordError::TooLarge { version: 1 });
    assert!(!file.exists());
}

#[test]
fn what_is_wrong_is_not_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let error = recorded::<Kept<false>>(&directory, |_| Step::Command("x".into())).unwrap_err();
    assert!(matches!(*error, RecordError::Unsteady { version: 1, .. }), "{error}");
    let error = recorded::<Kept<true>>(&directory, |_| Step::Command("bad".into())).unwrap_err();
    assert!(matches!(*error, RecordError::Wrong(_)), "{error}");
    assert!(error.to_string().contains("a bad text"), "{error}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}
