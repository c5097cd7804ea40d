//! What an operator sees of a replica.

use super::differences::Difference;
use super::execution::Execution;
use super::peer_health::PeerHealthReport;
use super::questions::Asker;
use super::{Node, Output};
use perdura_agreement::{HeldMemory, Mode};
use perdura_execution::{AnyService, Asked, Job, Machine, Measure, Service, ServicePanic};
use perdura_protocol::vitals::DiskSpace;
use perdura_protocol::{Digest, PublicKey, ReplicaId, Slot, Versions, View};

/// Counted since the process started.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counters {
    /// Client frames that waited to be ordered here.
    pub frames: u64,
    /// Frames that came again.
    pub retransmissions: u64,
    /// Frames of keys that are not registered.
    pub unknown_clients: u64,
    /// Frames refused because queues were full.
    pub busy: u64,
    /// Client signatures verified.
    pub signatures_verified: u64,
    /// Signatures of replicas verified.
    pub statements_verified: u64,
    /// Batches executed.
    pub batches: u64,
    /// Commands executed or answered from their session.
    pub commands: u64,
    /// Replies sent.
    pub replies: u64,
    /// Replies that were let go, since too many waited for the disk: their clients ask again.
    pub replies_let_go: u64,
    /// What the commands cost that were executed, bytes read and answered beyond their own, or what takes as long.
    pub cost: u64,
    /// Commands that were put off.
    pub put_off: u64,
    /// Signatures in commands verified: what other groups attested.
    pub claims_verified: u64,
    /// The same that were not, as they had been before.
    pub claims_remembered: u64,
    /// Signatures given over what replies state to those outside of the group.
    pub attestations_signed: u64,
    /// What they stated.
    pub statements_signed: u64,
    /// Unordered reads answered.
    pub reads: u64,
    /// Views that started here.
    pub views_started: u64,
    /// Configurations ordered.
    pub configurations: u64,
    /// Prefixes certified.
    pub prefixes_certified: u64,
    /// Times that others were asked for a certified prefix, because none came by itself.
    pub prefixes_asked_for: u64,
    /// Histories that it signed again for who lacked a proof.
    pub attestations: u64,
    /// Checkpoints stored.
    pub checkpoints: u64,
    /// Boundaries passed over because the checkpoint before was still being stored.
    pub boundaries_passed_over: u64,
    /// States certified by m + 1 replicas.
    pub states_certified: u64,
    /// Requests of laggards for old batches.
    pub fetches_served: u64,
    /// State transfers begun here.
    pub transfers_started: u64,
    /// State transfers that ended with a new state.
    pub transfers_completed: u64,
    /// Pieces of state sent to others.
    pub pieces_sent: u64,
    /// Pieces of state received and verified.
    pub pieces_received: u64,
    /// Questions of replicas that asked too often.
    pub throttled: u64,
    /// Messages that no correct peer sends.
    pub misbehaviours: u64,
    /// Times that replicas were found to have signed different states after one slot.
    pub differences: u64,
    /// Whether this replica's state differs from a certified one.
    pub diverged: bool,
    /// Rare branches of agreement.
    pub agreement: perdura_agreement::Marks,
    /// Rare branches of execution in a stage.
    pub stage: StageMarks,
}

/// Rare branches of execution in a stage, counted.
#[derive(Clone, Copy, Default, Debug)]
pub struct StageMarks {
    /// Received states that this replica comes to by itself, for its stage has what is decided up to there.
    pub states_overtaken: u64,
    /// Batches that were executed on a machine whose place a received state had taken meanwhile.
    pub superseded: u64,
    /// Replies that the stage let go.
    pub replies_let_go: u64,
    /// Retries for whose answers the stage was asked.
    pub retries_asked: u64,
    /// Retries for which it was not, since it was asked for as many as may be.
    pub retries_passed_over: u64,
    /// Reads of the state after one slot that were answered.
    pub reads_at: u64,
    /// Those that were refused: the state was gone, or never shared, or far away.
    pub reads_at_gone: u64,
}

/// Whether a replica takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It votes, executes and answers.
    Active,
    /// It fetches state, or many decided batches, or waits for its view to start, or for its disk.
    Recovering,
    /// It would take part, and hears of too few members.
    Waiting,
    /// A write to its log does not come back: it votes for nothing, and leads nobody.
    Stalled,
    /// Its state differed from a certified one; it begins anew from what is certified.
    Repairing,
    /// Its state differs from a certified one, and it has stopped.
    Diverged,
    /// Its disk failed, or it must not go on: it does nothing any more.
    Stopped,
}

impl State {
    /// As in `perdura status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Active => "active",
            State::Recovering => "recovering",
            State::Waiting => "waiting",
            State::Stalled => "stalled",
            State::Repairing => "repairing",
            State::Diverged => "diverged",
            State::Stopped => "stopped",
        }
    }
}

