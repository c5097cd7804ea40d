//! Accounts and transfers, and what clients do wrong.

use bytes::Bytes;
use perdura_execution::{
    Alone as _, ExecutionContext, Meter, RestoreError, Service as _, StateLimit,
};
use perdura_protocol::{ClusterId, Digest, PublicKey, SessionId, Slot, Time, limits};
use perdura_typed::{Context, Parts, QueryContext, Service, Sharded, Typed};
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[derive(Default)]
struct Ledger {
    accounts: Sharded<String, u64>,
    total: u64,
    others: Sharded<String, u64>,
    // From version 2 on.
    notes: Sharded<u32, Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
enum Command {
    Open(String, u64),
    Transfer {
        from: String,
        to: String,
        amount: u64,
    },
    Note(u32, Vec<u8>),
    /// Writes much, and fails.
    Fail(u32),
    /// Never ends by itself.
    Loop,
    /// Moves the accounts about before it fails in some way.
    Move(Way, u8),
    /// Writes, and panics.
    Panic,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Way {
    Take,
    Replace,
    Swap,
    Clear,
    Copy,
}

#[derive(Serialize, Deserialize)]
enum Query {
    Balance(String),
    Total,
    All,
    Panic,
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
enum Refused {
    NoAccount(String),
    Short { missing: u64 },
    AsATest(Vec<u8>),
}

impl Ledger {
    fn balance(&self, account: &String) -> Result<u64, Refused> {
        self.accounts.get(account).ok_or_else(|| Refused::NoAccount(account.clone()))
    }
}

impl Service for Ledger {
    const NAME: &'static str = "ledger";
    const VERSION: u16 = 2;
    type Command = Command;
    type Query = Query;
    type Reply = u64;
    type Error = Refused;

    fn execute(&mut self, context: &Context<'_>, command: Command) -> Result<u64, Refused> {
        match command {
            Command::Open(account, amount) => {
                self.total += amount - self.accounts.insert(account, amount).unwrap_or_default();
                Ok(self.total)
            }
            Command::Transfer { from, to, amount } => {
                // The first write is undone where the second is not to be.
                let had = self.balance(&from)?;
                self.accounts.insert(&from, had.wrapping_sub(amount));
                let has = self.balance(&to)?;
                self.accounts.insert(&to, has + amount);
                let missing = amount.saturating_sub(had);
                if missing > 0 { Err(Refused::Short { missing }) } else { Ok(has + amount) }
            }
            Command::Note(number, bytes) => {
                assert!(context.version() == 2);
                self.notes.insert(number, bytes);
                Ok(self.notes.len())
            }
            Command::Panic => {
                self.accounts = Sharded::new();
                self.total = 0;
                panic!("as a test");
            }
            Command::Fail(bytes) => {
                self.total = 0;
                for number in 0..100u64 {
                    self.accounts.insert(number.to_string(), number);
                }
                self.accounts.remove(&"a".to_owned());
                Err(Refused::AsATest(vec![7; bytes as usize]))
            }
            Command::Move(way, fails) => {
                let fail = |accounts: &mut Sharded<String, u64>| match fails {
                    0 => Err(Refused::AsATest(vec![])),
                    1 => loop {
                        accounts.insert("looping".to_owned(), 1);
                    },
                    2 => {
                        accounts.insert("k".repeat(5_000), 1);
                        Ok(0)
                    }
                    _ => {
                        for number in 0..2_000 {
                            accounts.insert(format!("{number:0500}"), 1);
                        }
                        Ok(0)
                    }
                };
                match way {
                    Way::Take => {
                        let mut accounts = std::mem::take(&mut self.accounts);
                        accounts.insert("taken".to_owned(), 1);
                        let done = fail(&mut accounts)?;
                        self.accounts = accounts;
                        Ok(done)
                    }
                    Way::Replace => {
                        self.accounts.insert("replaced".to_owned(), 1);
                        self.accounts = Sharded::new();
                        fail(&mut self.accounts)
                    }
                    Way::Swap => {
                        std::mem::swap(&mut self.accounts, &mut self.others);
                        fail(&mut self.others)
                    }
                    Way::Clear => {
                        self.accounts.insert("cleared".to_owned(), 1);
                        self.accounts.clear();
                        fail(&mut self.accounts)
                    }
                    Way::Copy => {
                        let mut copy = self.accounts.clone();
                        copy.remove(&"a".to_owned());
                        self.accounts = copy;
                        fail(&mut self.accounts)
                    }
                }
            }
            Command::Loop => loop {
                self.accounts.insert("a".to_owned(), self.total);
                self.total += 1;
            },
        }
    }

