//! The superblock: who this data directory belongs to, and which checkpoint is its state.
//!
//! Layout of the file `superblock`, 16 KiB: four copies of 4 KiB. A copy, little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `PERDSUPR` |
//! | 8 | 32 | BLAKE3 of bytes 40..4096 of the copy |
//! | 40 | 4 | format version |
//! | 44 | .. | the fields of [`Superblock`] by name (`perdura_protocol::fields`); zeros to the end |
//!
//! A field of a newer program that may be passed over is, and is written again; one that may not is refused by its name. Format
//! versions 1 and 2 have the fields in order, 1 without `links`.
//!
//! Magic, checksum and version keep their place in every format version, so that an older program
//! can tell a newer directory from a damaged one.
//!
//! Invariants:
//! - Copies 0 and 1 are a pair, so are 2 and 3. An update writes one pair, syncs, writes the
//!   other, syncs, and starts with the pair that does *not* hold the newest valid copy: a torn
//!   update leaves the one before it intact, and a rotten copy leaves its twin.
//! - The valid copy with the highest sequence number is the superblock.
//! - The position of the log and the state are one atomic fact (rule D5): a checkpoint file that
//!   the superblock does not name is not there. What a checkpoint that it names links to it names
//!   too, so that which files are kept hangs on no file's content.

use crate::FORMAT_VERSION;
use crate::checkpoint::MOST_FILES;
use crate::checksum::{array_at, u32_at};
use crate::disk::{Disk, DiskError};
use crate::storage::OpenError;
use bytes::Bytes;
use perdura_protocol::codec::encode_list;
use perdura_protocol::configuration::Durability;
use perdura_protocol::fields::{FieldError, Fields};
use perdura_protocol::{
    BootId, ClusterId, Decode, DecodeError, Digest, Encode, Reader, ReplicaId, Slot,
};

pub(crate) const SUPERBLOCK_NAME: &str = "superblock";
pub(crate) const TEMPORARY_NAME: &str = "superblock.new";

const MAGIC: &[u8; 8] = b"PERDSUPR";
const COPY_BYTES: usize = 4096;
const COPIES: usize = 4;
const SUM_OFFSET: usize = 8;
const VERSION_OFFSET: usize = 40;
const FIELDS_OFFSET: usize = 44;

/// The number of a durability that programs had for experiments.
const SYNC_NAIVE: u8 = 3;

/// Most checkpoints that a superblock names: the state and those kept behind it.
pub(crate) const CHECKPOINTS: usize = 4;

/// Most runs that a superblock names.
pub(crate) const BOOTS: usize = 16;

/// Whose data directory it is. Fixed when it is formatted.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The replica.
    pub replica: ReplicaId,
    /// 0 for the first; one more with each replacement (rule D8).
    pub incarnation: u32,
    /// `Parameters::digest()` of the cluster.
    pub parameters: Digest,
    /// When a log record counts as kept; also part of the parameters.
    pub durability: Durability,
    /// 32 random bytes, secret to this directory: keys the checksums of the log, so that no
    /// client can write a value that looks like a group of log records.
    pub checksum_key: [u8; 32],
    /// For a replacement: it may not vote before it holds a state at or after this slot, the first
    /// of its configuration. `None` for the replicas that a cluster starts with.
    pub must_recover: Option<Slot>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("cluster", &self.cluster)
            .field("replica", &self.replica)
            .field("incarnation", &self.incarnation)
            .field("parameters", &self.parameters)
            .field("durability", &self.durability)
            .field("must_recover", &self.must_recover)
            .finish_non_exhaustive()
    }
}

/// A checkpoint that the superblock names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointName {
    /// It is the state after this slot.
    pub slot: Slot,
    /// Digest of the state.
    pub digest: Digest,
}

/// Pieces of a checkpoint stand in the file of an older one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// The checkpoint, by its slot.
    pub checkpoint: Slot,
    /// The older one, which need not be a checkpoint of this directory any more.
    pub file: Slot,
}

