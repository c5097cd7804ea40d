//! A group of agreement machines over a network and disks that are simulated: what the tests of
//! groups share.

#![allow(dead_code)]

pub mod settings;

use bytes::Bytes;
use perdura_agreement::pool::Source;
use perdura_agreement::{Agreement, Effect, Now, Restart, Settings, Suspicion, timing};
use perdura_protocol::configuration::{Configuration, Configurations, Member};
use perdura_protocol::{
    Batch, ClusterId, Digest, Faults, Frame, Message, PublicKey, Record, ReplicaId, Scheme,
    SecretKey, SessionId, Slot, Time, View, limits,
};
use settings::settings;
use std::collections::BTreeMap;

/// Of what takes long the one that `PERDURA_SEED` draws, which `make test` takes from the commit; all of it with
/// `PERDURA_ALL=1`.
pub fn drawn<T: Copy>(all: &[T]) -> Vec<T> {
    if std::env::var_os("PERDURA_ALL").is_some() {
        return all.to_vec();
    }
    let seed = std::env::var("PERDURA_SEED").ok().and_then(|text| text.parse::<u64>().ok());
    vec![all[(seed.unwrap_or(1) % all.len() as u64) as usize]]
}

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub enum Event {
    Message { to: usize, from: usize, message: Message },
    Persisted { node: usize, life: u32, count: usize },
}

pub struct Node {
    pub agreement: Option<Agreement>,
    pub life: u32,
    pub durable: Vec<Record>,
    pub pending: Vec<(Option<u64>, Record)>,
    pub appended: u64,
    pub delivered: Slot,
    /// The agreed time of its state.
    pub time: Time,
}

pub struct Group {
    pub random: Random,
    pub faults: Faults,
    pub keys: Vec<SecretKey>,
    pub nodes: Vec<Node>,
    pub events: BTreeMap<(u64, u64), Event>,
    pub now: u64,
    pub sequence: u64,
    pub loss: u64,
    pub cut: Vec<bool>,
    pub agreed: BTreeMap<Slot, Digest>,
    pub frames: u64,
    pub view_changes: u64,
    /// What replicas had against the leaders of which views.
    pub suspicions: Vec<(usize, View, Suspicion)>,
    /// This replica's proposals leave so much later.
    pub slow: Option<(usize, u64)>,
    /// It proposes no frame of this client.
    pub censor: Option<(usize, u8)>,
    /// It takes no notice of the frame with this first number.
    pub withheld: Option<(usize, u64)>,
    /// It proposes another batch to one replica after the other, and the same to all others.
    pub two_faced: Option<usize>,
    /// It gets no proposal.
    pub unproposed: Option<usize>,
    /// So many batches that somebody asked for get lost.
    pub lost_batches: u32,
    /// So many Writes to replica 0 get lost.
    pub lost_writes: u32,
    /// How far a Write was ahead of what its sender, which does not lead, had delivered: slots.
    pub writes_ahead: u64,
    /// What was proposed in which view, and to whom.
    pub proposals: Vec<(View, Slot, usize)>,
    /// A flush takes so much longer.
    pub disk_ms: u64,
    /// Slots above a prefix that may hold locks.
    pub window: u64,
    /// A command waits for this time, which is told to all but those who will not hear of it.
    pub due: Option<Time>,
    pub deaf: Option<usize>,
    /// It sends decisions without the prefixes that would go with them.
    pub miser: Option<usize>,
    asked_ms: Vec<u64>,
}

impl Group {
    pub fn new(seed: u64, u: u8, r: u8) -> Group {
        Group::with_window(seed, u, r, limits::WINDOW)
    }

    pub fn with_window(seed: u64, u: u8, r: u8, window: u64) -> Group {
        let mut group = Group::young(seed, u, r, window);
        group.run(timing::RETURNED_MS + 100);
        group
    }

