//! Sending: sessions are opened, waiting calls packed into frames, frames sent again.
//!
//! There is no delay for packing. While fewer frames are in flight than allowed, whatever waits
//! leaves at once; while there are as many, what comes gathers, so that frames grow with the load.

use super::bounds::{FRAME_TARGET_BYTES, PARKED_MS, WORDS};
use super::calls::Stage;
use super::session::{InFlight, NOBODYS, Session, Word};
use super::{CallId, ClientCore};
use bytes::Bytes;
use perdura_protocol::{Command, Encode, Frame, Message, ReplicaId, SessionId, limits, seeded};

impl ClientCore {
    /// Packs what waits into frames, as far as the pipeline allows, and sends them.
    pub fn flush(&mut self, now_ms: u64) {
        if !self.any_link() {
            // What was never sent can still be refused for certain.
            return;
        }
        self.change_session(now_ms);
        if self.session.is_none() && self.wants_session() {
            self.open_session(now_ms);
        }
        self.tell_session();
        // What is offered is confirmed however much is under way: it is there for a second.
        loop {
            let most = if self.has_room_for_calls() { self.calls_to_send(now_ms) } else { 0 };
            let sends_calls = self.waiting_calls > 0 && most > 0;
            if !sends_calls && !(self.has_words() && (self.has_room(0) || self.has_offers())) {
                break;
            }
            let Some((frame, open)) = self.next_frame(most) else { break };
            self.send_new(now_ms, frame, open);
            if sends_calls {
                self.note_sent(now_ms);
            }
            if let Some(session) = &mut self.session {
                session.renewals.sent_fresh(now_ms);
            }
        }
    }

    pub(super) fn wants_session(&self) -> bool {
        self.waiting_calls > 0 || !self.session_calls.is_empty()
    }

    fn has_room(&self, kept: usize) -> bool {
        self.session.as_ref().is_some_and(|session| {
            session.opening.is_none()
                && session.under_way() < self.config.frames_in_flight.max(1)
                && session.room() > kept
        })
    }

    fn has_room_for_calls(&self) -> bool {
        self.has_room(WORDS) && self.session.as_ref().is_some_and(Session::takes_calls)
    }

    /// Whether the next flush confirms what callers are offered: those who are gone by now have to be abandoned before.
    pub fn has_offers(&self) -> bool {
        self.session.as_ref().is_some_and(Session::has_offers)
    }

    fn has_words(&self) -> bool {
        self.session.as_ref().is_some_and(Session::has_words)
    }

    /// The next frame, and how many of its commands have an outcome that somebody waits for.
    /// So many of them are of calls at most.
    fn next_frame(&mut self, calls: usize) -> Option<(Frame, usize)> {
        let mut session = self.session.take()?;
        let all = session.room().min(limits::FRAME_COMMANDS);
        let room = session.room().saturating_sub(WORDS).min(all).min(calls);
        let first = session.next_number();
        let mut commands: Vec<Bytes> = Vec::new();
        while commands.len() < all
            && let Some((number, of)) = session.next_offer()
        {
            commands.push(Command::Confirm { number }.to_bytes());
            let own = session.assign(of);
            if let Some(call) = self.calls.get_mut(&of) {
                call.stage = Stage::Sent(own);
            }
            session.forget(number);
        }
        let mut bytes = 0;
        while commands.len() < room {
            let fits = |more| bytes == 0 || bytes + more <= FRAME_TARGET_BYTES;
            let Some(id) = self.take_waiting(fits) else { break };
            let Some(call) = self.calls.get_mut(&id) else { continue };
            // Counted with its length prefix, so that empty commands count as well.
            bytes += call.command.len() + 4;
            commands.push(call.command.clone());
            call.stage = Stage::Sent(session.assign(id));
        }
        let mut once = Vec::new();
        while commands.len() < all
            && let Some(word) = session.next_word()
        {
            let command = match word {
                Word::Known { number } => Command::Confirm { number },
                Word::Withdraw { number } | Word::WithdrawOnce { number } => {
                    Command::Withdraw { number }
                }
            };
            commands.push(command.to_bytes());
            let own = session.assign(NOBODYS);
            if let Word::WithdrawOnce { .. } = word {
                once.push(own);
            }
        }
        let open = commands.len() - once.len();
        let frame = (!commands.is_empty())
            .then(|| (self.build(session.nonce, session.acked_below(), first, &commands), open));
        for number in once {
            session.forget(number);
        }
        self.session = Some(session);
        frame
    }

