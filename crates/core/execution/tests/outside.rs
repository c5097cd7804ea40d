//! What a service says to those outside of its group, and what it learns of other sessions.

use crate::support::*;
use bytes::Bytes;
use perdura_execution::{
    ExecutionContext, Failure, Interface, Machine, Progress, Release, RestoreError, Service,
    Snapshot, Standing, Waiting,
};
use perdura_protocol::keys::Claim;
use perdura_protocol::statement::STATEMENT_BYTES;
use perdura_protocol::{
    AdminCommand, Batch, Command, Decode, Encode, Frame, Outcome, PublicKey, SessionId, Signature,
    Time, Versions, limits,
};
use std::sync::Arc;

/// "ask SESSION" says how that session stands and who the administrator is; "wait" waits until it is forgotten; "ended" tells of
/// which sessions the service was told that they are over, with how many commands of theirs still waiting then.
#[derive(Clone, Default)]
struct Watch {
    waiting: Vec<(SessionId, u64)>,
    ended: Vec<(u64, usize)>,
}

struct Nothing;

impl Snapshot for Nothing {
    fn segments(&self) -> usize {
        0
    }

    fn segment(&self, _: usize) -> Bytes {
        unreachable!("there is none")
    }
}

fn asked(command: &[u8]) -> Option<SessionId> {
    let encoded = command.strip_prefix(b"ask ")?;
    SessionId::from_bytes(Bytes::copy_from_slice(encoded)).ok()
}

impl Service for Watch {
    fn execute(&mut self, context: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        match command {
            b"ended" => Ok(format!("{:?}", self.ended).into()),
            _ => Ok(format!("{:?} {}", context.other, context.administrator.0[0]).into()),
        }
    }

    fn waiting(&mut self) -> Option<&mut dyn Waiting> {
        Some(self)
    }

    fn session_ended(&mut self, session: SessionId) {
        let still = self.waiting.iter().filter(|(id, _)| *id == session).count();
        self.ended.push((session.nonce, still));
    }

    fn interface(&self) -> Arc<dyn Interface> {
        Arc::new(Claims)
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(Nothing)
    }

    fn install(&mut self, _: usize, _: Bytes) -> Result<(), RestoreError> {
        Ok(())
    }
}

impl Waiting for Watch {
    fn execute_or_wait(
        &mut self,
        context: &ExecutionContext,
        command: &[u8],
        _: &mut Vec<Release>,
    ) -> Result<Progress, Failure> {
        if command == b"wait" {
            self.waiting.push((context.session, context.number));
            return Ok(Progress::Waits);
        }
        self.execute(context, command).map(Progress::Done)
    }

    fn forget(&mut self, session: SessionId, number: u64) {
        self.waiting.retain(|one| *one != (session, number));
    }

    fn confirm(&mut self, _: Time, _: SessionId, _: u64, _: &mut Vec<Release>) {
        unreachable!("nothing is offered")
    }

    fn take_back(&mut self, _: Time, _: SessionId, _: u64, _: &mut Vec<Release>) {
        unreachable!("nothing is offered")
    }
}

/// What it says by itself.
struct Claims;

impl Interface for Claims {
    fn asks_about(&self, command: &[u8]) -> Option<SessionId> {
        asked(command)
    }

    fn attested(&self, reply: &[u8]) -> Option<Bytes> {
        assert!(reply != b"boom");
        reply.strip_prefix(b"said ").map(Bytes::copy_from_slice)
    }

    fn claims(&self, command: &[u8]) -> Option<Vec<Claim<[u8; STATEMENT_BYTES]>>> {
        let text = std::str::from_utf8(command).ok()?;
        let Some(count) = text.strip_prefix("claims ") else { return Some(Vec::new()) };
        let claim = |index: usize| Claim {
            key: PublicKey([index as u8; 32]),
            message: [index as u8; STATEMENT_BYTES],
            signature: Signature::NONE,
        };
        Some((0..count.parse().expect("a number")).map(claim).collect())
    }
}

/// In the middle of an hour, so that numbers of then can be opened.
const NOW: u64 = 3_600_000;

fn nonce(ms: u64) -> u64 {
    ms * limits::NONCES_PER_MS
}

fn at(replica: &mut Replica<Watch>, ms: u64, frame: Frame) -> Vec<Outcome> {
    let executed = replica.execute(&Batch::requests(Time(ms), vec![frame]));
    executed.replies.into_iter().map(|reply| reply.outcome).collect()
}

fn ask(of: SessionId) -> Bytes {
    Command::Service([b"ask ".to_vec(), of.to_bytes().to_vec()].concat().into()).to_bytes()
}

