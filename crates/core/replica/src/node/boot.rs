//! From what is on disk to a node that takes part: checkpoint, then the decided part of the log,
//! then the promises (docs/design.md, Durability).
//!
//! # A restart
//!
//! 0. Both ports are bound (`run` in `runtime/mod.rs`), so that a start that fails for them changes nothing.
//! 1. `crates/core/durability/src/storage.rs` (`open`) verifies everything before it changes anything: whose directory it is, of which incarnation,
//!    whether memory was lost that the disk never held (`async`, `none`), which checkpoint verifies, what the log holds and whether what rotted in
//!    it matters (`crates/core/durability/src/log/recovery.rs`). Then it cuts a torn tail and resumes the log.
//! 2. `node/boot.rs` (`recover`, `Node::boot`) restores the machine from the checkpoint and executes what the log *proves* decided
//!    (`crates/core/agreement/src/restart.rs`). Decisions and Accepts behind a batch that the log lost count for a window, and wait for it. Votes
//!    above that are promises only; they come back through the view change.
//! 3. The replica waits for its view to be started again by the others, or asks for the next one. In the view in which it restarted it sends no
//!    Propose, and no Write that is not in its log (rule 6).
//! 4. It asks the others what they hold of it (`Compare`): the newest boot that it announced, and the newest Accept that they heard of it, both in
//!    their logs (`Record::Boot`, `Record::Heard`). When Q, itself included, have compared it logs its boot and announces it, signed, and they keep
//!    that. Until Q have it on disk it says nothing that restricts votes (`node/boots.rs`, `crates/core/agreement/src/comparing.rs`); its own
//!    signature over a boot that is none of its directory's last ones, or over a vote that its log lacks, stops it for good
//!    (`runtime/taken_back.rs`).
//! 5. A replica that lost votes on slots that are decided (a repaired gap), or its newest state, votes only when peers certify a prefix that far
//!    (`vote_after`).

