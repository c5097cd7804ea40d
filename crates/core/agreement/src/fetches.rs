//! Which decided slots a replica that catches up asks of whom, and what came before its turn.
//!
//! Of each peer one range is asked at a time, and of different peers ranges one after the other: while one
//! answer is on its way, others are being sent and taken in. What comes before what precedes it is held as
//! it came, one answer of each peer, and is judged when its turn has come. While a state is on its way, what
//! comes after it is asked of those whose log does not reach back any more, and more of it is held.
//!
//! All who are ahead are asked in turns of equal *time*, not of equal number: whoever takes long, on purpose
//! or not, is asked the less often. What one owes while the answers of others wait for it is asked of
//! another too. So a liar that keeps just within the time-out delays by little, and never by more than its
//! share of the time.

use crate::timing;
use perdura_protocol::message::Decision;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Digest, ReplicaId, Slot, limits};

/// Beyond twice the time that who is asked in its place took last, somebody else's answer is overdue after
/// this time.
const OVERDUE_MS: u64 = 20;

/// Bytes of an answer, at most: the last batch may be the one that exceeds the limit, and each has its
/// signatures.
pub const ANSWER_BYTES: usize = limits::FETCH_BYTES + limits::BATCH_BYTES + 1024 * 1024;

/// Bytes that are held of what comes after a state that is on its way, of all peers together, and slots. Each
/// peer has the same share of both, so that a liar takes nobody else's room; but for one answer of each.
pub const EARLY_BYTES: usize = 192 * 1024 * 1024;
const EARLY_SLOTS: u64 = limits::WINDOW;

/// Whose log does not reach back to what comes next is asked for that again after this time.
const CUT_MS: u64 = 5_000;

/// Decisions, consecutive if a correct replica sent them.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub from: ReplicaId,
    pub decisions: Vec<Decision>,
    pub prefix: Option<PrefixCertificate>,
    /// The digests of the batches behind the last one up to the prefix.
    pub between: Vec<Digest>,
    bytes: usize,
    part: Part,
}

impl Answer {
    pub fn new(
        from: ReplicaId,
        decisions: Vec<Decision>,
        prefix: Option<PrefixCertificate>,
        between: Vec<Digest>,
    ) -> Answer {
        let bytes = decisions.iter().map(decision_bytes).sum();
        Answer { from, decisions, prefix, between, bytes, part: Part::Next }
    }

    pub fn first(&self) -> Slot {
        self.decisions.first().map_or(Slot(0), |decision| decision.slot)
    }

    /// The end of the run with which it begins.
    pub fn last(&self) -> Slot {
        let run = self.decisions.iter().zip(self.first().0..);
        let run = run.take_while(|(decision, slot)| decision.slot.0 == *slot);
        run.last().map_or(Slot(0), |(decision, _)| decision.slot)
    }

    /// Without what is not of its run, or beyond what was asked for. It counts as large as it came: what
    /// is left of it keeps the message alive.
    fn cut_to(&mut self, last: Slot) {
        let last = self.last().min(last);
        let run = (last.0 + 1).saturating_sub(self.first().0);
        self.decisions.truncate(run as usize);
        self.decisions.shrink_to_fit();
    }
}

/// What a decision takes, about.
fn decision_bytes(decision: &Decision) -> usize {
    decision.batch.raw().len() + decision.accepts.len() * 65 + 64
}

/// A range of slots that a peer was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    first: Slot,
    last: Slot,
    part: Part,
    since_ms: u64,
}

#[derive(Clone, Debug, Default)]
struct Peer {
    asked: Option<Question>,
    // The one before, if no answer came in time: it may come yet.
    late: Option<Question>,
    early: Vec<Answer>,
    // Slots that fit into an answer of it.
    length: u64,
    // Time in which this replica waited for its answers.
    spent_ms: u64,
    // For the last one.
    took_ms: u64,
    // How often it gave nothing of use when it was asked, and until when it is not asked again.
    failures: u32,
    rests_until_ms: u64,
    // Until when its log is known not to reach back to what comes next.
    cut_until_ms: u64,
}