/// What the superblock says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Grows by one with each update.
    pub sequence: u64,
    /// Whose directory it is. `must_recover` becomes `None` when the state is there.
    pub identity: Identity,
    /// Whether a replica ever ran on it; if so there is a log (unless durability is `none`).
    pub opened: bool,
    /// The boot of the machine in which a run began that did not end in an orderly way.
    pub running: Option<[u8; 16]>,
    /// The newest runs on it, the newest first; none in directories that only older programs ran on.
    pub boots: Vec<BootId>,
    /// Newest first. The first is the state, the others are kept in case it rots. Empty: the
    /// state before slot 1.
    pub checkpoints: Vec<CheckpointName>,
    /// The files of older checkpoints that they need.
    pub links: Vec<Link>,
    /// Fields of a newer program that this one may pass over.
    pub(crate) passed_over: Fields,
}

impl Superblock {
    /// The superblock of a freshly formatted directory.
    #[must_use]
    pub fn new(identity: Identity) -> Superblock {
        Superblock {
            sequence: 1,
            identity,
            opened: false,
            running: None,
            boots: vec![],
            checkpoints: vec![],
            links: vec![],
            passed_over: Fields::default(),
        }
    }

    /// The checkpoint that is the state, if there is one.
    #[must_use]
    pub fn checkpoint(&self) -> Option<CheckpointName> {
        self.checkpoints.first().copied()
    }

    /// The slots of the checkpoint files that are kept: the checkpoints, and what they link to.
    /// Some may come more than once.
    pub(crate) fn checkpoint_files(&self) -> impl Iterator<Item = Slot> {
        let checkpoints = self.checkpoints.iter().map(|name| name.slot);
        checkpoints.chain(self.links.iter().map(|link| link.file))
    }

    fn encode_copy(&self) -> Vec<u8> {
        self.encode_copy_as(FORMAT_VERSION)
    }

    /// A copy of a format version, with that version's fields.
    pub(crate) fn encode_copy_as(&self, version: u32) -> Vec<u8> {
        let mut out = vec![0; FIELDS_OFFSET];
        out[..8].copy_from_slice(MAGIC);
        out[VERSION_OFFSET..FIELDS_OFFSET].copy_from_slice(&version.to_le_bytes());
        match version {
            1 => self.encode_first(&mut out),
            2 => {
                self.encode_first(&mut out);
                encode_list(&self.links, &mut out);
            }
            _ => {
                self.fields().encode(&mut out);
                if out.len() > COPY_BYTES {
                    // What may be passed over, and does not fit any more, goes.
                    out.truncate(FIELDS_OFFSET);
                    self.own_fields().encode(&mut out);
                }
            }
        }
        assert!(out.len() <= COPY_BYTES, "all fields are bounded");
        out.resize(COPY_BYTES, 0);
        let sum = blake3::hash(&out[VERSION_OFFSET..]);
        out[SUM_OFFSET..VERSION_OFFSET].copy_from_slice(sum.as_bytes());
        out
    }

    fn decode_copy(copy: &[u8]) -> Copy {
        let sum: [u8; 32] = array_at(copy, SUM_OFFSET);
        if &copy[..8] != MAGIC || blake3::hash(&copy[VERSION_OFFSET..]) != sum {
            return Copy::Damaged;
        }
        let mut reader = Reader::new(Bytes::copy_from_slice(&copy[FIELDS_OFFSET..]));
        let version = u32_at(copy, VERSION_OFFSET);
        let read = match version {
            // No format has this version: whatever wrote it, this program does not know it.
            0 => return Copy::Damaged,
            1 => Superblock::decode_first(&mut reader),
            2 => Superblock::decode_second(&mut reader),
            version if version > FORMAT_VERSION => return Copy::Newer(version),
            _ => Fields::decode(&mut reader)
                .map_err(Unusable::from)
                .and_then(Superblock::from_fields),
        };
        match read {
            Ok(found) => Copy::Valid(version, Box::new(found)),
            Err(Unusable::Unknown(field)) => Copy::Unknown(field),
            Err(Unusable::Gone(durability)) => Copy::Gone(durability),
            Err(Unusable::Damaged) => Copy::Damaged,
        }
    }

