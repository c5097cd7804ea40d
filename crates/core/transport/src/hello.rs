//! The first frame of a dialler and the answer to it.
//!
//! Magic and version stand first and never change their place, so that any two versions can tell
//! each other which they are; a refusal never changes at all. What follows is fields by name (`perdura_protocol::fields`), so that
//! most of what later programs add takes no other version: a field that this one does not know is passed over, or is a reason to
//! refuse the one that connects by the field's name.

use crate::bounds::REFUSAL_REASON_BYTES;
use bytes::Bytes;
use perdura_protocol::codec::encode_bytes;
use perdura_protocol::fields::{FieldError, Fields};
use perdura_protocol::{
    BootId, ClusterId, Decode, DecodeError, Digest, Encode, Lane, Reader, ReplicaId,
};

/// The version of messages and handshake that this build speaks.
pub const PROTOCOL_VERSION: u16 = 4;

const MAGIC: [u8; 8] = *b"PERDURA\0";

/// The replica keeps states for a moment and takes reads of one of them (`Message::ReadAt`). Older programs do not, and do not say so.
pub(crate) const KEEPS_STATES: &str = "keeps-states";

const REPLICA: u8 = 0;
const CLIENT: u8 = 1;
const ADMIN: u8 = 2;

/// As what the dialler comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A replica of the group.
    Replica {
        /// Its id.
        id: ReplicaId,
        /// Its incarnation (rule D8).
        incarnation: u32,
        /// Which of the two links between a pair of replicas this is to be.
        lane: Lane,
        /// Its run.
        boot: BootId,
    },
    /// A client.
    Client,
    /// The administrator.
    Admin,
}

impl Role {
    /// The run of who comes, if that is a replica.
    #[must_use]
    pub fn boot(self) -> Option<BootId> {
        match self {
            Role::Replica { boot, .. } => Some(boot),
            Role::Client | Role::Admin => None,
        }
    }
}

/// What a dialler says first. Its key is proven by TLS and not repeated here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Version of the protocol that the dialler speaks.
    pub version: u16,
    /// The cluster that it wants to talk to.
    pub cluster: ClusterId,
    /// Digest of the cluster's parameters; zero from clients, who need not know them.
    pub parameters: Digest,
    /// As what it comes.
    pub role: Role,
}

/// Why a peer is not admitted, in words for the person who reads the peer's log.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// How the reason of a refusal ends that may be gone the next time. Whatever else refuses does so until somebody changes something.
const FOR_NOW: &str = "; try again later";

impl Refusal {
    /// One that may be gone the next time.
    #[must_use]
    pub fn for_now(why: impl std::fmt::Display) -> Refusal {
        Refusal(format!("{why}{FOR_NOW}"))
    }

    /// Whether that is the reason of such a one.
    #[must_use]
    pub fn is_for_now(reason: &str) -> bool {
        reason.ends_with(FOR_NOW)
    }
}

/// The answer to a hello.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Messages may follow.
    Welcome {
        /// Version of the protocol that is spoken from here on.
        version: u16,
        /// The run of the replica that answers.
        boot: Option<BootId>,
        /// Other fields, of this program and newer ones. Some may be passed over.
        others: Fields,
    },
    /// The connection ends.
    Refused {
        /// Version that the one who refuses speaks.
        version: u16,
        /// Why, at most [`REFUSAL_REASON_BYTES`] bytes.
        reason: String,
    },
}

/// A hello whose version is not ours carries nothing else that we could read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AnyHello {
    Ours(Hello),
    /// It has a field that may not be passed over.
    Unknown(String),
    OtherVersion(u16),
}

/// Why bytes are no hello.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HelloError {
    /// They do not decode.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Its fields are not those of a hello.
    #[error(transparent)]
    Fields(#[from] FieldError),
}

impl Hello {
    /// A client's hello in this build's version.
    #[must_use]
    pub fn client(cluster: ClusterId, role: Role) -> Hello {
        Hello { version: PROTOCOL_VERSION, cluster, parameters: Digest::ZERO, role }
    }
}

/// What to tell a peer that speaks another version.
pub(crate) fn version_refusal(theirs: u16) -> Refusal {
    let advice = if theirs > PROTOCOL_VERSION {
        "upgrade this replica first"
    } else {
        "upgrade the one that connects"
    };
    Refusal(format!(
        "this replica speaks protocol version {PROTOCOL_VERSION}, the one that connects speaks \
         version {theirs}; {advice}"
    ))
}

