//! Who is there: what a replica hears of the other members, and what that says about itself.
//!
//! Ready is only who hears of enough members to have anything decided, and a leader that is cut off calls itself none.
//! Status messages count for that, and not votes: an idle group is as ready as a busy one. Once a second the members also
//! tell each other their vitals. By these each knows how long its links take, and how far its clock is from
//! the others': r may lie about theirs, and up to u in all may be wrong, so a replica takes its own for wrong only when more than
//! u others say so.

use super::flushes::HANGS_MS;
use super::{Node, Output, Peer, State};
use perdura_agreement::Now;
use perdura_protocol::message::Message;
use perdura_protocol::vitals::{Condition, DiskSpace, Echo, Program, Vitals};
use perdura_protocol::{Faults, ReplicaId, Slot, View, limits, seeded};
use std::fmt::Write;

/// Between two messages with vitals to each member.
const VITALS_MS: u64 = 1_000;

/// What takes longer to the disk is slow, milliseconds: time-outs begin to follow it at twice that.
const SLOW_MS: u64 = 125;

/// A disk is to blame only if it is so many times slower than what others measure: where all are slow nobody is to blame, and any leader as good.
const STALLED_TIMES: u64 = 4;

/// Who has not been heard of for this long is not there; over slow links it takes four round trips.
const TIMEOUT_MS: u64 = 2_000;

/// Between two lines about the clock of one member.
const BLAME_MS: u64 = 60_000;

/// Between two lines about too few members.
const ALONE_MS: u64 = 10_000;

/// For so long what a member said of its disk and links counts, milliseconds: who was cut off for longer, and comes back on the same link,
/// says it anew within a second.
const PACE_KEPT_MS: u64 = 50_000;

/// No round trip is taken for longer: who claims more only delays being missed.
const LONGEST_TRIP_MS: u64 = 10_000;

/// What is known of another member.
#[derive(Clone, Default, Debug)]
struct Member {
    heard_ms: Option<u64>,
    // The latest, and when they came.
    vitals: Option<(Vitals, u64)>,
    trip_ms: Option<u64>,
    // Its clock less this replica's, and by how much that may be wrong.
    offset_ms: Option<(i64, u64)>,
    // When its clock was last called wrong.
    blamed_ms: Option<u64>,
    // When its disk was last said to hang, and whether nobody was told that it has come back.
    hung_ms: Option<u64>,
    hangs: bool,
}

impl Member {
    fn timeout_ms(&self) -> u64 {
        TIMEOUT_MS.max(4 * self.trip_ms.unwrap_or_default())
    }

    /// By how much its clock differs at least: on which half of the way the time went by, nobody knows.
    fn certain_offset_ms(&self) -> Option<i64> {
        let (offset, doubt) = self.offset_ms?;
        let certain = i64::try_from(offset.unsigned_abs().saturating_sub(doubt)).ok()?;
        Some(offset.signum() * certain)
    }

    /// How long its log has not come back, by its own word, milliseconds; 0 if it has.
    fn stalled_ms(&self) -> u64 {
        self.vitals.as_ref().map_or(0, |(vitals, _)| stalled_ms(vitals))
    }

    fn is_heard(&self, now_ms: u64) -> bool {
        let timeout_ms = if seeded!(NeverMissed) { u64::MAX / 2 } else { self.timeout_ms() };
        self.heard_ms.is_some_and(|heard| now_ms <= heard + timeout_ms)
    }
}

/// For how long a log has not come back, as its owner says, milliseconds; what is below what counts is none.
fn stalled_ms(said: &Vitals) -> u64 {
    Some(u64::from(said.stalled_ms)).filter(|ms| *ms >= HANGS_MS).unwrap_or_default()
}

/// Values of members, ascending: looked at in each tick, and so held without an allocation.
struct Few<T> {
    values: [T; limits::REPLICAS],
    count: usize,
}

impl<T: Copy + Default + Ord> Few<T> {
    fn sorted(all: impl Iterator<Item = T>) -> Few<T> {
        let mut few = Few { values: [T::default(); limits::REPLICAS], count: 0 };
        for (place, value) in few.values.iter_mut().zip(all) {
            *place = value;
            few.count += 1;
        }
        few.values[..few.count].sort_unstable();
        few
    }

