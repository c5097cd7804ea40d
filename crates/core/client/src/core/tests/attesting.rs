//! Replies that state something to those outside of the group.

use super::*;
use perdura_protocol::attestation::{Attestation, Attested, attest};
use perdura_protocol::limits;

pub(super) fn replica_key(id: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::KeyedHash, [10 + id; 32])
}

/// What the reply "said X" states.
fn leaf_of(reply: &[u8]) -> Option<Bytes> {
    reply.strip_prefix(b"said ").map(Bytes::copy_from_slice)
}

/// With an open session.
fn script(u: u8, r: u8) -> Script {
    let plain = config(u, r);
    let replica_keys = (0..plain.faults.n() as u8).map(|id| replica_key(id).public()).collect();
    let config = ClientConfig { leaf_of, replica_keys, scheme: Scheme::KeyedHash, ..plain };
    let mut script = Script::new(config);
    script.link_all();
    script.open_session();
    script
}

/// What a replica attests of replies "said X" to these numbers.
fn attested(script: &Script, id: u8, said: &[(u64, &str)]) -> Message {
    attested_in(script, 3, id, said)
}

/// The same, in a configuration.
fn attested_in(script: &Script, number: u64, id: u8, said: &[(u64, &str)]) -> Message {
    let leaves: Vec<&str> = said.iter().map(|(_, text)| *text).collect();
    let attestations = attest((CLUSTER, number), &leaves, (ReplicaId(id), &replica_key(id)));
    let Attestation { configuration, count, signature, .. } = attestations[0];
    let leaf = |((number, _), one): (&(u64, &str), Attestation)| (*number, one.index, one.path);
    let leaves = said.iter().zip(attestations).map(leaf).collect();
    let nonce = script.nonce();
    Message::Attested(Box::new(Attested { nonce, configuration, count, signature, leaves }))
}

impl Script {
    fn attest(&mut self, id: u8, said: &[(u64, &str)]) {
        let message = attested(self, id, said);
        self.receive(id, message);
    }

    /// The only call that ended, which did with this reply: who attested it.
    fn attesters(&mut self, call: CallId, text: &str) -> Vec<u8> {
        let done = self.done();
        let [(id, CallResult::Completed(Reply::Attested { reply, attestations }))] = &done[..]
        else {
            panic!("{done:?}")
        };
        assert_eq!((*id, &reply[..]), (call, format!("said {text}").as_bytes()));
        for one in attestations {
            let key = replica_key(one.signer.0).public();
            let claim = one.claim(CLUSTER, text.as_bytes(), key).unwrap();
            assert!(Scheme::KeyedHash.verify(claim.key, &claim.message, claim.signature));
        }
        attestations.iter().map(|one| one.signer.0).collect()
    }
}

#[test]
fn a_call_ends_with_as_many_attestations_as_replies_it_needs() {
    let mut script = script(1, 1);
    let call = script.call("say a");
    script.answer(3, 2, &reply("said a"));
    script.attest(3, &[(2, "a")]);
    script.answer(1, 2, &reply("said a"));
    script.answer(0, 2, &reply("said a"));
    assert_eq!(script.done(), [], "one replica's word, and three replies");
    script.attest(1, &[(2, "a")]);
    assert_eq!(script.attesters(call, "a"), [1, 3]);
    assert_eq!((script.core.open_calls(), script.core.stats().false_attestations), (0, 0));
    // What comes later is nobody's.
    script.attest(0, &[(2, "a")]);
    script.answer(2, 2, &reply("said a"));
    assert_eq!((script.done(), script.core.next_deadline()), (vec![], None));
}

#[test]
fn they_are_of_one_configuration() {
    let mut script = script(1, 1);
    let call = script.call("say a");
    for id in 0..3 {
        script.answer(id, 2, &reply("said a"));
    }
    for (id, configuration) in [(3, 5), (0, 3), (1, 4)] {
        let message = attested_in(&script, configuration, id, &[(2, "a")]);
        script.receive(id, message);
        assert_eq!(script.done(), [], "nobody is shown two configurations at once");
    }
    // It is answered again, after the members have changed.
    let message = attested_in(&script, 4, 0, &[(2, "a")]);
    script.receive(0, message);
    assert_eq!(script.attesters(call, "a"), [0, 1]);
    assert_eq!(script.core.stats().false_attestations, 0);
}

