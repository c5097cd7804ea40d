//! What the tests of this crate share.
#![allow(dead_code, clippy::module_inception)]

pub mod model;

use bytes::Bytes;
use perdura_durability::{
    Disk, Expectation, Identity, MemoryDisk, OpenError, Opened, Options, format, open,
};
use perdura_protocol::configuration::{Configuration, Durability, Member};
use perdura_protocol::statement::Certificate;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{
    Batch, ClusterId, Digest, Frame, PublicKey, Record, ReplicaId, SessionId, Signature, Slot,
    Time, View,
};

pub const BOOT: [u8; 16] = [5; 16];

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
    }
}

/// Files of 32 KiB: six groups of a page.
pub fn options() -> Options {
    Options { log_file_bytes: 32 * 1024, free_log_files: 2, retained_checkpoints: 1 }
}

pub fn formatted(durability: Durability) -> MemoryDisk {
    let mut disk = MemoryDisk::new();
    format(&mut disk, &identity(durability)).unwrap();
    disk
}

pub fn reopen<D: Disk>(disk: D) -> Result<Opened<D>, OpenError> {
    open(disk, &expectation(), &options())
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

/// A vote on a batch of two frames, with five commands in all.
pub fn vote_on_commands(slot: u64) -> Record {
    let frame = |nonce, commands: &[Bytes]| {
        let session = SessionId { client: PublicKey([7; 32]), nonce };
        Frame::build(ClusterId([1; 16]), session, 0, slot, commands, None)
    };
    let command = |bytes| Bytes::from(vec![slot as u8; bytes]);
    let one = frame(1, &[command(300), command(1), command(2000)]);
    let two = frame(2, &[command(0), command(40)]);
    let batch = Batch::requests(Time(slot + 1), vec![one, two]);
    Record::Vote { view: View(0), slot: Slot(slot), batch, writes: certificate(3) }
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

pub fn state_digest(slot: u64) -> Digest {
    Digest::of(format!("state {slot}").as_bytes())
}

pub fn manifest(slot: u64) -> Vec<u8> {
    format!("manifest {slot}").into_bytes()
}

pub const PIECES: usize = 5;

pub fn piece(slot: u64, index: usize) -> Bytes {
    let text = format!("piece {index} of {slot};");
    Bytes::from(text.repeat(index * 40))
}

pub fn store<D: Disk>(opened: &mut Opened<D>, slot: u64) {
    let mut give = |index| piece(slot, index);
    let digest = state_digest(slot);
    opened
        .checkpoints
        .store(Slot(slot), digest, &manifest(slot), PIECES, &mut give, Slot(0))
        .unwrap();
}

/// Names of the log's used files, ascending.
pub fn log_files(disk: &mut MemoryDisk) -> Vec<String> {
    let names = disk.list("log").unwrap();
    names.iter().filter(|n| !n.starts_with("free")).map(|n| format!("log/{n}")).collect()
}

pub fn read(disk: &mut MemoryDisk, name: &str, offset: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    disk.read_at(name, offset, &mut buffer).unwrap();
    buffer
}
