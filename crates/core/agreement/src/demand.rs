//! What was asked of the leader, and what it gave (r > 0).
//!
//! Time-outs alone let a leader that answers just below them slow everybody down. A follower knows
//! what is asked: clients that wait too long send to all, and followers hand such frames to the
//! leader. From then on it judges, by three measures, none of which takes the speed of machines or
//! the load for a fault of the leader's:
//!
//! 1. *Fairness* (Aardvark, NSDI 2009, section 4.2). A correct leader serves clients in turns. A
//!    *round* ends when a client is served that was served in it already. A client that waits while
//!    [`FAIR_ROUNDS`] rounds pass is starved; so is a frame that more of its own client's frames
//!    pass than a leader can hold of it. A correct leader may have had no room for a frame (its
//!    client had too many there); so rounds count only from when it was handed over once more,
//!    a while after its client was last served. Else a client could have leaders deposed. Clients whose
//!    commands are costly wait for each other's turns only: a leader keeps what they cost apart.
//! 2. *Idleness*. A correct leader that has frames keeps slots in agreement, but for a moment before each,
//!    in which it gathers commands. One under which there are none for three quarters of the time in which
//!    frames wait, less these moments, holds them back. Overload and slow disks make slots last longer,
//!    not rarer.
//! 3. *Pace*. A leader can also propose little at a time, or to some too late. While frames wait,
//!    it has to reach a fraction of the best pace that any leader sustained lately. If r + 1 leaders
//!    in a row do not, one of them correct, or flushes and links are slow by the word of r + 1 others, the pace is not the leader's to choose: the best
//!    is lowered to what there is, and the next doubt needs a larger difference.
//!
//! A verdict of slowness lasts for [`VERDICT_MS`], so that those of several followers meet. Each
//! one in a row doubles the time for which the next leader is watched, until a leader passes.
//!
//! Whether anything waits or not, other leaders are tried now and then under load (`trials`). A leader
//! that serves a client and leaves out one of its frames keeps to all three measures: `withholding`.

use crate::expected::Expected;
use crate::leading::GATHER_MS;
use crate::pool::{FrameKey, Pool, SESSION_FRAMES, cost};
use crate::suspicion::Suspicion;
use crate::trials::{Look, Trials};
use crate::withholding::Withholding;
use perdura_protocol::{Batch, Frame, PublicKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Rounds that a client may have to wait. One would do, if all frames arrived at once.
pub const FAIR_ROUNDS: u64 = 8;

/// A client that waits is handed over once more after this time.
pub const AGAIN_MS: u64 = 500;

/// A client is starved after this time at the earliest, so that a burst of small batches is none.
pub const STARVED_MS: u64 = 1_000;

/// How long a frame is on its way to the leader and back in a proposal before it counts as asked
/// for: a round trip round the world.
pub const ASKED_AFTER_MS: u64 = 200;

/// A leader is watched for this long, of time in which frames wait, before it is judged.
pub const WATCH_MS: u64 = 2_000;

/// Longest doubling of it.
const WATCH_DOUBLINGS: u32 = 5;

/// How long a verdict holds.
pub const VERDICT_MS: u64 = 5_000;

/// The pace that is asked for is the best one divided by this; a slower one is no matter of load.
pub const PACE_DIVISOR: u64 = 8;

/// Doublings of the divisor after doubts that came to nothing.
const DOUBTS: u32 = 3;

/// The best pace loses a sixteenth in each watch that does not reach it: half in 22 s.
const BEST_DECAY: u64 = 16;

/// What a command, and a frame, costs beside its bytes, in bytes: the processor is busy for about
/// as long with 4 KiB of a large value.
const WORK_BYTES: u64 = 4096;

/// A client some of whose frames were handed over.
#[derive(Clone, Debug)]
struct Waiting {
    // Oldest first; may name frames that are gone, and is looked through for them when there are more
    // than so many.
    handed: VecDeque<FrameKey>,
    crowded: usize,
    // When it was handed over once more since the client was last served. Rounds count from what is
    // proposed after that.
    again: Option<u64>,
    again_ms: u64,
    // Of which turns, and which round.
    since_round: Option<(Turns, u64)>,
    // Bytes of the client that were proposed and delivered after its oldest frame had been handed over, or
    // had become the oldest one; and when that was.
    passed_bytes: usize,
    passed_from_ms: u64,
}

impl Waiting {
    /// Drops frames that are gone from the front; whether any are left.
    fn settle(&mut self, pool: &Pool, now_ms: u64) -> bool {
        while self.handed.front().is_some_and(|key| pool.handed_ms(*key).is_none()) {
            self.pop(now_ms);
        }
        !self.handed.is_empty()
    }

    fn pop(&mut self, now_ms: u64) {
        self.handed.pop_front();
        (self.passed_bytes, self.passed_from_ms) = (0, now_ms);
    }

    /// Drops names of frames that are gone behind one that waits. The next time is when there are twice
    /// as many as are left, so that a long line costs each frame that passes it no more than a short one.
    fn tidy(&mut self, pool: &Pool) {
        if self.handed.len() > self.crowded {
            self.handed.retain(|held| pool.handed_ms(*held).is_some());
            self.crowded = 2 * self.handed.len().max(SESSION_FRAMES);
        }
    }
}

/// Whether a leader held what was handed to it at that time when it made a proposal that came then.
fn was_held(handed_ms: u64, proposed_ms: Option<u64>) -> bool {
    proposed_ms.is_some_and(|proposed_ms| proposed_ms >= handed_ms + ASKED_AFTER_MS)
}

/// What a tick needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub now_ms: u64,
    /// Whether some proposal of this view is in agreement.
    pub open: bool,
    /// Whether disks or links are slow, by the word of enough replicas: the pace is not the leader's to choose then.
    pub paced: bool,
    /// Whether this replica is behind others, so that it does not see what is going on.
    pub behind: bool,
    /// Whether another leader can be tried: it is there and keeps up, and so are as many others that
    /// one of them may be missed.
    pub ready: bool,
}