use super::boots::{Boots, OwnBoots};
use super::checkpoints::{Checkpointing, DIGESTING, Stored, is_turn_of, least};
use super::differences::Differences;
use super::egress::Egress;
use super::execution::{Execution, ExecutionMode};
use super::fetching::StateTransfer;
use super::ingress::Ingress;
use super::journal::Journal;
use super::peer_health::PeerHealth;
use super::questions::Asker;
use super::reads::Reads;
use super::serving::Past;
use super::transfer::Transfer;
use super::{Counters, Node, Now, Output, Stages};
use bytes::Bytes;
use perdura_agreement::{Agreement, Restart, Settings};
use perdura_durability::{
    CheckpointError, CheckpointReader, Checkpoints, Disk, Log, Opened, RecoveredState,
};
use perdura_execution::{
    AnyService, Asked, Executor, Genesis, GenesisError, Machine, Manifest, ManifestError,
    RestoreError, StateSnapshot,
};
use perdura_protocol::configuration::{Configurations, Parameters};
use perdura_protocol::message::StateCertificate;
use perdura_protocol::versions::VersionError;
use perdura_protocol::{
    BootId, Configuration, Context, Digest, Record, ReplicaId, Scheme, SecretKey, Slot, limits,
    seeded,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a data directory holds; by default that of a replica that never ran.
#[derive(Default)]
pub struct Found {
    /// The stored checkpoint: manifest and pieces.
    pub checkpoint: Option<(Manifest, Vec<Bytes>)>,
    /// The one before it, where that is the newest that the log proves to others.
    pub proven: Option<(Manifest, Vec<Bytes>)>,
    /// The surviving log, in order.
    pub records: Vec<Record>,
    /// In which boot it is; none if it is no directory of a replica, and nothing is compared.
    pub boot: Option<BootId>,
    /// The boots before it, the newest first: all, or the last few.
    pub former_boots: Vec<BootId>,
    /// Votes need a certified prefix up to here (a new incarnation, or lost state); 0 otherwise.
    pub vote_after: Slot,
    /// No state below this is enough: that of a new incarnation's configuration, or a lost one.
    pub state_from: Slot,
    /// The newest checkpoint, if it is damaged: nothing below it is stored any more.
    pub lost: Option<Slot>,
}

impl Found {
    /// The last slot of which something is in the log.
    #[must_use]
    pub fn last_slot(&self) -> Slot {
        self.records.iter().filter_map(Record::slot).max().unwrap_or_default()
    }
}

/// What a replica starts from.
pub struct Boot {
    /// Which replica.
    pub me: ReplicaId,
    /// The key of this incarnation.
    pub key: SecretKey,
    /// How statements are signed.
    pub scheme: Scheme,
    /// What the cluster agreed on.
    pub parameters: Parameters,
    /// Members and clients as the configuration file has them.
    pub genesis: Genesis,
    /// The newest members that the configuration file knows: a lost state comes from them, and some
    /// may not be those of the genesis any more.
    pub latest: Configuration,
    /// Secret random bytes.
    pub entropy: [u8; 32],
    /// Makes a service in its initial state.
    pub make_service: Box<dyn Fn() -> AnyService + Send>,
    /// What its data directory holds.
    pub found: Found,
    /// Bytes that may wait for the disk before nothing more is executed.
    pub backlog_bytes: usize,
    /// Where it executes; none leaves that to the service.
    pub place: Option<ExecutionMode>,
    /// Whom it asks for a state and for what it missed.
    pub state_transfer: StateTransfer,
}

/// Why a node cannot start. Its data directory is to be closed.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The configuration file contradicts itself.
    #[error("the cluster's configuration is not usable: {0}")]
    Genesis(#[from] GenesisError),
    /// The checkpoint goes on under newer versions than this program knows.
    #[error("the state of this replica is a newer program's: {0}")]
    Newer(VersionError),
    /// The checkpoint's checksums hold, and it is not the one that its manifest names.
    #[error(
        "the checkpoint is not as it was written: {0}. Test memory and disk of this machine, and replace the replica with `perdura replica \
         reinit`, on the machine where admin.toml is"
    )]
    Damaged(RestoreError),
    /// The checkpoint is the one that its manifest names, but not a state of this program.
    #[error(
        "the checkpoint is as it was written, and this program does not read it: {0}. Most likely another program wrote it: start {SAME_TYPES}. \
         Only if this is the very program that wrote it, replace the replica with `perdura replica reinit`, on the machine where admin.toml is"
    )]
    OtherProgram(RestoreError),
    /// It was asked to, before it had executed what its log holds.
    #[error("stopped while it executed what its log holds")]
    Stopped,
}

/// Which program reads a state that this one does not.
pub(super) const SAME_TYPES: &str = "that one, or one whose types and parts are, under the version in force, as they were in that one \
    (docs/your-own-service.md, \"Changing it\")";

impl From<RestoreError> for BootError {
    fn from(error: RestoreError) -> BootError {
        match error {
            RestoreError::Versions(error) => BootError::Newer(error),
            error if error.is_damage() => BootError::Damaged(error),
            error => BootError::OtherProgram(error),
        }
    }
}

/// An opened data directory that is nothing to start from. It is to be closed, for opening it has begun a run.
pub struct Unusable<D> {
    /// Why.
    pub error: RecoverError,
    /// Its log.
    pub log: Log<D>,
    /// Its checkpoints and superblock.
    pub checkpoints: Checkpoints<D>,
}

/// Why an opened data directory is nothing to start from.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The checkpoint cannot be read after all.
    #[error(transparent)]
    Read(#[from] CheckpointError),
    /// It is not of this version of the program.
    #[error("the checkpoint at slot {slot} does not say which state it is: {reason}")]
    Manifest {
        /// Its slot.
        slot: Slot,
        /// What is wrong.
        reason: ManifestError,
    },
}