    /// One that has just come together: nobody is known to keep up.
    pub fn young(seed: u64, u: u8, r: u8, window: u64) -> Group {
        let faults = Faults::new(u, r).unwrap();
        let keys: Vec<SecretKey> = (0..faults.n())
            .map(|i| SecretKey::from_seed(Scheme::KeyedHash, [i as u8 + 1; 32]))
            .collect();
        let mut group = Group {
            random: Random(seed),
            faults,
            keys,
            nodes: Vec::new(),
            events: BTreeMap::new(),
            now: 1_000,
            sequence: 0,
            loss: 0,
            cut: vec![false; faults.n()],
            agreed: BTreeMap::new(),
            frames: 0,
            view_changes: 0,
            suspicions: Vec::new(),
            slow: None,
            censor: None,
            withheld: None,
            two_faced: None,
            unproposed: None,
            lost_batches: 0,
            lost_writes: 0,
            writes_ahead: 0,
            proposals: Vec::new(),
            disk_ms: 0,
            window,
            due: None,
            deaf: None,
            miser: None,
            asked_ms: vec![0; faults.n()],
        };
        for i in 0..faults.n() {
            let agreement = group.machine(i, Restart::blank());
            group.nodes.push(Node {
                agreement: Some(agreement),
                life: 0,
                durable: Vec::new(),
                pending: Vec::new(),
                appended: 0,
                delivered: Slot(0),
                time: Time(0),
            });
        }
        for i in 0..faults.n() {
            group.connect(i);
        }
        group
    }

    pub fn clock(&self) -> Now {
        Now { monotonic_ms: self.now, wall: Time(1_000_000 + self.now) }
    }

    pub fn machine(&self, i: usize, restart: Restart) -> Agreement {
        let members =
            self.keys.iter().map(|key| Member { key: key.public(), incarnation: 0 }).collect();
        let cluster = ClusterId([7; 16]);
        let first = Configuration { id: 0, from_slot: Slot(0), members };
        let configurations = Configurations::new(cluster, first);
        let (me, key) = (ReplicaId(i as u8), |of: u8| self.keys[of as usize].clone());
        let entropy = [i as u8; 32];
        let settings =
            Settings { entropy, window: self.window, ..settings(cluster, self.faults, me, key) };
        Agreement::new(settings, configurations, restart, self.clock())
    }

