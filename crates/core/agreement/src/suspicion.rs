//! Why a replica gives up on its leader.

use crate::machine::{Agreement, Effect, Now};
use crate::timing;
use perdura_protocol::message::Message;
use std::fmt;

/// What a replica has against its leader, or against a view that does not start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Suspicion {
    /// Slots of the new configuration need a view of theirs.
    OldConfiguration,
    /// This replica leads a view that began before it was restarted.
    Restarted,
    /// Nothing was heard of the leader for a while.
    Silent,
    /// The link to the leader is broken.
    LinkDown,
    /// A proposal is not decided in time.
    ProposalWaits,
    /// A client's frame is not ordered in time.
    FrameWaits,
    /// Agreed time stands still while an effect is due.
    TimeWaits,
    /// The leader does not give what is asked of it.
    Slow,
    /// Another leader is to be compared with this one.
    Trial,
    /// The leader serves others, and not some client.
    Starves,
    /// The leader serves a client, and leaves out a frame of it.
    Withholds,
    /// The leader's disk hangs.
    Stalled,
    /// The leader itself wants a later view.
    Abdicated,
    /// The leader proposed frames that no client signed.
    Forged,
    /// The leader was found lying.
    Exposed,
    /// r + 1 others have left the view.
    OthersLeft,
    /// A replica left the view long ago and does not come back.
    Followed,
    /// The view does not start in time.
    ViewChangeFails,
}

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OldConfiguration => "the configuration has changed",
            Self::Restarted => "it leads a view from before its restart",
            Self::Silent => "nothing is heard of it",
            Self::LinkDown => "the link to it is down",
            Self::ProposalWaits => "a proposal is not decided in time",
            Self::FrameWaits => "a client's frame is not ordered in time",
            Self::TimeWaits => "time stands still while an effect is due",
            Self::Slow => "it does less than is asked of it",
            Self::Trial => "another leader is to be compared with it",
            Self::Starves => "it passes over a client",
            Self::Withholds => "it leaves out a client's frame",
            Self::Stalled => "its disk hangs",
            Self::Abdicated => "it wants a later view itself",
            Self::Forged => "it proposed what no client signed",
            Self::Exposed => "it was found lying",
            Self::OthersLeft => "others have left its view",
            Self::Followed => "a replica left its view and does not come back",
            Self::ViewChangeFails => "its view does not start in time",
        })
    }
}

impl Agreement {
    /// What a flush and a round trip take, as enough replicas have measured it: time-outs follow that.
    pub fn set_pace(&mut self, pace_ms: u64) {
        self.timeouts.set_pace(pace_ms);
    }

    /// What time-outs follow, milliseconds.
    #[must_use]
    pub fn pace_ms(&self) -> u64 {
        self.timeouts.pace_ms()
    }

    /// How long a request may make no progress before the leader is suspected, milliseconds.
    #[must_use]
    pub fn request_timeout_ms(&self) -> u64 {
        self.timeouts.request_ms()
    }

    /// Whose disks hang, by their own word: bit i is replica i. Who stands alone with that leads no more, and is passed over; where it takes
    /// others as long, the driver names nobody.
    pub fn set_stalled(&mut self, stalled: u32) {
        for (index, peer) in self.peers.iter_mut().enumerate() {
            peer.hangs = stalled >> index & 1 == 1;
        }
    }

    pub(crate) fn against_leader(&self, now: Now) -> Option<Suspicion> {
        if self.view_configuration != self.current_configuration() {
            return Some(Suspicion::OldConfiguration);
        }
        let follows = || self.follows(now).then_some(Suspicion::Followed);
        let stalled = self.peers[self.leader().index()].hangs;
        if self.leads() {
            // A proposal that arrived late is fresh no more and finds no votes, and no follower
            // can bring the view down alone: the leader gives up with them.
            let restarted = self.has_restarted().then_some(Suspicion::Restarted);
            let stalled = stalled.then_some(Suspicion::Stalled);
            return restarted.or(stalled).or_else(|| self.stuck(now)).or_else(follows);
        }
        let ms = now.monotonic_ms;
        // Who lies is no leader: what it can still do to the group's speed no time-out finds.
        let exposed = self.is_byzantine() && self.trust[self.leader().index()].exposed(self.view);
        let known = [
            (self.forged == Some(self.view), Suspicion::Forged),
            (exposed, Suspicion::Exposed),
            (stalled, Suspicion::Stalled),
            (self.abdicated == Some(self.view), Suspicion::Abdicated),
            (
                self.leader_lost_ms.is_some_and(|since| ms > since + timing::DISCONNECTED_MS),
                Suspicion::LinkDown,
            ),
            (ms > self.leader_heard_ms + self.timeouts.silence_ms(), Suspicion::Silent),
            (self.left(now), Suspicion::OthersLeft),
        ];
        let known = known.iter().find(|(holds, _)| *holds).map(|(_, why)| *why);
        known.or_else(|| self.stuck(now)).or_else(|| self.unfair_or_slow(now)).or_else(follows)
    }

