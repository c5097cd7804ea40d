//! What cannot be encoded is data, which a client chooses: whatever holds it, the command is refused and undone.

use crate::ledger::context;
use perdura_execution::Alone as _;
use perdura_protocol::PublicKey;
use perdura_typed::{
    Context, Parts, QueryContext, Service, Sharded, Typed, encode_command, encode_query,
};
use serde::{Deserialize, Serialize, Serializer};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime};

/// Even numbers, in a list that does not say its length where there are odd ones too.
#[derive(Deserialize, Clone, Default, Debug)]
struct Evens(Vec<u8>);

impl Serialize for Evens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.iter().all(|number| number.is_multiple_of(2)) {
            self.0.serialize(serializer)
        } else {
            serializer.collect_seq(self.0.iter().filter(|number| number.is_multiple_of(2)))
        }
    }
}

#[derive(Serialize, Deserialize, Clone, Copy)]
enum Where {
    Inserted,
    Updated,
    Beside,
    BesideAndRefused,
    Replied,
    RefusedWith,
}

#[derive(Serialize, Deserialize)]
struct Command {
    at: Where,
    // Before the epoch there is no such time in an encoding.
    seconds: i64,
    numbers: Vec<u8>,
}

type Value = (SystemTime, Evens);

struct Times {
    stored: Sharded<u8, Value>,
    last: SystemTime,
    numbers: Evens,
}

impl Default for Times {
    fn default() -> Times {
        let (stored, numbers) = (Sharded::new(), Evens::default());
        Times { stored, last: SystemTime::UNIX_EPOCH, numbers }
    }
}

fn value(seconds: i64, numbers: Vec<u8>) -> Value {
    let (epoch, distance) = (SystemTime::UNIX_EPOCH, Duration::from_secs(seconds.unsigned_abs()));
    let time = if seconds < 0 { epoch - distance } else { epoch + distance };
    (time, Evens(numbers))
}

impl Service for Times {
    const NAME: &'static str = "times";
    type Command = Command;
    type Query = i64;
    type Reply = Option<Value>;
    type Error = Value;

    fn execute(&mut self, _: &Context<'_>, command: Command) -> Result<Option<Value>, Value> {
        let value = value(command.seconds, command.numbers);
        match command.at {
            Where::Inserted => Ok(self.stored.insert(0, value)),
            Where::Updated => {
                self.stored.update(0, |_| value);
                Ok(None)
            }
            Where::Beside => {
                (self.last, self.numbers) = value;
                Ok(None)
            }
            Where::BesideAndRefused => {
                (self.last, self.numbers) = value.clone();
                Err(self
                    .stored
                    .get(&0)
                    .unwrap_or_else(|| (SystemTime::UNIX_EPOCH, Evens::default())))
            }
            Where::Replied => {
                self.stored.clear();
                Ok(Some(value))
            }
            Where::RefusedWith => {
                self.stored.clear();
                Err(value)
            }
        }
    }

    fn query(&self, _: &QueryContext, seconds: i64) -> Result<Option<Value>, Value> {
        Ok(Some(value(seconds, vec![])))
    }

    fn parts(&mut self, parts: &mut Parts<'_>) {
        parts.map(&mut self.stored);
        parts.value(&mut self.last);
        parts.value(&mut self.numbers);
    }
}

#[test]
fn a_command_is_refused_wherever_it_puts_what_cannot_be_encoded() {
    let mut typed = Typed::<Times>::new(1 << 20);
    let mut run = |at: Where, seconds: i64, numbers: &[u8]| {
        let command = Command { at, seconds, numbers: numbers.to_vec() };
        let command = encode_command::<Times>(&command).unwrap();
        (typed.order(&context(), &command), typed.content())
    };
    for at in [Where::Inserted, Where::Beside, Where::Updated] {
        assert!(run(at, 7, &[2]).0.is_ok());
    }
    let before = run(Where::RefusedWith, 7, &[2]).1;
    for (seconds, numbers) in [(-1, &[2][..]), (7, &[2, 3]), (-1, &[2, 3])] {
        for (at, what) in [
            (Where::Inserted, "a value in the state"),
            (Where::Updated, "a value in the state"),
            (Where::Beside, "a value in the state"),
            (Where::Replied, "the reply"),
            (Where::RefusedWith, "the error"),
        ] {
            let (said, after) = run(at, seconds, numbers);
            let said = said.unwrap_err();
            assert!(said.starts_with(&format!("{what} has something that cannot be")), "{said}");
            assert!(Typed::<Times>::is_fault(&said));
            assert!(after == before);
        }
        // The service's own refusal undoes it too.
        let (refused, after) = run(Where::BesideAndRefused, seconds, numbers);
        assert!(refused.is_ok_and(|answer| answer[0] == 1) && after == before);
    }
    assert!(run(Where::Inserted, 8, &[4]).0.is_ok());
}

#[test]
fn a_query_is_refused_too() {
    let typed = Typed::<Times>::new(1 << 20);
    let answer = |seconds: i64| {
        typed.answer(PublicKey([3; 32]), &encode_query::<Times>(&seconds).unwrap()).unwrap()
    };
    assert!(answer(1).is_ok());
    assert!(answer(-1).unwrap_err().contains("the reply has something"));
}

/// No client chooses it, so whoever tries the program sees it at once.
#[test]
fn a_first_state_that_cannot_be_encoded_is_a_panic_at_the_start() {
    #[derive(Default)]
    struct Odd(Option<Evens>);

    impl Service for Odd {
        const NAME: &'static str = "odd";
        type Command = ();
        type Query = ();
        type Reply = ();
        type Error = ();

        fn execute(&mut self, _: &Context<'_>, (): ()) -> Result<(), ()> {
            Ok(())
        }

        fn query(&self, _: &QueryContext, (): ()) -> Result<(), ()> {
            Ok(())
        }

        fn parts(&mut self, parts: &mut Parts<'_>) {
            parts.value(self.0.get_or_insert_with(|| Evens(vec![1])));
        }
    }

    let panicked = catch_unwind(AssertUnwindSafe(|| Typed::<Odd>::new(1 << 20).content()));
    let said = panicked.unwrap_err();
    assert!(said.downcast_ref::<&str>().is_some_and(|said| said.contains("first state")));
}
