//! The client's side of the protocol as a pure machine: no clock, no sockets, no randomness.
//!
//! The driver's duties:
//! 1. give every input as it happens: calls, messages with the replica whose link they came by,
//!    links that come up and go down, the time when [`ClientCore::next_deadline`] is reached;
//! 2. after a run of inputs call [`ClientCore::flush`], which packs what waits into frames;
//! 3. take all [`Output`]s and carry them out. A message may be lost; it is sent again.
//!
//! Times are milliseconds on any clock that does not go back.
//!
//! Invariants:
//! - A number of a session names one command forever. A frame is sent again as the same bytes, but for what was put off: that goes out in a frame
//!   that acknowledges what came meanwhile.
//! - The numbers of a session in flight fit its window: `limits::SESSION_WINDOW`.
//! - `acked_below` of a frame is the lowest number whose outcome somebody still waits for, those left out that wait at the replicas, as
//!   these have said. A number whose deadline passed is waited for by nobody: it is withdrawn, and when its frame arrives after a later
//!   one, replicas answer "too old" and never execute it, which "indeterminate" allows.
//! - What replicas offer to a number is confirmed once, under another one, and is its caller's when that is answered.
//! - A call whose reply states something to those outside of the group ends with what r + 1 replicas attest of that, or without the reply.
//! - A call ends once, by its deadline.

mod attesting;
pub mod bounds;
mod calls;
mod lifetime;
mod opening;
mod reach;
mod readers;
mod reads;
mod receiving;
mod roll_call;
mod sending;
mod session;

pub use roll_call::Answer;

#[cfg(test)]
mod tests;

use crate::outcome::{CallResult, Refusal};
use crate::views::Views;
use bytes::Bytes;
use calls::{Call, Timer};
use perdura_protocol::{ClusterId, Faults, Message, PublicKey, ReplicaId, Scheme, SecretKey, View};
use reach::Reach;
use readers::Readers;
use reads::Read;
use roll_call::RollCall;
use session::Session;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Names a call; chosen by the driver, never twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

/// How a call is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Ordered among all commands.
    Ordered,
    /// A read that replicas answer without ordering, enough of them alike (rule C2); ordered when they do
    /// not. Give it to commands that only read.
    Fast,
}

/// What a caller asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallOptions {
    /// When the call ends at the latest, milliseconds on the core's clock.
    pub deadline_ms: u64,
    /// Ordered or fast.
    pub mode: Mode,
    /// Matching replies that are wanted; none means r + 1, and less is raised to that. At most n.
    pub reply_quorum: Option<usize>,
}

/// What a client is.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its fault bounds.
    pub faults: Faults,
    /// The client's key.
    pub key: SecretKey,
    /// Whether that is the administrator's key, whose frames are always signed; others are when
    /// r > 0.
    pub administrator: bool,
    /// Frames in flight, 1 to 64; commands wait while there are as many. So frames grow with the
    /// load, and signatures per command shrink.
    pub frames_in_flight: usize,
    /// Shortest time before a frame is sent to all replicas, milliseconds; longer when replies
    /// take longer.
    pub retransmit_first_ms: u64,
    /// Longest time between two sendings of a frame, milliseconds.
    pub retransmit_longest_ms: u64,
    /// Time after which a fast read is ordered, milliseconds.
    pub fast_read_ms: u64,
    /// First pause after a busy leader's word, milliseconds; doubles up to
    /// `retransmit_longest_ms`.
    pub busy_first_ms: u64,
    /// What was not sent is refused after so long without n - u links and without an answer, milliseconds; from then on all but one call a second is at once.
    /// None: each waits until its deadline.
    pub unreachable_ms: Option<u64>,
    /// What a reply of the service states to those outside of the group, as its replicas attest it: a call with such a reply
    /// ends when r + 1 of them have. Nothing, unless a service says so.
    pub leaf_of: fn(&[u8]) -> Option<Bytes>,
    /// The replicas' keys, by id, under which they do; without them no such call ends.
    pub replica_keys: Vec<PublicKey>,
    /// How they sign.
    pub scheme: Scheme,
}

/// [`ClientConfig::fast_read_ms`] for a service whose queries may take long: what is ordered keeps all others waiting for as long as it takes.
pub const SLOW_READ_MS: u64 = 2_000;