    pub fn push(&mut self, delay: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + delay, self.sequence), event);
    }

    pub fn send(&mut self, from: usize, to: usize, mut message: Message) {
        if let (true, Message::Decisions { prefix, .. }) = (self.miser == Some(from), &mut message)
        {
            *prefix = None;
        }
        if let (true, Message::Propose { slot, batch, .. }) =
            (self.two_faced == Some(from), &mut message)
            && slot.0 % (self.nodes.len() as u64 - 1) + 1 == to as u64
        {
            *batch = Batch::requests(Time(batch.time().0 + 1), batch.frames().to_vec());
        }
        if let Message::Propose { view, slot, .. } = &message {
            if self.unproposed == Some(to) {
                return;
            }
            self.proposals.push((*view, *slot, to));
        }
        if let Message::Write { view, slot, .. } = &message
            && view.leader(self.nodes.len()).index() != from
        {
            let ahead = slot.0.saturating_sub(self.nodes[from].delivered.0);
            self.writes_ahead = self.writes_ahead.max(ahead);
        }
        if self.lost_writes > 0 && to == 0 && matches!(message, Message::Write { .. }) {
            self.lost_writes -= 1;
            return;
        }
        if self.lost_batches > 0 && matches!(message, Message::LockedBatch { .. }) {
            self.lost_batches -= 1;
            return;
        }
        if self.cut[from] != self.cut[to] || self.random.below(1000) < self.loss {
            return;
        }
        let mut delay = 1 + self.random.below(5) * self.random.below(5);
        if let (Some((slow, ms)), Message::Propose { .. }) = (self.slow, &message)
            && slow == from
        {
            delay += ms;
        }
        self.push(delay, Event::Message { to, from, message: message.clone() });
        if self.random.below(1000) < self.loss {
            let again = delay + self.random.below(50);
            self.push(again, Event::Message { to, from, message });
        }
    }

    pub fn drain(&mut self, i: usize) {
        let now = self.clock();
        loop {
            let Some(agreement) = self.nodes[i].agreement.as_mut() else { return };
            let Some(effect) = agreement.next_effect() else { break };
            match effect {
                Effect::Send { to, message } => self.send(i, to.index(), message),
                Effect::Broadcast(message) => {
                    for to in (0..self.nodes.len()).filter(|to| *to != i) {
                        self.send(i, to, message.clone());
                    }
                }
                Effect::Persist(record) => {
                    let node = &mut self.nodes[i];
                    node.appended += 1;
                    node.pending.push((Some(node.appended), record));
                    let (life, count) = (node.life, node.pending.len());
                    let delay = self.random.below(4) + self.disk_ms;
                    self.push(delay, Event::Persisted { node: i, life, count });
                }
                Effect::Note(record) => self.nodes[i].pending.push((None, record)),
                Effect::Deliver { slot, batch, .. } => {
                    let digest = batch.digest();
                    let agreed = *self.agreed.entry(slot).or_insert(digest);
                    assert_eq!(agreed, digest, "A1: replica {i}, slot {slot}");
                    agreement.on_executed(now, slot, None, false);
                    let time = self.nodes[i].time.max(batch.time());
                    self.nodes[i].time = time;
                    self.tell_due(i);
                    assert_eq!(slot, self.nodes[i].delivered.next(), "gap");
                    self.nodes[i].delivered = slot;
                }
                Effect::ViewStarted(_) => self.view_changes += 1,
                Effect::Misbehaved { replica, what } => {
                    let known = self.two_faced == Some(replica.index());
                    assert!(known, "replica {i} accuses {replica} of {what:?}");
                }
                Effect::Serve { to, from, .. } => {
                    // What a log would do: all decided batches are in some record.
                    assert!(to.index() < self.nodes.len() && from > Slot(0));
                    self.serve(i, to.index(), from);
                }
                Effect::Suspects { view, why } => self.suspicions.push((i, view, why)),
                Effect::Proven { .. } | Effect::Certified(_) | Effect::FetchState { .. } => {}
            }
        }
        let node = &mut self.nodes[i];
        if let Some(agreement) = node.agreement.as_mut() {
            agreement.flush(now);
        }
    }

    pub fn serve(&mut self, i: usize, to: usize, from: Slot) {
        let mut records = self.nodes[i].durable.clone();
        records.extend(self.nodes[i].pending.iter().map(|(_, record)| record.clone()));
        let mut decisions = Vec::new();
        let mut slot = from;
        while slot <= self.nodes[i].delivered && decisions.len() < 8 {
            let digest = self.agreed[&slot];
            let batch = records.iter().find_map(|record| {
                record.batch().filter(|(s, b)| *s == slot && b.digest() == digest)
            });
            let Some((_, batch)) = batch else { break };
            let proof = records.iter().find_map(|record| match record {
                Record::Accepts { slot: s, view, accepts, .. }
                | Record::Decision { slot: s, view, accepts, .. }
                    if *s == slot =>
                {
                    Some((*view, accepts.clone()))
                }
                _ => None,
            });
            let (view, accepts) = proof.unwrap_or_default();
            let batch = batch.clone();
            decisions.push(perdura_protocol::message::Decision { slot, view, accepts, batch });
            slot = slot.next();
        }
        // With the prefix that proves them, if one is within the reach of who asks.
        let prefixes = records.iter().filter_map(|record| match record {
            Record::Prefix(prefix) => Some(prefix.clone()),
            _ => None,
        });
        let reach = from.previous().plus(8);
        let prefix = prefixes.filter(|p| p.slot >= from && p.slot <= reach).max_by_key(|p| p.slot);
        let end = prefix.as_ref().map_or(Slot(0), |prefix| prefix.slot);
        let between = (slot.0..=end.0).map(|slot| self.agreed[&Slot(slot)]).collect();
        self.send(i, to, Message::Decisions { decisions, prefix, between });
    }

    pub fn step(&mut self, until: u64) -> bool {
        let Some(entry) = self.events.first_entry() else { return false };
        if entry.key().0 > until {
            return false;
        }
        let ((at, _), event) = entry.remove_entry();
        self.now = self.now.max(at);
        let now = self.clock();
        match event {
            Event::Message { to, from, message } => {
                // Through the codec, as on a wire.
                use perdura_protocol::{Decode, Encode};
                let message = Message::from_bytes(message.to_bytes()).unwrap();
                let from = ReplicaId(from as u8);
                if let Message::Frame(frame) | Message::Overdue(frame) = message {
                    self.offer(to, frame, Source::Replica(from));
                } else if let Some(agreement) = self.nodes[to].agreement.as_mut() {
                    agreement.on_message(now, from, message);
                    agreement.flush(now);
                }
                self.settle(to);
            }
            Event::Persisted { node: i, life, count } => {
                let node = &mut self.nodes[i];
                if node.life == life {
                    let done: Vec<_> =
                        node.pending.drain(..count.min(node.pending.len())).collect();
                    let last = done.iter().filter_map(|(sequence, _)| *sequence).max();
                    node.durable.extend(done.into_iter().map(|(_, record)| record));
                    if let (Some(agreement), Some(last)) = (node.agreement.as_mut(), last) {
                        agreement.on_persisted(now, last);
                    }
                    self.settle(i);
                }
            }
        }
        true
    }

    pub fn settle(&mut self, i: usize) {
        for _ in 0..4 {
            self.drain(i);
        }
        let now = self.clock();
        let Some(agreement) = self.nodes[i].agreement.as_mut() else { return };
        let leader = agreement.leader().index();
        for message in agreement.hand_over(now) {
            self.send(i, leader, message);
        }
    }

    pub fn run(&mut self, ms: u64) {
        let end = self.now + ms;
        while self.now < end {
            let tick = (self.now + 20).min(end);
            while self.step(tick) {}
            self.now = tick;
            let now = self.clock();
            for i in 0..self.nodes.len() {
                if let Some(agreement) = self.nodes[i].agreement.as_mut() {
                    agreement.on_tick(now);
                }
                self.ask_for_prefix(i);
                self.settle(i);
            }
        }
    }

    /// What the driver owes a replica that lacks a certified prefix.
    fn ask_for_prefix(&mut self, i: usize) {
        let lacks = self.nodes[i].agreement.as_ref().is_some_and(Agreement::lacks_prefix);
        if !lacks || self.now < self.asked_ms[i] + 500 {
            return;
        }
        self.asked_ms[i] = self.now;
        let now = self.clock();
        for j in (0..self.nodes.len()).filter(|j| *j != i) {
            let lost = self.random.below(1000) < self.loss;
            if lost || self.cut[i] != self.cut[j] || self.miser == Some(j) {
                continue;
            }
            let Some(asked) = self.nodes[j].agreement.as_mut() else { continue };
            asked.attest_prefix(now);
            let prefix = asked.prefix().clone();
            if let Some(asking) = self.nodes[i].agreement.as_mut() {
                asking.on_prefix_certificate(now, prefix);
            }
            self.settle(j);
        }
    }

    /// A command waits from now on.
    pub fn wait_for(&mut self, due: Time) {
        self.due = Some(due);
        for i in 0..self.nodes.len() {
            self.tell_due(i);
        }
    }

    fn tell_due(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        let due = self.due.filter(|due| *due > node.time && self.deaf != Some(i));
        if let Some(agreement) = node.agreement.as_mut() {
            agreement.set_due(due);
        }
    }

    /// A client that sends to everybody.
    pub fn request(&mut self) {
        self.request_of(0, 8);
    }

    /// The same, one of many.
    pub fn request_of(&mut self, client: u8, bytes: usize) {
        let frame = self.frame_of(client, bytes);
        for i in 0..self.nodes.len() {
            self.offer(i, frame.clone(), Source::Client);
            self.settle(i);
        }
    }

    /// The next frame of a client.
    pub fn frame_of(&mut self, client: u8, bytes: usize) -> Frame {
        self.frames += 1;
        let client = if client == 0 { self.keys[0].public() } else { PublicKey([client; 32]) };
        let session = SessionId { client, nonce: 1 };
        let mut command = self.frames.to_le_bytes().to_vec();
        command.resize(bytes.max(8), 0);
        let command = Bytes::from(command);
        Frame::build(ClusterId([7; 16]), session, 0, self.frames, &[command], None)
    }

    pub fn offer(&mut self, i: usize, frame: Frame, source: Source) {
        if self.censor.is_some_and(|(censor, client)| {
            censor == i && frame.session.client == PublicKey([client; 32])
        }) || self.withheld == Some((i, frame.first_number))
        {
            return;
        }
        let now = self.clock();
        if let Some(agreement) = self.nodes[i].agreement.as_mut() {
            agreement.on_frame(now, frame, source);
            agreement.flush(now);
        }
    }

    /// Bytes of frames that wait at a replica.
    pub fn waiting(&self, i: usize) -> usize {
        self.nodes[i].agreement.as_ref().map_or(0, |agreement| agreement.held().frame_bytes)
    }

    pub fn crash(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        node.agreement = None;
        node.life += 1;
        // Some of what was not flushed may have reached the disk, in order.
        let kept = self.random.below(node.pending.len() as u64 + 1) as usize;
        node.durable.extend(node.pending.drain(..kept).map(|(_, record)| record));
        node.pending.clear();
        node.appended = 0;
        let now = self.clock();
        for node in &mut self.nodes {
            if let Some(agreement) = node.agreement.as_mut() {
                agreement.on_link(now, ReplicaId(i as u8), false);
            }
        }
    }

    pub fn restart(&mut self, i: usize) {
        self.restart_without_vote(i, Slot(0));
    }

    /// It votes once peers certify up to there.
    pub fn restart_without_vote(&mut self, i: usize, vote_after: Slot) {
        let records = self.nodes[i].durable.clone();
        let n = self.faults.n();
        let mut restart = if records.is_empty() {
            Restart::blank()
        } else {
            Restart::from_log(n, Slot(0), Digest::ZERO, records, vote_after)
        };
        for (slot, batch) in restart.take_replay() {
            assert_eq!(self.agreed.get(&slot), Some(&batch.digest()), "A1 over a restart");
        }
        self.nodes[i].delivered = restart.delivered();
        self.nodes[i].agreement = Some(self.machine(i, restart));
        self.connect(i);
        self.settle(i);
    }

    /// Links of one replica come up, for both ends.
    pub fn connect(&mut self, i: usize) {
        self.link(i, true);
    }

    /// The same after [`Group::disconnect`].
    pub fn reconnect(&mut self, i: usize) {
        self.cut[i] = false;
        self.connect(i);
    }

    /// They go down, and nothing gets through.
    pub fn disconnect(&mut self, i: usize) {
        self.cut[i] = true;
        self.link(i, false);
    }

    fn link(&mut self, i: usize, up: bool) {
        let now = self.clock();
        for j in (0..self.nodes.len()).filter(|j| *j != i) {
            if self.nodes[j].agreement.is_none() {
                continue;
            }
            for (a, b) in [(i, j), (j, i)] {
                if let Some(agreement) = self.nodes[a].agreement.as_mut() {
                    agreement.on_link(now, ReplicaId(b as u8), up);
                }
            }
        }
    }

    pub fn assert_progress(&mut self, seed: u64) {
        self.loss = 0;
        self.cut.fill(false);
        for i in 0..self.nodes.len() {
            if self.nodes[i].agreement.is_none() {
                self.restart(i);
            }
        }
        let before = self.agreed.len();
        for _ in 0..20 {
            self.request();
            self.run(500);
        }
        self.run(10_000);
        let last = *self.agreed.last_key_value().unwrap().0;
        assert!(self.agreed.len() > before, "seed {seed}: no progress after healing");
        for (i, node) in self.nodes.iter().enumerate() {
            assert_eq!(node.delivered, last, "seed {seed}: replica {i} lags after healing");
        }
    }
}