impl Peer {
    /// The slots that need not be asked for, for they are on their way or here.
    fn spans(&self) -> impl Iterator<Item = (Slot, Slot)> + '_ {
        let asked = self.asked.map(|question| (question.first, question.last));
        let early = self.early.iter().map(|answer| (answer.first(), answer.last()));
        asked.into_iter().chain(early)
    }

    fn early_bytes(&self) -> usize {
        self.early.iter().map(|answer| answer.bytes).sum()
    }

    /// Whether no more of its answers are held, of those that would go beyond one.
    fn is_full(&self, part: Part, room: Room) -> bool {
        let early = self.early.iter().filter(|answer| answer.part == part);
        let (answers, bytes, slots) = early.fold((0, 0, 0), |(answers, bytes, slots), answer| {
            (answers + 1, bytes + answer.bytes, slots + answer.decisions.len() as u64)
        });
        let full = bytes + ANSWER_BYTES > room.bytes || slots + self.length > room.slots;
        answers > 0 && full
    }
}

/// What to ask a peer for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub of: ReplicaId,
    pub first: Slot,
    pub last: Slot,
}

/// What of each peer may be held beyond one answer.
#[derive(Clone, Copy)]
struct Room {
    bytes: usize,
    slots: u64,
}

/// Which of the questions: for what comes next, or for what comes after the state that is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Next,
    AfterState,
}

/// Where a catching up stands.
pub(crate) struct Ahead<'a> {
    pub delivered: Slot,
    /// The state that is on its way, if it is ahead of that.
    pub state: Option<Slot>,
    /// Whether nothing can be delivered before that state is here.
    pub awaiting_state: bool,
    /// What each peer says that it delivered; of this replica nothing.
    pub peers: &'a [Slot],
    /// Who is asked last of all where one only is asked.
    pub leader: ReplicaId,
}

/// The questions of one replica.
#[derive(Clone, Debug)]
pub(crate) struct Fetches {
    peers: Vec<Peer>,
    // The longest range that is asked for.
    most: u64,
    one_seeder: bool,
    // Whom it asked last, and what that one had taken before.
    last: usize,
    turn_ms: u64,
}

impl Fetches {
    /// Of `n` replicas, ranges of at most `most` slots; of one peer only, as long as it does not fail, with
    /// `one_seeder`.
    pub fn new(n: usize, me: ReplicaId, most: u64, one_seeder: bool) -> Fetches {
        let peer = || Peer { length: most, ..Peer::default() };
        Fetches {
            peers: std::iter::repeat_with(peer).take(n).collect(),
            most,
            one_seeder,
            last: me.index(),
            turn_ms: 0,
        }
    }

    /// Whether anything is on its way, or waits for its turn.
    pub fn under_way(&self) -> bool {
        self.peers.iter().any(|peer| peer.asked.is_some() || !peer.early.is_empty())
    }

    /// Whether this peer owes an answer.
    pub fn asks(&self, peer: ReplicaId) -> bool {
        self.peers[peer.index()].asked.is_some()
    }

    /// Bytes of batches that wait for their turn.
    pub fn held_bytes(&self) -> usize {
        self.peers.iter().map(Peer::early_bytes).sum()
    }

    /// Forgets what is under way.
    pub fn clear(&mut self) {
        self.clear_through(Slot(u64::MAX));
    }

    /// Forgets what is held of what comes after a state.
    pub fn forget_after_state(&mut self) {
        for peer in &mut self.peers {
            peer.early.retain(|answer| answer.part == Part::Next);
        }
    }

    /// Forgets what this one gave and was not judged yet.
    pub fn distrust(&mut self, peer: ReplicaId) {
        self.peers[peer.index()].early.clear();
    }

    /// Forgets what is under way of slots up to this one.
    pub fn clear_through(&mut self, slot: Slot) {
        for peer in &mut self.peers {
            peer.asked.take_if(|question| question.last <= slot);
            peer.late.take_if(|question| question.last <= slot);
            peer.early.retain(|answer| answer.last() > slot);
        }
    }

    /// From now on only this one is asked, as long as it does not fail.
    pub fn set_seeder(&mut self, seeder: ReplicaId) {
        self.clear();
        self.last = seeder.index();
        self.peers.iter_mut().for_each(|peer| peer.failures = 0);
    }

    /// What was on the link to this one is lost, and costs it as [`Fetches::on_lost`] says: who comes back for each question, and is gone
    /// before the answer, would else be asked for ever.
    pub fn on_link_down(&mut self, now_ms: u64, peer: ReplicaId) {
        if self.on_lost(now_ms, peer) {
            let peer = &mut self.peers[peer.index()];
            peer.failures = peer.failures.saturating_add(1);
        }
    }

    /// What it was asked for, or what it answered, got lost, though it is there. It is charged the time
    /// that passed: who breaks what it answers on is asked less often. Whether it owed an answer.
    pub fn on_lost(&mut self, now_ms: u64, peer: ReplicaId) -> bool {
        let peer = &mut self.peers[peer.index()];
        peer.late = None;
        let Some(question) = peer.asked.take() else { return false };
        peer.spent_ms += now_ms.saturating_sub(question.since_ms).max(1);
        true
    }