/// What a replica holds in memory for others, besides the state itself.
#[derive(Clone, Copy, Default, Debug)]
pub struct MemoryHeld {
    /// By agreement.
    pub agreement: HeldMemory,
    /// Frames that are not verified yet, and their bytes.
    pub unverified: (usize, usize),
    /// Reads that wait, and their bytes.
    pub reads: (usize, usize),
    /// States that are kept for reads of one slot, besides the newest.
    pub kept_states: usize,
    /// Batches that were delivered and are not executed, and their bytes.
    pub apply_queue: (usize, usize),
    /// Retries whose answers the stage is asked for, and those of the client key that has most.
    pub retries: (usize, usize),
    /// Reads that the stage was given.
    pub reads_apart: usize,
    /// Reads that are answered beside the stage, each in a state that is held for it.
    pub reads_beside: usize,
    /// Replies that wait for the disk.
    pub replies: usize,
    /// Their bytes, and those of the largest that there ever was.
    pub reply_bytes: (usize, usize),
    /// Bytes of records that wait for the disk, and of the largest that there ever was.
    pub backlog: (usize, usize),
    /// Questions of all replicas that wait.
    pub questions: usize,
    /// Bytes of recent batches.
    pub recent_bytes: usize,
    /// Sessions whose replies go to a connection.
    pub routes: usize,
    /// Clients that have to wait, for their frames are sparse.
    pub sparse_clients: usize,
    /// Senders whose signatures were not genuine.
    pub penalties: usize,
}

/// A replica at a moment.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which replica.
    pub id: ReplicaId,
    /// Its view.
    pub view: View,
    /// Whether it leads that view.
    pub leader: bool,
    /// Last slot it knows to be decided, in one run.
    pub decided: Slot,
    /// Last slot executed.
    pub executed: Slot,
    /// Last slot on its disk.
    pub logged: Slot,
    /// Last slot of the certified prefix.
    pub prefix: Slot,
    /// Newest durable checkpoint.
    pub checkpoint: Option<(Slot, Digest)>,
    /// Newest slot at which the state was digested.
    pub boundary: Option<(Slot, Digest)>,
    /// Whether it takes part.
    pub state: State,
    /// Who has to compare what it holds with the boot of this replica before it takes part, if that is what it waits for.
    pub boot_awaits: Vec<ReplicaId>,
    /// The versions under which the next slot is executed.
    pub versions: Versions,
    /// Size of the service's state, as it says.
    pub state_bytes: u64,
    /// What the service says of itself.
    pub service: Vec<Measure>,
    /// Sessions of clients that are live.
    pub sessions: usize,
    /// What that may become.
    pub state_limit_bytes: u64,
    /// How long a request may make no progress before the leader is suspected, milliseconds.
    pub request_timeout_ms: u64,
    /// What time-outs follow: how long a flush and a round trip take, as r + 1 members say that do not lead, milliseconds.
    pub pace_ms: u64,
    /// The other members, as it sees them.
    pub peer_health: PeerHealthReport,
    /// Different states that replicas signed, if no later one was certified since.
    pub difference: Option<Difference>,
    /// Room on its disk, where that was measured.
    pub space: Option<DiskSpace>,
    /// What rule A6 bounds.
    pub held: MemoryHeld,
    /// Counted since the start.
    pub counters: Counters,
}

impl Node {
    /// How it stands.
    #[must_use]
    pub fn report(&self) -> Report {
        let stored = self.checkpointing.stored.back();
        let checkpoint = stored.map(|stored| (stored.slot(), stored.digest));
        // A state that was taken over is stored and was not digested here.
        let boundary = self.checkpointing.digests.back().copied().max(checkpoint);
        Report {
            id: self.me,
            view: self.agreement.view(),
            // Who is cut off leads nobody.
            leader: self.peer_health.is_enough(self.ticked_ms)
                && self.agreement.leads()
                && self.agreement.mode() == Mode::Started
                && self.agreement.voting(),
            decided: self.agreement.delivered(),
            executed: self.execution.slot(),
            logged: self.journal.logged(),
            prefix: self.agreement.prefix().slot,
            checkpoint,
            boundary,
            state: self.state(),
            boot_awaits: self.awaits_of_boot(),
            versions: self.execution.versions(),
            state_bytes: self.execution.state_bytes(),
            service: self.execution.measures(),
            sessions: self.execution.session_count(),
            state_limit_bytes: self.execution.state_limit_bytes(),
            request_timeout_ms: self.agreement.request_timeout_ms(),
            pace_ms: self.agreement.pace_ms(),
            peer_health: self.peer_health.report(self.ticked_ms),
            difference: self.difference().cloned(),
            space: self.space.known(),
            held: self.held(),
            counters: Counters {
                replies_let_go: self.counters.replies_let_go + self.egress.let_go(),
                agreement: self.agreement.marks(),
                statements_verified: self.counters.statements_verified
                    + self.agreement.signatures_verified(),
                claims_verified: self.ingress.verified.counts.0,
                claims_remembered: self.ingress.verified.counts.1,
                ..self.counters
            },
        }
    }

