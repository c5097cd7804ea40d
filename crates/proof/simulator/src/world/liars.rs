//! Replicas that lie: real ones, with a [`Liar`] between them and their links. Nothing is checked
//! of what they do; what they do to others is.

use super::replica::Memory;
use super::{Event, World, of_store, stumble};
use crate::checkers::progress;
use crate::options::Mode;
use crate::random::Random;
use crate::report::{FaultKind, Mark};
use crate::violation::Broken;
use crate::witness::{Notes, Witnessed};
use crate::world::replica::Process;
use bytes::Bytes;
use perdura_adversary::{Insider, Liar, Strategy, Twin};
use perdura_durability::CheckpointError;
use perdura_execution::flip_bit_of;
use perdura_protocol::message::Lane;
use perdura_protocol::{ReplicaId, SecretKey, Slot};
use perdura_replica::node::{Boot, ExecutionMode, Found, Input, Interceptor, Now, Peer, Said};

/// Between two scrubs of all that is in memory, microseconds.
const SCRUB_US: u64 = 5_000_000;

impl World {
    /// Draws which replicas lie. What one does all know of each other.
    pub(crate) fn choose_liars(&mut self) {
        let mut random = self.random.fork("liars");
        let mut candidates: Vec<usize> = (0..self.n()).collect();
        let strategies = self.plan.liars.clone();
        let chosen: Vec<(usize, Strategy)> = strategies
            .into_iter()
            .map(|strategy| {
                // Views that never change are led by the first: half of the time it is a liar.
                let first = random.percent(50);
                let at = if first { 0 } else { random.below(candidates.len() as u64) as usize };
                (candidates.swap_remove(at), strategy)
            })
            .collect();
        let keys: Vec<_> = chosen
            .iter()
            .map(|(index, _)| (ReplicaId(*index as u8), self.replicas[*index].key.clone()))
            .collect();
        let coin = random.next();
        for (index, strategy) in chosen {
            self.make_liar(index, strategy, keys.clone(), coin, &mut random);
        }
    }

    /// From now on a replica lies, with these keys and accomplices.
    pub(crate) fn make_liar(
        &mut self,
        index: usize,
        strategy: Strategy,
        keys: Vec<(ReplicaId, SecretKey)>,
        coin: u64,
        random: &mut Random,
    ) {
        let insider = Insider {
            me: ReplicaId(index as u8),
            faults: self.plan.faults,
            cluster: self.parameters.cluster,
            keys,
            configurations: vec![self.replicas[index].genesis.configuration.clone()],
            coin,
            statements: self.is_partition().then_some(of_store::STATEMENTS),
        };
        let mut liar = Liar::new(insider, strategy, random.next());
        if strategy == Strategy::Twins {
            match self.twin(index, random.bytes32()) {
                Ok(twin) => liar = liar.with_twin(Box::new(twin)),
                Err(error) => self.fail(progress::halted(index, &error.to_string())),
            }
        }
        self.replicas[index].liar = Some(liar);
        self.checkers.agreed_time.lies(index);
    }

    fn twin(
        &self,
        replica: usize,
        entropy: [u8; 32],
    ) -> Result<Twin, perdura_replica::node::BootError> {
        let here = &self.replicas[replica];
        let make = self.makes_service();
        let boot = Boot {
            me: ReplicaId(replica as u8),
            key: here.key.clone(),
            scheme: self.plan.scheme,
            parameters: self.parameters.clone(),
            genesis: here.genesis.clone(),
            latest: here.genesis.configuration.clone(),
            entropy,
            make_service: Box::new(move || Box::new(make(Notes::default()))),
            found: Found::default(),
            backlog_bytes: crate::checkers::bounded_memory::BACKLOG_BYTES,
            place: Some(ExecutionMode::Inline),
            state_transfer: self.plan.state_transfer,
        };
        Twin::new(boot, here.clock.now(self.now_us))
    }

    /// Whether a replica lies.
    pub(crate) fn is_liar(&self, replica: usize) -> bool {
        self.replicas[replica].liar.is_some()
    }

    /// Lets a node work. A liar may stumble over its own lies; then it stops, and starts again.
    pub(crate) fn work(&mut self, replica: usize, body: impl FnOnce(&mut Process)) {
        let here = &mut self.replicas[replica];
        let Some(process) = &mut here.process else { return };
        if here.liar.is_none() && here.armed.fatal {
            if stumble::dies(|| body(process)) {
                self.fired(FaultKind::FatalHere);
                self.tell(format_args!("a command is fatal to r{replica}"));
                self.crash_process(replica);
            }
        } else if here.liar.is_none() {
            body(process);
        } else if !stumble::survives(|| body(process)) {
            self.stumbles(replica, "an assertion failed");
        }
    }

