//! The first frame of a dialler and the answer to it.
//!
//! Magic and version stand first and never change their place, so that any two versions can tell
//! each other which they are; everything after the version is read only by those who know it.

use crate::bounds::REFUSAL_REASON_BYTES;
use perdura_protocol::codec::encode_bytes;
use perdura_protocol::{ClusterId, Decode, DecodeError, Digest, Encode, Lane, Reader, ReplicaId};

/// The version of messages and handshake that this build speaks.
pub const PROTOCOL_VERSION: u16 = 3;

const MAGIC: [u8; 8] = *b"PERDURA\0";

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
    },
    /// A client.
    Client,
    /// The administrator.
    Admin,
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

/// The answer to a hello.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Messages may follow.
    Welcome {
        /// Version of the protocol that is spoken from here on.
        version: u16,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AnyHello {
    Ours(Hello),
    OtherVersion(u16),
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

impl Encode for Hello {
    fn encode(&self, out: &mut Vec<u8>) {
        MAGIC.encode(out);
        self.version.encode(out);
        self.cluster.encode(out);
        self.parameters.encode(out);
        match self.role {
            Role::Replica { id, incarnation, lane } => {
                out.push(match lane {
                    Lane::Agreement => 0,
                    Lane::Transfer => 3,
                });
                id.encode(out);
                incarnation.encode(out);
            }
            Role::Client => out.push(1),
            Role::Admin => out.push(2),
        }
    }
}

impl AnyHello {
    pub(crate) fn decode(bytes: bytes::Bytes) -> Result<AnyHello, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.array::<8>()? != MAGIC {
            return Err(DecodeError::NotCanonical("no hello of this protocol"));
        }
        let version = u16::decode(&mut reader)?;
        if version != PROTOCOL_VERSION {
            return Ok(AnyHello::OtherVersion(version));
        }
        let cluster = Decode::decode(&mut reader)?;
        let parameters = Decode::decode(&mut reader)?;
        let role = match u8::decode(&mut reader)? {
            tag @ (0 | 3) => Role::Replica {
                id: Decode::decode(&mut reader)?,
                incarnation: Decode::decode(&mut reader)?,
                lane: if tag == 0 { Lane::Agreement } else { Lane::Transfer },
            },
            1 => Role::Client,
            2 => Role::Admin,
            tag => return Err(DecodeError::UnknownTag(tag)),
        };
        reader.finish()?;
        Ok(AnyHello::Ours(Hello { version, cluster, parameters, role }))
    }
}

impl Answer {
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
            Answer::Welcome { version } => {
                out.push(0);
                version.encode(out);
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
            0 => Ok(Answer::Welcome { version: Decode::decode(reader)? }),
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
    use bytes::Bytes;

    #[test]
    fn hellos_go_both_ways_and_other_versions_are_told_apart() {
        let replica = |lane| Role::Replica { id: ReplicaId(3), incarnation: 2, lane };
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
        assert!(words.contains("version 3") && words.contains("version 4"), "{words}");
    }

    #[test]
    fn long_reasons_are_cut_at_a_character() {
        let answer = Answer::refused(&Refusal("é".repeat(1000)));
        let Answer::Refused { reason, .. } = &answer else { panic!("not refused") };
        assert_eq!(reason.len(), REFUSAL_REASON_BYTES);
        assert_eq!(Answer::from_bytes(answer.to_bytes()), Ok(answer));
    }
}
