//! The core against scripted replicas, and against a lossy network with a liar.

mod attesting;
mod lifetime;
mod lossy;
mod put_off;
mod reach;
mod reading;
mod roll_call;
mod sessions;

use super::*;
use crate::outcome::{Indeterminacy, Refusal, Reply};
use perdura_protocol::{Command, Encode, Frame, Outcome, RefusalReason, Scheme, Slot, View};

const CLUSTER: ClusterId = ClusterId([3; 16]);
const NONCE: u64 = 1_000_000;

/// A core, the time, and what it wanted so far.
pub(super) struct Script {
    pub(super) core: ClientCore,
    pub(super) now_ms: u64,
    sent: Vec<(ReplicaId, Message)>,
    done: Vec<(CallId, CallResult)>,
    sessions: Vec<(CallId, Result<u64, Refusal>)>,
    rolls: Vec<(CallId, BTreeMap<ReplicaId, Answer>)>,
    next_call: u64,
}

pub(super) fn reply(text: &str) -> Outcome {
    Outcome::Service(Bytes::copy_from_slice(text.as_bytes()))
}

pub(super) fn completed(text: &str) -> CallResult {
    CallResult::Completed(Reply::Service(Bytes::copy_from_slice(text.as_bytes())))
}

pub(super) fn config(u: u8, r: u8) -> ClientConfig {
    let key = SecretKey::from_seed(Scheme::KeyedHash, [5; 32]);
    ClientConfig::new(CLUSTER, Faults::new(u, r).unwrap(), key)
}

impl Script {
    pub(super) fn new(config: ClientConfig) -> Script {
        let core = ClientCore::new(config, NONCE, [7; 16], 0);
        Script {
            core,
            now_ms: 0,
            sent: Vec::new(),
            done: Vec::new(),
            sessions: Vec::new(),
            rolls: Vec::new(),
            next_call: 0,
        }
    }

    /// All replicas linked and the session open; nothing sent is left over.
    fn open(u: u8, r: u8) -> Script {
        let mut script = Script::new(config(u, r));
        script.link_all();
        script.open_session();
        script
    }

    fn link_all(&mut self) {
        for replica in 0..self.core.links.len() as u8 {
            self.core.on_link(self.now_ms, ReplicaId(replica), true);
        }
    }

    /// Opens the session by a first call that is answered.
    fn open_session(&mut self) {
        let first = self.call("first");
        self.answer_all(0, &Outcome::Opened);
        self.answer_all(1, &reply("opened"));
        assert_eq!(self.done(), [(first, completed("opened"))]);
        self.sent();
    }

    fn pump(&mut self) {
        self.core.flush(self.now_ms);
        while let Some(output) = self.core.next_output() {
            match output {
                Output::Send { to, message } => self.sent.push((to, message)),
                Output::Done { id, result } => self.done.push((id, result)),
                Output::Roll { id, answers } => self.rolls.push((id, answers)),
                Output::Session { id, result } => self.sessions.push((id, result)),
            }
        }
    }

    fn enter(&mut self, command: Bytes, options: CallOptions) -> CallId {
        let id = CallId(self.next_call);
        self.next_call += 1;
        self.core.call(self.now_ms, id, command, options);
        id
    }

    fn options(&self) -> CallOptions {
        CallOptions { deadline_ms: self.now_ms + 5000, mode: Mode::Ordered, reply_quorum: None }
    }

    fn call(&mut self, text: &str) -> CallId {
        let command = Command::Service(Bytes::copy_from_slice(text.as_bytes())).to_bytes();
        let id = self.enter(command, self.options());
        self.pump();
        id
    }

    fn read(&mut self, text: &str) -> CallId {
        let command = Command::Service(Bytes::copy_from_slice(text.as_bytes())).to_bytes();
        let id = self.enter(command, CallOptions { mode: Mode::Fast, ..self.options() });
        self.pump();
        id
    }

    fn nonce(&self) -> u64 {
        self.core.session.as_ref().unwrap().nonce
    }

    fn receive(&mut self, from: u8, message: Message) {
        self.core.on_message(self.now_ms, ReplicaId(from), message);
        self.pump();
    }

    fn answer(&mut self, from: u8, number: u64, outcome: &Outcome) {
        let Some(session) = &self.core.session else { return };
        let nonce = session.nonce;
        let outcomes = vec![(number, outcome.clone())];
        self.receive(from, Message::Replies { view: self.core.view(), nonce, outcomes });
    }

    fn answer_all(&mut self, number: u64, outcome: &Outcome) {
        for replica in 0..self.core.links.len() as u8 {
            self.answer(replica, number, outcome);
        }
    }

    /// Lets time pass, ticking whenever the core asks for it.
    fn pass(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while let Some(next) = self.core.next_deadline().filter(|next| *next <= end) {
            self.now_ms = self.now_ms.max(next);
            self.core.on_tick(self.now_ms);
            self.pump();
        }
        self.now_ms = end;
    }

