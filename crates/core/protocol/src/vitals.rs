//! How a replica is, in its own words: told to the others once a second, and to clients that ask who is there.
//! It restricts no vote and proves nothing; whoever reads it counts how many say the same.

use crate::codec::{Decode, DecodeError, Encode, Reader, encode_bytes};
use crate::fields::{FieldError, Fields};
use crate::ids::{Digest, ReplicaId, Slot, Time, View};
use crate::versions::{ServiceName, Versions};
use bytes::Bytes;
use std::fmt;

/// Bytes of a program's version, at most.
const PROGRAM_BYTES: usize = 48;

/// Whether a replica takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Condition {
    /// It votes, executes and answers.
    Active,
    /// It would, and hears of too few members.
    Waiting,
    /// It fetches, or does what this program does not know.
    #[default]
    Recovering,
}

impl Condition {
    /// As in `perdura status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Condition::Active => "active",
            Condition::Waiting => "waiting",
            Condition::Recovering => "recovering",
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Encode for Condition {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Condition::Active => 1,
            Condition::Waiting => 2,
            Condition::Recovering => 3,
        });
    }
}

impl Decode for Condition {
    fn decode(reader: &mut Reader) -> Result<Condition, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Condition::Active,
            2 => Condition::Waiting,
            _ => Condition::Recovering,
        })
    }
}

/// The version of a program, in printable ASCII.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program(String);

impl Program {
    /// Of that version; letters that do not print are left out, and what is too long.
    #[must_use]
    pub fn new(version: &str) -> Program {
        let printable = version.chars().filter(|letter| matches!(letter, ' '..='~'));
        Program(printable.take(PROGRAM_BYTES).collect())
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Encode for Program {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_bytes(self.0.as_bytes(), out);
    }
}

impl Decode for Program {
    fn decode(reader: &mut Reader) -> Result<Program, DecodeError> {
        let bytes = reader.bytes("version of a program", PROGRAM_BYTES)?;
        let text = str::from_utf8(&bytes).ok().map(|text| (Program::new(text), text.len()));
        match text {
            Some((program, length)) if program.0.len() == length => Ok(program),
            _ => Err(DecodeError::NotCanonical("version of a program")),
        }
    }
}

/// Which message of its own a replica is answered, and how long the answer took to be sent: what is left of the
/// time till it came went by on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Echo {
    /// `sent_ms` of that message.
    pub sent_ms: u64,
    /// Milliseconds from its arrival to the answer.
    pub held_ms: u64,
}

impl Encode for Echo {
    fn encode(&self, out: &mut Vec<u8>) {
        self.sent_ms.encode(out);
        self.held_ms.encode(out);
    }
}

impl Decode for Echo {
    fn decode(reader: &mut Reader) -> Result<Echo, DecodeError> {
        Ok(Echo { sent_ms: Decode::decode(reader)?, held_ms: Decode::decode(reader)? })
    }
}

/// Room on the disk under a data directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskSpace {
    /// What is left for the replica, MiB.
    pub free_mib: u32,
    /// All of it, MiB.
    pub size_mib: u32,
}

impl DiskSpace {
    /// Whether a tenth is left, or less (as in packaging/prometheus/alerts.yml). A replica of an older program may tell of a file system
    /// that has no size.
    #[must_use]
    pub fn is_nearly_full(self) -> bool {
        self.size_mib > 0 && u64::from(self.free_mib) * 10 <= u64::from(self.size_mib)
    }
}

impl fmt::Display for DiskSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |mib: u32| match mib {
            0..10_240 => format!("{mib} MiB"),
            _ => format!("{} GiB", mib / 1024),
        };
        write!(f, "{} of {} are left", text(self.free_mib), text(self.size_mib))
    }
}

impl Encode for DiskSpace {
    fn encode(&self, out: &mut Vec<u8>) {
        self.free_mib.encode(out);
        self.size_mib.encode(out);
    }
}

impl Decode for DiskSpace {
    fn decode(reader: &mut Reader) -> Result<DiskSpace, DecodeError> {
        Ok(DiskSpace { free_mib: Decode::decode(reader)?, size_mib: Decode::decode(reader)? })
    }
}