impl Node {
    /// Starts a node. It executes what its log proves decided; the rest comes back through
    /// agreement.
    ///
    /// # Errors
    /// When configuration or checkpoint are not usable.
    pub fn boot(boot: Boot, now: Now) -> Result<Node, BootError> {
        Ok(boot.replay(Asked::default(), &|| false)?.start(now))
    }
}

impl Boot {
    /// Executes what the log proves decided, batch by batch until `stops`, and tells there what its service is being asked. As long as the
    /// log, and the state before it, take: nothing is said to others before it has ended, for what this replica said was of the state behind it.
    ///
    /// # Errors
    /// When configuration or checkpoint are not usable, or it is to stop.
    pub fn replay(mut self, asked: Asked, stops: &dyn Fn() -> bool) -> Result<Replayed, BootError> {
        let first = self.genesis.configuration.clone();
        if stops() {
            return Err(BootError::Stopped);
        }
        let restored = self.found.checkpoint.is_some();
        let (executor, checkpointing) = self.restore(&asked)?;
        let records = std::mem::take(&mut self.found.records);
        let certified = certificates(&records);
        let of_boots =
            |record: &&Record| matches!(record, Record::Boot { .. } | Record::Heard { .. });
        let others = records.iter().filter(of_boots).cloned().collect();
        let restart = self.restart(&executor, records);
        // Where the log goes back to slot 1, it gives back a state that was lost.
        let lost = self.found.lost;
        let lacks = !restored && lost.is_some_and(|lost| restart.delivered() < lost);
        let awaits = lacks || (!restored && first.id > 0);
        let restart = if awaits { restart.awaiting_state() } else { restart };
        let (boundary, digestible) = (None, VecDeque::new());
        let past = BTreeMap::new();
        let mut replayed = Replayed {
            boot: self,
            executor,
            checkpointing,
            restart,
            past,
            boundary,
            digestible,
            first,
            restored,
            lacks,
            certified,
            others,
        };
        replayed.run(stops)?;
        Ok(replayed)
    }

    /// The state of the checkpoint, or the first one; and the older checkpoint, if others may need it.
    fn restore(&mut self, asked: &Asked) -> Result<(Executor, Checkpointing), BootError> {
        let (parameters, found) = (&self.parameters, &mut self.found);
        let mut checkpointing = Checkpointing::new(parameters, Slot(0));
        checkpointing.store_from = found.lost.unwrap_or_default();
        for record in &found.records {
            if let Record::Prefix(prefix) = record {
                checkpointing.prefixes.insert(prefix.slot, prefix.clone());
            }
        }
        let service = || (self.make_service)();
        let executor = match found.checkpoint.take() {
            None => {
                let genesis = genesis_of_zero(self.genesis.clone());
                let machine = Machine::new(parameters, genesis, service())?;
                Executor::first(parameters, machine.with_asked(asked.clone()))
            }
            Some((manifest, pieces)) => {
                let asked = asked.clone();
                let machine =
                    Machine::restore_telling(parameters, &manifest, pieces, service(), asked)?;
                checkpointing.kept = manifest.slot;
                checkpointing.count_from(machine.slot());
                checkpointing.add_stored(Stored::new(machine.snapshot(), manifest), 0);
                if seeded!(StretchForgotten) {
                    Executor::first(parameters, machine)
                } else {
                    Executor::at_boundary(parameters, machine)
                }
            }
        };
        if let Some((manifest, pieces)) = found.proven.take()
            && let Ok(older) =
                Machine::restore_telling(parameters, &manifest, pieces, service(), asked.clone())
        {
            let stored = Stored { apart: true, ..Stored::new(older.snapshot(), manifest) };
            // What comes after it is served from the log.
            let (slot, history) = (stored.slot(), stored.manifest.history);
            found.records.push(Record::Delivered { slot, history });
            checkpointing.add_older(stored);
        }
        Ok((executor, checkpointing))
    }