impl ClientConfig {
    /// The usual settings: four frames in flight keep the pipeline filled while replies travel;
    /// 150 ms is above a flush and three network crossings on slow disks.
    #[must_use]
    pub fn new(cluster: ClusterId, faults: Faults, key: SecretKey) -> ClientConfig {
        ClientConfig {
            cluster,
            faults,
            key,
            administrator: false,
            frames_in_flight: 4,
            retransmit_first_ms: 150,
            retransmit_longest_ms: 1000,
            fast_read_ms: 100,
            busy_first_ms: 10,
            unreachable_ms: None,
            leaf_of: |_| None,
            replica_keys: Vec::new(),
            scheme: Scheme::Ed25519,
        }
    }

    fn signs(&self) -> bool {
        self.faults.is_byzantine() || self.administrator
    }
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send a message; drop it if there is no link.
    Send {
        /// To whom.
        to: ReplicaId,
        /// What.
        message: Message,
    },
    /// Tell the caller what became of its call.
    Done {
        /// The call.
        id: CallId,
        /// Its end.
        result: CallResult,
    },
    /// Tell the caller which session is open.
    Session {
        /// The call.
        id: CallId,
        /// Its number, or why there is none.
        result: Result<u64, Refusal>,
    },
    /// Tell the caller who is there.
    Roll {
        /// The call.
        id: CallId,
        /// What each said that answered. The signatures are not verified.
        answers: BTreeMap<ReplicaId, Answer>,
    },
}

/// What a client did; all counters only grow.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ClientStats {
    /// Calls that ended with a reply.
    pub completed: u64,
    /// Calls that ended with a refusal.
    pub refused: u64,
    /// Calls that ended indeterminate.
    pub indeterminate: u64,
    /// Frames made.
    pub frames: u64,
    /// Commands in them.
    pub commands: u64,
    /// Frames sent again, each replica counted.
    pub retransmissions: u64,
    /// Answers of the leader that it is busy.
    pub busy: u64,
    /// Commands that were put off and sent again, each time counted.
    pub put_off: u64,
    /// Ordered reads whose reply was gone, and that were read again.
    pub read_again: u64,
    /// Answers that contradict another replica's: somebody lies or has diverged.
    pub disagreements: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Reads answered without ordering.
    pub fast_reads: u64,
    /// Times that replicas were asked again for the state after one slot.
    pub fast_reads_again: u64,
    /// Fast reads that were ordered in the end.
    pub fast_read_fallbacks: u64,
    /// Messages that no replica sends to a client.
    pub unexpected_messages: u64,
    /// Attestations that do not hold: no correct replica of this configuration gives one.
    pub false_attestations: u64,
}

/// A client.
#[derive(Debug)]
pub struct ClientCore {
    config: ClientConfig,
    /// By replica: whether there is a link.
    links: Vec<bool>,
    views: Views,
    /// The last session number used, and when it was chosen.
    last_nonce: (u64, u64),
    nonce_used: bool,
    session: Option<Session>,
    verified: attesting::Verified,
    open_attempts: u32,
    /// What tells the next session from others that come upon the same number, of this process or another; and whether it is said, which
    /// replicas under the first rules do not understand.
    token: [u8; 16],
    says_token: bool,
    calls: BTreeMap<CallId, Call>,
    /// Calls to be sent; those that ended meanwhile are passed over.
    waiting: VecDeque<CallId>,
    waiting_calls: usize,
    waiting_bytes: usize,
    reads: BTreeMap<u64, Read>,
    /// Of those that replicas are asked about again: which read it is.
    reads_again: BTreeMap<u64, u64>,
    /// By replica: whether it answers reads by states that it keeps for a moment.
    keep_states: Vec<bool>,
    readers: Readers,
    reach: Reach,
    roll_calls: BTreeMap<CallId, RollCall>,
    /// Those who wait for a session to be open, and until when.
    session_calls: BTreeMap<CallId, u64>,
    next_read: u64,
    timers: BTreeSet<(u64, Timer)>,
    /// Smoothed time from frame to replies and its deviation, milliseconds; none before the first.
    round_trip: Option<(u64, u64)>,
    outputs: VecDeque<Output>,
    stats: ClientStats,
}

