//! What the tests of this crate share.
#![allow(dead_code, clippy::module_inception)]

pub mod model;

use bytes::Bytes;
use perdura_durability::{
    Amnesia, CheckpointError, Checkpoints, Disk, Expectation, Identity, MemoryDisk, NewState,
    OpenError, Opened, PieceName, StorageOptions, Stored, format, open,
};
use perdura_protocol::boots::{Announcement, HeldVote};
use perdura_protocol::configuration::{Configuration, Durability, Member};
use perdura_protocol::statement::Certificate;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, BootId, ClusterId, Digest, PublicKey, Record, ReplicaId, Signature, Slot, Time, View,
};
use std::ops::ControlFlow;

pub const BOOT: [u8; 16] = [5; 16];
/// The first file of a log, and where its groups begin.
pub const FIRST: &str = "log/0000000000000001";
pub const GROUPS: u64 = 8192;

/// Where choices come from: a seed, or a fuzzer's bytes.
pub trait Choice {
    fn word(&mut self) -> u64;

    fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }
}

/// SplitMix64: small, and the same everywhere.
pub struct Random(pub u64);

impl Choice for Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub fn identity(durability: Durability) -> Identity {
    Identity {
        cluster: ClusterId([1; 16]),
        replica: ReplicaId(2),
        incarnation: 0,
        parameters: Digest::of(b"parameters"),
        durability,
        checksum_key: [42; 32],
        must_recover: None,
    }
}

pub fn expectation() -> Expectation {
    Expectation {
        cluster: ClusterId([1; 16]),
        replica: ReplicaId(2),
        incarnation: 0,
        parameters: Digest::of(b"parameters"),
        boot_id: BOOT,
        nonce: [5; 16],
    }
}

/// Files of 32 KiB: six groups of a page. The smallest state is linked.
pub fn options() -> StorageOptions {
    StorageOptions {
        log_file_bytes: 32 * 1024,
        hasty_log_file_bytes: 32 * 1024,
        free_log_files: 2,
        retained_checkpoints: 1,
        small_state_bytes: 0,
        checkpoint_sync_bytes: 2048,
    }
}

pub fn formatted(durability: Durability) -> MemoryDisk {
    let mut disk = MemoryDisk::new();
    format(&mut disk, &identity(durability)).unwrap();
    disk
}

pub fn reopen<D: Disk>(disk: D) -> Result<Opened<D>, OpenError> {
    open(disk, &expectation(), &options())
}

/// A disk with these appends on it, each acknowledged.
pub fn written(groups: &[Vec<Record>]) -> MemoryDisk {
    let disk = formatted(Durability::Sync);
    let mut opened = reopen(disk.handle()).unwrap();
    for group in groups {
        opened.log.append(group).unwrap();
    }
    disk
}

pub fn opened(disk: &MemoryDisk) -> Opened<MemoryDisk> {
    reopen(disk.handle()).unwrap_or_else(|error| panic!("{error}"))
}

pub fn lost_votes(disk: &MemoryDisk) -> Option<Slot> {
    match reopen(disk.handle()) {
        Err(OpenError::Amnesiac(Amnesia::LostVotes { through, .. })) => through,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("opened"),
    }
}

pub fn certificate(signers: u8) -> Certificate {
    Certificate::new((0..signers).map(|i| (ReplicaId(i), Signature([i; 64]))).collect())
}

/// A batch that no other number gives.
pub fn batch(number: u64) -> Batch {
    Batch::tick(Time(number + 1))
}

pub fn vote(view: u64, slot: u64, number: u64) -> Record {
    let (view, slot) = (View(view), Slot(slot));
    Record::Vote { view, slot, batch: batch(number), writes: certificate(3) }
}

/// A vote whose record takes about `signers` times 65 bytes more.
pub fn accepts(view: u64, slot: u64, number: u64, signers: u8) -> Record {
    Record::Accepts {
        slot: Slot(slot),
        view: View(view),
        digest: batch(number).digest(),
        accepts: certificate(signers),
    }
}

pub fn delivered(slot: u64) -> Record {
    Record::Delivered { slot: Slot(slot), history: Digest::of(&slot.to_le_bytes()) }
}

