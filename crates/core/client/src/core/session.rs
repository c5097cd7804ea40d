//! The current session: its numbers in flight, and the frames that carry them.

use super::CallId;
use super::lifetime::Renewals;
use crate::votes::Votes;
use perdura_protocol::{Frame, ReplicaId, limits};
use std::collections::VecDeque;

/// A command in flight.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) call: CallId,
    pub(super) votes: Votes,
    /// Replicas said that it waits.
    parked: bool,
    /// Its caller is gone.
    abandoned: bool,
}

/// A frame in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) frame: Frame,
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
    /// Next number to give.
    next: u64,
    /// Lowest number whose outcome somebody waits for, or `next`.
    base: u64,
    /// From `base` on; `None` where nobody waits any more. The first is never `None`.
    pending: VecDeque<Option<Pending>>,
    pub(super) frames: VecDeque<InFlight>,
    pub(super) renewals: Renewals,
    /// Numbers that wait at the replicas, and for which nobody waits here.
    withdrawn: VecDeque<u64>,
}

impl Session {
    pub(super) fn new(nonce: u64, now_ms: u64) -> Session {
        Session {
            nonce,
            opening: Some(Votes::default()),
            next: 1,
            base: 1,
            pending: VecDeque::new(),
            frames: VecDeque::new(),
            renewals: Renewals::new(now_ms),
            withdrawn: VecDeque::new(),
        }
    }

    /// Whether somebody waits for an outcome.
    pub(super) fn in_flight(&self) -> bool {
        !self.pending.is_empty()
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
        self.pending.push_back(Some(Pending {
            call,
            votes: Votes::default(),
            parked: false,
            abandoned: false,
        }));
        number
    }

    pub(super) fn pending(&mut self, number: u64) -> Option<&mut Pending> {
        let index = number.checked_sub(self.base)?;
        self.pending.get_mut(usize::try_from(index).ok()?)?.as_mut()
    }

    /// The calls in flight.
    pub(super) fn calls(&self) -> Vec<CallId> {
        self.pending.iter().flatten().map(|pending| pending.call).collect()
    }

    /// Nobody waits for this number any more; returns its frame when it was the frame's last.
    pub(super) fn forget(&mut self, number: u64) -> Option<InFlight> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        let forgotten = self.pending.get_mut(index)?.take()?;
        if forgotten.parked
            && let Some(flight) = self.frame_of(number)
        {
            flight.parked -= 1;
        }
        while let Some(None) = self.pending.front() {
            self.pending.pop_front();
            self.base += 1;
        }
        if self.pending.is_empty() {
            self.stop_renewing();
        }
        self.settle(number)
    }

    fn frame_of(&mut self, number: u64) -> Option<&mut InFlight> {
        self.frames.iter_mut().find(|one| one.holds(number))
    }

    /// Enough replicas say that this number waits: its frame holds no others up any more.
    pub(super) fn park(&mut self, number: u64) {
        let Some(pending) = self.pending(number).filter(|pending| !pending.parked) else { return };
        pending.parked = true;
        if pending.abandoned {
            self.withdrawn.push_back(number);
        }
        if let Some(flight) = self.frame_of(number) {
            flight.parked += 1;
        }
    }

    /// The caller of this number is gone. If it waits at the replicas, now or later, they are told.
    pub(super) fn abandon(&mut self, number: u64) {
        let Some(pending) = self.pending(number).filter(|pending| !pending.abandoned) else {
            return;
        };
        pending.abandoned = true;
        if pending.parked {
            self.withdrawn.push_back(number);
        }
    }

    /// The next number of which the replicas are to be told that nobody waits for it, if it still waits.
    pub(super) fn next_withdrawn(&mut self) -> Option<u64> {
        while let Some(number) = self.withdrawn.pop_front() {
            if self.pending(number).is_some() {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn has_withdrawn(&self) -> bool {
        !self.withdrawn.is_empty()
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
        let times = self.frames.iter().flat_map(|one| [Some(one.resend_ms), one.busy_resend_ms]);
        times.flatten().min()
    }
}

impl InFlight {
    pub(super) fn new(frame: Frame, now_ms: u64, pause_ms: u64, busy_pause_ms: u64) -> InFlight {
        InFlight {
            open: frame.commands().len(),
            parked: 0,
            frame,
            sent_ms: now_ms,
            resend_ms: now_ms + pause_ms,
            pause_ms,
            busy_resend_ms: None,
            busy_pause_ms,
            to_all: false,
            resent: false,
        }
    }

    fn holds(&self, number: u64) -> bool {
        (self.frame.first_number..self.frame.end_number()).contains(&number)
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