    fn fields(&self) -> Fields {
        let mut fields = self.own_fields();
        fields.put_back(&self.passed_over);
        fields
    }

    fn own_fields(&self) -> Fields {
        let identity = &self.identity;
        let mut fields = Fields::default();
        fields.require("sequence", &self.sequence);
        fields.require("cluster", &identity.cluster);
        fields.require("replica", &identity.replica);
        fields.require("incarnation", &identity.incarnation);
        fields.require("parameters", &identity.parameters);
        fields.require("durability", &(identity.durability as u8));
        fields.require("checksum-key", &identity.checksum_key);
        fields.require("must-recover", &identity.must_recover);
        fields.require("opened", &self.opened);
        fields.require("running", &self.running);
        if !self.boots.is_empty() {
            fields.require("boots", &Listed(self.boots.clone()));
        }
        fields.require("checkpoints", &Listed(self.checkpoints.clone()));
        fields.require("links", &Listed(self.links.clone()));
        fields
    }

    fn from_fields(mut fields: Fields) -> Result<Superblock, Unusable> {
        let identity = Identity {
            cluster: fields.need("cluster")?,
            replica: fields.need("replica")?,
            incarnation: fields.need("incarnation")?,
            parameters: fields.need("parameters")?,
            durability: durability_of(fields.need("durability")?)?,
            checksum_key: fields.need("checksum-key")?,
            must_recover: fields.need("must-recover")?,
        };
        let (sequence, opened, running) =
            (fields.need("sequence")?, fields.need("opened")?, fields.need("running")?);
        let Listed(checkpoints) = fields.need("checkpoints")?;
        let Listed(links) = fields.need("links")?;
        let boots = fields.take_required("boots")?.map_or_else(Vec::new, |Listed(boots)| boots);
        fields.pass_over()?;
        let passed_over = fields;
        Ok(Superblock {
            sequence,
            identity,
            opened,
            running,
            boots,
            checkpoints,
            links,
            passed_over,
        })
    }

    /// The fields of format version 1, which come first in every version.
    fn encode_first(&self, out: &mut Vec<u8>) {
        let identity = &self.identity;
        self.sequence.encode(out);
        identity.cluster.encode(out);
        identity.replica.encode(out);
        identity.incarnation.encode(out);
        identity.parameters.encode(out);
        (identity.durability as u8).encode(out);
        identity.checksum_key.encode(out);
        identity.must_recover.encode(out);
        self.opened.encode(out);
        self.running.encode(out);
        encode_list(&self.checkpoints, out);
    }

    fn decode_first(reader: &mut Reader) -> Result<Superblock, Unusable> {
        Ok(Superblock {
            sequence: Decode::decode(reader)?,
            identity: Identity {
                cluster: Decode::decode(reader)?,
                replica: Decode::decode(reader)?,
                incarnation: Decode::decode(reader)?,
                parameters: Decode::decode(reader)?,
                durability: durability_of(u8::decode(reader)?)?,
                checksum_key: Decode::decode(reader)?,
                must_recover: Decode::decode(reader)?,
            },
            opened: Decode::decode(reader)?,
            running: Decode::decode(reader)?,
            boots: vec![],
            checkpoints: reader.list("checkpoints", CHECKPOINTS, 40)?,
            links: vec![],
            passed_over: Fields::default(),
        })
    }

    /// Those of format version 2.
    fn decode_second(reader: &mut Reader) -> Result<Superblock, Unusable> {
        let first = Superblock::decode_first(reader)?;
        let Listed(links) = Decode::decode(reader)?;
        Ok(Superblock { links, ..first })
    }
}

fn durability_of(tag: u8) -> Result<Durability, Unusable> {
    if tag == SYNC_NAIVE {
        return Err(Unusable::Gone("sync-naive"));
    }
    let known = Durability::ALL.into_iter().find(|durability| *durability as u8 == tag);
    known.ok_or(Unusable::Damaged)
}