impl Moment {
    fn look(self, leaders: u32) -> Look {
        Look { now_ms: self.now_ms, behind: self.behind, ready: self.ready, leaders }
    }
}

/// Whose turns a client waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turns {
    All,
    Costly,
}

impl Turns {
    fn of(client: &PublicKey, expected: &Expected) -> Turns {
        if expected.of(client) > 0 { Turns::Costly } else { Turns::All }
    }
}

/// Rounds of some clients.
#[derive(Clone, Debug, Default)]
struct Rounds {
    round: u64,
    served: BTreeSet<PublicKey>,
}

impl Rounds {
    fn serve(&mut self, client: PublicKey) {
        if !self.served.insert(client) {
            self.round += 1;
            self.served.clear();
            self.served.insert(client);
        }
    }
}

/// One replica's view of its leader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demand {
    waiting: BTreeMap<PublicKey, Waiting>,
    // Of all clients, and of costly ones.
    rounds: [Rounds; 2],

    ticked_ms: u64,
    watch_ms: u64,
    watch_paced: bool,
    asked_ms: u64,
    idle_ms: u64,
    // Time in which the leader may have gathered what it proposed, of that in which it was asked.
    gathered_ms: u64,
    work: u64,
    // Batches that the leader was free to make and that were delivered since the last tick.
    batches: u64,

    // Work in a second of the best watch, decaying.
    best: u64,
    best_seen: u64,
    // Leaders in a row that were found slow, and of those by their pace.
    slow: u32,
    paced: u32,
    doubts: u32,
    verdict_ms: Option<u64>,

    trials: Trials,
    withholding: Withholding,
}

impl Demand {
    /// A view starts: its leader is judged anew, held to what others reached before.
    pub fn restart(&mut self, now_ms: u64) {
        self.withholding.restart(now_ms);
        self.forget(now_ms);
        self.verdict_ms = None;
        self.watch(now_ms);
        (self.ticked_ms, self.batches) = (now_ms, 0);
        self.trials.restart(now_ms);
    }

    fn watch(&mut self, now_ms: u64) {
        self.watch_ms = now_ms;
        (self.asked_ms, self.idle_ms, self.gathered_ms, self.work) = (0, 0, 0, 0);
        self.watch_paced = false;
    }

    /// What was handed over may have been lost: it will be handed over again.
    pub fn forget(&mut self, now_ms: u64) {
        self.withholding.forget(now_ms);
        self.waiting.clear();
        self.forget_rounds();
    }

    fn forget_rounds(&mut self) {
        self.rounds.iter_mut().for_each(|rounds| rounds.served.clear());
    }

    /// A frame was handed to the leader.
    pub fn handed(&mut self, key: FrameKey, now_ms: u64) {
        let waiting = self.waiting.entry(key.0.client).or_insert(Waiting {
            handed: VecDeque::new(),
            crowded: 2 * SESSION_FRAMES,
            again: None,
            again_ms: now_ms + AGAIN_MS,
            since_round: None,
            passed_bytes: 0,
            passed_from_ms: now_ms,
        });
        waiting.handed.push_back(key);
    }

