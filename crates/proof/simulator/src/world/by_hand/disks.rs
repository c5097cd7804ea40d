//! Disks that are damaged, emptied, slow, or stop a replica at one of their operations.

use super::super::World;
use crate::report::FaultKind;
use perdura_durability::{Disk, DiskError, MemoryDisk};

/// Operations after which a crash strikes that waits for the end of what is under way.
const AFTER_ALL: u64 = u64::MAX;

/// What a crash interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum During {
    /// A write of the log.
    Append,
    /// The storing of a state: its own, or one that was transferred.
    Checkpoint,
    /// The next start.
    Recovery,
}

impl World {
    /// Flips a bit in each copy of `text` in a directory of a replica's disk; how many there were.
    pub(crate) fn rot(&mut self, replica: usize, directory: &str, text: &str) {
        let disk = &mut self.replicas[replica].disk;
        match flip_all(disk, directory, text.as_bytes()) {
            Ok(0) => self.tell(format_args!("r{replica}: {text:?} is nowhere in {directory}")),
            Ok(1) => self.tell(format_args!("r{replica}: a bit flips in {directory}")),
            Ok(count) => self.tell(format_args!("r{replica}: {count} bits flip in {directory}")),
            Err(error) => self.tell(format_args!("r{replica}: {error}")),
        }
        self.hand.damaged.insert(replica);
    }

    /// A replica's machine stops, and what was in a directory of its disk (all of it, if none is
    /// named) is gone.
    pub(crate) fn empty(&mut self, replica: usize, directory: Option<&str>) {
        if self.replicas[replica].process.is_some() {
            self.crash_machine(replica);
        }
        let disk = &mut self.replicas[replica].disk;
        match directory {
            None => *disk = MemoryDisk::new(),
            Some(directory) => {
                if let Err(error) = remove_all(disk, directory) {
                    self.tell(format_args!("r{replica}: {error}"));
                }
            }
        }
        self.hand.damaged.insert(replica);
    }

    /// Whether a replica's disk was damaged by hand: it may refuse to start, or stop itself.
    pub(crate) fn is_damaged(&self, replica: usize) -> bool {
        self.hand.damaged.contains(&replica)
    }

    /// A replica has an intact disk (again).
    pub(crate) fn undamaged(&mut self, replica: usize) {
        self.hand.damaged.remove(&replica);
    }

    /// The next flush fails, and later ones of the same pages succeed without storing them.
    pub(crate) fn fail_flush(&mut self, replica: usize) {
        self.replicas[replica].armed.disk = Some(FaultKind::FlushError);
        self.replicas[replica].disk.fail_next_sync();
    }

    /// The machine stops after so many more disk operations (none: when all are done, before the
    /// replica learns of it).
    pub(crate) fn crash_during(&mut self, replica: usize, during: During, operations: Option<u64>) {
        let armed = &mut self.replicas[replica].armed;
        let operations = Some(operations.unwrap_or(AFTER_ALL));
        match during {
            During::Append => armed.in_append = operations,
            During::Checkpoint => armed.in_checkpoint = operations,
            During::Recovery => armed.in_recovery = operations,
        }
    }

    /// The machine stops after so many more outputs of the replica.
    pub(crate) fn crash_at_output(&mut self, replica: usize, outputs: u64) {
        self.replicas[replica].armed.at_send = Some(outputs);
    }
}

fn flip_all(disk: &mut MemoryDisk, directory: &str, text: &[u8]) -> Result<u64, DiskError> {
    let mut count = 0;
    for name in disk.list(directory)? {
        let name = format!("{directory}/{name}");
        let mut content = vec![0; disk.len(&name)? as usize];
        disk.read_at(&name, 0, &mut content)?;
        for (offset, _) in content.windows(text.len()).enumerate().filter(|(_, at)| *at == text) {
            disk.flip_bit(&name, offset as u64, 0)?;
            count += 1;
        }
    }
    Ok(count)
}

fn remove_all(disk: &mut MemoryDisk, directory: &str) -> Result<(), DiskError> {
    for name in disk.list(directory)? {
        disk.remove(&format!("{directory}/{name}"))?;
    }
    disk.sync_directory(directory)
}