    /// What the log says beyond the state.
    fn restart(&self, executor: &Executor, records: Vec<Record>) -> Restart {
        let (slot, history) = (executor.machine().slot(), executor.machine().history());
        let vote_after = self.found.vote_after;
        if records.is_empty() && slot == Slot(0) && vote_after == Slot(0) {
            return Restart::blank();
        }
        Restart::from_log(self.parameters.faults.n(), slot, history, records, vote_after)
    }
}

/// What a node starts from that has executed what its log holds.
pub struct Replayed {
    // Without what was found.
    boot: Boot,
    executor: Executor,
    checkpointing: Checkpointing,
    restart: Restart,
    past: BTreeMap<Slot, Past>,
    // The newest state that is this replica's to store, and those to be digested.
    boundary: Option<StateSnapshot>,
    digestible: VecDeque<(u64, StateSnapshot)>,
    // Of the genesis.
    first: Configuration,
    restored: bool,
    // Its state was lost, and is not in the log.
    lacks: bool,
    certified: Vec<StateCertificate>,
    others: Vec<Record>,
}

impl Replayed {
    fn run(&mut self, stops: &dyn Fn() -> bool) -> Result<(), BootError> {
        let (me, n) = (self.boot.me, self.boot.parameters.faults.n());
        // What was decided before the checkpoint and is still in the log serves laggards.
        for (slot, digest, history) in self.restart.take_older() {
            self.past.insert(slot, Past { digest, history });
        }
        if let Some((oldest, _)) = self.past.first_key_value() {
            self.checkpointing.kept = oldest.previous();
        }
        self.executor.set_replays(true);
        for (slot, batch) in self.restart.take_replay() {
            if stops() {
                return Err(BootError::Stopped);
            }
            // Who asked is answered from the sessions.
            let ran = self.executor.execute(slot, &batch, &mut drop);
            if let Some(error) = ran.executed.outdated {
                return Err(BootError::Newer(error));
            }
            self.past.insert(slot, Past { digest: batch.digest(), history: ran.history });
            let Some(taken) = ran.boundary else { continue };
            self.checkpointing.note_boundary(slot);
            if let Some(turn) = taken.turn {
                self.digestible.push_back((turn, taken.snapshot.clone()));
                if self.digestible.len() > DIGESTING {
                    let turns = self.digestible.iter().map(|(turn, _)| *turn);
                    self.digestible.remove(least(turns));
                }
            }
            if is_turn_of(me, n, &taken) {
                self.boundary = Some(taken.snapshot);
            }
        }
        self.executor.set_replays(false);
        Ok(())
    }

    /// Who takes part, as far as state and files say.
    fn configurations(&self) -> Configurations {
        let machine = self.executor.machine();
        // What is replayed is replayed on the genesis; who is believed is who takes part now.
        let latest = &self.boot.latest;
        let known = if self.lacks && latest.id > self.first.id { latest } else { &self.first };
        let mut configurations = Configurations::new(self.boot.parameters.cluster, known.clone());
        let executed = machine.configurations().last().map_or(0, |configuration| configuration.id);
        // A state knows them all; the file's may be newer than what was executed.
        if self.restored || executed >= configurations.latest().id {
            configurations.restart(machine.configurations());
        }
        configurations
    }

    fn place(&self) -> ExecutionMode {
        self.boot.place.unwrap_or_else(|| match self.executor.machine().service().takes_long() {
            true => ExecutionMode::Apart,
            false => ExecutionMode::Inline,
        })
    }