    /// The oldest frames of clients that wait too long, to be handed over once more.
    pub fn again(&mut self, now_ms: u64) -> Vec<FrameKey> {
        let mut keys = Vec::new();
        for waiting in self.waiting.values_mut().filter(|waiting| waiting.again_ms <= now_ms) {
            waiting.again_ms = now_ms + AGAIN_MS;
            waiting.again.get_or_insert(now_ms);
            keys.extend(waiting.handed.front());
        }
        keys
    }

    /// Frames that the leader passed over, to be handed over once more.
    pub fn passed_over(&mut self, now_ms: u64) -> Vec<FrameKey> {
        self.withholding.again(now_ms)
    }

    /// A batch is delivered, its frames are still in the pool; when it arrived as a proposal that this
    /// view's leader was free to make. What was not, as when this replica catches up, shows nothing of whom
    /// the leader serves.
    pub fn delivered(
        &mut self,
        batch: &Batch,
        proposed_ms: Option<u64>,
        (pool, expected): (&Pool, &Expected),
        now_ms: u64,
    ) {
        self.batches += u64::from(proposed_ms.is_some() && !batch.frames().is_empty());
        for frame in batch.frames() {
            let commands = frame.commands().len() as u64;
            let work = frame.raw().len() as u64 + WORK_BYTES * (commands + 1);
            self.work += work;
            self.trials.did(work);
            if !self.waiting.is_empty() {
                self.serve(frame, proposed_ms, (pool, expected), now_ms);
            }
        }
        if self.waiting.is_empty() {
            self.forget_rounds();
        }
        for (client, waiting) in &mut self.waiting {
            if waiting.again.is_some_and(|since_ms| was_held(since_ms, proposed_ms)) {
                let turns = Turns::of(client, expected);
                // For other turns from now on.
                waiting.since_round = waiting.since_round.filter(|(of, _)| *of == turns);
                waiting.since_round.get_or_insert((turns, self.rounds[turns as usize].round));
            }
        }
    }

    fn serve(
        &mut self,
        frame: &Frame,
        proposed_ms: Option<u64>,
        (pool, expected): (&Pool, &Expected),
        now_ms: u64,
    ) {
        let client = frame.session.client;
        if proposed_ms.is_some() {
            self.rounds[Turns::All as usize].serve(client);
            if Turns::of(&client, expected) == Turns::Costly {
                self.rounds[Turns::Costly as usize].serve(client);
            }
        }
        let key = (frame.session, frame.first_number);
        let Some(waiting) = self.waiting.get_mut(&client) else { return };
        (waiting.again, waiting.since_round) = (None, None);
        waiting.again_ms = now_ms + AGAIN_MS;
        if waiting.handed.front() == Some(&key) {
            waiting.pop(now_ms);
        } else {
            if was_held(waiting.passed_from_ms, proposed_ms) {
                waiting.passed_bytes += cost(frame);
            }
            waiting.tidy(pool);
        }
        if !waiting.settle(pool, now_ms) {
            self.waiting.remove(&client);
        }
    }

    /// Time passes at the leader: it sees what it reaches, and so can compare the next one with it.
    pub fn lead(&mut self, moment: Moment, leaders: u32) {
        self.trials.tick(moment.look(leaders));
    }

    /// Time passes: `leaders` are as many as have a correct one among them.
    pub fn tick(&mut self, moment: Moment, pool: &Pool, leaders: u32) {
        self.trials.tick(moment.look(leaders));
        let Moment { now_ms, open, behind, paced, .. } = moment;
        self.watch_paced |= paced;
        let batches = std::mem::take(&mut self.batches);
        let passed_ms = now_ms.saturating_sub(std::mem::replace(&mut self.ticked_ms, now_ms));
        self.waiting.retain(|_, waiting| waiting.settle(pool, now_ms));
        let oldest = self.waiting.values().filter_map(|waiting| waiting.handed.front().copied());
        self.withholding.tick(oldest, pool, now_ms);
        let asked = self.waiting.values().any(|waiting| {
            let handed_ms = waiting.handed.front().and_then(|key| pool.handed_ms(*key));
            handed_ms.is_some_and(|since| now_ms >= since + ASKED_AFTER_MS)
        });
        if asked && !behind {
            self.asked_ms += passed_ms;
            let gathered_ms = GATHER_MS.saturating_mul(batches).min(passed_ms);
            self.gathered_ms += gathered_ms;
            self.idle_ms += if open { 0 } else { passed_ms - gathered_ms };
        }
        let watched_ms = now_ms.saturating_sub(self.watch_ms);
        let timeout_ms = WATCH_MS << self.slow.min(WATCH_DOUBLINGS);
        if self.asked_ms >= timeout_ms || watched_ms >= 4 * timeout_ms {
            self.judge(now_ms, watched_ms, timeout_ms, leaders);
            self.watch(now_ms);
        }
    }