/// How a replica is. As fields by name: an older program passes over what it does not know.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Vitals {
    /// The sender's monotonic clock, milliseconds: means nothing to others, who repeat it.
    pub sent_ms: u64,
    /// Its wall clock.
    pub wall: Time,
    /// Of the latest that it had from whom it is sent to.
    pub answers: Option<Echo>,
    /// Whether it takes part.
    pub condition: Condition,
    /// Its view.
    pub view: View,
    /// Last slot that it knows to be decided.
    pub decided: Slot,
    /// Whom it hears of, and itself: bit i is replica i.
    pub hears: u32,
    /// How long records take from it to its disk, milliseconds.
    pub flush_ms: u32,
    /// How long a write to its log has not come back, milliseconds; 0 while none hangs. It votes for nothing meanwhile.
    pub stalled_ms: u32,
    /// What a round trip to as many others takes as are needed to decide anything, milliseconds.
    pub trip_ms: u32,
    /// Whether more than u others say that its clock is wrong: it counts as failed.
    pub clock_wrong: bool,
    /// Whether it holds different states that were signed for one slot, and no later one is certified; if so, whether one of
    /// them can be.
    pub differing: Option<bool>,
    /// Room on its disk, where it measured that.
    pub space: Option<DiskSpace>,
    /// Its program.
    pub program: Program,
    /// What it runs and could run: of interest to those who administer, and not told to other replicas.
    pub runs: Option<Runs>,
}

/// What a replica runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runs {
    /// The service.
    pub service: ServiceName,
    /// The versions in force after the last slot that it executed.
    pub versions: Versions,
    /// The newest that its program knows.
    pub newest: Versions,
}

impl Encode for Runs {
    fn encode(&self, out: &mut Vec<u8>) {
        self.service.encode(out);
        self.versions.encode(out);
        self.newest.encode(out);
    }
}

impl Decode for Runs {
    fn decode(reader: &mut Reader) -> Result<Runs, DecodeError> {
        let (service, versions) = (Decode::decode(reader)?, Decode::decode(reader)?);
        Ok(Runs { service, versions, newest: Decode::decode(reader)? })
    }
}

impl Vitals {
    /// Whether it hears of this replica.
    #[must_use]
    pub fn hears(&self, id: ReplicaId) -> bool {
        self.hears >> id.0.min(31) & 1 == 1
    }

    /// What is signed for a client that sent `nonce`, of these vitals as encoded.
    #[must_use]
    pub fn present_digest(nonce: &[u8; 16], vitals: &[u8]) -> Digest {
        Digest::of(&[b"perdura.present.v1", &nonce[..], vitals].concat())
    }

    fn from_fields(mut fields: Fields) -> Result<Vitals, FieldError> {
        let vitals = Vitals {
            sent_ms: fields.need("sent-ms")?,
            wall: fields.need("wall")?,
            answers: fields.take("answers")?,
            condition: fields.need("condition")?,
            view: fields.need("view")?,
            decided: fields.need("decided")?,
            hears: fields.take("hears")?.unwrap_or_default(),
            flush_ms: fields.take("flush-ms")?.unwrap_or_default(),
            stalled_ms: fields.take("stalled-ms")?.unwrap_or_default(),
            trip_ms: fields.take("trip-ms")?.unwrap_or_default(),
            clock_wrong: fields.take("clock-wrong")?.unwrap_or_default(),
            differing: fields.take("differing")?,
            space: fields.take("disk-space")?,
            program: fields.take("program")?.unwrap_or_default(),
            runs: fields.take("runs")?,
        };
        fields.pass_over()?;
        Ok(vitals)
    }
}

impl Encode for Vitals {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut fields = Fields::default();
        fields.require("sent-ms", &self.sent_ms);
        fields.require("wall", &self.wall);
        if let Some(echo) = &self.answers {
            fields.offer("answers", echo);
        }
        fields.require("condition", &self.condition);
        fields.require("view", &self.view);
        fields.require("decided", &self.decided);
        fields.offer("hears", &self.hears);
        fields.offer("flush-ms", &self.flush_ms);
        if self.stalled_ms > 0 {
            fields.offer("stalled-ms", &self.stalled_ms);
        }
        fields.offer("trip-ms", &self.trip_ms);
        fields.offer("clock-wrong", &self.clock_wrong);
        if let Some(certifiable) = &self.differing {
            fields.offer("differing", certifiable);
        }
        if let Some(space) = &self.space {
            fields.offer("disk-space", space);
        }
        fields.offer("program", &self.program);
        if let Some(runs) = &self.runs {
            fields.offer("runs", runs);
        }
        fields.encode(out);
    }
}