    /// The node takes part from now on.
    #[must_use]
    pub fn start(self, now: Now) -> Node {
        let (configurations, place) = (self.configurations(), self.place());
        let Replayed { boot, executor, checkpointing, restart, past, certified, others, .. } = self;
        let Boot { me, key, scheme, parameters, entropy, make_service, found, latest, .. } = boot;
        let n = parameters.faults.n();
        let settings = Settings {
            me,
            key: key.clone(),
            scheme,
            parameters: parameters.clone(),
            entropy: derive(entropy, b"agreement"),
            window: limits::WINDOW,
            one_seeder: boot.state_transfer == StateTransfer::SingleSender,
        };
        let machine = executor.machine();
        let mut agreement = Agreement::new(settings, configurations, restart, now);
        agreement.set_due(machine.due());
        agreement.set_administrator(machine.administrator());
        let newest = latest.id.max(agreement.configurations().latest().id);
        let context = Context { cluster: parameters.cluster, configuration: newest };
        let own = found.boot.map(|boot| OwnBoots {
            announcement: Node::announce(&key, context, boot),
            before: found.former_boots,
        });
        if own.is_some() {
            agreement.compare_first();
        }
        let boots = Boots::new(parameters.faults, own, &others);
        let (logged, inspector) = (machine.slot(), machine.inspector().clone());
        let scrubbed = machine.snapshot();
        let inspector = if place == ExecutionMode::Apart { inspector.apart() } else { inspector };
        let takes_long = machine.service().takes_long();
        let (execution, taken) = Execution::new(place, executor);
        let mut node = Node {
            me,
            key,
            scheme,
            entropy: derive(entropy, b"node"),
            entropy_used: 0,
            agreement,
            inspector,
            execution,
            asking: Default::default(),
            make_service,
            outputs: VecDeque::new(),
            output_bytes: 0,
            askers: vec![Asker::default(); n],
            reading: BTreeSet::new(),
            ingress: Ingress::default(),
            egress: Egress::default(),
            journal: Journal::new(boot.backlog_bytes, logged),
            reads: Reads::new(takes_long),
            checkpointing,
            boots,
            peer_health: PeerHealth::new(me, parameters.faults, parameters.max_skew_ms),
            roll_calls: Default::default(),
            differences: Differences::default(),
            fullness: Default::default(),
            space: Default::default(),
            transfer: Transfer::new(found.state_from, boot.state_transfer),
            past,
            ticked_ms: 0,
            voted_ms: 0,
            attested_ms: 0,
            halted: false,
            counters: Counters::default(),
            malformed: 0,
            stages: Stages::default(),
            parameters,
            newest: latest,
        };
        let members = node.linked(node.configuration());
        node.outputs.extend(taken);
        node.outputs.push_back(Output::Scrub { snapshot: scrubbed });
        node.outputs.push_back(Output::Members(members));
        node.recall_certificates(certified);
        node.take_up(self.digestible, self.boundary);
        node.carry_out(now);
        node
    }
}

impl Node {
    /// Goes on with the states that the process before was about to digest, and with the one that it was about to store. Else peers that stopped on
    /// either side of a boundary would certify no state, and an idle group could give none to a laggard.
    fn take_up(
        &mut self,
        digestible: VecDeque<(u64, StateSnapshot)>,
        boundary: Option<StateSnapshot>,
    ) {
        for (turn, snapshot) in digestible {
            self.digest(turn, false, snapshot);
        }
        if let Some(snapshot) = boundary {
            self.store(snapshot);
        }
    }
}

/// The state before slot 1 begins with configuration 0, whatever the file says of later ones; a
/// new incarnation, whose file names a later one, executes nothing on it and fetches a state.
fn genesis_of_zero(mut genesis: Genesis) -> Genesis {
    genesis.configuration.id = 0;
    genesis.configuration.from_slot = Slot(0);
    genesis
}

fn derive(entropy: [u8; 32], purpose: &[u8]) -> [u8; 32] {
    let mut input = entropy.to_vec();
    input.extend_from_slice(purpose);
    Digest::of(&input).0
}

/// What was recovered from a data directory.
pub struct Recovered<D> {
    /// For [`Boot`].
    pub found: Found,
    /// The log, for the keeper.
    pub log: Log<D>,
    /// Checkpoints and superblock.
    pub checkpoints: Checkpoints<D>,
    /// What was found damaged or cut, for the operator.
    pub warnings: Vec<String>,
}