    fn sent(&mut self) -> Vec<(ReplicaId, Message)> {
        std::mem::take(&mut self.sent)
    }

    /// Frames sent since the last look, with their targets.
    fn frames(&mut self) -> Vec<(u8, Frame)> {
        let frame = |(to, message)| match message {
            Message::Frame(frame) => Some((ReplicaId::index(to) as u8, frame)),
            _ => None,
        };
        self.sent().into_iter().filter_map(frame).collect()
    }

    fn done(&mut self) -> Vec<(CallId, CallResult)> {
        std::mem::take(&mut self.done)
    }
}

#[test]
fn one_reply_is_enough_without_liars_and_frames_are_unsigned() {
    let mut script = Script::new(config(1, 0));
    script.link_all();
    let id = script.call("put");
    let sent = script.sent();
    let attach = Message::Attach { nonce: NONCE };
    assert!((0..3).all(|replica| sent.contains(&(ReplicaId(replica), attach.clone()))));
    let Some((ReplicaId(0), Message::Frame(open))) = sent.last() else { panic!("{sent:?}") };
    assert_eq!(open.first_number, 0);
    assert!(open.commands().eq([Command::OpenBy { token: [7; 16] }.to_bytes()]));
    script.answer(1, 0, &Outcome::Opened);
    let frames = script.frames();
    let [(0, frame)] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!((frame.first_number, frame.acked_below), (1, 1));
    assert_eq!(frame.claim(CLUSTER).signature, perdura_protocol::Signature::NONE);
    script.answer(2, 1, &reply("done"));
    assert_eq!(script.done(), [(id, completed("done"))]);
    assert_eq!((script.core.open_calls(), script.core.next_deadline()), (0, None));
}

#[test]
fn frames_are_signed_where_replicas_may_lie_and_by_the_administrator() {
    let administrator = ClientConfig { administrator: true, ..config(1, 0) };
    for config in [config(1, 1), administrator] {
        let mut script = Script::new(config);
        script.link_all();
        script.call("put");
        let (_, frame) = script.frames().remove(0);
        let claim = frame.claim(CLUSTER);
        assert!(Scheme::KeyedHash.verify(claim.key, &claim.message, claim.signature));
    }
}

#[test]
fn a_liar_is_outvoted_and_counted() {
    let mut script = Script::open(1, 1);
    let id = script.call("put");
    script.answer(3, 2, &reply("lie"));
    script.answer(3, 2, &reply("lie"));
    script.answer(3, 2, &reply("another lie"));
    script.answer(1, 2, &reply("truth"));
    assert_eq!(script.done(), []);
    script.answer(0, 2, &reply("truth"));
    assert_eq!(script.done(), [(id, completed("truth"))]);
    assert!(script.core.stats().disagreements >= 2);
}

#[test]
fn a_caller_may_ask_for_more_replies_but_not_for_fewer() {
    for (asked, needed) in [(0, 2), (3, 3), (99, 4)] {
        let mut script = Script::open(1, 1);
        let options = CallOptions { reply_quorum: Some(asked), ..script.options() };
        let id = script.enter(Command::Service(Bytes::new()).to_bytes(), options);
        script.pump();
        for replica in 0..needed {
            assert_eq!(script.done(), []);
            script.answer(replica, 2, &reply("x"));
        }
        assert_eq!(script.done(), [(id, completed("x"))]);
    }
}

#[test]
fn what_is_not_answered_goes_to_all_as_the_same_bytes_at_growing_intervals() {
    let mut script = Script::open(1, 1);
    script.call("put");
    let first = script.frames();
    assert_eq!(first.len(), 1);
    let mut gaps = Vec::new();
    let mut last = script.now_ms;
    while script.now_ms < 4000 {
        script.pass(1);
        let mut again = script.frames();
        again.retain(|(_, frame)| frame.first_number == first[0].1.first_number);
        if !again.is_empty() {
            let targets: Vec<u8> = again.iter().map(|(to, _)| *to).collect();
            assert_eq!(targets, [0, 1, 2, 3]);
            assert!(again.iter().all(|(_, frame)| frame.raw() == first[0].1.raw()));
            gaps.push(script.now_ms - last);
            last = script.now_ms;
        }
    }
    assert_eq!(gaps, [150, 300, 600, 1000, 1000]);
}