/// Why fields that verify are no superblock for this program.
enum Unusable {
    /// One of them may not be passed over.
    Unknown(String),
    /// It goes by a durability that there was once.
    Gone(&'static str),
    /// They are not what any program wrote.
    Damaged,
}

impl From<FieldError> for Unusable {
    fn from(error: FieldError) -> Unusable {
        match error {
            FieldError::Unknown(name) => Unusable::Unknown(name),
            _ => Unusable::Damaged,
        }
    }
}

impl From<DecodeError> for Unusable {
    fn from(_: DecodeError) -> Unusable {
        Unusable::Damaged
    }
}

/// A list as a field; bounded by the copy that it stands in.
struct Listed<T>(Vec<T>);

impl<T: Encode> Encode for Listed<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_list(&self.0, out);
    }
}

impl Decode for Listed<CheckpointName> {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Listed(reader.list("checkpoints", CHECKPOINTS, 40)?))
    }
}

impl Decode for Listed<BootId> {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Listed(reader.list("boots", BOOTS, 24)?))
    }
}

impl Decode for Listed<Link> {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Listed(reader.list("links of checkpoints", CHECKPOINTS * MOST_FILES, 16)?))
    }
}

/// What a copy turned out to be.
enum Copy {
    Valid(u32, Box<Superblock>),
    Newer(u32),
    /// It has a field that may not be passed over.
    Unknown(String),
    /// It is of a durability that there was once.
    Gone(&'static str),
    Damaged,
}

impl Encode for Superblock {
    fn encode(&self, out: &mut Vec<u8>) {
        self.fields().encode(out);
    }
}

impl Decode for Superblock {
    fn decode(reader: &mut Reader) -> Result<Superblock, DecodeError> {
        let superblock = Superblock::from_fields(Fields::decode(reader)?);
        superblock.map_err(|_| DecodeError::NotCanonical("fields of a superblock"))
    }
}

impl Encode for Link {
    fn encode(&self, out: &mut Vec<u8>) {
        self.checkpoint.encode(out);
        self.file.encode(out);
    }
}

impl Decode for Link {
    fn decode(reader: &mut Reader) -> Result<Link, DecodeError> {
        Ok(Link { checkpoint: Decode::decode(reader)?, file: Decode::decode(reader)? })
    }
}

impl Encode for CheckpointName {
    fn encode(&self, out: &mut Vec<u8>) {
        self.slot.encode(out);
        self.digest.encode(out);
    }
}

impl Decode for CheckpointName {
    fn decode(reader: &mut Reader) -> Result<CheckpointName, DecodeError> {
        Ok(CheckpointName { slot: Decode::decode(reader)?, digest: Decode::decode(reader)? })
    }
}

/// The superblock of an open directory, and where its next update begins.
#[derive(Debug)]
pub(crate) struct SuperblockFile {
    current: Superblock,
    // The format version that it was read in, or is written in.
    version: u32,
    // 0 or 1: the pair that does not hold the newest copy, or the one whose turn it is.
    next_pair: usize,
}

impl SuperblockFile {
    /// Writes the superblock of a new directory, under its name only when it is complete.
    pub(crate) fn format(disk: &mut impl Disk, first: Superblock) -> Result<(), DiskError> {
        disk.create(TEMPORARY_NAME, (COPY_BYTES * COPIES) as u64)?;
        disk.write_at(TEMPORARY_NAME, 0, &first.encode_copy().repeat(COPIES))?;
        disk.sync(TEMPORARY_NAME)?;
        disk.rename(TEMPORARY_NAME, SUPERBLOCK_NAME)?;
        disk.sync_directory("")
    }