    /// Whether it takes part.
    #[must_use]
    pub fn state(&self) -> State {
        let works = self.agreement.voting()
            && self.agreement.mode() == Mode::Started
            && !self.transfer.fetches()
            && !self.journal.lags()
            && !self.agreement.is_far_behind();
        match (self.counters.diverged, self.peer_health.is_enough(self.ticked_ms)) {
            (true, _) => State::Diverged,
            _ if self.peer_health.is_stalled() => State::Stalled,
            (false, false) => State::Waiting,
            (false, true) if works => State::Active,
            (false, true) => State::Recovering,
        }
    }

    /// What it holds in memory for others.
    #[must_use]
    pub fn held(&self) -> MemoryHeld {
        let beside = self.execution.reads_beside();
        MemoryHeld {
            agreement: self.agreement.held(),
            unverified: self.ingress.frames.held(),
            reads: self.reads.held(),
            kept_states: self.execution.kept_states(),
            apply_queue: self.execution.waiting(),
            retries: self.asking.held(),
            reads_apart: if beside { 0 } else { self.reads.under_way() },
            reads_beside: if beside { self.reads.under_way() } else { 0 },
            replies: self.egress.lines(),
            reply_bytes: (self.egress.bytes(), self.egress.largest()),
            backlog: self.journal.held(),
            questions: self.askers.iter().map(Asker::waiting).sum(),
            recent_bytes: self.checkpointing.recent_bytes,
            routes: self.egress.routes(),
            sparse_clients: self.ingress.shares.sparse(),
            penalties: self.ingress.penalised(),
        }
    }

    /// Its view.
    #[must_use]
    pub fn view(&self) -> View {
        self.agreement.view()
    }

    /// Last slot it knows to be decided, in one run.
    #[must_use]
    pub fn delivered(&self) -> Slot {
        self.agreement.delivered()
    }

    /// The executed state, for checks and figures.
    ///
    /// # Panics
    /// Where the node does not execute itself ([`super::ExecutionMode::Apart`]).
    #[must_use]
    pub fn machine(&self) -> &Machine<AnyService> {
        self.execution.machine().expect("a node that executes itself")
    }

    /// The first job of its stage, which gives it its machine: for a driver that wants it there before anything else.
    pub fn take_first_job(&mut self) -> Option<Job> {
        match self.outputs.pop_front()? {
            Output::Stage(job @ Job::Take { .. }) => Some(job),
            other => {
                self.outputs.push_front(other);
                None
            }
        }
    }

    /// The slot up to which it knows its state to be executed.
    #[must_use]
    pub fn executed(&self) -> Slot {
        self.execution.slot()
    }

    /// What its service is being asked.
    #[must_use]
    pub fn asked(&self) -> &Asked {
        self.execution.asked()
    }

    /// The first panic of its service that ended nothing, once.
    #[must_use]
    pub fn take_caught(&self) -> Option<ServicePanic> {
        self.asked().take_caught().or_else(|| self.inspector.asked().take_caught())
    }

    /// Whether it executes itself ([`super::ExecutionMode::Inline`]).
    #[must_use]
    pub fn executes(&self) -> bool {
        !self.execution.is_apart()
    }

    /// The administrator's key, as it knows it.
    #[must_use]
    pub fn administrator(&self) -> PublicKey {
        self.execution.administrator()
    }

    /// The service, for tests that damage it.
    #[doc(hidden)]
    pub fn service_mut(&mut self) -> Option<&mut dyn Service> {
        match &mut self.execution {
            Execution::Here(executor) => Some(&mut **executor.machine_mut().service_mut()),
            Execution::Apart(_) => None,
        }
    }

    /// The last slot about which it holds anything.
    #[must_use]
    pub fn furthest_slot(&self) -> Slot {
        self.agreement.furthest_slot()
    }

    /// Divides the bounds of queues and of recent batches by two to the power of `by`. For
    /// simulations: few clients reach bounds that are made for thousands only so.
    pub fn shrink_queues(&mut self, by: u32) {
        self.agreement.shrink_pool(by);
        self.ingress.frames.shrink(by);
        self.reads.shrink(by);
        self.asking.shrink(by);
        self.checkpointing.recent_most >>= by;
    }

    /// The active configuration.
    #[must_use]
    pub fn configuration(&self) -> &perdura_protocol::Configuration {
        self.agreement.configurations().at(self.execution.slot().next())
    }
}