#[test]
fn a_leader_whose_link_breaks_is_passed_by_at_once() {
    let mut script = Script::open(1, 1);
    script.call("before");
    script.frames();
    script.core.on_link(script.now_ms, ReplicaId(0), false);
    script.pump();
    let targets: Vec<u8> = script.frames().iter().map(|(to, _)| *to).collect();
    assert_eq!(targets, [1, 2, 3]);
    script.call("while it is away");
    let targets: Vec<u8> = script.frames().iter().map(|(to, _)| *to).collect();
    assert_eq!(targets, [1, 2, 3]);
    script.core.on_link(script.now_ms, ReplicaId(0), true);
    script.pump();
    assert_eq!(script.sent().len(), 3, "attach and both frames");
}

#[test]
fn the_next_leader_is_believed_on_enough_words_and_gets_what_is_open() {
    let mut script = Script::open(1, 1);
    script.call("put");
    script.frames();
    script.receive(3, Message::Welcome { view: View(3) });
    assert_eq!(script.frames(), []);
    script.receive(2, Message::Welcome { view: View(2) });
    let frames = script.frames();
    assert_eq!((frames.len(), frames[0].0, script.core.view()), (1, 2, View(2)));
}

#[test]
fn a_busy_leader_is_asked_again_and_cannot_keep_a_frame_from_the_others() {
    let mut script = Script::open(1, 1);
    script.call("put");
    let first = script.frames().remove(0).1;
    let busy = Message::Busy { nonce: script.nonce(), first_number: first.first_number };
    script.receive(1, busy.clone());
    assert_eq!(script.core.stats().busy, 0, "not the leader's word");
    script.receive(0, busy.clone());
    script.pass(10);
    assert_eq!(script.frames(), [(0, first.clone())]);
    script.receive(0, busy);
    script.pass(19);
    assert_eq!(script.frames(), []);
    script.pass(1);
    assert_eq!(script.frames(), [(0, first)]);
    script.pass(120);
    assert_eq!(script.frames().len(), 4);
}

#[test]
fn many_waiting_calls_share_a_frame_and_frames_in_flight_are_bounded() {
    let mut script = Script::open(1, 1);
    for text in ["a", "b", "c", "d", "e", "f"] {
        script.call(text);
    }
    let frames = script.frames();
    assert_eq!(frames.len(), 4, "one call each while there is room in the pipeline");
    script.answer_all(2, &reply("a"));
    let frames = script.frames();
    let [(0, frame)] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!((frame.commands().len(), frame.first_number, frame.acked_below), (2, 6, 3));
}

#[test]
fn frames_are_closed_at_their_target_size() {
    let mut script = Script::new(config(1, 0));
    let large = Bytes::from(vec![1; bounds::FRAME_TARGET_BYTES * 3 / 4]);
    for _ in 0..3 {
        script.enter(large.clone(), script.options());
    }
    script.enter(Bytes::from(vec![1; bounds::COMMAND_BYTES]), script.options());
    script.link_all();
    script.pump();
    script.answer_all(0, &Outcome::Opened);
    let frames = script.frames();
    let sizes: Vec<usize> =
        frames.iter().skip(1).map(|(_, frame)| frame.commands().len()).collect();
    assert_eq!(sizes, [1, 1, 1, 1]);
    let id = script.enter(Bytes::from(vec![1; bounds::COMMAND_BYTES + 1]), script.options());
    script.pump();
    let refusal = Refusal::TooLarge(bounds::COMMAND_BYTES + 1);
    assert_eq!(script.done(), [(id, CallResult::Refused(refusal))]);
}

#[test]
fn a_refusal_takes_as_many_words_as_a_reply() {
    let mut script = Script::open(1, 1);
    let id = script.call("put");
    let refused = Outcome::Refused(RefusalReason::Service("full".into()));
    script.answer(3, 2, &refused);
    assert_eq!(script.done(), []);
    script.answer(0, 2, &refused);
    let refusal = Refusal::Ordered(RefusalReason::Service("full".into()));
    assert_eq!(script.done(), [(id, CallResult::Refused(refusal))]);
}

#[test]
fn messages_that_no_client_gets_and_strangers_change_nothing() {
    let mut script = Script::open(1, 1);
    script.call("put");
    script.receive(0, Message::StateQuery);
    script.receive(77, Message::Welcome { view: View(5) });
    script
        .receive(0, Message::Replies { view: View(0), nonce: 1, outcomes: vec![(2, reply("x"))] });
    script.answer_all(99, &reply("x"));
    assert_eq!(script.done(), []);
    assert_eq!(script.core.stats().unexpected_messages, 1);
}

#[test]
fn closing_tells_the_sent_from_the_unsent() {
    let mut script = Script::open(1, 1);
    let ids: Vec<CallId> = (0..5).map(|_| script.call("put")).collect();
    script.core.close();
    script.pump();
    let sent = CallResult::Indeterminate(Indeterminacy::Closed);
    let unsent = CallResult::Refused(Refusal::Closed);
    let ends = script.done();
    assert!(ends[..4].iter().all(|(_, end)| *end == sent));
    assert_eq!(ends[4], (ids[4], unsent));
}
