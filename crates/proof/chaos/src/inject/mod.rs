//! What each kind of fault does. An injection returns when the fault is over; the replicas need not
//! be well again by then.

mod clock;
mod disaster;
mod disk;
mod fleet;
mod liar;
mod memory;
mod network;
mod process;
mod rot;
mod surroundings;
mod taken_back;

pub use liar::MISBEHAVES;
pub use memory::{DAMAGED, DIFFERENT, FLIP};
pub use taken_back::OLDER;

use crate::cluster::{Cluster, Host};
use crate::course::Course;
use crate::faults::FaultKind;
use crate::load::Load;
use crate::network::Network;
use crate::service::Service;
use crate::timeline::Timeline;
use crate::watch::{Lagging, Watch};
use anyhow::Result;
use perdura_adversary::Random;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

/// Everything that is there while a run lasts.
pub struct Scene {
    /// Clock, end and findings.
    pub course: Arc<Course>,
    /// The replicas.
    pub cluster: Arc<Cluster>,
    /// The proxies.
    pub network: Network,
    /// How the replicas stand.
    pub watch: Arc<Watch>,
    /// The clients.
    pub load: Load,
    /// What was done.
    pub timeline: Arc<Timeline>,
    /// What the replicas run.
    pub service: Service,
    /// Whether faults are to be short, so that many fit into a short run.
    pub short: bool,
}

/// Whom a fault strikes: a process, and where only one of its members is meant, which partition's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Victim {
    /// Which host's process.
    pub host: usize,
    /// Of which partition's group; 0 where there is only one.
    pub partition: usize,
}

/// What came of an injection.
pub struct Injected {
    /// In words.
    pub detail: String,
    /// Whether it took effect.
    pub fired: bool,
    /// By how much it put a clock ahead, at most, microseconds.
    pub ahead_us: u64,
}

impl Injected {
    /// Something that was done to no clock.
    pub fn new(detail: String, fired: bool) -> Injected {
        Injected { detail, fired, ahead_us: 0 }
    }

    fn fired(detail: String) -> Result<Injected> {
        Ok(Injected::new(detail, true))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // So that the cluster ends here and now, and not when somebody looks at it last.
        self.watch.stop();
    }
}

impl Scene {
    /// Does it to one replica.
    pub fn strike(&self, kind: FaultKind, whom: Victim, random: &mut Random) -> Result<Injected> {
        let victim = whom.host;
        match kind {
            FaultKind::Kill | FaultKind::KillLeader => process::kill(self, victim, random),
            FaultKind::Restart => process::restart(self, victim, random),
            FaultKind::Pause | FaultKind::PauseLeader => process::pause(self, victim, random),
            FaultKind::FullDisk => disk::full(self, victim),
            FaultKind::FsyncError => disk::fsync_error(self, victim),
            FaultKind::LogRot => rot::under_stopped(self, whom, rot::What::Log, random),
            FaultKind::CheckpointRot => {
                rot::under_stopped(self, whom, rot::What::Checkpoint, random)
            }
            FaultKind::RunningRot => rot::under_running(self, whom, random),
            FaultKind::MemoryRot => memory::rot(self, whom),
            FaultKind::Liar => liar::lie(self, victim, random),
            FaultKind::LostDisk => disk::lost(self, victim),
            FaultKind::TakenBack => taken_back::taken_back(self, whom, random),
            FaultKind::ClockJump => clock::jump(self, victim, random),
            FaultKind::Unheard => surroundings::unheard(self, victim, random),
            FaultKind::FewFiles => surroundings::few_files(self, victim, random),
            FaultKind::Strangers => surroundings::strangers(self, random),
            FaultKind::Fleet => fleet::come_and_go(self, random),
            FaultKind::Delay
            | FaultKind::Loss
            | FaultKind::Throttle
            | FaultKind::OneWayCut
            | FaultKind::Isolation
            | FaultKind::IsolateLeader
            | FaultKind::Corruption => network::rules(self, kind, whom, random),
            FaultKind::Flapping => network::flapping(self, victim, random),
            FaultKind::Reset => network::reset(self, victim, random),
            FaultKind::HalfOpen => network::half_open(self, victim, random),
            FaultKind::KillAll
            | FaultKind::KillMajority
            | FaultKind::CutMajority
            | FaultKind::PauseAll => disaster::strike(self, kind, random),
        }
    }

    /// Notes that replicas do not stand as they should, and keeps beside the logs what all of them
    /// say and do.
    pub fn not_well(&self, what: &str, lagging: &Lagging) {
        let seconds = self.course.now_us() / 1_000_000;
        for host in &self.cluster.hosts {
            let path = self.cluster.path(&format!("examined-{}-{seconds}.txt", host.id));
            if let Err(error) = fs::write(&path, host.examine()) {
                eprintln!("{}: {error}", path.display());
            }
        }
        self.course.violation(format!("{what}: {lagging}"));
    }

    fn host(&self, id: usize) -> &Host {
        &self.cluster.hosts[id]
    }

    /// Lets a fault last, between `low` and `high` milliseconds; short times as often as long ones.
    fn hold(&self, low: u64, high: u64, random: &mut Random) -> Duration {
        let high = if self.short { (high / 5).max(low + 1) } else { high };
        let (from, to) = ((low as f64).ln(), (high as f64).ln());
        let part = random.below(1_000_001) as f64 / 1e6;
        let time = Duration::from_secs_f64((from + (to - from) * part).exp() / 1000.0);
        self.course.sleep(time);
        time
    }
}