    fn all(&self) -> &[T] {
        &self.values[..self.count]
    }
}

/// What a replica has said about clocks and other members.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Told {
    // Whether its own clock is wrong, and whether it hears of too few.
    own_clock: bool,
    alone: bool,
    // Whether its disk hangs, and whose else.
    stalled: u32,
}

/// A member as another one sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberReport {
    /// Which.
    pub id: ReplicaId,
    /// Whether it was heard of lately.
    pub heard: bool,
    /// How long ago it was heard of, milliseconds; none if never since the start.
    pub silent_ms: Option<u64>,
    /// A round trip to it, milliseconds.
    pub trip_ms: Option<u64>,
    /// By how much its clock is ahead of this replica's at least, milliseconds; below 0: behind.
    pub clock_offset_ms: Option<i64>,
    /// What it said of itself.
    pub vitals: Option<Vitals>,
}

/// The members as one of them sees them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PeerHealthReport {
    /// All but itself.
    pub members: Vec<MemberReport>,
    /// How many it hears of that could vote, itself included.
    pub hears: usize,
    /// How many it needs to be ready: r + m + 1.
    pub needs: usize,
    /// How long records take to its own disk, milliseconds.
    pub flush_ms: u32,
    /// How long a write to its own log has not come back, milliseconds; 0 while none hangs.
    pub stalled_ms: u32,
    /// A round trip to as many others as it takes to decide anything, milliseconds.
    pub trip_ms: u32,
    /// How far its own clock is ahead of those of more than u others, milliseconds, or behind them; 0 where
    /// they do not say so.
    pub clock_ahead_ms: i64,
    /// Beyond which its clock is wrong, milliseconds.
    pub max_skew_ms: u64,
}

impl MemberReport {
    /// How long its log has not come back, by its own word, milliseconds; 0 while none hangs.
    #[must_use]
    pub fn stalled_ms(&self) -> u64 {
        self.vitals.as_ref().map_or(0, stalled_ms)
    }
}

impl PeerHealthReport {
    /// Whether its clock is so wrong that its proposals find no votes, and its votes no proposals.
    #[must_use]
    pub fn is_clock_wrong(&self) -> bool {
        self.clock_ahead_ms.unsigned_abs() > self.max_skew_ms
    }

    /// Whom it cannot count on, and why, in words.
    #[must_use]
    pub fn missing(&self) -> String {
        let mut text = String::new();
        for member in &self.members {
            let comma = if text.is_empty() { "" } else { ", " };
            let stalled_ms = member.stalled_ms();
            let id = member.id;
            let _ = match member.silent_ms {
                _ if member.heard && stalled_ms == 0 => Ok(()),
                _ if member.heard => write!(text, "{comma}{id} (its disk hangs)"),
                Some(ms) => write!(text, "{comma}{id} (not heard of for {})", seconds(ms)),
                None => write!(text, "{comma}{id} (not heard of since the start)"),
            };
        }
        text
    }
}

/// A time by which a clock is off, in words.
#[must_use]
pub fn offset_text(ms: i64) -> String {
    let (way, ms) = (if ms < 0 { "behind" } else { "ahead of" }, ms.unsigned_abs());
    format!("{}.{:03} s {way}", ms / 1000, ms % 1000)
}

/// Milliseconds as seconds, in words.
#[must_use]
pub fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// What a replica hears of the others.
pub(super) struct PeerHealth {
    faults: Faults,
    max_skew_ms: u64,
    me: ReplicaId,
    members: Vec<Member>,
    told_ms: Option<u64>,
    told_flush_ms: u32,
    // The first tick.
    since_ms: Option<u64>,
    told: Told,
    // When it last said that too few are there.
    alone_ms: Option<u64>,
    // As it was measured last.
    ahead_ms: i64,
    // How long records take to the disk here, how long one hangs, and a round trip, as of the last tick.
    flush_ms: u32,
    stalled_ms: u32,
    trip_ms: u32,
}