    /// Reads it: the valid copy with the highest sequence number. Changes nothing.
    pub(crate) fn read(disk: &mut impl Disk) -> Result<SuperblockFile, OpenError> {
        let mut newest: Option<(usize, Superblock)> = None;
        let mut version = FORMAT_VERSION;
        let mut both = false;
        for index in 0..COPIES {
            let mut copy = vec![0; COPY_BYTES];
            match disk.read_at(SUPERBLOCK_NAME, (index * COPY_BYTES) as u64, &mut copy) {
                Err(error) if error.source.kind() == std::io::ErrorKind::UnexpectedEof => continue,
                result => result?,
            }
            let (of, found) = match Superblock::decode_copy(&copy) {
                Copy::Valid(of, found) => (of, *found),
                Copy::Newer(found) => {
                    return Err(OpenError::NewerFormat { found, supported: FORMAT_VERSION });
                }
                Copy::Unknown(field) => return Err(OpenError::UnknownField { field }),
                Copy::Gone(durability) => return Err(OpenError::GoneDurability { durability }),
                Copy::Damaged => continue,
            };
            match &newest {
                Some((_, best)) if best.sequence > found.sequence => {}
                Some((pair, best)) if best.sequence == found.sequence => both |= *pair != index / 2,
                _ => {
                    both = false;
                    version = of;
                    newest = Some((index / 2, found));
                }
            }
        }
        let Some((pair, current)) = newest else {
            return Err(OpenError::Corrupt { file: SUPERBLOCK_NAME.to_owned(), offset: 0 });
        };
        let next_pair = if both { current.sequence as usize % 2 } else { 1 - pair };
        Ok(SuperblockFile { current, version, next_pair })
    }

    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// What it says.
    pub(crate) fn current(&self) -> &Superblock {
        &self.current
    }

    /// Writes all copies as format version 1 has them, without links.
    pub(crate) fn downgrade(&mut self, disk: &mut impl Disk) -> Result<(), DiskError> {
        self.current.links.clear();
        disk.write_at(SUPERBLOCK_NAME, 0, &self.current.encode_copy_as(1).repeat(COPIES))?;
        disk.sync(SUPERBLOCK_NAME)
    }

