//! The current session: its numbers in flight, and the frames that carry them.

use super::CallId;
use super::attesting::Attestations;
use super::bounds::{KNOWN, PARKED_MS};
use super::lifetime::Renewals;
use crate::votes::Votes;
use perdura_protocol::{Frame, ReplicaId, limits};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// The call of a command that the client sends by itself.
pub(super) const NOBODYS: CallId = CallId(u64::MAX);

/// What the replicas are told of a number of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// What it came to need not be kept.
    Known { number: u64 },
    /// Nobody waits for it.
    Withdraw { number: u64 },
    /// The same, without waiting for an answer: it is not known to wait.
    WithdrawOnce { number: u64 },
}

/// A command in flight.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) call: CallId,
    pub(super) votes: Votes,
    pub(super) attestations: Attestations,
    /// Its caller is gone.
    abandoned: bool,
}

/// A frame in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) frame: Frame,
    /// Those of its commands that it is sent for; others of the frame are in another one, too.
    numbers: Range<u64>,
    /// Its commands whose outcome somebody waits for.
    pub(super) open: usize,
    /// Those of them that wait at the replicas, as these have said.
    parked: usize,
    pub(super) sent_ms: u64,
    /// When it is sent to all replicas (again).
    pub(super) resend_ms: u64,
    /// The pause before that.
    pub(super) pause_ms: u64,
    /// When it is sent to the leader again, who was busy.
    pub(super) busy_resend_ms: Option<u64>,
    pub(super) busy_pause_ms: u64,
    /// When what is left of it goes out again as another frame: it was put off.
    pub(super) again_ms: Option<u64>,
    /// Something of it was carried out since it was sent last.
    progressed: bool,
    /// Sent to all replicas, or to the presumed leader alone.
    pub(super) to_all: bool,
    /// Sent more than once: its replies tell nothing about the time that one takes.
    pub(super) resent: bool,
}

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) nonce: u64,
    /// None once it is open.
    pub(super) opening: Option<Votes>,
    /// No call goes in it any more: the next ones go in another session, once those that are under way have ended.
    pub(super) left_behind: bool,
    /// Next number to give.
    next: u64,
    /// Lowest number whose outcome somebody waits for, or `next`.
    base: u64,
    /// From `base` on; `None` where nobody waits any more, or what waits at the replicas. The first is never `None`.
    pending: VecDeque<Option<Pending>>,
    /// What waits at the replicas, as these have said: their numbers hold no place of the window.
    parked: BTreeMap<u64, Pending>,
    pub(super) frames: VecDeque<InFlight>,
    pub(super) renewals: Renewals,
    /// Numbers that wait at the replicas, and for which nobody waits here.
    withdrawn: VecDeque<u64>,
    /// Numbers that were left without an outcome, and that may wait.
    left: VecDeque<u64>,
    /// Numbers of which the replicas offer something.
    offered: VecDeque<u64>,
    /// Numbers that waited, whose outcome is known here, and which the replicas need not keep.
    known: VecDeque<u64>,
    /// The last numbers that were left without an outcome: an answer to them is heard once.
    disowned: BTreeSet<u64>,
}

impl Session {
    pub(super) fn new(nonce: u64, now_ms: u64) -> Session {
        Session {
            nonce,
            opening: Some(Votes::default()),
            left_behind: false,
            next: 1,
            base: 1,
            pending: VecDeque::new(),
            parked: BTreeMap::new(),
            frames: VecDeque::new(),
            renewals: Renewals::new(now_ms),
            withdrawn: VecDeque::new(),
            left: VecDeque::new(),
            offered: VecDeque::new(),
            known: VecDeque::new(),
            disowned: BTreeSet::new(),
        }
    }

    /// Whether somebody waits for an outcome.
    pub(super) fn in_flight(&self) -> bool {
        !self.pending.is_empty() || !self.parked.is_empty()
    }

    /// Whether calls may go in it.
    pub(super) fn takes_calls(&self) -> bool {
        self.opening.is_none() && !self.left_behind
    }

    /// The lowest number that somebody waits for.
    pub(super) fn acked_below(&self) -> u64 {
        self.base
    }

    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// How many numbers more fit the window that replicas keep.
    pub(super) fn room(&self) -> usize {
        (limits::SESSION_WINDOW - (self.next - self.base)) as usize
    }

    /// Gives the next number to a call.
    pub(super) fn assign(&mut self, call: CallId) -> u64 {
        let number = self.next;
        self.next += 1;
        let (votes, attestations) = Default::default();
        self.pending.push_back(Some(Pending { call, votes, attestations, abandoned: false }));
        number
    }

    pub(super) fn pending(&mut self, number: u64) -> Option<&mut Pending> {
        self.parked.get_mut(&number).or_else(|| {
            let index = number.checked_sub(self.base)?;
            self.pending.get_mut(usize::try_from(index).ok()?)?.as_mut()
        })
    }