impl PeerHealth {
    pub fn new(me: ReplicaId, faults: Faults, max_skew_ms: u64) -> PeerHealth {
        PeerHealth {
            faults,
            max_skew_ms,
            me,
            members: vec![Member::default(); faults.n()],
            told_ms: None,
            told_flush_ms: 0,
            since_ms: None,
            told: Told::default(),
            alone_ms: None,
            ahead_ms: 0,
            flush_ms: 0,
            stalled_ms: 0,
            trip_ms: 0,
        }
    }

    /// A member said where it is.
    pub fn on_status(&mut self, now: Now, from: ReplicaId) {
        if let Some(member) = self.members.get_mut(from.index()) {
            member.heard_ms = Some(now.monotonic_ms);
        }
    }

    pub fn on_vitals(&mut self, now: Now, from: ReplicaId, vitals: Vitals) {
        let Some(member) = self.members.get_mut(from.index()) else { return };
        if member.vitals.as_ref().is_some_and(|(last, _)| vitals.sent_ms < last.sent_ms) {
            // It was overtaken: how it was then is not how it is.
            return;
        }
        if let Some(Echo { sent_ms, held_ms }) = vitals.answers {
            let trip = now.monotonic_ms.saturating_sub(sent_ms).saturating_sub(held_ms);
            member.trip_ms = Some(trip.min(LONGEST_TRIP_MS));
            let there = i128::from(vitals.wall.0) + i128::from(trip / 2);
            let offset = there - i128::from(now.wall.0);
            let bounded = offset.clamp(i128::from(i64::MIN / 2), i128::from(i64::MAX / 2));
            // What was so long on its way, or waited here, tells of no clock.
            let tells = trip <= LONGEST_TRIP_MS;
            let measured = i64::try_from(bounded).ok().filter(|_| tells);
            member.offset_ms = measured.map(|offset| (offset, trip.div_ceil(2)));
        }
        member.vitals = Some((vitals, now.monotonic_ms));
    }

    /// A member is another process from now on, or was cut off.
    pub fn on_link_down(&mut self, from: ReplicaId) {
        if let Some(member) = self.members.get_mut(from.index()) {
            member.vitals = None;
            member.offset_ms = None;
            member.trip_ms = None;
        }
    }

    fn others(&self) -> impl Iterator<Item = (ReplicaId, &Member)> {
        let me = self.me;
        (0u8..).map(ReplicaId).zip(&self.members).filter(move |(id, _)| *id != me)
    }

    fn heard(&self, now_ms: u64) -> impl Iterator<Item = (ReplicaId, &Member)> {
        self.others().filter(move |(_, member)| member.is_heard(now_ms))
    }

    /// Those that are heard of, and could vote by their own word.
    fn able(&self, now_ms: u64) -> impl Iterator<Item = (ReplicaId, &Member)> {
        let counts = |member: &Member| member.stalled_ms() == 0 || seeded!(StalledCounts);
        self.heard(now_ms).filter(move |(_, member)| counts(member))
    }

    /// Whether a write to its own log does not come back.
    pub fn is_stalled(&self) -> bool {
        self.stalled_ms > 0
    }

    /// Whose disks hang, this one's too: bit i is replica i. Each by its own word, which is against itself; and none where it takes others as long.
    fn stalled(&self, now_ms: u64) -> u32 {
        let own = (self.me, u64::from(self.stalled_ms));
        let others = self.heard(now_ms).map(|(id, member)| (id, member.stalled_ms()));
        let hangs = |(id, ms): &(ReplicaId, u64)| {
            *ms > 0 && *ms >= STALLED_TIMES * self.usual_ms(now_ms, *id)
        };
        others.chain([own]).filter(hangs).fold(0, |bits, (id, _)| bits | 1 << id.0)
    }

    /// A round trip to as many others as it takes to decide anything, the nearest ones, milliseconds.
    fn measured_trip_ms(&self, now_ms: u64) -> u32 {
        let trips = Few::sorted(self.heard(now_ms).filter_map(|(_, one)| one.trip_ms));
        let needed = self.faults.agreement_quorum().saturating_sub(2);
        let trips = trips.all();
        let trip = trips.get(needed).or(trips.last()).copied().unwrap_or_default();
        u32::try_from(trip).unwrap_or(u32::MAX)
    }

