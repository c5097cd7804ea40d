//! Bytes from outside: commands, replies, segments. None of them panics, and what decodes is
//! canonical.

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{Alone as _, Service, StateLimit};
use perdura_protocol::{Decode, Encode, Time};
use perdura_tuples::{Operation, TupleCommand, TupleReply, TupleSpaces};

/// A decoded command is encoded as it was.
fn check(command: &[u8]) -> bool {
    match TupleCommand::decode(command) {
        Ok(decoded) => {
            assert_eq!(decoded.to_bytes(), command);
            assert_eq!(decoded.validate(), Ok(()));
            true
        }
        Err(_) => false,
    }
}

#[test]
fn commands_and_replies_are_read_back() {
    let mut random = Random(3);
    let mut spaces = TupleSpaces::new(LIMIT);
    for step in 0..5000 {
        let command = random.command();
        assert_eq!(TupleCommand::decode(&command.to_bytes()), Ok(command.clone()));
        if let Ok(reply) = spaces.order(&context(random.client(), step), &command.to_bytes()) {
            assert_eq!(TupleReply::from_bytes(reply.clone()).unwrap().to_bytes(), reply);
        }
    }
}

/// Programs that know version 1 alone give one text for whatever begins with a tag of version 2, and so do those that know more.
#[test]
fn under_version_1_later_operations_are_refused_as_by_older_programs() {
    let mut random = Random(31);
    let mut spaces = TupleSpaces::new(LIMIT);
    let mut refused = [0; 9];
    for step in 0..900 {
        let command = on("jobs", random.later_operation());
        let whole = command.to_bytes();
        if whole[9] < 14 {
            continue;
        }
        assert_eq!(TupleCommand::decode(&whole), Ok(command.clone()));
        // Kind of command, length of the name, name, tag.
        let tag = whole[1 + 4 + 4];
        let text = format!("this is not a command of the tuple spaces: unknown tag {tag}");
        for bytes in [&whole[..], &whole[..whole.len() - 1], &whole[..10]] {
            let found = spaces.order(&context(1, step), bytes).unwrap_err();
            assert_eq!(found, text);
            assert_eq!(spaces.answer(key(1), bytes), Some(Err(text.clone())));
        }
        let words = command.refused_by_version(&text).unwrap().to_string();
        assert!(words.contains("version 2") && words.contains("perdura upgrade"), "{words}");
        assert_eq!(command.refused_by_version("access denied"), None);
        refused[usize::from(tag) - 14] += 1;
    }
    assert!(refused.iter().all(|times| *times > 10), "{refused:?}");
    let known = on("jobs", Operation::Describe);
    assert_eq!(
        known
            .refused_by_version("this is not a command of the tuple spaces: unknown tag 14")
            .map(|error| error.to_string()),
        None
    );
    let later = [1, 4, 0, 0, 0, b'j', b'o', b'b', b's', 23];
    let text = "this is not a command of the tuple spaces: unknown tag 23";
    assert_eq!(spaces.order(&context(1, 1), &later), Err(text.into()));
}

#[test]
fn damaged_commands_and_replies_are_canonical_or_refused() {
    let mut random = Random(8);
    let (mut spaces, mut decoded, mut replies) = (TupleSpaces::new(LIMIT), 0, 0);
    for step in 0..6000 {
        let command = random.command();
        let reply = spaces.order(&context(random.client(), step), &command.to_bytes());
        let mut damaged = command.to_bytes().to_vec();
        let place = random.below(damaged.len() as u64) as usize;
        match random.below(3) {
            0 => damaged[place] = random.next() as u8,
            1 => damaged.truncate(place),
            _ => damaged.push(0),
        }
        decoded += u32::from(check(&damaged));
        let executed = spaces.order(&context(1, step), &damaged);
        assert!(executed.is_err() || TupleCommand::decode(&damaged).is_ok());
        let _ = spaces.interface().footprint(&damaged);
        let _ = spaces.answer(key(1), &damaged);
        if let Ok(reply) = reply {
            let mut damaged = reply.to_vec();
            let place = random.below(damaged.len() as u64) as usize;
            damaged[place] = random.next() as u8;
            if let Ok(reply) = TupleReply::from_bytes(damaged.clone().into()) {
                assert_eq!(reply.to_bytes(), damaged);
                replies += 1;
            }
        }
    }
    assert!(decoded > 500 && replies > 500, "{decoded} {replies}");
}

