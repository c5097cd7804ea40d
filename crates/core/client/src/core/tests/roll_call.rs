use super::*;
use perdura_protocol::Signature;
use perdura_protocol::vitals::{Presence, Vitals};

const ASKED: [u8; 16] = [7; 16];

fn presence(nonce: [u8; 16]) -> Message {
    let vitals = Vitals::default().to_bytes();
    let presence = Presence { nonce, configuration: 0, vitals };
    Message::Present { presence, signature: Signature::NONE }
}

fn asked(script: &mut Script) -> Vec<u8> {
    let question = Message::RollCall { nonce: ASKED };
    script.sent().into_iter().filter(|sent| sent.1 == question).map(|(to, _)| to.0).collect()
}

#[test]
fn all_are_asked_and_again_until_each_has_answered() {
    let mut script = Script::open(1, 0);
    script.core.roll_call(script.now_ms, CallId(90), ASKED, script.now_ms + 1_000);
    script.pump();
    assert_eq!(asked(&mut script), [0, 1, 2]);
    script.receive(1, presence(ASKED));
    script.receive(1, presence([8; 16]));
    script.pass(200);
    assert_eq!(asked(&mut script), [0, 2]);
    script.receive(0, presence(ASKED));
    assert!(script.rolls.is_empty());
    script.receive(2, presence(ASKED));
    let (id, answers) = script.rolls.pop().unwrap();
    assert_eq!((id, answers.len()), (CallId(90), 3));
    script.receive(2, presence(ASKED));
    script.pass(2_000);
    assert!(script.rolls.is_empty(), "it ends once");
}

#[test]
fn at_its_deadline_it_ends_with_who_was_there() {
    let mut script = Script::new(config(1, 0));
    script.core.roll_call(0, CallId(90), ASKED, 1_000);
    script.core.on_link(10, ReplicaId(2), true);
    script.pump();
    assert_eq!(asked(&mut script), [2], "also who is linked later");
    script.receive(2, presence(ASKED));
    script.pass(990);
    assert!(script.rolls.is_empty());
    script.pass(10);
    let (_, answers) = script.rolls.pop().unwrap();
    assert_eq!(answers.keys().collect::<Vec<_>>(), [&ReplicaId(2)]);
}