    /// What a flush and a round trip take, of which r + 1 members say that they take as long: one of them is correct. The
    /// leader's word counts for nothing, for it would be given more time by it.
    fn pace_ms(&self, now_ms: u64, leader: ReplicaId) -> u64 {
        let paces = self.paces_but(now_ms, leader);
        let liars = self.faults.r() + usize::from(seeded!(PacedByOneMore));
        let liars = liars.saturating_sub(seeded!(PacedByOneLess).into());
        paces.all().iter().rev().nth(liars).copied().unwrap_or_default()
    }

    /// The same as no more than u of the others exceed it: as many may hang too, or lie.
    fn usual_ms(&self, now_ms: u64, but: ReplicaId) -> u64 {
        let paces = self.paces_but(now_ms, but);
        let paces = paces.all();
        let usual = paces.iter().rev().nth(self.faults.u()).or(paces.first());
        usual.copied().unwrap_or_default()
    }

    /// What all but one, who is the leader or is judged, say that a flush and a round trip take.
    fn paces_but(&self, now_ms: u64, leader: ReplicaId) -> Few<u64> {
        let pace = |flush: u32, trip: u32| u64::from(flush) + u64::from(trip);
        let others = self.heard(now_ms).filter(|(id, _)| *id != leader || seeded!(LeaderPaces));
        let said = others.filter_map(|(_, one)| one.vitals.as_ref());
        let said = said.filter(|(_, came_ms)| now_ms <= came_ms + PACE_KEPT_MS);
        let said = said.map(|(it, _)| pace(it.flush_ms, it.trip_ms));
        let own = (self.me != leader).then(|| pace(self.flush_ms, self.trip_ms));
        Few::sorted(said.chain(own))
    }

    /// By how much this clock is ahead of those of more than u others, or behind; 0 if they do not say so. What they said once
    /// stands while too few are there to say otherwise: a clock is not right because others are gone.
    fn clock_ahead_ms(&self, now_ms: u64) -> i64 {
        self.measured_ahead_ms(now_ms).unwrap_or_else(|| {
            let mut certain = self.heard(now_ms).filter_map(|(_, one)| one.certain_offset_ms());
            let agrees = certain.any(|offset| offset.unsigned_abs() <= self.max_skew_ms);
            if agrees { 0 } else { self.ahead_ms }
        })
    }

    /// The same, of those that are there; none if they are too few to say.
    fn measured_ahead_ms(&self, now_ms: u64) -> Option<i64> {
        let offsets = self.heard(now_ms).filter_map(|(_, member)| member.certain_offset_ms());
        let offsets = Few::sorted(offsets);
        let offsets = offsets.all();
        let u = if seeded!(ClockOnOneVoice) { 0 } else { self.faults.u() };
        let least = offsets.len().checked_sub(u + 1)?;
        // u others at most are wrong, whichever way.
        let (behind_us, ahead_of_us) = (offsets[u], offsets[least]);
        Some(if behind_us < 0 { -behind_us } else { -ahead_of_us.max(0) })
    }

    pub fn report(&self, now_ms: u64) -> PeerHealthReport {
        let member = |(id, member): (ReplicaId, &Member)| MemberReport {
            id,
            heard: member.is_heard(now_ms),
            silent_ms: member.heard_ms.map(|heard| now_ms.saturating_sub(heard)),
            trip_ms: member.trip_ms,
            clock_offset_ms: member.certain_offset_ms(),
            vitals: member.vitals.as_ref().map(|(vitals, _)| vitals.clone()),
        };
        PeerHealthReport {
            members: self.others().map(member).collect(),
            hears: 1 + self.able(now_ms).count(),
            needs: self.faults.responsive(),
            flush_ms: self.flush_ms,
            stalled_ms: self.stalled_ms,
            trip_ms: self.trip_ms,
            clock_ahead_ms: self.clock_ahead_ms(now_ms),
            max_skew_ms: self.max_skew_ms,
        }
    }

    fn is_clock_wrong(&self, now_ms: u64) -> bool {
        self.clock_ahead_ms(now_ms).unsigned_abs() > self.max_skew_ms
    }

    /// Whether it hears of enough members to have anything decided.
    pub fn is_enough(&self, now_ms: u64) -> bool {
        let needed = self.faults.responsive() - usize::from(seeded!(ReadyByOneLess));
        1 + self.able(now_ms).count() >= needed
    }