impl ClientCore {
    /// A client without links. `nonce` numbers its first session and must be larger than any that
    /// this key used before, and differ from any used at the same time: the wall clock, see
    /// [`limits::NONCES_PER_MS`](perdura_protocol::limits::NONCES_PER_MS). `token` is drawn at random. `now_ms` is the time.
    #[must_use]
    pub fn new(config: ClientConfig, nonce: u64, token: [u8; 16], now_ms: u64) -> ClientCore {
        let faults = config.faults;
        ClientCore {
            config,
            links: vec![false; faults.n()],
            views: Views::new(faults),
            last_nonce: (nonce, now_ms),
            nonce_used: false,
            session: None,
            verified: attesting::Verified::new(),
            open_attempts: 0,
            token,
            says_token: true,
            calls: BTreeMap::new(),
            waiting: VecDeque::new(),
            waiting_calls: 0,
            waiting_bytes: 0,
            reads: BTreeMap::new(),
            reads_again: BTreeMap::new(),
            keep_states: vec![false; faults.n()],
            readers: Readers::new(faults.n()),
            reach: Reach::new(now_ms),
            roll_calls: BTreeMap::new(),
            session_calls: BTreeMap::new(),
            next_read: 1,
            timers: BTreeSet::new(),
            round_trip: None,
            outputs: VecDeque::new(),
            stats: ClientStats::default(),
        }
    }

    /// The next thing to do, if any.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`ClientCore::on_tick`] has to be called next, if no other input comes before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let frames = self.session.as_ref().and_then(Session::next_resend);
        let session = self.session.as_ref().filter(|_| self.any_link());
        let renewal = session.and_then(Session::renewal_due);
        timer
            .into_iter()
            .chain(frames)
            .chain(renewal)
            .chain(self.next_roll_call())
            .chain(self.next_reach())
            .min()
    }

    /// The time has come, or passed.
    pub fn on_tick(&mut self, now_ms: u64) {
        while let Some((at, timer)) = self.timers.first().copied()
            && at <= now_ms
        {
            self.timers.pop_first();
            match timer {
                Timer::Deadline(id) => self.deadline_passed(id),
                Timer::FastRead(read) => self.read_expires(read),
                Timer::SpareRead(read) => self.read_is_late(now_ms, read),
            }
        }
        self.tick_roll_calls(now_ms);
        self.tick_reach(now_ms);
        self.resend_due(now_ms);
        if self.any_link() {
            self.renew_session(now_ms);
        }
    }

    /// A link came up, with the replica's key proven and the client admitted, or went down.
    pub fn on_link(&mut self, now_ms: u64, replica: ReplicaId, up: bool) {
        let Some(link) = self.links.get_mut(replica.index()) else { return };
        *link = up;
        self.note_links(now_ms);
        if up {
            self.greet(replica);
            self.greet_with_roll_calls(replica);
        } else {
            if replica == self.views.leader() {
                self.resend_all(now_ms);
            }
            self.reads_lost(now_ms, replica);
        }
    }

    /// Whether a replica to which there is a link takes [`Message::ReadAt`]; none does unless it says so.
    pub fn keeps_states(&mut self, replica: ReplicaId, keeps: bool) {
        if let Some(kept) = self.keep_states.get_mut(replica.index()) {
            *kept = keeps;
        }
    }

    /// The view that the client believes the replicas to be in.
    #[must_use]
    pub fn view(&self) -> View {
        self.views.believed()
    }

    /// Calls that have not ended.
    #[must_use]
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        self.stats
    }

    /// Ends all calls: refused if they were not sent, else indeterminate. Then the session, as far as messages still go out.
    pub fn close(&mut self) {
        let ids: Vec<CallId> = self.calls.keys().copied().collect();
        for id in ids {
            self.give_up(id, Refusal::Closed, crate::Indeterminacy::Closed);
        }
        self.end_roll_calls();
        self.end_session_calls();
        self.close_session();
    }

    /// The group has other members: what they attest from now on is held against these keys, by replica id.
    pub fn set_replica_keys(&mut self, keys: Vec<PublicKey>) {
        self.config.replica_keys = keys;
    }

    fn any_link(&self) -> bool {
        self.links.contains(&true)
    }

    fn is_linked(&self, replica: ReplicaId) -> bool {
        self.links.get(replica.index()).copied().unwrap_or(false)
    }

    fn linked(&self) -> Vec<ReplicaId> {
        let ids = (0..=u8::MAX).map(ReplicaId).zip(&self.links);
        ids.filter(|(_, up)| **up).map(|(id, _)| id).collect()
    }

    fn send(&mut self, to: ReplicaId, message: Message) {
        self.outputs.push_back(Output::Send { to, message });
    }

    /// Takes `command`, an encoded [`perdura_protocol::Command`]; its end comes as an output.
    pub fn call(&mut self, now_ms: u64, id: CallId, command: Bytes, options: CallOptions) {
        self.enter_call(now_ms, id, command, options);
    }
}
