//! The kinds of faults, by name. What each does is in `inject`.

use clap::ValueEnum;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub enum FaultKind {
    /// kill -9 of any replica, started again after a while
    Kill,
    /// kill -9 of the leader
    KillLeader,
    /// SIGTERM, which has to end in order, and a start
    Restart,
    /// SIGSTOP for 0.1 to 60 s, then SIGCONT
    Pause,
    /// The same, of the leader
    PauseLeader,
    /// The leader is cut off from everybody, and its connections stand
    IsolateLeader,
    /// A ballast file fills the replica's disk
    FullDisk,
    /// The disk under the replica's file system takes no more: fsync fails
    FsyncError,
    /// Bits are flipped in log files of a stopped replica
    LogRot,
    /// Bits are flipped in checkpoints of a stopped replica
    CheckpointRot,
    /// A bit is flipped in the newest checkpoint of a running replica
    RunningRot,
    /// Bits of a replica's state flip in memory
    MemoryRot,
    /// A replica lies, in one of the ways of the simulator's liars; then it is replaced
    Liar,
    /// The data directory is lost; the replica is replaced
    LostDisk,
    /// The data directory is taken back to a copy of itself
    TakenBack,
    /// The wall clock of a replica jumps by up to eight hours, both ways
    ClockJump,
    /// Nobody takes what a replica logs: its standard error is closed, full, or never read
    Unheard,
    /// A replica may have few files open
    FewFiles,
    /// Connections of nobody, from many addresses, to all replicas
    Strangers,
    /// A hundred client processes come and go, some of them killed, and so are those that wait
    Fleet,
    /// Bytes to and from a replica arrive late
    Delay,
    /// Parts of the stream stall as if a segment was lost and sent again
    Loss,
    /// Few bytes per second
    Throttle,
    /// A replica hears nothing, or is not heard
    OneWayCut,
    /// A replica is cut off
    Isolation,
    /// A replica is cut off and reached again, many times
    Flapping,
    /// Connections of a replica are reset, many times
    Reset,
    /// One end of a connection is gone, and the other is not told
    HalfOpen,
    /// Bytes are changed on the way
    Corruption,
    /// kill -9 of all replicas at once
    KillAll,
    /// kill -9 of more than u replicas
    KillMajority,
    /// No quorum reaches each other
    CutMajority,
    /// SIGSTOP of all replicas
    PauseAll,
}

/// What a fault needs of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Nothing
    Nothing,
    /// A small file system per replica: root
    OwnVolume,
    /// ext4 on a loop device on tmpfs: root, loop devices
    LoopDevice,
    /// libfaketime
    Faketime,
    /// perdura-lab beside the program
    Lab,
}

impl FaultKind {
    /// All, in the order of their declaration.
    pub fn all() -> &'static [FaultKind] {
        FaultKind::value_variants()
    }

    /// As on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// What it is, in words.
    pub fn help(self) -> String {
        let value = self.to_possible_value();
        value.and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default()
    }

    /// Whether more than u replicas are failed while it lasts.
    pub fn is_disaster(self) -> bool {
        matches!(
            self,
            FaultKind::KillAll
                | FaultKind::KillMajority
                | FaultKind::CutMajority
                | FaultKind::PauseAll
        )
    }

    /// Whether nothing else is struck while it lasts: more than u replicas are failed, or one has forgotten what
    /// it said, beside which no other may; or all are well, and everybody has to be served.
    pub fn stands_alone(self) -> bool {
        self.is_disaster() || matches!(self, FaultKind::TakenBack | FaultKind::Fleet)
    }

    /// Whether it strikes the leader, whoever that is.
    pub fn strikes_leader(self) -> bool {
        matches!(self, FaultKind::KillLeader | FaultKind::PauseLeader | FaultKind::IsolateLeader)
    }

    /// What it needs.
    pub fn need(self) -> Need {
        match self {
            FaultKind::FullDisk => Need::OwnVolume,
            FaultKind::FsyncError => Need::LoopDevice,
            FaultKind::ClockJump => Need::Faketime,
            FaultKind::MemoryRot | FaultKind::Liar | FaultKind::Strangers => Need::Lab,
            _ => Need::Nothing,
        }
    }

    /// How often it stands in a round of all kinds: waits over leader kills are measured.
    pub fn weight(self) -> usize {
        if self == FaultKind::KillLeader { 3 } else { 1 }
    }
}