/// Asks as Bob, who opens a session for it.
fn standing(replica: &mut Replica<Watch>, ms: u64, of: SessionId) -> String {
    let bob = session(BOB, nonce(ms) + replica.0.slot().0);
    at(replica, ms, opening(bob));
    let outcome = at(replica, ms, frame(bob, 0, 1, &[ask(of)])).remove(0);
    let Outcome::Service(text) = outcome else { panic!("{outcome:?}") };
    String::from_utf8(text.to_vec()).unwrap()
}

#[test]
fn a_command_learns_whether_another_session_may_still_send_anything() {
    let mut replica = Replica::around(Watch::default());
    let of = |ms| session(ALICE, nonce(ms));
    let (open, may, over) = ("Some(Open) 200", "Some(MayOpen) 200", "Some(Over) 200");
    assert_eq!(standing(&mut replica, NOW, of(NOW)), may);
    assert_eq!(
        standing(&mut replica, NOW, of(NOW + 10 * limits::NONCE_MS)),
        may,
        "it will be time"
    );
    assert_eq!(standing(&mut replica, NOW, of(NOW - limits::NONCE_MS)), may, "the last moment");
    assert_eq!(
        standing(&mut replica, NOW, session(ALICE, nonce(NOW - limits::NONCE_MS) - 1)),
        over
    );
    at(&mut replica, NOW, opening(of(NOW)));
    assert_eq!(standing(&mut replica, NOW, of(NOW)), open);
    at(&mut replica, NOW, frame(of(NOW), 0, 1, &[Command::Close.to_bytes()]));
    assert_eq!(standing(&mut replica, NOW, of(NOW)), over, "it was closed");

    // A number that was never used is over when its time is.
    let unused = of(NOW + 1);
    assert_eq!(standing(&mut replica, NOW + limits::NONCE_MS + 1, unused), may);
    assert_eq!(standing(&mut replica, NOW + limits::NONCE_MS + 2, unused), over);
    // One that is open stays so beyond it, and the same is said after a restore.
    let live = of(NOW + limits::NONCE_MS);
    at(&mut replica, NOW + limits::NONCE_MS, opening(live));
    let mut restored = replica.restored(Watch::default()).unwrap();
    for replica in [&mut replica, &mut restored] {
        for (of, stands) in [(of(NOW), over), (unused, over), (live, open)] {
            assert_eq!(standing(replica, NOW + limits::NONCE_MS + 2, of), stands);
        }
    }
    let context = at(&mut replica, NOW + limits::NONCE_MS, frame(live, 0, 1, &[service("hello")]));
    assert_eq!(context, [reply("None 200")], "it asks about none");
}

#[test]
fn a_revoked_key_has_no_session_that_is_not_over() {
    let mut replica = Replica::around(Watch::default());
    let root = session(ADMINISTRATOR, nonce(NOW));
    at(&mut replica, NOW, opening(root));
    let later = session(ALICE, nonce(NOW) + 9);
    assert_eq!(standing(&mut replica, NOW, later), "Some(MayOpen) 200");
    // In the frame that revokes it, too, and the key in force is the new one at once.
    let key = PublicKey([201; 32]);
    let commands = [
        admin(AdminCommand::RevokeClient { name: "alice".into() }),
        admin(AdminCommand::ReplaceAdministrator { key }),
    ];
    at(&mut replica, NOW, frame(root, 0, 1, &commands));
    assert_eq!(standing(&mut replica, NOW, later), "Some(Over) 201");
    assert_eq!(
        standing(&mut replica, NOW, session(ADMINISTRATOR, nonce(NOW) + 9)),
        "Some(Over) 201"
    );
    let mut restored = replica.restored(Watch::default()).unwrap();
    assert_eq!(standing(&mut restored, NOW, later), "Some(Over) 201");
}

#[test]
fn under_the_first_rules_numbers_are_over_when_larger_ones_took_their_place() {
    let parameters =
        perdura_protocol::configuration::Parameters { versions: Versions::FIRST, ..parameters() };
    let mut replica = Replica(Machine::new(&parameters, genesis(), Watch::default()).unwrap());
    let say = |replica: &Replica<Watch>, nonce| replica.0.standing(session(ALICE, nonce));
    assert_eq!(say(&replica, 1), Standing::MayOpen);
    let first = limits::FIRST_SESSIONS_PER_CLIENT as u64;
    for nonce in 10..10 + first {
        replica.open(session(ALICE, nonce));
    }
    assert_eq!((say(&replica, 9), say(&replica, 10)), (Standing::MayOpen, Standing::Open));
    replica.open(session(ALICE, 1_000));
    assert_eq!(say(&replica, 10), Standing::Over, "it made room");
    assert_eq!(replica.0.service().ended, [(10, 0)]);
    for nonce in 2_000..2_000 + limits::FIRST_NONCES_PER_CLIENT as u64 {
        replica.open(session(ALICE, nonce));
    }
    assert_eq!((say(&replica, 9), say(&replica, 999)), (Standing::Over, Standing::Over));
}