    pub(super) fn build(
        &mut self,
        nonce: u64,
        acked_below: u64,
        first: u64,
        commands: &[Bytes],
    ) -> Frame {
        let config = &self.config;
        let session = SessionId { client: config.key.public(), nonce };
        let key = config.signs().then_some(&config.key);
        self.stats.frames += 1;
        self.stats.commands += commands.len() as u64;
        Frame::build(config.cluster, session, acked_below, first, commands, key)
    }

    /// Starts the next session: replies shall come here, and number 0 opens it.
    fn open_session(&mut self, now_ms: u64) {
        let nonce = self.next_nonce(now_ms);
        for replica in self.linked() {
            self.send(replica, Message::Attach { nonce });
        }
        self.session = Some(Session::new(nonce, now_ms));
        let token = self.token;
        self.token = u128::from_le_bytes(token).wrapping_add(1).to_le_bytes();
        let open = if self.says_token { Command::OpenBy { token } } else { Command::Open };
        let frame = self.build(nonce, 0, 0, &[open.to_bytes()]);
        self.send_new(now_ms, frame, 1);
    }

    /// Session numbers follow the clock from the first one on, and grow in any case; each attempt
    /// that fails skips further ahead.
    fn next_nonce(&mut self, now_ms: u64) -> u64 {
        let (last, at) = self.last_nonce;
        let elapsed = now_ms.saturating_sub(at).saturating_mul(limits::NONCES_PER_MS);
        let skip =
            if self.open_attempts == 0 { 0 } else { 1 << (10 + 4 * self.open_attempts.min(8)) };
        let nonce = if self.nonce_used {
            last.saturating_add(elapsed.max(1)).saturating_add(skip)
        } else {
            last
        };
        self.nonce_used = true;
        self.last_nonce = (nonce, now_ms);
        nonce
    }

    /// Sends a frame, and again until so many of its commands have their outcomes.
    pub(super) fn send_new(&mut self, now_ms: u64, frame: Frame, open: usize) {
        let (pause, busy) = (self.first_pause_ms(), self.config.busy_first_ms.max(1));
        let mut flight = InFlight::new(frame, open, now_ms, pause, busy);
        for replica in flight.first_targets(self.views.leader(), self.linked()) {
            self.send(replica, Message::Frame(flight.frame.clone()));
        }
        if let Some(session) = &mut self.session
            && open > 0
        {
            session.frames.push_back(flight);
        }
    }

    /// Replies usually come within the smoothed round trip and four deviations (RFC 6298).
    fn first_pause_ms(&self) -> u64 {
        let usual = self.round_trip.map_or(0, |(mean, deviation)| mean + 4 * deviation);
        let longest = self.config.retransmit_longest_ms.max(1);
        usual.max(self.config.retransmit_first_ms).clamp(1, longest)
    }

    /// A frame was answered completely.
    pub(super) fn note_round_trip(&mut self, now_ms: u64, flight: &InFlight) {
        if flight.resent {
            return;
        }
        let sample = now_ms.saturating_sub(flight.sent_ms);
        self.round_trip = Some(match self.round_trip {
            None => (sample, sample / 2),
            Some((mean, deviation)) => {
                ((7 * mean + sample) / 8, (3 * deviation + mean.abs_diff(sample)) / 4)
            }
        });
    }

    pub(super) fn leave_number(&mut self, number: u64) {
        if let Some(session) = &mut self.session {
            session.leave(number);
        }
    }

    /// A replica that came up learns of the session, and gets what is in flight: it may have
    /// executed it before it knew where its replies should go.
    pub(super) fn greet(&mut self, replica: ReplicaId) {
        let Some(session) = &mut self.session else { return };
        let nonce = session.nonce;
        let mut frames: Vec<Frame> = Vec::new();
        for flight in &mut session.frames {
            flight.resent = true;
            frames.push(flight.frame.clone());
        }
        self.send(replica, Message::Attach { nonce });
        self.send_again(&[replica], frames);
    }

