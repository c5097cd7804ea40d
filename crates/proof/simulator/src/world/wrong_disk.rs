//! A replica is started on a disk that is not its own, or holds a format that its program does not
//! know. It has to refuse, change nothing, and start when it gets its own disk back. Or its program
//! is newer than the one that wrote its disk; then it has to go on as if that were not so.

use super::World;
use crate::report::FaultKind;
use crate::violation::Broken;
use perdura_durability::{Disk, FORMAT_VERSION, MemoryDisk, OpenError, older_format};
use perdura_protocol::Digest;

const RULE: &str = "Durability (D4, D8)";

/// The copies of a superblock, and where in each checksum and version stand in every format.
const SUPERBLOCK: &str = "superblock";
const COPIES: u64 = 4;
const COPY_BYTES: usize = 4096;
const SUM: std::ops::Range<usize> = 8..40;
const VERSION: std::ops::Range<usize> = 40..44;

impl World {
    /// The disk is as format version 1 has it, if there is nothing wrong with it.
    pub(crate) fn go_back_to_older_format(&mut self, replica: usize) {
        let here = &mut self.replicas[replica];
        if here.sick.is_some() || here.disk.is_damaged() || here.disk.will_misread() {
            return;
        }
        let mut older = here.disk.copy();
        if matches!(older_format::write_version_1(&mut older), Ok(true)) {
            here.disk = older;
            // Programs of that format announce no boots, so nobody could know one of this directory.
            here.has_boots = false;
            self.fired(FaultKind::OlderFormat);
            let kind = FaultKind::OlderFormat;
            self.trace.line(self.now_us, format_args!("r{replica} starts on a disk: {kind:?}"));
        }
    }

    pub(crate) fn refuse_wrong_disk(&mut self, replica: usize, kind: FaultKind) {
        let other = (replica + 1 + self.random.below(self.n() as u64 - 1) as usize) % self.n();
        let wrong = match kind {
            FaultKind::OtherDisk => self.replicas[other].disk.copy(),
            _ => {
                // No version before the first was ever written, so both are unknown.
                let version = *self.random.pick(&[0, FORMAT_VERSION + 1, u32::MAX]);
                let mut disk = self.replicas[replica].disk.copy();
                set_version(&mut disk, version);
                disk
            }
        };
        let before = wrong.operations();
        let result = self.open(replica, wrong.handle());
        let refused = match (&result, kind) {
            (Err(OpenError::OtherReplica { found, .. }), FaultKind::OtherDisk) => {
                found.index() == other
            }
            (Err(OpenError::NewerFormat { .. } | OpenError::Corrupt { .. }), _) => {
                kind == FaultKind::OtherFormat
            }
            _ => false,
        };
        if !refused || wrong.operations() != before {
            let result = result.map(|_| "it opened").map_err(|error| error.to_string());
            let what = format!("replica {replica} on a disk that is not its own: {result:?}");
            self.fail(Broken::new(RULE, what));
            return;
        }
        self.fired(kind);
        self.trace.line(self.now_us, format_args!("r{replica} refuses a disk: {kind:?}"));
        self.start_later(replica);
    }
}

/// Makes a directory that of another program version, with a valid checksum.
fn set_version(disk: &mut MemoryDisk, version: u32) {
    for number in 0..COPIES {
        let mut copy = vec![0; COPY_BYTES];
        let offset = number * COPY_BYTES as u64;
        if disk.read_at(SUPERBLOCK, offset, &mut copy).is_ok() {
            copy[VERSION].copy_from_slice(&version.to_le_bytes());
            let sum = Digest::of(&copy[VERSION.start..]);
            copy[SUM].copy_from_slice(&sum.0);
            let _ = disk.write_at(SUPERBLOCK, offset, &copy);
        }
    }
}