    fn query(&self, _: &QueryContext, query: Query) -> Result<u64, Refused> {
        match query {
            Query::Balance(account) => self.balance(&account),
            Query::Total => Ok(self.total),
            Query::Panic => panic!("as a test"),
            Query::All => Ok(self.accounts.iter().map(|(_, amount)| amount).sum()),
        }
    }

    fn since(command: &Command) -> u16 {
        if matches!(command, Command::Note(..)) { 2 } else { 1 }
    }

    fn parts(&mut self, parts: &mut Parts) {
        parts.map(&mut self.accounts);
        parts.value(&mut self.total);
        parts.map(&mut self.others);
        if parts.version() >= 2 {
            parts.map(&mut self.notes);
        }
    }
}

pub fn context() -> ExecutionContext {
    ExecutionContext {
        slot: Slot(1),
        time: Time(5),
        clock: Time(5),
        session: SessionId { client: PublicKey([3; 32]), nonce: 0 },
        number: 1,
        cluster: ClusterId([0; 16]),
        batch: Digest::ZERO,
        administrator: PublicKey([1; 32]),
        other: None,
        meter: Meter::up_to(limits::COMMAND_COST),
    }
}

struct Run(Typed<Ledger>);

fn postcard(kind: u8, what: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(what, vec![kind]).unwrap()
}

impl Run {
    fn new() -> Run {
        let mut typed = Typed::new(1 << 20);
        typed.set_version(2);
        Run(typed)
    }

    fn raw(&mut self, command: &[u8]) -> Result<Bytes, String> {
        self.0.order(&context(), command)
    }

    fn run(&mut self, command: &Command) -> Result<Result<u64, Refused>, String> {
        let reply = self.raw(&postcard(0, command))?;
        Ok(match reply[0] {
            0 => Ok(postcard::from_bytes(&reply[1..]).unwrap()),
            _ => Err(postcard::from_bytes(&reply[1..]).unwrap()),
        })
    }

    fn ask(&self, query: &Query) -> u64 {
        let answer = self.0.answer(PublicKey([3; 32]), &postcard(1, query)).unwrap().unwrap();
        assert_eq!(answer[0], 0);
        postcard::from_bytes(&answer[1..]).unwrap()
    }