    fn hears(&self, now_ms: u64) -> u32 {
        let own = 1 << self.me.0;
        self.heard(now_ms).fold(own, |bits, (id, _)| bits | 1 << id.0)
    }

    /// What is new of clocks and other members, in words for the operator.
    fn news(&mut self, now_ms: u64) -> Vec<String> {
        let ahead = self.clock_ahead_ms(now_ms);
        self.ahead_ms = ahead;
        let far = |was: bool, ms: i64| {
            let bound = if was { self.max_skew_ms / 2 } else { self.max_skew_ms };
            ms.unsigned_abs() > bound
        };
        let own_clock = far(self.told.own_clock, ahead);
        let alone_since = *self.since_ms.get_or_insert(now_ms) + TIMEOUT_MS;
        let alone = !self.is_enough(now_ms) && now_ms >= alone_since;
        // What others say of their disks may change all the time, and so who is counted on.
        let told_lately = self.alone_ms.is_some_and(|told| now_ms < told + ALONE_MS);
        let alone = alone && (self.told.alone || !told_lately);
        let stalled = self.stalled(now_ms) | u32::from(self.is_stalled()) << self.me.0;
        let now = Told { own_clock, alone, stalled };
        let before = std::mem::replace(&mut self.told, now);
        let mut news = self.news_of_disks(now_ms, before.stalled, stalled);
        if own_clock && !before.own_clock {
            news.push(format!(
                "the clock of this replica is {} those of the others: set it, and see why it was not kept right. Until \
                 then it proposes nothing that they vote for, and is not ready",
                offset_text(ahead)
            ));
        } else if before.own_clock && !own_clock {
            news.push("the clock of this replica agrees with the others' again".to_owned());
        }
        if !own_clock {
            self.blame(now_ms, &mut news);
        }
        if before.alone && !alone {
            news.push("enough members are there again".to_owned());
        } else if alone && !before.alone {
            self.alone_ms = Some(now_ms);
            let report = self.report(now_ms);
            let (missing, needs) = (report.missing(), report.needs);
            news.push(format!(
                "too few members are there: {} with this one, and {needs} are needed. Missing: {missing}",
                report.hears
            ));
        }
        news
    }

    /// Which disks began to hang, and which came back. A liar's may do so in turns, and is told of now and then.
    fn news_of_disks(&mut self, now_ms: u64, before: u32, now: u32) -> Vec<String> {
        let mut news = Vec::new();
        let is_in = |bits: u32, id: ReplicaId| bits >> id.0 & 1 == 1;
        if is_in(now, self.me) && !is_in(before, self.me) {
            news.push(format!(
                "a write to the log has been under way for {}: the disk under the data directory hangs. Until it comes back this replica \
                 votes for nothing, is not ready, and leads nobody; see to the disk",
                seconds(u64::from(self.stalled_ms))
            ));
        } else if is_in(before, self.me) && !is_in(now, self.me) {
            news.push("the disk under the data directory has come back".to_owned());
        }
        let me = self.me;
        for (id, member) in (0u8..).map(ReplicaId).zip(&mut self.members) {
            let hangs = is_in(now, id);
            let told = member.hung_ms.is_some_and(|told| now_ms < told + BLAME_MS);
            if id == me || hangs == member.hangs || hangs && told {
                continue;
            }
            member.hangs = hangs;
            news.push(if hangs {
                member.hung_ms = Some(now_ms);
                format!(
                    "the disk of replica {id} hangs: a write to its log has been under way for {}. It is not counted on",
                    seconds(member.stalled_ms())
                )
            } else {
                format!("the disk of replica {id} hangs no more, or it is gone")
            });
        }
        news
    }