#[test]
fn where_nobody_lies_one_is_enough_and_one_is_needed() {
    let mut script = script(1, 0);
    let call = script.call("say a");
    script.answer(2, 2, &reply("said a"));
    assert_eq!(script.done(), []);
    script.attest(2, &[(2, "a")]);
    assert_eq!(script.attesters(call, "a"), [2]);
}

#[test]
fn what_states_nothing_needs_nothing() {
    let mut script = script(1, 1);
    for (number, outcome, result) in [
        (2, reply("done"), completed("done")),
        (
            3,
            Outcome::Refused(RefusalReason::Service("said no".into())),
            CallResult::Refused(Refusal::Ordered(RefusalReason::Service("said no".into()))),
        ),
        // More than a replica attests.
        (4, reply(&format!("said {}", "x".repeat(limits::LEAF_BYTES + 1))), {
            completed(&format!("said {}", "x".repeat(limits::LEAF_BYTES + 1)))
        }),
    ] {
        let call = script.call("do it");
        script.answer(0, number, &outcome);
        script.answer(1, number, &outcome);
        assert_eq!(script.done(), [(call, result)]);
    }
}

#[test]
fn attestations_and_replies_come_in_any_order() {
    let events: Vec<(u8, bool)> = vec![(0, true), (0, false), (2, true), (2, false)];
    let mut orders = 0;
    for seed in 0..256usize {
        let order = [seed & 3, seed >> 2 & 3, seed >> 4 & 3, seed >> 6 & 3];
        let distinct: std::collections::BTreeSet<usize> = order.into();
        if distinct.len() < 4 {
            continue;
        }
        orders += 1;
        let mut script = script(1, 1);
        let call = script.call("say a");
        for (count, index) in order.into_iter().enumerate() {
            assert_eq!(script.done(), [], "{order:?} {count}");
            match events[index] {
                (id, true) => script.attest(id, &[(2, "a")]),
                (id, false) => script.answer(id, 2, &reply("said a")),
            }
        }
        assert_eq!(script.attesters(call, "a"), [0, 2], "{order:?}");
        assert_eq!(script.core.stats().false_attestations, 0);
    }
    assert_eq!(orders, 24);
}

#[test]
fn the_lowest_that_are_valid_are_given_once_enough_replies_are_here() {
    let mut script = script(1, 1);
    let options = CallOptions { reply_quorum: Some(4), ..script.options() };
    let call = script.enter(Command::Service(Bytes::from_static(b"say a")).to_bytes(), options);
    script.pump();
    for id in [3, 1, 2] {
        script.answer(id, 2, &reply("said a"));
        script.attest(id, &[(2, "a")]);
    }
    assert_eq!(script.done(), []);
    script.answer(0, 2, &reply("said a"));
    assert_eq!(script.attesters(call, "a"), [1, 2]);
}

#[test]
fn a_false_attestation_is_counted_once_and_another_replica_makes_up_for_it() {
    let mut script = script(1, 1);
    let call = script.call("say a");
    for id in [0, 1] {
        script.answer(id, 2, &reply("said a"));
    }
    script.attest(0, &[(2, "a")]);
    // Another statement than the reply's, by whoever: a signature that holds for something else.
    script.attest(1, &[(2, "b")]);
    assert_eq!((script.done(), script.core.stats().false_attestations), (vec![], 1));
    // It is not listened to again, not even if it gives a right one.
    script.attest(1, &[(2, "b")]);
    script.attest(1, &[(2, "a")]);
    assert_eq!((script.done(), script.core.stats().false_attestations), (vec![], 1));
    // Another one's attestation under its own link is false as well.
    let of_zero = attested(&script, 0, &[(2, "a")]);
    script.answer(2, 2, &reply("said a"));
    script.receive(2, of_zero);
    assert_eq!((script.done(), script.core.stats().false_attestations), (vec![], 2));
    script.attest(3, &[(2, "a")]);
    assert_eq!(script.done(), [], "its reply is not here");
    script.answer(3, 2, &reply("said a"));
    assert_eq!(script.attesters(call, "a"), [0, 3]);
}

