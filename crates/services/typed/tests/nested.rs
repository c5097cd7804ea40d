//! What is nested deeper than replicas read, and lists of nothing: whoever sends or makes such a thing, it is refused, and nothing overflows.

use crate::ledger::context;
use perdura_execution::{Alone as _, Service as _};
use perdura_protocol::PublicKey;
use perdura_typed::{
    Context, EMPTY_ELEMENTS, EncodeError, LEVELS, PART_BYTES, Parts, QueryContext, Service,
    Sharded, Typed, encode_command, encode_query,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, Default)]
enum Formula {
    #[default]
    True,
    Not(Box<Formula>),
}

impl Formula {
    fn of_levels(levels: usize) -> Formula {
        (1..levels).fold(Formula::True, |formula, _| Formula::Not(Box::new(formula)))
    }
}

#[derive(Serialize, Deserialize)]
enum Command {
    Store(Formula),
    /// What is stored is put into one level more: in the map, or in the part beside it.
    Negate(bool),
    Nothings(Vec<()>),
}

/// Formulas by number, and one beside them.
#[derive(Default)]
struct Formulas {
    stored: Sharded<u8, Formula>,
    last: Formula,
}

impl Service for Formulas {
    const NAME: &'static str = "formulas";
    type Command = Command;
    type Query = Formula;
    type Reply = ();
    type Error = ();

    fn execute(&mut self, _: &Context<'_>, command: Command) -> Result<(), ()> {
        match command {
            Command::Store(formula) => {
                self.stored.insert(0, &formula);
                self.last = formula;
            }
            Command::Negate(true) => {
                let formula = self.stored.get(&0).ok_or(())?;
                self.stored.insert(0, Formula::Not(Box::new(formula)));
            }
            Command::Negate(false) => {
                self.last = Formula::Not(Box::new(std::mem::take(&mut self.last)));
            }
            Command::Nothings(_) => {}
        }
        Ok(())
    }

    fn query(&self, _: &QueryContext, _: Formula) -> Result<(), ()> {
        Ok(())
    }

    fn parts(&mut self, parts: &mut Parts) {
        parts.map(&mut self.stored);
        parts.value(&mut self.last);
    }
}

fn run(typed: &mut Typed<Formulas>, bytes: &[u8]) -> Result<(), String> {
    typed.order(&context(), bytes).map(drop)
}

#[test]
fn a_client_that_nests_megabytes_is_told_that_there_is_no_such_command() {
    let mut typed = Typed::<Formulas>::new(1 << 20);
    let nested = vec![1; 4 << 20];
    let nothings = postcard::to_stdvec(&u64::MAX).unwrap();
    for bytes in [[&[0, 0][..], &nested].concat(), [&[0, 2][..], &nothings].concat()] {
        let said = run(&mut typed, &bytes).unwrap_err();
        assert!(said.contains("no such command"), "{said}");
    }
    let query = [&[1][..], &nested].concat();
    assert!(run(&mut typed, &query).unwrap_err().contains("no such command"));
    assert!(typed.answer(PublicKey([3; 32]), &query).is_none());
}

#[test]
fn a_client_does_not_send_what_replicas_do_not_read() {
    let encode = |command: Command| encode_command::<Formulas>(&command);
    let mut typed = Typed::<Formulas>::new(1 << 20);
    // The command is a level itself.
    let deepest = encode(Command::Store(Formula::of_levels(LEVELS - 1))).unwrap();
    assert_eq!(run(&mut typed, &deepest), Ok(()));
    let deeper = encode(Command::Store(Formula::of_levels(LEVELS)));
    assert!(matches!(deeper, Err(EncodeError::Unreadable)));
    assert!(encode(Command::Nothings(vec![(); EMPTY_ELEMENTS])).is_ok());
    let nothings = encode(Command::Nothings(vec![(); 2 * EMPTY_ELEMENTS]));
    assert!(matches!(nothings, Err(EncodeError::Unreadable)));
    assert!(encode_query::<Formulas>(&Formula::of_levels(LEVELS)).is_ok());
    let query = encode_query::<Formulas>(&Formula::of_levels(LEVELS + 1));
    assert!(query.unwrap_err().to_string().contains("deeper than 64 levels"));
}

/// A part that is larger than may be from the start on: what does not mend that is refused.
#[derive(Default)]
struct Large(Option<Vec<u8>>);

impl Service for Large {
    const NAME: &'static str = "large";
    type Command = u32;
    type Query = ();
    type Reply = ();
    type Error = ();

    fn execute(&mut self, _: &Context<'_>, bytes: u32) -> Result<(), ()> {
        if bytes > 0 {
            self.0 = Some(vec![0; bytes as usize]);
        }
        Ok(())
    }

    fn query(&self, _: &QueryContext, (): ()) -> Result<(), ()> {
        Ok(())
    }

    fn parts(&mut self, parts: &mut Parts<'_>) {
        parts.value(self.0.get_or_insert_with(|| vec![0; PART_BYTES + 1]));
    }
}

#[test]
fn a_first_state_that_may_not_be_is_refused_until_it_is_mended() {
    let mut typed = Typed::<Large>::new(1 << 20);
    let mut run = |bytes: u32| {
        let command = encode_command::<Large>(&bytes).unwrap();
        typed.order(&context(), &command).map(drop)
    };
    for bytes in [0, PART_BYTES as u32 + 2, 0] {
        assert!(run(bytes).unwrap_err().contains("a part of the state that is no map"));
    }
    for bytes in [100, 0] {
        assert_eq!(run(bytes), Ok(()));
    }
    assert!(run(PART_BYTES as u32 + 2).is_err());
    assert_eq!(run(0), Ok(()));
}

/// No replica could read it again.
#[test]
fn a_command_that_nests_what_is_stored_too_deep_is_refused() {
    for in_map in [true, false] {
        let mut typed = Typed::<Formulas>::new(1 << 20);
        let store = Command::Store(Formula::of_levels(LEVELS - 1));
        run(&mut typed, &encode_command::<Formulas>(&store).unwrap()).unwrap();
        let negate = encode_command::<Formulas>(&Command::Negate(in_map)).unwrap();
        assert_eq!(run(&mut typed, &negate), Ok(()));
        let before = typed.content();
        for _ in 0..3 {
            let said = run(&mut typed, &negate).unwrap_err();
            assert!(said.contains("would not be read again"), "{said}");
            assert!(Typed::<Formulas>::is_fault(&said));
            assert!(typed.content() == before);
        }
        let snapshot = typed.snapshot();
        let segments = (0..snapshot.segments()).map(|index| snapshot.segment(index)).collect();
        let mut restored = Typed::<Formulas>::new(1 << 20);
        restored.restore(segments).unwrap();
        assert!(restored.content() == before);
        let other = encode_command::<Formulas>(&Command::Negate(!in_map)).unwrap();
        assert_eq!(run(&mut restored, &other), Ok(()));
    }
}