    /// Other clocks that are wrong, and those that are right again. A liar's may be both in turns, and is told of now and then.
    fn blame(&mut self, now_ms: u64, news: &mut Vec<String>) {
        let max_skew_ms = self.max_skew_ms;
        let me = self.me;
        for (id, member) in (0u8..).map(ReplicaId).zip(&mut self.members) {
            let Some(offset) = member.certain_offset_ms().filter(|_| id != me) else { continue };
            let off_ms = offset.unsigned_abs();
            if off_ms > max_skew_ms && member.is_heard(now_ms) {
                if member.blamed_ms.is_none_or(|blamed| now_ms >= blamed + BLAME_MS) {
                    member.blamed_ms = Some(now_ms);
                    let offset = offset_text(offset);
                    news.push(format!(
                        "the clock of replica {id} is {offset} this replica's: see to it"
                    ));
                }
            } else if off_ms <= max_skew_ms / 2
                && member.blamed_ms.take_if(|blamed| now_ms >= *blamed + BLAME_MS).is_some()
            {
                news.push(format!("the clock of replica {id} agrees with this replica's again"));
            }
        }
    }
}

impl Node {
    pub(super) fn tick_company(&mut self, now: Now) {
        let now_ms = now.monotonic_ms;
        let longest = self.journal.longest_ms(now_ms);
        let peer_health = &mut self.peer_health;
        peer_health.flush_ms = u32::try_from(longest).unwrap_or(u32::MAX);
        let hangs = self.journal.hangs_ms(now_ms);
        peer_health.stalled_ms = u32::try_from(hangs).unwrap_or(u32::MAX);
        peer_health.trip_ms = peer_health.measured_trip_ms(now_ms);
        self.agreement.set_pace(peer_health.pace_ms(now_ms, self.agreement.leader()));
        let stalled = if seeded!(StalledLeads) { 0 } else { peer_health.stalled(now_ms) };
        self.agreement.set_stalled(stalled);
        // A disk that gets slow is told of at once, for the others' time-outs run.
        let slower = longest >= SLOW_MS && longest >= 2 * u64::from(peer_health.told_flush_ms);
        if !slower && peer_health.told_ms.is_some_and(|told| now_ms < told + VITALS_MS) {
            return;
        }
        let execution = &self.execution;
        let (bytes, limit) = (execution.state_bytes(), execution.state_limit_bytes());
        let of_room = self.fullness.look(bytes, limit).into_iter().chain(self.space.look());
        let news = peer_health.news(now_ms).into_iter().chain(of_room);
        self.outputs.extend(news.map(Output::Notice));
        peer_health.told_ms = Some(now_ms);
        peer_health.told_flush_ms = peer_health.flush_ms;
        let vitals = self.vitals(now);
        let (me, n) = (self.me, self.parameters.faults.n() as u8);
        for id in (0..n).map(ReplicaId).filter(|id| *id != me) {
            let latest = self.peer_health.members[id.index()].vitals.as_ref();
            let answers = latest.map(|(vitals, came_ms)| Echo {
                sent_ms: vitals.sent_ms,
                held_ms: now.monotonic_ms.saturating_sub(*came_ms),
            });
            let vitals = Vitals { answers, ..vitals.clone() };
            self.send(&[Peer::Replica(id)], &Message::Vitals(Box::new(vitals)));
        }
    }

    /// Room on its disk, as whoever drives it measured.
    pub fn set_space(&mut self, space: DiskSpace) {
        self.space.set(space);
    }

    /// How this replica is.
    pub(super) fn vitals(&self, now: Now) -> Vitals {
        let condition = match self.state() {
            State::Active => Condition::Active,
            State::Waiting => Condition::Waiting,
            State::Recovering
            | State::Stalled
            | State::Repairing
            | State::Diverged
            | State::Stopped => Condition::Recovering,
        };
        let (view, decided): (View, Slot) = (self.agreement.view(), self.agreement.delivered());
        Vitals {
            sent_ms: now.monotonic_ms,
            wall: now.wall,
            answers: None,
            condition,
            view,
            decided,
            hears: self.peer_health.hears(now.monotonic_ms),
            flush_ms: self.peer_health.flush_ms,
            stalled_ms: self.peer_health.stalled_ms,
            trip_ms: self.peer_health.trip_ms,
            space: self.space.known(),
            program: Program::new(env!("CARGO_PKG_VERSION")),
            clock_wrong: self.peer_health.is_clock_wrong(now.monotonic_ms),
            differing: self.difference().map(|found| found.certifiable),
            runs: None,
        }
    }
}

#[cfg(test)]
mod tests;