pub fn prefix(slot: u64) -> Record {
    Record::Prefix(PrefixCertificate {
        slot: Slot(slot),
        history: Digest::of(&slot.to_le_bytes()),
        certificate: certificate(2),
        ..PrefixCertificate::genesis()
    })
}

pub fn configuration(id: u64) -> Record {
    let member = Member { key: PublicKey([id as u8; 32]), incarnation: id as u32 };
    Record::Configuration(Configuration { id, from_slot: Slot(id), members: vec![member; 4] })
}

/// It is replaced at each 64th number.
fn key_of(replica: u8, number: u64) -> PublicKey {
    PublicKey([replica ^ ((number / 64) as u8) << 3; 32])
}

pub fn boot(replica: u8, number: u64) -> Record {
    let boot = BootId { number, nonce: [7; 16] };
    let announcement =
        Announcement { boot, configuration: 0, signature: Signature([number as u8; 64]) };
    Record::Boot { replica: ReplicaId(replica), key: key_of(replica, number), announcement }
}

/// As a replica writes it of itself.
pub fn boot_of(replica: u8, boot: BootId) -> Record {
    let announcement = Announcement { boot, configuration: 0, signature: Signature([1; 64]) };
    Record::Boot { replica: ReplicaId(replica), key: PublicKey([replica; 32]), announcement }
}

pub fn heard(replica: u8, slot: u64) -> Record {
    let digest = Digest::of(&slot.to_le_bytes());
    let signature = Signature([slot as u8; 64]);
    let vote = HeldVote { view: View(0), slot: Slot(slot), digest, configuration: 0, signature };
    Record::Heard { replica: ReplicaId(replica), key: key_of(replica, slot), vote }
}

pub fn state_digest(slot: u64) -> Digest {
    Digest::of(format!("state {slot}").as_bytes())
}

pub fn manifest(slot: u64) -> Vec<u8> {
    format!("manifest {slot}").into_bytes()
}

pub const PIECES: usize = 5;

/// How many slots a piece stays as it is.
const PERIODS: [u64; PIECES] = [1, 64, 16, 1_000_000, 1];

pub fn piece(slot: u64, index: usize) -> Bytes {
    let since = slot - (slot - 1) % PERIODS[index];
    let text = format!("piece {index} of {since};");
    Bytes::from(text.repeat(index * 40))
}

/// Stores pieces as the state after a slot.
pub fn store_pieces<D: Disk>(
    checkpoints: &mut Checkpoints<D>,
    slot: u64,
    pieces: &[Bytes],
    keep: u64,
) -> Result<Stored, CheckpointError> {
    let names: Vec<PieceName> = pieces.iter().map(|piece| PieceName::of(piece).unwrap()).collect();
    let state = NewState {
        slot: Slot(slot),
        digest: state_digest(slot),
        manifest: &manifest(slot),
        pieces: &names,
        content: &mut |index| pieces[index].clone(),
        pace: &mut |_| ControlFlow::Continue(()),
    };
    let stored = checkpoints.store(state, Slot(keep))?;
    checkpoints.remove_old(&mut || ControlFlow::Continue(()))?;
    Ok(stored)
}

pub fn pieces(slot: u64) -> Vec<Bytes> {
    (0..PIECES).map(|index| piece(slot, index)).collect()
}

pub fn try_store<D: Disk>(opened: &mut Opened<D>, slot: u64) -> Result<Stored, CheckpointError> {
    store_pieces(&mut opened.checkpoints, slot, &pieces(slot), 0)
}

pub fn store<D: Disk>(opened: &mut Opened<D>, slot: u64) {
    try_store(opened, slot).unwrap();
}

/// Names of the log's used files, ascending.
pub fn log_files(disk: &mut MemoryDisk) -> Vec<String> {
    let names = disk.list("log").unwrap();
    names.iter().filter(|n| n.starts_with('0')).map(|n| format!("log/{n}")).collect()
}

pub fn read(disk: &mut MemoryDisk, name: &str, offset: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    disk.read_at(name, offset, &mut buffer).unwrap();
    buffer
}