/// Turns an opened data directory into what a node starts from: a replacement votes only from the
/// state of its configuration on, a replica that lost state or records only when peers certify
/// that far (rule D8).
///
/// # Errors
/// [`Unusable`].
pub fn recover<D: Disk>(opened: Opened<D>) -> Result<Recovered<D>, Box<Unusable<D>>> {
    let Opened {
        superblock, boot, state, records, repaired_gaps, torn_tail, log, checkpoints, ..
    } = opened;
    let mut warnings = Vec::new();
    let mut lost_slot = None;
    let mut vote_after = superblock.identity.must_recover.map_or(Slot(0), Slot::previous);
    for gap in &repaired_gaps {
        vote_after = vote_after.max(gap.slots_through);
        warnings.push(format!(
            "the log is damaged: records up to slot {} are lost and come back from peers: {gap:?}",
            gap.slots_through
        ));
    }
    if let Some(torn) = torn_tail {
        warnings.push(format!("an unfinished write at the end of the log was cut: {torn:?}"));
    }
    let mut reader = match state {
        RecoveredState::Initial => None,
        RecoveredState::Checkpoint(reader) => Some(reader),
        RecoveredState::Previous { lost, reader } => {
            lost_slot = Some(lost.slot);
            warnings.push(format!(
                "the checkpoint at slot {} is damaged; the one before it is used",
                lost.slot
            ));
            Some(reader)
        }
        RecoveredState::Lost(lost) => {
            lost_slot = Some(lost.slot);
            vote_after = vote_after.max(lost.slot);
            warnings.push(format!(
                "the checkpoint at slot {} is damaged; the state comes from peers",
                lost.slot
            ));
            None
        }
    };
    let checkpoint = match reader.as_mut().map(read_all).transpose() {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Err(Box::new(Unusable { error, log, checkpoints })),
    };
    let newest = checkpoint.as_ref().map(|(manifest, _)| manifest.slot);
    let there = |slot: &Slot| checkpoints.list().iter().any(|name| name.slot == *slot);
    let proven = certificates(&records).into_iter().map(|state| state.slot).filter(there).max();
    let proven = proven.filter(|slot| Some(*slot) < newest).and_then(|slot| {
        // Its damage costs no more than what it would have been good for.
        let read = checkpoints.load(slot).map_err(RecoverError::from);
        let read = read.and_then(|mut reader| read_all(&mut reader));
        read.inspect_err(|error| warnings.push(format!("an older checkpoint: {error}"))).ok()
    });
    let lost = lost_slot;
    let incarnation_from = superblock.identity.must_recover.map_or(Slot(0), Slot::previous);
    // What the log lost comes back batch by batch, above whatever state there is.
    let state_from = incarnation_from.max(lost.unwrap_or_default());
    let found = Found {
        checkpoint,
        proven,
        records,
        boot: Some(boot),
        former_boots: superblock.boots,
        vote_after,
        state_from,
        lost,
    };
    Ok(Recovered { found, log, checkpoints, warnings })
}

fn read_all<D: Disk>(
    reader: &mut CheckpointReader<D>,
) -> Result<(Manifest, Vec<Bytes>), RecoverError> {
    let manifest = Manifest::read(reader.manifest().clone())
        .map_err(|reason| RecoverError::Manifest { slot: reader.slot(), reason })?;
    let pieces: Result<Vec<Bytes>, CheckpointError> = reader.pieces().collect();
    Ok((manifest, pieces?))
}

/// Of the states that the log says are certified; of each what was written last.
fn certificates(records: &[Record]) -> Vec<StateCertificate> {
    let mut found: BTreeMap<Slot, StateCertificate> = BTreeMap::new();
    for record in records {
        if let Record::State(state) = record {
            found.insert(state.slot, state.clone());
        }
    }
    found.into_values().collect()
}