#[test]
fn a_service_is_told_of_every_session_that_is_over_after_what_waited_there() {
    let mut replica = Replica::around(Watch::default());
    let [closed, expired, revoked, former] = [(ALICE, 1), (ALICE, 2), (BOB, 3), (ADMINISTRATOR, 4)]
        .map(|(client, low)| session(client, nonce(NOW) + low));
    for id in [closed, expired, revoked, former] {
        at(&mut replica, NOW, opening(id));
        assert_eq!(at(&mut replica, NOW, frame(id, 0, 1, &[service("wait")])), [Outcome::Waits]);
    }
    at(&mut replica, NOW, frame(closed, 0, 2, &[Command::Close.to_bytes()]));
    assert_eq!(replica.0.service().ended, [(closed.nonce, 0)]);
    let commands = [
        admin(AdminCommand::RevokeClient { name: "bob".into() }),
        admin(AdminCommand::ReplaceAdministrator { key: PublicKey([201; 32]) }),
    ];
    at(&mut replica, NOW, frame(former, 0, 2, &commands));
    // A batch that comes by the time that something was due, so that the clock does not stand still.
    for later in (0..=limits::SESSION_MS + 2_000).step_by(1_000) {
        replica.execute(&Batch::tick(Time(NOW + later)));
    }
    let ended = [closed, revoked, former, expired].map(|id| (id.nonce, 0));
    assert_eq!(replica.0.service().ended, ended);
}

#[test]
fn claims_of_a_frame_are_those_of_its_commands_within_bounds() {
    let replica = Replica::around(Watch::default());
    let count = |commands: &[&str]| {
        let commands: Vec<Bytes> = commands.iter().map(|one| service(one)).collect();
        let claims = replica.0.inspector().claims(&frame(session(ALICE, 5), 0, 1, &commands));
        claims.map(|claims| claims.len())
    };
    assert_eq!(count(&["hello"]), Some(0));
    assert_eq!(count(&["claims 2", "hello", "claims 3"]), Some(5));
    let most = format!("claims {}", limits::COMMAND_CLAIMS);
    assert_eq!(count(&[&most]), Some(limits::COMMAND_CLAIMS));
    assert_eq!(count(&[&format!("claims {}", limits::COMMAND_CLAIMS + 1)]), None);
    let whole = limits::FRAME_CLAIMS / limits::COMMAND_CLAIMS;
    let rest = limits::FRAME_CLAIMS - whole * limits::COMMAND_CLAIMS;
    let mut commands = vec![most.as_str(); whole];
    let rest = [format!("claims {rest}"), format!("claims {}", rest + 1)];
    commands.push(&rest[0]);
    assert_eq!(count(&commands), Some(limits::FRAME_CLAIMS));
    commands[whole] = &rest[1];
    assert_eq!(count(&commands), None);
    // A panic over what anybody may send ends nothing.
    assert_eq!(count(&["hello", "claims none"]), None);
    let caught = replica.0.asked().take_caught().unwrap();
    assert_eq!(caught.call, perdura_execution::Call::Claims);
    // What is no command of the service asks for nothing.
    let renewal = frame(session(ALICE, 5), 0, limits::FIRST_RENEWAL, &[Command::Renew.to_bytes()]);
    assert!(replica.0.inspector().claims(&renewal).is_some_and(|claims| claims.is_empty()));
}

#[test]
fn replies_attest_and_offers_do_not() {
    let replica = Replica::around(Watch::default());
    let attested = |outcome: &Outcome| replica.0.inspector().attested(outcome);
    let waited = |offer| Outcome::Waited { outcome: Box::new(reply("said so")), offer };
    let leaf = Some(Bytes::from_static(b"so"));
    assert_eq!(attested(&reply("said so")), leaf);
    assert_eq!(attested(&waited(false)), leaf);
    assert_eq!(attested(&waited(true)), None);
    assert_eq!(attested(&reply("done")), None);
    assert_eq!(attested(&Outcome::Told(Bytes::from_static(b"said so"))), None);
    assert_eq!(attested(&reply("boom")), None);
    let long = |bytes| reply(&format!("said {}", "x".repeat(bytes)));
    assert_eq!(attested(&long(limits::LEAF_BYTES)).map(|leaf| leaf.len()), Some(512));
    assert_eq!(attested(&long(limits::LEAF_BYTES + 1)), None);
}