    /// The next thing to ask for, if there is one and somebody who can be asked; it counts as asked.
    pub fn next_ask(&mut self, now_ms: u64, ahead: &Ahead<'_>) -> Option<Ask> {
        let next = if ahead.awaiting_state {
            None
        } else {
            self.open(now_ms, ahead, Part::Next).or_else(|| self.overdue(now_ms, ahead))
        };
        let next = next.map(|ask| (ask, Part::Next));
        let after = || Some((self.open(now_ms, ahead, Part::AfterState)?, Part::AfterState));
        let (ask, part) = next.or_else(after)?;
        let turn_ms = self.turn_ms;
        let peer = &mut self.peers[ask.of.index()];
        // Whoever was not ahead for a while has saved nothing up.
        peer.spent_ms = peer.spent_ms.max(turn_ms);
        let Ask { first, last, .. } = ask;
        peer.asked = Some(Question { first, last, part, since_ms: now_ms });
        (self.turn_ms, self.last) = (peer.spent_ms, ask.of.index());
        Some(ask)
    }

    /// The first range that is neither here nor on its way.
    fn open(&self, now_ms: u64, ahead: &Ahead<'_>, part: Part) -> Option<Ask> {
        if self.one_seeder && self.under_way() {
            return None;
        }
        let before = match part {
            Part::Next => ahead.delivered,
            Part::AfterState => ahead.state?,
        };
        let head = before.next();
        let mut spans: Vec<(Slot, Slot)> = self.peers.iter().flat_map(Peer::spans).collect();
        spans.sort_unstable();
        let mut first = head;
        let mut before = None;
        for (begin, end) in spans {
            if begin > first {
                before = Some(begin.previous());
                break;
            }
            first = first.max(end.next());
        }
        let of = self.candidate(now_ms, first, ahead, part)?;
        let (delivered, length) = (ahead.peers[of.index()], self.peers[of.index()].length);
        // To where a prefix ends, with the usual bounds: what is behind that would need the next one.
        let ends = Slot((first.0 - 1) / self.most * self.most + self.most);
        let full = if length == self.most { ends } else { Slot(first.0 + length - 1) };
        let last = full.min(delivered).min(before.unwrap_or(full));
        // What has just been decided may come by itself.
        let whole = first == head || before.is_some() || last == full;
        whole.then_some(Ask { of, first, last })
    }

    /// Who has taken least time so far, of those who are ahead and free. While a state is on its way, who has
    /// what comes next is asked for that, for it may overtake the state, and the others for what comes after.
    fn candidate(
        &self,
        now_ms: u64,
        first: Slot,
        ahead: &Ahead<'_>,
        part: Part,
    ) -> Option<ReplicaId> {
        let n = self.peers.len();
        let room = self.room(part);
        // What is next is taken up at once.
        let held = part == Part::AfterState || first != ahead.delivered.next();
        let free = (1..=n).map(|step| (self.last + step) % n).filter(|index| {
            let peer = &self.peers[*index];
            let cut = ahead.awaiting_state || now_ms < peer.cut_until_ms;
            let fitting = ahead.state.is_none() || cut == (part == Part::AfterState);
            let full = held && peer.is_full(part, room);
            let ahead = fitting && ahead.peers[*index] >= first;
            ahead && peer.asked.is_none() && !full && now_ms >= peer.rests_until_ms
        });
        let candidate = if self.one_seeder {
            let leader = ahead.leader.index();
            free.min_by_key(|index| {
                (self.peers[*index].failures, *index != self.last, *index == leader)
            })
        } else {
            free.min_by_key(|index| self.peers[*index].spent_ms.max(self.turn_ms))
        };
        candidate.map(|index| ReplicaId(index as u8))
    }

    /// What comes next and was asked for, while answers wait for it, and others could send it sooner.
    fn overdue(&self, now_ms: u64, ahead: &Ahead<'_>) -> Option<Ask> {
        let waiting = self.peers.iter().any(|peer| !peer.early.is_empty());
        if self.one_seeder || !waiting {
            return None;
        }
        let head = ahead.delivered.next();
        let of = self.candidate(now_ms, head, ahead, Part::Next)?;
        let peer = &self.peers[of.index()];
        let timeout_ms = 2 * peer.took_ms + OVERDUE_MS;
        let owed = self.peers.iter().filter_map(|peer| peer.asked);
        let mut owed = owed.filter(|question| question.first <= head && head <= question.last);
        if owed.clone().any(|question| now_ms < question.since_ms + timeout_ms) {
            return None;
        }
        let last = owed.next()?.last.min(Slot(head.0 + peer.length - 1));
        Some(Ask { of, first: head, last: last.min(ahead.peers[of.index()]) })
    }