    fn segments(&self) -> Vec<Bytes> {
        let snapshot = self.0.snapshot();
        let segments: Vec<Bytes> = (0..snapshot.segments()).map(|i| snapshot.segment(i)).collect();
        for (index, segment) in segments.iter().enumerate() {
            assert_eq!(snapshot.entry(index), perdura_execution::Entry::of(segment));
        }
        segments
    }
}

fn open(account: &str, amount: u64) -> Command {
    Command::Open(account.to_owned(), amount)
}

fn transfer(from: &str, to: &str, amount: u64) -> Command {
    Command::Transfer { from: from.to_owned(), to: to.to_owned(), amount }
}

#[test]
fn a_refused_command_changes_nothing_whatever_it_wrote() {
    let mut run = Run::new();
    assert_eq!(run.run(&open("a", 70)), Ok(Ok(70)));
    assert_eq!(run.run(&open("b", 30)), Ok(Ok(100)));
    assert_eq!(run.run(&transfer("a", "b", 20)), Ok(Ok(50)));
    let before = (run.segments(), run.0.state_bytes());
    let refused = [
        (transfer("a", "b", 51), Refused::Short { missing: 1 }),
        (transfer("a", "c", 1), Refused::NoAccount("c".to_owned())),
        (Command::Fail(100), Refused::AsATest(vec![7; 100])),
    ];
    for (command, error) in refused {
        assert_eq!(run.run(&command), Ok(Err(error)));
        assert_eq!((run.segments(), run.0.state_bytes()), before);
    }
    let unfit = [
        (Command::Fail(5000), "with an error of 50"),
        (Command::Loop, "more work"),
        (Command::Note(1, vec![0; 1_100_000]), "an entry would have"),
    ];
    for (command, words) in unfit {
        let said = run.run(&command).unwrap_err();
        assert!(said.contains(words), "{said}");
        assert_eq!((run.segments(), run.0.state_bytes()), before);
    }
    for bytes in [&[][..], &[0], &[2, 0], &[0, 9], &[0, 4, 0]] {
        assert!(run.raw(bytes).unwrap_err().contains("no such command"));
    }
    assert_eq!(run.ask(&Query::Balance("b".to_owned())), 50);
    assert_eq!((run.ask(&Query::Total), run.ask(&Query::All)), (100, 100));
    assert!(run.0.answer(PublicKey([3; 32]), &postcard(0, &open("c", 1))).is_none());
}

#[test]
fn a_state_is_restored_as_it_was() {
    let mut run = Run::new();
    for number in 0..3_000 {
        run.run(&open(&format!("account-{number}"), number)).unwrap().unwrap();
    }
    run.run(&Command::Note(4, vec![1, 2, 3])).unwrap().unwrap();
    let segments = run.segments();
    assert!(segments.len() > 4);
    let mut other = Run::new();
    other.run(&open("gone", 1)).unwrap().unwrap();
    other.0.restore(segments.clone()).unwrap();
    assert_eq!((other.segments(), other.0.state_bytes()), (segments.clone(), run.0.state_bytes()));
    assert_eq!(other.ask(&Query::Total), 2_999 * 1_500);
    assert_eq!(other.run(&transfer("account-7", "account-8", 7)), Ok(Ok(15)));
    // What no state gives is refused.
    let broken: [Vec<Bytes>; 4] = [
        vec![],
        segments[..segments.len() - 1].to_vec(),
        [segments.clone(), vec![segments[1].clone()]].concat(),
        [vec![segments[0].slice(1..)], segments[1..].to_vec()].concat(),
    ];
    for segments in broken {
        let refused: Result<(), RestoreError> = Run::new().0.restore(segments);
        assert!(refused.is_err());
    }
}

#[test]
fn a_part_of_a_later_version_is_there_from_that_version_on() {
    let mut first = Run(Typed::new(1 << 20));
    first.run(&open("a", 1)).unwrap().unwrap();
    let segments = first.segments();
    assert_eq!(segments.len(), 3);
    let refused = first.run(&Command::Note(4, vec![1])).unwrap_err();
    assert!(refused.contains("under the version that is in force"), "{refused}");
    let mut second = Run(Typed::new(1 << 20));
    second.0.restore(segments.clone()).unwrap();
    assert_eq!(second.segments(), segments);
    second.0.set_version(2);
    assert_eq!(second.segments().len(), 4);
    assert_eq!(second.run(&Command::Note(4, vec![1])), Ok(Ok(1)));
}

#[test]
fn a_full_state_takes_what_does_not_grow_it() {
    let mut run = Run::new();
    run.0.set_state_limit(StateLimit::of_bytes(10_000));
    let mut taken = 0;
    while run.run(&open(&taken.to_string(), 5)).is_ok() {
        taken += 1;
    }
    assert!((50..200).contains(&taken), "{taken}");
    let said = run.run(&open("one more", 5)).unwrap_err();
    assert!(said.contains("the state is full"), "{said}");
    assert_eq!(run.run(&transfer("3", "4", 5)), Ok(Ok(10)));
    assert_eq!(run.ask(&Query::All), 5 * taken);
    run.0.set_state_limit(StateLimit { bytes: 1 << 20, segments: 3 });
    assert!(run.run(&open("one more", 5)).is_err());
    run.0.set_state_limit(StateLimit::of_bytes(1 << 20));
    assert!(run.run(&open("one more", 5)).is_ok());
}

/// However a command moves the maps of the state about, and however it fails then.
#[test]
fn a_refused_command_that_moved_maps_changes_nothing() {
    let mut run = Run::new();
    run.run(&open("a", 70)).unwrap().unwrap();
    run.run(&open("b", 30)).unwrap().unwrap();
    run.0.set_state_limit(StateLimit::of_bytes(500_000));
    let before = (run.0.content(), run.0.state_bytes());
    for way in [Way::Take, Way::Replace, Way::Swap, Way::Clear, Way::Copy] {
        for fails in 0..4 {
            let done = run.run(&Command::Move(way, fails));
            assert!(!matches!(done, Ok(Ok(_))), "{fails}");
            assert!((run.0.content(), run.0.state_bytes()) == before, "{fails}");
        }
    }
    assert_eq!(run.run(&transfer("a", "b", 70)), Ok(Ok(100)));
}

/// Segments are split and merged by what is undone too, the same on all replicas: restored ones go on as the others do.
#[test]
fn undoing_in_many_segments_is_the_same_on_a_restored_replica() {
    let mut run = Run::new();
    for number in 0..4_000u64 {
        run.run(&open(&format!("account-{number:030}"), number)).unwrap().unwrap();
    }
    let mut restored = Run::new();
    restored.0.restore(run.segments()).unwrap();
    for round in 0..20 {
        for each in [&mut run, &mut restored] {
            let content = each.0.content();
            assert!(each.run(&Command::Fail(100 + round)).unwrap().is_err());
            assert!(each.0.content() == content);
            each.run(&open(&format!("another-{round}"), 1)).unwrap().unwrap();
        }
        assert!(run.segments() == restored.segments());
    }
}

/// Its replica ends; what else runs on its thread goes on, and the thread ends in order.
#[test]
fn a_command_that_panics_leaves_nothing_behind_on_its_thread() {
    let panics = || {
        let mut run = Run::new();
        run.run(&open("a", 70)).unwrap().unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| run.run(&Command::Panic)));
        assert!(panicked.is_err());
    };
    let thread = std::thread::spawn(move || {
        panics();
        let mut other = Run::new();
        other.run(&open("b", 7)).unwrap().unwrap();
        let before = other.segments();
        other.run(&Command::Move(Way::Replace, 0)).unwrap().unwrap_err();
        assert_eq!(other.segments(), before);
        panics();
    });
    thread.join().unwrap();
}

#[test]
fn a_query_that_panics_in_order_ends_nothing() {
    let mut run = Run::new();
    run.run(&open("a", 70)).unwrap().unwrap();
    let said = run.raw(&postcard(1, &Query::Panic)).unwrap_err();
    assert!(said.contains("panicked"), "{said}");
    assert_eq!(run.ask(&Query::All), 70);
}

/// On several threads at once, while the service goes on.
#[test]
fn a_state_is_read_as_it_was_while_commands_change_the_service() {
    let mut run = Run::new();
    run.run(&open("a", 70)).unwrap().unwrap();
    run.run(&open("b", 30)).unwrap().unwrap();
    run.run(&Command::Note(7, vec![1; 100])).unwrap().unwrap();
    let before = run.0.readable().unwrap();
    let asked = |query: &Query| {
        let meter = Meter::without_limit();
        let context = perdura_execution::QueryContext { client: PublicKey([3; 32]), meter: &meter };
        let answer = before.query(&context, &postcard(1, query)).unwrap().unwrap();
        assert_eq!(answer[0], 0);
        (postcard::from_bytes::<u64>(&answer[1..]).unwrap(), meter.spent())
    };
    let balance = || Query::Balance("a".to_owned());
    std::thread::scope(|scope| {
        let readers = [1, 2, 3].map(|_| {
            scope.spawn(|| (0..500).map(|_| (asked(&balance()), asked(&Query::Total))).collect())
        });
        for _ in 0..20 {
            run.run(&transfer("a", "b", 1)).unwrap().unwrap();
        }
        run.run(&open("c", 5)).unwrap().unwrap();
        for reader in readers {
            let found: Vec<((u64, u64), (u64, u64))> = reader.join().unwrap();
            assert!(found.iter().all(|((a, _), (total, _))| (*a, *total) == (70, 100)));
            assert!(found[0].0.1 > 0, "what maps do is charged here too");
        }
    });
    assert_eq!((run.ask(&balance()), run.ask(&Query::Total)), (50, 105));
}