    /// The leader cannot be reached: the others hold what we have, and time him.
    pub(super) fn resend_all(&mut self, now_ms: u64) {
        if seeded!(RetriedUnderNewNumber) {
            let calls = self.session.as_ref().map(Session::calls).unwrap_or_default();
            calls.into_iter().for_each(|id| self.wait(id));
        }
        let Some(session) = &mut self.session else { return };
        let mut frames = Vec::new();
        for flight in &mut session.frames {
            (flight.to_all, flight.resent) = (true, true);
            flight.resend_ms = now_ms + flight.pause_ms;
            frames.push(flight.frame.clone());
        }
        let linked = self.linked();
        self.send_again(&linked, frames);
    }

    /// Another leader: he gets what only his predecessor had.
    pub(super) fn leader_changed(&mut self) {
        let leader = self.views.leader();
        if !self.is_linked(leader) {
            return;
        }
        let Some(session) = &mut self.session else { return };
        let mut frames = Vec::new();
        for flight in session.frames.iter_mut().filter(|flight| !flight.to_all) {
            flight.resent = true;
            frames.push(flight.frame.clone());
        }
        self.send_again(&[leader], frames);
    }

    /// Sends what is due: to all replicas what was not answered, to the leader what he was too
    /// busy for.
    pub(super) fn resend_due(&mut self, now_ms: u64) {
        self.send_put_off(now_ms);
        let longest = self.config.retransmit_longest_ms.max(1);
        let Some(session) = &mut self.session else { return };
        let (mut to_all, mut to_leader) = (Vec::new(), Vec::new());
        for flight in &mut session.frames {
            if flight.resend_ms <= now_ms {
                (flight.to_all, flight.resent) = (true, true);
                flight.pause_ms = (flight.pause_ms * 2).min(longest);
                let pause_ms = if flight.is_parked() { PARKED_MS } else { flight.pause_ms };
                flight.resend_ms = now_ms + pause_ms;
                flight.busy_resend_ms = None;
                to_all.push(flight.frame.clone());
            } else if flight.busy_resend_ms.is_some_and(|at| at <= now_ms) {
                flight.resent = true;
                flight.busy_resend_ms = None;
                to_leader.push(flight.frame.clone());
            }
        }
        let linked = self.linked();
        self.send_again(&linked, to_all);
        let leader = self.views.leader();
        if self.is_linked(leader) {
            self.send_again(&[leader], to_leader);
        }
    }

    /// What was put off goes out in frames of its own, which acknowledge what came meanwhile.
    fn send_put_off(&mut self, now_ms: u64) {
        let pause_ms = self.first_pause_ms();
        while let Some(session) = &mut self.session
            && let Some((frame, lowest)) = session.next_again(now_ms)
        {
            let (nonce, acked) = (session.nonce, session.acked_below());
            let answered = (lowest - frame.first_number) as usize;
            let commands: Vec<Bytes> = frame.commands().skip(answered).collect();
            let next = self.build(nonce, acked, lowest, &commands);
            let (leader, linked) = (self.views.leader(), self.linked());
            let Some(session) = &mut self.session else { return };
            let numbers = (frame.first_number, lowest);
            let Some(flight) = session.split(now_ms, numbers, next, pause_ms) else { return };
            let (frame, targets) = (flight.frame.clone(), flight.first_targets(leader, linked));
            self.stats.put_off += commands.len() as u64;
            self.send_again(&targets, vec![frame]);
        }
    }

    /// The leader has no place for a frame now: it is asked again soon, at growing intervals.
    /// That the frame goes to all replicas in time does not depend on its word.
    pub(super) fn busy(&mut self, now_ms: u64, nonce: u64, first_number: u64) {
        let longest = self.config.retransmit_longest_ms.max(1);
        let Some(session) = &mut self.session else { return };
        if session.nonce != nonce {
            return;
        }
        let flight = session.frames.iter_mut().find(|one| one.frame.first_number == first_number);
        let Some(flight) = flight else { return };
        if flight.busy_resend_ms.is_none() {
            flight.busy_resend_ms = Some(now_ms + flight.busy_pause_ms);
            flight.busy_pause_ms = (flight.busy_pause_ms * 2).min(longest);
        }
        self.stats.busy += 1;
    }

    fn send_again(&mut self, replicas: &[ReplicaId], frames: Vec<Frame>) {
        for frame in frames {
            for replica in replicas {
                self.stats.retransmissions += 1;
                self.send(*replica, Message::Frame(frame.clone()));
            }
        }
    }

    /// The calls that are in flight in the current session, which ends.
    pub(super) fn drop_session(&mut self) -> Vec<CallId> {
        self.session.take().map(|session| session.calls()).unwrap_or_default()
    }
}