    /// A liar's replica, which is a real one, stops itself. That is one more of its failures, unless
    /// it did nothing that could come back on it.
    pub(crate) fn stumbles(&mut self, replica: usize, why: &str) {
        let spares = self.replicas[replica]
            .liar
            .as_ref()
            .is_some_and(|liar| liar.strategy().spares_replicas());
        if spares && !self.is_damaged(replica) && !self.forgot(replica) {
            self.fail(progress::halted(replica, why));
            return;
        }
        self.report.stumbles += 1;
        self.tell(format_args!("r{replica} stumbles: {why}"));
        self.crash_process(replica);
    }

    /// Whether a replica gets to see an input.
    pub(crate) fn liar_hears(&mut self, replica: usize, now: Now, input: &Input) -> bool {
        if self.ending.repented() {
            return true;
        }
        let Some(liar) = &mut self.replicas[replica].liar else { return true };
        let mut said = Vec::new();
        let (before, strategy) = (liar.lies(), liar.strategy());
        let hears = liar.hears(now, input, &mut said);
        let lies = liar.lies() - before;
        // It hears on a link that is up, and what it withholds from itself needs none.
        self.count_lies(strategy, lies);
        self.utter(replica, said);
        hears
    }

    /// A liar's replica wants to say something.
    pub(crate) fn liar_says(&mut self, replica: usize, peers: &[Peer], bytes: &Bytes) {
        if self.ending.repented() {
            let plainly = |peer: &Peer| Said { after_ms: 0, peer: *peer, bytes: bytes.clone() };
            self.utter(replica, peers.iter().map(plainly).collect());
            return;
        }
        let now = self.replicas[replica].clock.now(self.now_us);
        let Some(liar) = &mut self.replicas[replica].liar else { return };
        let (before, strategy) = (liar.lies(), liar.strategy());
        let said = liar.says(now, peers, bytes);
        let lies = liar.lies() - before;
        if peers.iter().any(|peer| self.reaches(replica, *peer)) {
            self.count_lies(strategy, lies);
        }
        self.utter(replica, said);
    }

    /// Time passes for a liar.
    pub(crate) fn liar_ticks(&mut self, replica: usize) {
        if self.ending.repented() {
            return;
        }
        let here = &mut self.replicas[replica];
        let Some(liar) = &mut here.liar else { return };
        let now = here.clock.now(self.now_us);
        let (before, strategy) = (liar.lies(), liar.strategy());
        let said = liar.tick(now);
        let lies = liar.lies() - before;
        if said.iter().any(|said| self.reaches(replica, said.peer)) {
            self.count_lies(strategy, lies);
        }
        self.utter(replica, said);
        self.memory_rots(replica, now);
    }

    /// A bit flips in the memory of a liar. In liveness mode, where a liar counts as failed: it may
    /// have to be replaced, and not repent.
    fn memory_rots(&mut self, replica: usize, now: Now) {
        let may = self.plan.mode == Mode::Liveness && !self.ending.begun();
        let here = &mut self.replicas[replica];
        let Some(liar) = here.liar.as_mut().filter(|_| may) else { return };
        let strategy = liar.strategy();
        if let (Some(at), Some(process)) = (liar.flips(now), &mut here.process)
            && flip_bit_of::<Witnessed>(process.service_mut(), at)
        {
            here.memory.flipped = true;
            self.count_lies(strategy, 1);
            self.tell(format_args!("a bit flips in the memory of r{replica}"));
        }
    }

    /// All that is in a replica's memory is held against its digests.
    pub(crate) fn scrub(&mut self, replica: usize) {
        let here = &mut self.replicas[replica];
        let pause = if here.memory.flipped { SCRUB_US } else { 4 * SCRUB_US };
        let due = here.memory.scrubbed_us + pause <= self.now_us;
        let Some(process) = here.process.as_ref().filter(|_| due) else { return };
        here.memory.scrubbed_us = self.now_us;
        let snapshot = process.machine().snapshot();
        let manifest = snapshot.manifest();
        let damaged =
            (0..snapshot.pieces()).find(|index| !manifest.verify(*index, &snapshot.piece(*index)));
        let Some(index) = damaged else { return };
        let what = format!("piece {index} is not what it was when it last changed");
        if self.is_liar(replica) {
            self.mark(Mark::DamageScrubbed);
            self.input(replica, Input::StateDamaged { what });
        } else {
            self.fail(Broken::new("Scrub (D7)", format!("replica {replica}: {what}")));
        }
    }