    fn judge(&mut self, now_ms: u64, watched_ms: u64, timeout_ms: u64, leaders: u32) {
        let pace = self.work * 1000 / watched_ms.max(1);
        let judged = self.asked_ms >= timeout_ms;
        let idle = judged && self.idle_ms * 4 > (self.asked_ms - self.gathered_ms) * 3;
        let divisor = PACE_DIVISOR << self.doubts.min(DOUBTS);
        let mostly_asked = self.asked_ms * 2 > watched_ms;
        let slow = pace < self.best / divisor && !self.watch_paced;
        let late = judged && !idle && mostly_asked && slow;
        if idle || late {
            self.verdict_ms = Some(now_ms);
            self.slow = self.slow.saturating_add(1);
        }
        if late {
            (self.paced, self.best_seen) = (self.paced + 1, self.best_seen.max(pace));
            if self.paced >= leaders {
                // One of these leaders was correct: there is no better pace now.
                (self.best, self.paced) = (self.best_seen, 0);
                self.best_seen = 0;
                self.doubts = (self.doubts + 1).min(DOUBTS);
                self.verdict_ms = None;
            }
        } else if judged && !idle {
            (self.slow, self.paced, self.best_seen) = (0, 0, 0);
        }
        self.best = (self.best - self.best / BEST_DECAY).max(pace);
    }

    /// Whether it leaves somebody out, of whom it holds at most `client_bytes`.
    pub fn unfair(&self, now_ms: u64, client_bytes: usize) -> Option<Suspicion> {
        if self.withholding.found() {
            Some(Suspicion::Withholds)
        } else {
            self.starves(now_ms, client_bytes).then_some(Suspicion::Starves)
        }
    }

    /// Whether it is slow, or another one is to be tried.
    pub fn slow(&self, now_ms: u64) -> Option<Suspicion> {
        if self.verdict_ms.is_some_and(|since| now_ms < since + VERDICT_MS) {
            Some(Suspicion::Slow)
        } else {
            self.trials.wants_another().then_some(Suspicion::Trial)
        }
    }

    /// A batch was delivered, and its frames are gone from the pool; when it arrived as a proposal
    /// that this view's leader was free to make.
    pub fn closed(
        &mut self,
        batch: &Batch,
        proposed_ms: Option<u64>,
        of: (&Pool, &Expected, usize),
        now_ms: u64,
    ) {
        self.withholding.delivered(batch, proposed_ms, of, now_ms);
    }

    /// Slots were passed over that a state covers.
    pub fn installed(&mut self) {
        self.withholding.installed();
    }

    /// Whether the leader serves others and not some client. Of one client it holds at most
    /// `client_bytes`.
    fn starves(&self, now_ms: u64, client_bytes: usize) -> bool {
        self.waiting.values().any(|waiting| {
            let rounds = waiting
                .since_round
                .map_or(0, |(turns, since)| self.rounds[turns as usize].round - since);
            let long = waiting.again.is_some_and(|since_ms| now_ms >= since_ms + STARVED_MS);
            (rounds >= FAIR_ROUNDS && long) || waiting.passed_bytes > client_bytes
        })
    }