/// What to tell a peer that says more than this program understands.
pub(crate) fn unknown_refusal(field: &str) -> Refusal {
    Refusal(format!(
        "the one that connects is a newer program, and its {field:?} may not be passed over by this replica, which does not \
         know it; upgrade this replica first"
    ))
}

impl Hello {
    fn fields(&self) -> Fields {
        let mut fields = Fields::default();
        fields.require("cluster", &self.cluster);
        fields.require("parameters", &self.parameters);
        match self.role {
            Role::Replica { id, incarnation, lane, boot } => {
                fields.require("role", &REPLICA);
                fields.require("replica", &id);
                fields.require("incarnation", &incarnation);
                fields.require("lane", &(lane as u8));
                fields.require("boot", &boot);
            }
            Role::Client => fields.require("role", &CLIENT),
            Role::Admin => fields.require("role", &ADMIN),
        }
        fields
    }

    fn from_fields(version: u16, fields: &mut Fields) -> Result<Hello, FieldError> {
        let (cluster, parameters) = (fields.need("cluster")?, fields.need("parameters")?);
        let malformed = |name, tag| {
            let reason = DecodeError::UnknownTag(tag);
            FieldError::Malformed { name, reason }
        };
        let role = match fields.need("role")? {
            REPLICA => Role::Replica {
                id: fields.need("replica")?,
                incarnation: fields.need("incarnation")?,
                lane: match fields.need("lane")? {
                    0 => Lane::Agreement,
                    1 => Lane::Transfer,
                    tag => return Err(malformed("lane", tag)),
                },
                boot: fields.need("boot")?,
            },
            CLIENT => Role::Client,
            ADMIN => Role::Admin,
            tag => return Err(malformed("role", tag)),
        };
        fields.pass_over()?;
        Ok(Hello { version, cluster, parameters, role })
    }
}

impl Encode for Hello {
    fn encode(&self, out: &mut Vec<u8>) {
        MAGIC.encode(out);
        self.version.encode(out);
        self.fields().encode(out);
    }
}

impl AnyHello {
    pub(crate) fn decode(bytes: Bytes) -> Result<AnyHello, HelloError> {
        let mut reader = Reader::new(bytes);
        if reader.array::<8>()? != MAGIC {
            return Err(DecodeError::NotCanonical("no hello of this protocol").into());
        }
        let version = u16::decode(&mut reader)?;
        if version != PROTOCOL_VERSION {
            return Ok(AnyHello::OtherVersion(version));
        }
        let mut fields = Fields::decode(&mut reader)?;
        reader.finish()?;
        match Hello::from_fields(version, &mut fields) {
            Ok(hello) => Ok(AnyHello::Ours(hello)),
            Err(FieldError::Unknown(name)) => Ok(AnyHello::Unknown(name)),
            Err(error) => Err(error.into()),
        }
    }
}

impl Answer {
    /// The welcome of this build.
    #[must_use]
    pub fn welcome(boot: Option<BootId>, keeps_states: bool) -> Answer {
        let mut others = Fields::default();
        if keeps_states {
            others.offer(KEEPS_STATES, &1u8);
        }
        Answer::Welcome { version: PROTOCOL_VERSION, boot, others }
    }

    /// A refusal by this build; the reason is cut at its bound.
    #[must_use]
    pub fn refused(refusal: &Refusal) -> Answer {
        let mut reason = refusal.0.clone();
        while reason.len() > REFUSAL_REASON_BYTES {
            reason.pop();
        }
        Answer::Refused { version: PROTOCOL_VERSION, reason }
    }
}

impl Encode for Answer {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Answer::Welcome { version, boot, others } => {
                out.push(0);
                version.encode(out);
                let mut fields = Fields::default();
                if let Some(boot) = boot {
                    fields.require("boot", boot);
                }
                fields.put_back(others);
                fields.encode(out);
            }
            Answer::Refused { version, reason } => {
                out.push(1);
                version.encode(out);
                encode_bytes(reason.as_bytes(), out);
            }
        }
    }
}