#[test]
fn garbage_never_panics() {
    let mut random = Random(7);
    let mut spaces = TupleSpaces::new(1 << 20);
    for _ in 0..20_000 {
        let length = random.below(60) as usize;
        let mut garbage = random.bytes(length).to_vec();
        if let Some(tag) = garbage.first_mut() {
            *tag %= 2;
        }
        for (index, byte) in garbage.iter_mut().enumerate().skip(1) {
            if index < 6 || index.is_multiple_of(3) {
                *byte %= 3;
            }
        }
        check(&garbage);
        let _ = spaces.order(&context(1, 1), &garbage);
        let _ = spaces.answer(key(1), &garbage);
        let _ = TupleReply::from_bytes(Bytes::from(garbage.clone()));
        assert!(spaces.restore(vec![garbage.into()]).is_err());
    }
}

/// A state some of whose entries are missing, doubled or changed is refused, or it is one that gives
/// the same segments again.
#[test]
fn damaged_segments_are_refused() {
    let mut random = Random(11);
    let mut spaces = spaces(newest());
    let mut time = 1;
    while spaces.segments() < 3 {
        time += 1;
        let command = on("jobs", random.operation());
        if !matches!(command, TupleCommand::On { operation: Operation::Delete, .. }) {
            let _ = execute(&mut spaces, 1, time, &command);
        }
        let _ = execute(&mut spaces, 1, time, &on("jobs", Operation::Out(random.entry())));
    }
    // In the states that a tuple may be in, and a command that waits.
    let mut run = Run::new(spaces, 5);
    for number in 1..200 {
        let template = random.short_template();
        let wait = on("jobs", Operation::In { template, wait_ms: 100 + number });
        run.command(1, number, time, &wait);
        run.command(random.client(), number + 1000, time, &on("jobs", random.later_operation()));
    }
    let offered = run.offers.clone();
    let spaces = run.spaces;
    assert!(spaces.waiters().len() > 40, "some of them wait");
    let whole = segments(&spaces);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..4000 {
        let mut pieces = whole.clone();
        let index = random.below(pieces.len() as u64) as usize;
        let mut piece = pieces[index].to_vec();
        let place = random.below(piece.len() as u64) as usize;
        piece[place] ^= 1 << random.below(8);
        pieces[index] = piece.into();
        let mut restored = crate::support::spaces(newest());
        match restored.restore(pieces.clone()) {
            Ok(()) => {
                assert_eq!(segments(&restored), pieces);
                // Whatever it holds, commands find what belongs together.
                for number in 100..105 {
                    let command = on("jobs", random.operation());
                    let context = numbered(random.client(), 1, number, time + 500);
                    on_time(&mut restored, time + random.below(500));
                    progress(&mut restored, &context, &command);
                }
                for (session, number) in &offered {
                    restored.waiting().unwrap().take_back(
                        Time(time),
                        *session,
                        *number,
                        &mut Vec::new(),
                    );
                    restored.waiting().unwrap().confirm(
                        Time(time),
                        *session,
                        *number,
                        &mut Vec::new(),
                    );
                }
                accepted += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 1000 && accepted > 100, "{refused} {accepted}");
    for index in 0..whole.len() {
        let mut fewer = whole.clone();
        fewer.remove(index);
        assert!(TupleSpaces::new(LIMIT).restore(fewer).is_err());
    }
    assert!(TupleSpaces::new(1000).restore(whole.clone()).is_err(), "more than the limit");
    let mut raised = TupleSpaces::new(1000);
    raised.set_state_limit(StateLimit::of_bytes(LIMIT));
    assert_eq!(raised.restore(whole), Ok(()));
}