    /// Names of frames that were handed over: for the check that memory stays bounded.
    pub fn held(&self) -> usize {
        self.waiting.values().map(|waiting| waiting.handed.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Source;
    use bytes::Bytes;
    use perdura_protocol::{ClusterId, SessionId, Time};

    const SESSIONS: u64 = 8;

    fn frame(nonce: u64, number: u64) -> Frame {
        let session = SessionId { client: PublicKey([1; 32]), nonce };
        Frame::build(ClusterId([0; 16]), session, 0, number, &[Bytes::from_static(b"x")], None)
    }

    /// Whether a leader is found slow that has a slot in agreement for `slot_ms` of every `period_ms`, while a
    /// frame waits; it is looked at while it has none.
    fn is_found(slot_ms: u64, period_ms: u64) -> bool {
        let (mut pool, mut demand) = (Pool::default(), Demand::default());
        pool.offer(frame(0, 0), Source::Client, 0);
        for frame in pool.hand_over(0) {
            demand.handed((frame.session, frame.first_number), 0);
        }
        demand.restart(0);
        demand.handed((frame(0, 0).session, 0), 0);
        for now_ms in 1..2 * WATCH_MS {
            let phase = now_ms % period_ms;
            if phase == slot_ms {
                let batch = Batch::requests(Time(1), vec![frame(1, now_ms)]);
                demand.delivered(
                    &batch,
                    Some(now_ms - slot_ms),
                    (&pool, &Expected::default()),
                    now_ms,
                );
            }
            if now_ms % 20 == 19 {
                let open = phase < slot_ms;
                let moment = Moment { now_ms, open, paced: false, behind: false, ready: false };
                demand.tick(moment, &pool, 2);
            }
        }
        demand.verdict_ms.is_some()
    }

    #[test]
    fn to_gather_is_not_to_be_idle() {
        assert!(!is_found(1, 4), "it always gathers");
        assert!(is_found(1, 20), "mostly it does nothing");
        assert!(is_found(3, 20));
        assert!(is_found(0, 5_000), "it does nothing at all");
    }

    #[test]
    fn a_long_line_is_looked_through_again_only_when_it_has_doubled() {
        let (mut pool, mut demand) = (Pool::default(), Demand::default());
        let waiting = SESSIONS as usize * SESSION_FRAMES;
        for nonce in 0..SESSIONS {
            for number in 0..SESSION_FRAMES as u64 {
                pool.offer(frame(nonce, number), Source::Client, 0);
            }
        }
        let hand = |pool: &mut Pool, demand: &mut Demand| {
            for frame in pool.hand_over(0) {
                demand.handed((frame.session, frame.first_number), 0);
            }
        };
        hand(&mut pool, &mut demand);
        assert_eq!(demand.held(), waiting);
        // All that comes later is served, and what came first waits.
        let (mut most, mut looks, mut before) = (0, 0, 0);
        let passing = 20_000;
        for number in 0..passing {
            let passes = frame(SESSIONS, number);
            pool.offer(passes.clone(), Source::Client, 0);
            hand(&mut pool, &mut demand);
            most = most.max(demand.held());
            let batch = Batch::requests(Time(1), vec![passes.clone()]);
            demand.delivered(&batch, Some(ASKED_AFTER_MS), (&pool, &Expected::default()), 0);
            pool.remove(passes.session, passes.first_number);
            looks += usize::from(demand.held() < before);
            before = demand.held();
        }
        assert!(most <= 2 * (waiting + 2), "{most} names for {waiting} frames");
        assert!((1..=2 * passing as usize / waiting).contains(&looks), "{looks} looks");
        assert_eq!(demand.waiting.values().next().map(|waiting| waiting.handed[0].1), Some(0));
    }

    /// Whether a client is starved that waits for two seconds while another one is served in each of so many batches.
    fn is_starved(waiting: u64, other: u64) -> bool {
        let (mut pool, mut demand) = (Pool::default(), Demand::default());
        let mut expected = Expected::default();
        let of = |client: u8, number| {
            let session = SessionId { client: PublicKey([client; 32]), nonce: 1 };
            Frame::build(ClusterId([0; 16]), session, 0, number, &[Bytes::from_static(b"x")], None)
        };
        for (client, cost) in [(1, waiting), (2, other)] {
            let costs = BTreeMap::from([(PublicKey([client; 32]), cost)]);
            expected.executed(&Batch::requests(Time(1), vec![of(client, 0)]), &costs);
        }
        pool.offer(of(1, 1), Source::Client, 0);
        for frame in pool.hand_over(0) {
            demand.handed((frame.session, frame.first_number), 0);
        }
        for now_ms in (0..2_000).step_by(20) {
            demand.again(now_ms);
            let batch = Batch::requests(Time(1), vec![of(2, 1)]);
            demand.delivered(&batch, Some(now_ms), (&pool, &expected), now_ms);
        }
        demand.starves(2_000, usize::MAX)
    }

    #[test]
    fn costly_clients_wait_for_costly_ones() {
        assert!(is_starved(0, 0));
        assert!(is_starved(1 << 24, 1 << 24));
        assert!(!is_starved(1 << 24, 0), "it is not its turn");
        assert!(is_starved(0, 1 << 24));
    }
}