    /// Takes a number out of the window.
    fn take_pending(&mut self, number: u64) -> Option<Pending> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        let taken = self.pending.get_mut(index)?.take()?;
        while let Some(None) = self.pending.front() {
            self.pending.pop_front();
            self.base += 1;
        }
        Some(taken)
    }

    /// The calls in flight.
    pub(super) fn calls(&self) -> Vec<CallId> {
        let pending = self.pending.iter().flatten().chain(self.parked.values());
        pending.map(|pending| pending.call).collect()
    }

    /// Nobody waits for this number any more; returns its frame when it was the frame's last.
    pub(super) fn forget(&mut self, number: u64) -> Option<InFlight> {
        if self.parked.remove(&number).is_some() {
            if let Some(flight) = self.frame_of(number) {
                flight.parked -= 1;
            }
        } else {
            self.take_pending(number)?;
        }
        if !self.in_flight() {
            self.stop_renewing();
        }
        self.settle(number)
    }

    fn frame_of(&mut self, number: u64) -> Option<&mut InFlight> {
        self.frames.iter_mut().find(|one| one.holds(number))
    }

    /// Enough replicas say that this number waits: neither it nor its frame holds others up any more.
    pub(super) fn park(&mut self, number: u64) {
        let Some(pending) = self.take_pending(number) else { return };
        if pending.abandoned {
            self.withdrawn.push_back(number);
        }
        self.parked.insert(number, pending);
        if let Some(flight) = self.frame_of(number) {
            flight.parked += 1;
        }
    }

    /// Something became of this number: its frame renewed the session.
    pub(super) fn carried_out(&mut self, number: u64) {
        let Some(flight) = self.frame_of(number) else { return };
        flight.progressed = true;
        let sent_ms = flight.sent_ms;
        self.renewals.was_carried_out(sent_ms);
    }

    /// Enough replicas say that this number was put off: what is left of its frame is sent again, after a pause that grows while nothing of it is
    /// carried out, from the first to the longest.
    pub(super) fn put_off(&mut self, number: u64, now_ms: u64, (first, longest): (u64, u64)) {
        self.renewals.was_put_off();
        let Some(flight) = self.frame_of(number).filter(|one| one.again_ms.is_none()) else {
            return;
        };
        if flight.progressed {
            flight.busy_pause_ms = first;
        }
        let again_ms = now_ms + flight.busy_pause_ms;
        flight.busy_pause_ms = (flight.busy_pause_ms * 2).min(longest);
        flight.again_ms = Some(again_ms);
        flight.busy_resend_ms = None;
        flight.resend_ms = flight.resend_ms.max(again_ms + 1);
    }

    /// The next frame of which what is left is due, and the lowest number that somebody waits for in it.
    pub(super) fn next_again(&mut self, now_ms: u64) -> Option<(Frame, u64)> {
        while let Some(flight) =
            self.frames.iter_mut().find(|one| one.again_ms.is_some_and(|at| at <= now_ms))
        {
            flight.again_ms = None;
            let (frame, numbers) = (flight.frame.clone(), flight.numbers.clone());
            let mut lowest = None;
            // What waits at the replicas is not sent again, and may lie below what is acknowledged.
            for number in numbers.start.max(self.base)..numbers.end {
                if let Some(pending) = self.pending(number) {
                    pending.votes.forget_put_off();
                    if !self.is_parked(number) {
                        lowest = lowest.or(Some(number));
                    }
                }
            }
            if let Some(lowest) = lowest {
                return Some((frame, lowest));
            }
        }
        None
    }

    /// What is left of a frame, from `lowest` on, goes out as the frame `next`. What waits at the replicas below that stays with the frame that it
    /// was sent in, and is asked for with it now and then.
    pub(super) fn split(
        &mut self,
        now_ms: u64,
        (first_number, lowest): (u64, u64),
        next: Frame,
        pause_ms: u64,
    ) -> Option<&mut InFlight> {
        let index = self.frames.iter().position(|one| one.frame.first_number == first_number)?;
        let flight = self.frames.get_mut(index)?;
        let waiting = self.parked.range(flight.numbers.start..lowest).count();
        let rest = InFlight {
            numbers: lowest..flight.numbers.end,
            open: flight.open - waiting,
            parked: flight.parked - waiting,
            resent: true,
            ..InFlight::new(next, 0, now_ms, pause_ms, flight.busy_pause_ms)
        };
        if waiting == 0 {
            self.frames.remove(index);
        } else {
            flight.numbers.end = lowest;
            (flight.open, flight.parked) = (waiting, waiting);
            flight.resend_ms = now_ms + PARKED_MS;
        }
        let at = index + usize::from(waiting > 0);
        self.frames.insert(at, rest);
        self.frames.get_mut(at)
    }

    pub(super) fn is_parked(&self, number: u64) -> bool {
        self.parked.contains_key(&number)
    }

    /// The caller of this number is gone. If it waits at the replicas, now or later, they are told.
    pub(super) fn abandon(&mut self, number: u64) {
        let parked = self.is_parked(number);
        let Some(pending) = self.pending(number).filter(|pending| !pending.abandoned) else {
            return;
        };
        pending.abandoned = true;
        if parked {
            self.withdrawn.push_back(number);
        }
    }

    /// The call of this number ended without an outcome. What waits at the replicas, or may, would do so for nobody.
    pub(super) fn leave(&mut self, number: u64) {
        if let Some(pending) = self.parked.get_mut(&number) {
            pending.call = NOBODYS;
            self.abandon(number);
        } else if self.pending(number).is_some() {
            self.forget(number);
            if self.renewals.are_known() && self.left.len() < limits::SESSION_WAITS {
                self.left.push_back(number);
                self.disowned.insert(number);
            }
            if self.disowned.len() > limits::SESSION_WAITS {
                self.disowned.pop_first();
            }
        }
    }

    /// The replicas offer what this number waited for. If its caller is gone they are told that, or have been.
    pub(super) fn accept(&mut self, number: u64) {
        self.park(number);
        if self.parked.get(&number).is_some_and(|pending| !pending.abandoned) {
            self.offered.push_back(number);
        }
    }

    /// The outcome of this number is known; as [`Session::forget`].
    pub(super) fn conclude(&mut self, number: u64) -> Option<InFlight> {
        self.withdrawn.retain(|other| *other != number);
        self.forget(number)
    }

    /// What this number waited for is known here.
    pub(super) fn acknowledge(&mut self, number: u64) {
        self.known.push_back(number);
    }

    /// The next number of which something is offered that is taken, and for which call.
    pub(super) fn next_offer(&mut self) -> Option<(u64, CallId)> {
        while let Some(number) = self.offered.pop_front() {
            if let Some(pending) = self.parked.get(&number).filter(|one| !one.abandoned) {
                return Some((number, pending.call));
            }
        }
        None
    }

    /// The next other thing that the replicas are to be told of a number.
    pub(super) fn next_word(&mut self) -> Option<Word> {
        let withdrawn = self.withdrawn.pop_front().map(|number| Word::Withdraw { number });
        let left = || self.left.pop_front().map(|number| Word::WithdrawOnce { number });
        let known = || self.known.pop_front().map(|number| Word::Known { number });
        withdrawn.or_else(left).or_else(known)
    }

    /// A replica says what a number came to, or is offered, for which nobody waits here any more: what it keeps of that is in others' way.
    pub(super) fn answered_nobody(&mut self, number: u64, offer: bool) {
        if self.disowned.remove(&number) {
            if offer { self.withdrawn.push_back(number) } else { self.known.push_back(number) }
        }
    }

    /// Whether something is to be confirmed that was offered.
    pub(super) fn has_offers(&self) -> bool {
        !self.offered.is_empty()
    }

    /// Whether the replicas are to be told something that is worth a frame by itself.
    pub(super) fn has_words(&self) -> bool {
        !self.withdrawn.is_empty()
            || !self.offered.is_empty()
            || self.left.len() + self.known.len() >= KNOWN
    }

    /// Frames that are under way; those of which all that is left waits at the replicas are not.
    pub(super) fn under_way(&self) -> usize {
        self.frames.iter().filter(|one| !one.is_parked()).count()
    }

    /// One command less to wait for in the frame with this number.
    pub(super) fn settle(&mut self, number: u64) -> Option<InFlight> {
        let index = self.frames.iter().position(|one| one.holds(number))?;
        self.frames[index].open -= 1;
        if self.frames[index].open > 0 {
            return None;
        }
        self.frames.remove(index)
    }

    /// When a frame has to be sent again next.
    pub(super) fn next_resend(&self) -> Option<u64> {
        let times = self
            .frames
            .iter()
            .flat_map(|one| [Some(one.resend_ms), one.busy_resend_ms, one.again_ms]);
        times.flatten().min()
    }
}

impl InFlight {
    pub(super) fn new(
        frame: Frame,
        open: usize,
        now_ms: u64,
        pause_ms: u64,
        busy_pause_ms: u64,
    ) -> InFlight {
        InFlight {
            open,
            parked: 0,
            numbers: frame.first_number..frame.end_number(),
            frame,
            sent_ms: now_ms,
            resend_ms: now_ms + pause_ms,
            pause_ms,
            busy_resend_ms: None,
            busy_pause_ms,
            again_ms: None,
            progressed: false,
            to_all: false,
            resent: false,
        }
    }

    fn holds(&self, number: u64) -> bool {
        self.numbers.contains(&number)
    }

    /// Whether all of its commands that somebody waits for wait at the replicas.
    pub(super) fn is_parked(&self) -> bool {
        self.parked > 0 && self.parked == self.open
    }

    /// To whom it goes at first: the leader, or all that can be reached when he cannot.
    pub(super) fn first_targets(
        &mut self,
        leader: ReplicaId,
        linked: Vec<ReplicaId>,
    ) -> Vec<ReplicaId> {
        if linked.contains(&leader) {
            return vec![leader];
        }
        self.to_all = true;
        linked
    }
}