#[test]
fn only_those_count_whose_reply_was_the_agreed_one() {
    let mut script = script(1, 1);
    let call = script.call("say a");
    script.answer(0, 2, &reply("said b"));
    script.attest(0, &[(2, "b")]);
    script.answer(3, 2, &reply("done"));
    script.attest(3, &[(2, "a")]);
    assert_eq!(script.core.stats().false_attestations, 1, "its reply states nothing");
    for id in [1, 2] {
        script.answer(id, 2, &reply("said a"));
        assert_eq!(script.done(), []);
        script.attest(id, &[(2, "a")]);
    }
    assert_eq!(script.attesters(call, "a"), [1, 2]);
}

/// A replica that forgot a reply is not one that gave another.
#[test]
fn an_attestation_waits_for_a_reply_that_is_not_known_yet() {
    let mut script = script(1, 0);
    let call = script.call("say a");
    script.attest(1, &[(2, "a")]);
    script.answer(1, 2, &Outcome::Waits);
    assert_eq!(script.core.stats().false_attestations, 0);
    let waited = Outcome::Waited { outcome: Box::new(reply("said a")), offer: false };
    script.answer(1, 2, &waited);
    assert_eq!(script.attesters(call, "a"), [1]);
}

#[test]
fn what_is_lost_is_asked_for_until_both_are_here() {
    let mut script = script(1, 1);
    let call = script.call("say a");
    let first = script.frames().remove(0).1;
    script.answer_all(2, &reply("said a"));
    // All attestations are lost.
    script.pass(1_000);
    let again = script.frames();
    let targets: Vec<u8> = again.iter().map(|(to, _)| *to).take(4).collect();
    assert_eq!(targets, [0, 1, 2, 3]);
    assert!(again.iter().all(|(_, frame)| *frame == first));
    // Replicas answer with both again.
    script.answer(2, 2, &reply("said a"));
    script.attest(2, &[(2, "a")]);
    script.attest(0, &[(2, "a")]);
    assert_eq!(script.attesters(call, "a"), [0, 2]);
    // And if they never do, the call ends by its deadline, indeterminate.
    let call = script.call("say b");
    script.answer_all(3, &reply("said b"));
    script.attest(1, &[(3, "b")]);
    script.pass(5_000);
    let ended = CallResult::Indeterminate(Indeterminacy::DeadlinePassed);
    assert_eq!(script.done(), [(call, ended)]);
}

#[test]
fn many_replies_share_a_signature_and_other_sessions_ones_are_not_taken() {
    let mut script = script(1, 1);
    let calls = ["a", "b", "c"].map(|text| script.call(&format!("say {text}")));
    let said = [(2, "a"), (3, "b"), (4, "c")];
    for (number, text) in said {
        for id in [0, 1] {
            script.answer(id, number, &reply(&format!("said {text}")));
        }
    }
    let mut other = attested(&script, 0, &said);
    let Message::Attested(attested) = &mut other else { unreachable!() };
    attested.nonce += 1;
    script.receive(0, other);
    script.attest(1, &said);
    assert_eq!(script.done(), []);
    script.attest(0, &said);
    let ended: Vec<CallId> = script.done().into_iter().map(|(call, _)| call).collect();
    assert_eq!(ended, calls);
}

#[test]
fn nobody_attests_a_read_that_was_not_ordered() {
    let mut script = script(1, 1);
    let call = script.read("who says a");
    for id in 1..4 {
        script.receive(
            id,
            Message::ReadReply { id: 1, slot: Slot(0), outcome: Some(reply("said a")) },
        );
    }
    assert_eq!((script.done(), script.core.stats().fast_reads), (vec![], 0));
    for id in [0, 1] {
        script.answer(id, 2, &reply("said a"));
        script.attest(id, &[(2, "a")]);
    }
    assert_eq!(script.attesters(call, "a"), [0, 1]);
}