impl Decode for Vitals {
    fn decode(reader: &mut Reader) -> Result<Vitals, DecodeError> {
        let fields = Fields::decode(reader)?;
        Vitals::from_fields(fields).map_err(|_| DecodeError::NotCanonical("vitals"))
    }
}

/// Vitals for one who asked, signed by the replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Presence {
    /// The question's.
    pub nonce: [u8; 16],
    /// Number of the configuration in which it is signed.
    pub configuration: u64,
    /// The encoded vitals.
    pub vitals: Bytes,
}

/// Largest encoding of vitals: those of this program take less than 400 bytes.
pub const VITALS_BYTES: usize = 4096;

impl Encode for Presence {
    fn encode(&self, out: &mut Vec<u8>) {
        self.nonce.encode(out);
        self.configuration.encode(out);
        encode_bytes(&self.vitals, out);
    }
}

impl Decode for Presence {
    fn decode(reader: &mut Reader) -> Result<Presence, DecodeError> {
        Ok(Presence {
            nonce: Decode::decode(reader)?,
            configuration: Decode::decode(reader)?,
            vitals: reader.bytes("vitals", VITALS_BYTES)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vitals() -> Vitals {
        Vitals {
            sent_ms: 7,
            wall: Time(8),
            answers: Some(Echo { sent_ms: 5, held_ms: 6 }),
            condition: Condition::Waiting,
            view: View(2),
            decided: Slot(3),
            hears: 0b101,
            flush_ms: 12,
            stalled_ms: 2_300,
            space: Some(DiskSpace { free_mib: 7, size_mib: 80_000 }),
            trip_ms: 3,
            clock_wrong: true,
            differing: Some(false),
            program: Program::new("0.1.0"),
            runs: Some(Runs {
                service: ServiceName::literal("kv"),
                versions: Versions::FIRST,
                newest: Versions::NEW,
            }),
        }
    }

    #[test]
    fn it_is_read_back_and_small() {
        let bytes = vitals().to_bytes();
        assert!(bytes.len() < 400, "{}", bytes.len());
        assert_eq!(Vitals::from_bytes(bytes), Ok(vitals()));
        assert!(vitals().hears(ReplicaId(2)) && !vitals().hears(ReplicaId(1)));
        assert!(!vitals().hears(ReplicaId(200)));
    }

    #[test]
    fn a_disk_is_nearly_full_from_a_tenth_on() {
        let is_nearly_full = |free_mib, size_mib| DiskSpace { free_mib, size_mib }.is_nearly_full();
        assert!(!is_nearly_full(101, 1_000));
        assert!(is_nearly_full(100, 1_000) && is_nearly_full(0, 1_000));
        assert!(!is_nearly_full(0, 0), "it has no size");
    }

    #[test]
    fn an_older_program_passes_over_what_a_newer_one_adds() {
        let mut fields = Fields::from_bytes(vitals().to_bytes()).unwrap();
        fields.offer("temperature", &40u64);
        assert_eq!(Vitals::from_bytes(fields.to_bytes()), Ok(vitals()));
        fields.require("mood", &1u64);
        assert!(Vitals::from_bytes(fields.to_bytes()).is_err());
    }

    #[test]
    fn a_version_is_text_that_prints() {
        assert_eq!(Program::new("1.0\u{1b}[2J\n").as_str(), "1.0[2J");
        assert_eq!(Program::new(&"x".repeat(100)).as_str().len(), PROGRAM_BYTES);
        let mut bytes = Vec::new();
        encode_bytes(b"1.0\x1b[2J", &mut bytes);
        assert!(Program::from_bytes(bytes.into()).is_err());
    }
}