impl Decode for Answer {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => {
                let version = Decode::decode(reader)?;
                let mut fields = Fields::decode(reader)?;
                let boot = fields.take_required("boot");
                let boot = boot.map_err(|_| DecodeError::NotCanonical("boot in a welcome"))?;
                Ok(Answer::Welcome { version, boot, others: fields })
            }
            1 => {
                let version = Decode::decode(reader)?;
                let reason = reader.bytes("reason of a refusal", REFUSAL_REASON_BYTES)?;
                let reason = String::from_utf8(reason.to_vec())
                    .map_err(|_| DecodeError::NotCanonical("text is not UTF-8"))?;
                Ok(Answer::Refused { version, reason })
            }
            tag => Err(DecodeError::UnknownTag(tag)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_go_both_ways_and_other_versions_are_told_apart() {
        let replica = |lane| Role::Replica {
            id: ReplicaId(3),
            incarnation: 2,
            lane,
            boot: BootId { number: 4, nonce: [9; 16] },
        };
        let lanes = [Lane::Agreement, Lane::Transfer].map(replica);
        for role in lanes.into_iter().chain([Role::Client, Role::Admin]) {
            let hello = Hello { role, ..Hello::client(ClusterId([7; 16]), Role::Client) };
            assert_eq!(AnyHello::decode(hello.to_bytes()), Ok(AnyHello::Ours(hello)));
        }
        let mut newer = Hello::client(ClusterId([7; 16]), Role::Client);
        newer.version = PROTOCOL_VERSION + 1;
        let mut bytes = newer.to_bytes().to_vec();
        bytes.extend_from_slice(b"what the next version adds");
        assert_eq!(
            AnyHello::decode(bytes.into()),
            Ok(AnyHello::OtherVersion(PROTOCOL_VERSION + 1))
        );
        assert!(AnyHello::decode(Bytes::from_static(b"GET / HTTP/1.1")).is_err());
        let words = version_refusal(PROTOCOL_VERSION + 1).to_string();
        assert!(words.contains("version 4") && words.contains("version 5"), "{words}");
    }

    /// A client's hello of a newer program, with one more field.
    fn newer(required: bool) -> Bytes {
        let hello = Hello::client(ClusterId([7; 16]), Role::Client);
        let mut fields = hello.fields();
        if required {
            fields.require("colour", &7u8);
        } else {
            fields.offer("colour", &7u8);
        }
        let mut out = hello.to_bytes()[..10].to_vec();
        fields.encode(&mut out);
        out.into()
    }

    #[test]
    fn a_newer_programs_field_is_passed_over_or_refused_by_name() {
        let hello = Hello::client(ClusterId([7; 16]), Role::Client);
        assert_eq!(AnyHello::decode(newer(false)), Ok(AnyHello::Ours(hello)));
        assert_eq!(AnyHello::decode(newer(true)), Ok(AnyHello::Unknown("colour".into())));
        assert!(unknown_refusal("colour").to_string().contains("\"colour\""));
        let mut incomplete = hello.to_bytes()[..10].to_vec();
        Fields::default().encode(&mut incomplete);
        let missing = HelloError::Fields(FieldError::Missing("cluster"));
        assert_eq!(AnyHello::decode(incomplete.into()), Err(missing));
    }

    #[test]
    fn a_welcome_says_whose_run_it_is() {
        for boot in [None, Some(BootId { number: 4, nonce: [9; 16] })] {
            for keeps_states in [false, true] {
                let answer = Answer::welcome(boot, keeps_states);
                assert_eq!(Answer::from_bytes(answer.to_bytes()), Ok(answer));
            }
        }
        for required in [false, true] {
            let mut unknown = Fields::default();
            match required {
                true => unknown.require("colour", &7u8),
                false => unknown.offer("colour", &7u8),
            }
            assert_eq!(unknown.pass_over().is_err(), required);
            let newer = Answer::Welcome { version: PROTOCOL_VERSION, boot: None, others: unknown };
            assert_eq!(Answer::from_bytes(newer.to_bytes()), Ok(newer));
        }
    }

    #[test]
    fn long_reasons_are_cut_at_a_character() {
        let answer = Answer::refused(&Refusal("é".repeat(1000)));
        let Answer::Refused { reason, .. } = &answer else { panic!("not refused") };
        assert_eq!(reason.len(), REFUSAL_REASON_BYTES);
        assert_eq!(Answer::from_bytes(answer.to_bytes()), Ok(answer));
    }
}
