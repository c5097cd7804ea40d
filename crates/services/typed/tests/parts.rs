//! How many parts a service names is fixed: one that names others after a command is told so, at that command.

use crate::ledger::context;
use perdura_execution::Alone as _;
use perdura_typed::{Context, Parts, QueryContext, Service, Sharded, Typed, encode_command};
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[derive(Serialize, Deserialize, Clone, Copy)]
enum Change {
    Nothing,
    PushMap,
    PopMap,
    /// As many as before.
    ReplaceMap,
    PushValue,
    PopValue,
}

/// One that has as many parts as it likes.
struct Lists {
    maps: Vec<Sharded<u8, u8>>,
    values: Vec<u8>,
}

impl Default for Lists {
    fn default() -> Lists {
        Lists { maps: vec![Sharded::new(), Sharded::new()], values: vec![1, 2] }
    }
}

impl Service for Lists {
    const NAME: &'static str = "lists";
    type Command = (Change, bool);
    type Query = ();
    type Reply = ();
    type Error = ();

    fn execute(&mut self, _: &Context<'_>, (change, fails): (Change, bool)) -> Result<(), ()> {
        self.maps[0].insert(1, 1);
        match change {
            Change::Nothing => {}
            Change::PushMap => self.maps.push(Sharded::new()),
            Change::PopMap => drop(self.maps.pop()),
            Change::ReplaceMap => {
                self.maps.pop();
                self.maps.insert(0, Sharded::new());
            }
            Change::PushValue => self.values.push(3),
            Change::PopValue => drop(self.values.pop()),
        }
        if fails { Err(()) } else { Ok(()) }
    }

    fn query(&self, _: &QueryContext, (): ()) -> Result<(), ()> {
        Ok(())
    }

    fn parts(&mut self, parts: &mut Parts<'_>) {
        self.maps.iter_mut().for_each(|map| parts.map(map));
        self.values.iter_mut().for_each(|value| parts.value(value));
    }
}

/// Whether it is accepted, or the words of a panic.
fn run(typed: &mut Typed<Lists>, command: (Change, bool)) -> Result<bool, String> {
    let command = encode_command::<Lists>(&command).unwrap();
    let done = catch_unwind(AssertUnwindSafe(|| typed.order(&context(), &command)));
    match done {
        Ok(answer) => Ok(answer.unwrap()[0] == 0),
        Err(panic) => Err(match panic.downcast::<String>() {
            Ok(said) => *said,
            Err(panic) => panic.downcast_ref::<&str>().unwrap().to_string(),
        }),
    }
}

#[test]
fn a_service_with_other_parts_after_a_command_is_told_so_at_once() {
    for change in [Change::PushMap, Change::PopMap, Change::PushValue, Change::PopValue] {
        for fails in [false, true] {
            let mut typed = Typed::<Lists>::new(1 << 20);
            assert_eq!(run(&mut typed, (Change::Nothing, false)), Ok(true));
            let said = run(&mut typed, (change, fails)).unwrap_err();
            assert!(said.contains("names more or fewer parts"), "{said}");
        }
    }
}

#[test]
fn other_maps_in_the_places_of_those_before_are_undone() {
    let mut typed = Typed::<Lists>::new(1 << 20);
    let before = typed.content();
    assert_eq!(run(&mut typed, (Change::ReplaceMap, true)), Ok(false));
    assert!(typed.content() == before);
    assert_eq!(run(&mut typed, (Change::ReplaceMap, false)), Ok(true));
    assert!(typed.content() != before);
    assert_eq!(run(&mut typed, (Change::ReplaceMap, true)), Ok(false));
}