    /// A replica whose state is not the certified one begins anew from what is.
    pub(crate) fn repair(&mut self, replica: usize, trusted: Slot, what: &str) {
        self.tell(format_args!("r{replica} begins anew after slot {trusted}: {what}"));
        let here = &mut self.replicas[replica];
        let rots = here.liar.as_ref().is_some_and(|liar| liar.strategy() == Strategy::RottenMemory);
        if rots && !here.memory.flipped {
            self.fail(progress::halted(replica, what));
            return;
        }
        let Some(process) = here.process.take() else { return };
        self.report.add_counters(&process.node.report().counters);
        let without = process.checkpoints.list().is_empty();
        let discarded = process.checkpoints.distrust_after(trusted);
        self.mark(Mark::Repaired);
        let here = &mut self.replicas[replica];
        // Where that failed the wrong state may still count, and not restore.
        let flipped = matches!(discarded, Err(CheckpointError::Disk(_))) && here.memory.flipped;
        here.memory = Memory { flipped, repaired: true, ..here.memory };
        match discarded {
            Ok(_) if trusted > Slot(0) || without => self.crash_process(replica),
            Ok(_) => {
                let what = format!("replica {replica} begins anew from a state after slot 0");
                self.fail(Broken::new("Repair (D7)", what));
            }
            Err(CheckpointError::Disk(error)) => self.disk_failed(replica, &error.to_string()),
            Err(_) => {
                let memory = &mut self.replicas[replica].memory;
                (memory.flipped, memory.down) = (true, true);
                self.crash_process(replica);
            }
        }
    }

    /// Whether a replica whose memory rots has what the others have, after what was repaired.
    pub(crate) fn is_repaired(&self, replica: usize) -> bool {
        let here = &self.replicas[replica];
        let strategy = here.liar.as_ref().map(|liar| liar.strategy());
        strategy == Some(Strategy::RottenMemory) && here.memory.repaired && !here.memory.flipped
    }

    fn utter(&mut self, replica: usize, said: Vec<Said>) {
        for Said { after_ms, peer, bytes } in said {
            let Some(to) = self.station(replica, peer) else { continue };
            if after_ms == 0 {
                self.send(replica, to, Lane::of(&bytes), &bytes);
            } else {
                self.push(after_ms * 1000, Event::Late { replica, to, bytes });
            }
        }
    }

    /// A liar says what it kept for later.
    pub(crate) fn say_late(&mut self, replica: usize, to: usize, bytes: &Bytes) {
        if self.replicas[replica].process.is_some() && !self.ending.repented() {
            self.send(replica, to, Lane::of(bytes), bytes);
        }
    }

    /// A replica says that a peer misbehaves: true of liars and hostile clients only. A client is
    /// disconnected for it.
    pub(crate) fn on_accusation(&mut self, replica: usize, peer: Peer, what: &str) {
        if self.is_liar(replica) {
            return;
        }
        let (guilty, station) = match peer {
            Peer::Replica(id) => (self.is_liar(id.index()) || self.forgot(id.index()), None),
            Peer::Client { key, .. } => (self.is_hostile(key), self.station(replica, peer)),
        };
        if !guilty && self.is_releasing() {
            self.tell(format_args!("r{replica} rejects it: {what}"));
            return;
        }
        if !guilty {
            self.fail(progress::accused(replica, &format!("{peer:?} {what}")));
            return;
        }
        self.report.accusations += 1;
        self.trace.line(self.now_us, format_args!("r{replica} accuses {peer:?}: {what}"));
        if let Some(station) = station {
            self.break_link(replica, station, [0, 0]);
        }
    }

    fn reaches(&mut self, replica: usize, peer: Peer) -> bool {
        let station = self.station(replica, peer);
        station.is_some_and(|to| self.network.link(replica, to).up)
    }

    /// Counts lies that somebody is there to be told, or not to be told.
    fn count_lies(&mut self, strategy: Strategy, lies: u64) {
        if lies > 0 {
            *self.report.lies.entry(strategy).or_default() += lies;
        }
    }
}