    /// Replaces it by what `change` makes of it. On return all four copies hold it, durably.
    pub(crate) fn update(
        &mut self,
        disk: &mut impl Disk,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), DiskError> {
        let mut next = self.current.clone();
        change(&mut next);
        next.sequence += 1;
        let pair_of_copies = next.encode_copy().repeat(2);
        for pair in [self.next_pair, 1 - self.next_pair] {
            let offset = (pair * 2 * COPY_BYTES) as u64;
            disk.write_at(SUPERBLOCK_NAME, offset, &pair_of_copies)?;
            disk.sync(SUPERBLOCK_NAME)?;
        }
        (self.current, self.version) = (next, FORMAT_VERSION);
        self.next_pair = 1 - self.next_pair;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_disk::MemoryDisk;

    fn identity() -> Identity {
        Identity {
            cluster: ClusterId([1; 16]),
            replica: ReplicaId(2),
            incarnation: 3,
            parameters: Digest::of(b"parameters"),
            durability: Durability::Async,
            checksum_key: [4; 32],
            must_recover: Some(Slot(77)),
        }
    }

    fn formatted() -> MemoryDisk {
        let mut disk = MemoryDisk::new();
        SuperblockFile::format(&mut disk, Superblock::new(identity())).unwrap();
        disk
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut disk = formatted();
        let mut file = SuperblockFile::read(&mut disk).unwrap();
        assert_eq!(file.current(), &Superblock::new(identity()));
        let name = CheckpointName { slot: Slot(5), digest: Digest::of(b"state") };
        file.update(&mut disk, |superblock| {
            superblock.running = Some([9; 16]);
            superblock.boots = vec![BootId { number: 3, nonce: [8; 16] }; BOOTS];
            superblock.checkpoints = vec![name; CHECKPOINTS];
            let link = Link { checkpoint: Slot(5), file: Slot(4) };
            superblock.links = vec![link; CHECKPOINTS * MOST_FILES];
        })
        .unwrap();
        let again = SuperblockFile::read(&mut disk).unwrap();
        assert_eq!(again.current(), file.current());
        assert_eq!(again.current().checkpoint(), Some(name));
    }

    /// A copy that a newer program wrote, with one more field.
    fn written_with(required: bool) -> MemoryDisk {
        let mut disk = formatted();
        let mut newer = Superblock::new(identity());
        if required {
            newer.passed_over.require("colour", &7u8);
        } else {
            newer.passed_over.offer("colour", &7u8);
        }
        disk.write_at(SUPERBLOCK_NAME, 0, &newer.encode_copy().repeat(COPIES)).unwrap();
        disk
    }

    #[test]
    fn a_newer_programs_field_is_kept_or_refused_by_name() {
        let mut disk = written_with(false);
        let mut file = SuperblockFile::read(&mut disk).unwrap();
        file.update(&mut disk, |superblock| superblock.opened = true).unwrap();
        let mut again = SuperblockFile::read(&mut disk).unwrap().current().clone();
        assert!(again.opened);
        assert_eq!(again.passed_over.take("colour"), Ok(Some(7u8)));
        let refused = SuperblockFile::read(&mut written_with(true)).unwrap_err();
        assert!(matches!(&refused, OpenError::UnknownField { field } if field == "colour"));
        assert!(refused.to_string().contains("\"colour\""), "{refused}");
    }

    /// In each format: what stands there verifies, so it is not called corrupt.
    #[test]
    fn a_directory_of_a_durability_that_is_gone_is_refused_with_what_to_do() {
        let mut superblock = Superblock::new(identity());
        for version in 1..=FORMAT_VERSION {
            let mut copies = Vec::new();
            for durability in [Durability::Async, Durability::Sync] {
                superblock.identity.durability = durability;
                copies.push(superblock.encode_copy_as(version));
            }
            // Where two copies differ behind their checksums is the durability.
            let place = (FIELDS_OFFSET..COPY_BYTES).find(|at| copies[0][*at] != copies[1][*at]);
            let mut copy = copies.swap_remove(0);
            copy[place.unwrap()] = SYNC_NAIVE;
            let sum = blake3::hash(&copy[VERSION_OFFSET..]);
            copy[SUM_OFFSET..VERSION_OFFSET].copy_from_slice(sum.as_bytes());
            let mut disk = formatted();
            disk.write_at(SUPERBLOCK_NAME, 0, &copy.repeat(COPIES)).unwrap();
            let refused = SuperblockFile::read(&mut disk).unwrap_err();
            assert!(matches!(refused, OpenError::GoneDurability { durability: "sync-naive" }));
            let told = refused.to_string();
            assert!(
                told.contains("`sync-naive`") && told.contains("`perdura kv export`"),
                "{told}"
            );
        }
    }

    #[test]
    fn three_rotten_copies_of_four_are_survived() {
        for survivor in 0..COPIES {
            let mut disk = formatted();
            for copy in (0..COPIES).filter(|copy| *copy != survivor) {
                disk.flip_bit(SUPERBLOCK_NAME, (copy * COPY_BYTES + 50) as u64, 3).unwrap();
            }
            let mut file = SuperblockFile::read(&mut disk).unwrap();
            file.update(&mut disk, |superblock| superblock.opened = true).unwrap();
            assert!(SuperblockFile::read(&mut disk).unwrap().current().opened);
        }
        let mut disk = formatted();
        for copy in 0..COPIES {
            disk.flip_bit(SUPERBLOCK_NAME, (copy * COPY_BYTES) as u64, 0).unwrap();
        }
        assert!(matches!(SuperblockFile::read(&mut disk), Err(OpenError::Corrupt { .. })));
    }

    /// A torn update leaves the old or the new, again and again, wherever it is cut.
    #[test]
    fn a_torn_update_leaves_the_old_or_the_new() {
        let mut seed = 1u64;
        let mut entropy = move || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            seed >> 20
        };
        for cut in 0..4 {
            let mut disk = formatted();
            for _ in 0..50 {
                let mut file = SuperblockFile::read(&mut disk).unwrap();
                let old = file.current().clone();
                disk.fail_after(cut);
                assert!(file.update(&mut disk, |s| s.opened = !s.opened).is_err());
                disk.crash(&mut entropy);
                let found = SuperblockFile::read(&mut disk).unwrap().current().clone();
                let is_new = found.sequence == old.sequence + 1 && found.opened != old.opened;
                assert!(found == old || is_new);
            }
        }
    }
}