    /// r > 0: the leader does not give what is asked of it, though it keeps the time-outs; or
    /// another one is to be tried.
    fn unfair_or_slow(&self, now: Now) -> Option<Suspicion> {
        if !self.is_byzantine() {
            return None;
        }
        let client_bytes = self.pool.client_bytes(self.n());
        // Whom it leaves out does not depend on how fast this replica executes.
        let unfair = self.demand.unfair(now.monotonic_ms, client_bytes);
        unfair.or_else(|| self.demand.slow(now.monotonic_ms).filter(|_| !self.is_held()))
    }

    /// A proposal or request waits, and nothing of it was delivered for a while. Null batches are
    /// no progress for requests.
    fn stuck(&self, now: Now) -> Option<Suspicion> {
        if self.is_held() {
            return None;
        }
        let oldest_slot = self
            .slots
            .range(self.delivered.next()..)
            .find(|(_, state)| state.proposal.is_some() && state.decided.is_none())
            .map(|(_, state)| state.since_ms);
        let bound = self.waits_for_reproposal().then_some(self.changing_since_ms);
        let oldest_slot = oldest_slot.into_iter().chain(bound).min();
        let timeout = self.timeouts.request_ms();
        let late = |since: u64, progress: u64| now.monotonic_ms > since.max(progress) + timeout;
        let served_late = |since: u64| late(since, self.served_ms);
        if oldest_slot.is_some_and(|since| late(since, self.progress_ms)) {
            Some(Suspicion::ProposalWaits)
        } else if self.pool.oldest_ms().is_some_and(served_late) {
            Some(Suspicion::FrameWaits)
        } else {
            self.ticks.overdue_ms.is_some_and(served_late).then_some(Suspicion::TimeWaits)
        }
    }

    /// r + 1 others gave this view up: one of them is correct, and the group lacks it.
    pub(crate) fn note_left(&mut self, now: Now) {
        self.note_followed(now.monotonic_ms);
        let gone = self.peers.iter().filter(|peer| peer.changing && peer.view > self.view).count();
        if gone < self.settings.parameters.faults.view_join_suspecting() {
            self.left_ms = None;
        } else if self.left_ms.is_none() {
            self.left_ms = Some(now.monotonic_ms);
        }
    }

    fn left(&self, now: Now) -> bool {
        let timeout = 2 * self.timeouts.silence_ms();
        self.left_ms.is_some_and(|since| now.monotonic_ms > since + timeout)
    }

    /// Fewer than r + 1 others gave this view up, and none comes back: views only grow. Whose suspicion
    /// they shared has dropped it since, for the leader serves, so nobody else would ever leave. All who
    /// are here follow, the leader too, for without it they may be too few to be believed; rarely, for
    /// liars may claim to have left.
    fn follows(&self, now: Now) -> bool {
        self.peers.iter().any(|peer| peer.is_followed(now.monotonic_ms))
    }

    pub(crate) fn against_view_change(&self, now: Now) -> Option<Suspicion> {
        if self.is_held() {
            return None;
        }
        let current = self.current_configuration();
        if self.own_change.as_ref().is_some_and(|change| change.configuration != current) {
            return Some(Suspicion::OldConfiguration);
        }
        let since = match (self.quorum_asked_ms, &self.own_change) {
            (Some(since), _) => since + self.timeouts.view_change_ms(),
            // Restarted in this view, and nobody sends its NewView.
            (None, None) => self.changing_since_ms + self.timeouts.repeat_ms(),
            (None, Some(_)) => return None,
        };
        (now.monotonic_ms > since).then_some(Suspicion::ViewChangeFails)
    }

    /// Says that this replica would leave its view, and why, when that is new.
    pub(crate) fn suspect(&mut self, why: Option<Suspicion>) {
        let before = self.suspecting.take();
        let Some(why) = why else { return };
        let wanted = before.map(|(wanted, _)| wanted).filter(|wanted| self.can_succeed(*wanted));
        let wanted = wanted.unwrap_or_else(|| self.successor());
        self.suspecting = Some((wanted, why));
        let view = self.view;
        if before.is_none_or(|(_, known)| known != why) {
            self.effects.push_back(Effect::Suspects { view, why });
        }
        if before.is_none_or(|(known, _)| known != wanted) {
            self.marks.leaders_passed_over += u64::from(wanted > view.next());
            self.effects.push_back(Effect::Broadcast(Message::Suspect { view: wanted }));
        }
    }
}