    /// Questions that were not answered in time are over; they may be answered yet. Says whether there
    /// were any.
    pub fn expire(&mut self, now_ms: u64) -> bool {
        let mut expired = false;
        for peer in &mut self.peers {
            if peer.asked.is_some_and(|question| now_ms >= question.since_ms + timing::FETCH_MS) {
                peer.late = peer.asked.take();
                peer.length = (peer.length / 2).max(1);
                peer.spent_ms += timing::FETCH_MS;
                peer.failures = peer.failures.saturating_add(1);
                expired = true;
            }
        }
        expired
    }

    /// An answer came: its sender is charged the time that it took. What it was asked, if it was.
    pub fn answered(&mut self, now_ms: u64, answer: &Answer) -> Option<Question> {
        let most = self.most;
        let peer = &mut self.peers[answer.from.index()];
        let fits = |question: &Question| question.first == answer.first();
        if let Some(question) = peer.asked.take_if(|question| fits(question)) {
            peer.took_ms = now_ms.saturating_sub(question.since_ms).max(1);
            peer.spent_ms += peer.took_ms;
            let given = answer.decisions.len() as u64;
            let quick = peer.took_ms < timing::FETCH_MS / 2;
            if given <= question.last.0 - question.first.0 {
                peer.length = given.max(1);
            } else if answer.bytes < limits::FETCH_BYTES / 2 && quick {
                peer.length = (2 * peer.length).min(most);
            }
            return Some(question);
        }
        peer.late.take_if(|question| fits(question))
    }

    /// It has cut its log above what it was asked for.
    pub fn too_old(&mut self, now_ms: u64, from: ReplicaId) {
        let peer = &mut self.peers[from.index()];
        if peer.asked.is_some_and(|question| question.part == Part::Next) {
            peer.cut_until_ms = now_ms + CUT_MS;
        }
        self.failed(now_ms, from);
    }

    /// What it answered was of no use, which costs as much as no answer. It is left alone for a while.
    pub fn failed(&mut self, now_ms: u64, from: ReplicaId) {
        let peer = &mut self.peers[from.index()];
        peer.asked = None;
        peer.spent_ms += timing::FETCH_MS;
        peer.failures = peer.failures.saturating_add(1);
        peer.rests_until_ms = now_ms + timing::STATUS_MS;
    }

    fn room(&self, part: Part) -> Room {
        let others = (self.peers.len() - 1).max(1);
        match part {
            Part::Next => Room { bytes: 0, slots: 0 },
            Part::AfterState => {
                Room { bytes: EARLY_BYTES / others, slots: EARLY_SLOTS / others as u64 }
            }
        }
    }

    /// Keeps what came before its turn, if there is room: what was asked for. Whether it was what somebody may
    /// answer.
    pub fn hold(&mut self, mut answer: Answer, question: Question) -> bool {
        if answer.bytes > ANSWER_BYTES {
            return false;
        }
        answer.part = question.part;
        answer.cut_to(question.last);
        let room = self.room(question.part);
        let peer = &mut self.peers[answer.from.index()];
        if !peer.is_full(question.part, room) {
            peer.early.push(answer);
        }
        true
    }

    /// How many answers are held of what comes after this slot.
    pub fn held_after(&self, slot: Slot) -> u64 {
        let early = self.peers.iter().flat_map(|peer| &peer.early);
        early.filter(|answer| answer.first() > slot).count() as u64
    }

    /// Whether there is an answer whose turn has come.
    pub fn is_ready(&self, delivered: Slot) -> bool {
        let mut early = self.peers.iter().flat_map(|peer| &peer.early);
        early.any(|answer| answer.first() <= delivered.next())
    }

    /// An answer whose turn has come; those that came in vain go.
    pub fn ready(&mut self, delivered: Slot) -> Option<Answer> {
        for peer in &mut self.peers {
            peer.early.retain(|answer| answer.last() > delivered);
        }
        self.peers.iter_mut().find_map(|peer| {
            let due = peer.early.iter().position(|answer| answer.first() <= delivered.next())?;
            Some(peer.early.swap_remove(due))
        })
    }
}

#[cfg(test)]
mod tests;
