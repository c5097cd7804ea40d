//! Commands as replicas see them, and what becomes of them.
//!
//! A command is a tag byte and its content. Services see the content of [`Command::Service`] only;
//! sessions and administration are the execution layer's own.

use crate::codec::{Decode, DecodeError, Encode, Reader, encode_bytes, encode_count};
use crate::ids::{ReplicaId, Time};
use crate::keys::PublicKey;
use crate::limits;
use crate::text::Printable;
use crate::versions::Versions;
use bytes::Bytes;

/// A decoded command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Opens the session; always its number 0, in a frame by itself.
    Open,
    /// The same, by a process that drew `token` at random: two that come upon one session number do not share a session. Known from version 1
    /// of the rules on.
    OpenBy {
        /// Of this process and session.
        token: [u8; 16],
    },
    /// A command of the replicated service.
    Service(Bytes),
    /// Administration; refused unless the session's client is the administrator.
    Admin(AdminCommand),
    /// The session's client is there: what waits in it goes on waiting. In a frame by itself, with a number from [`limits::FIRST_RENEWAL`]
    /// on that is larger than those before. Known from version 1 of the rules on.
    Renew,
    /// Ends the session, in order, with a number as any command; in a frame by itself. Known from version 1 of the rules on.
    Close,
    /// Nobody asks for the outcome of another number of the session any more: if it waits, or was offered something, it gets nothing; if it was
    /// not executed, it never is. What it came to is told again. Known from version 1 of the rules on.
    Withdraw {
        /// Which.
        number: u64,
    },
    /// The client has what another number of the session, which had waited, came to: what it was offered is its own now, and is kept no
    /// longer. Refused ([`RefusalReason::Withdrawn`]) if nothing is kept under that number: then it came too late, and
    /// nothing was handed over. Known from version 1 of the rules on.
    Confirm {
        /// Which.
        number: u64,
    },
}

/// What only the administrator may order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminCommand {
    /// Registers a client key under a name; replaces nothing.
    AddClient {
        /// Unique, 1 to 64 bytes of UTF-8.
        name: String,
        /// The client's public key.
        key: PublicKey,
    },
    /// Removes the client key with this name, and its sessions.
    RevokeClient {
        /// As registered.
        name: String,
    },
    /// Replaces a replica by a new incarnation with a fresh key (rule D8). Takes effect one
    /// pipeline depth later, as a new configuration.
    ReplaceReplica {
        /// Which replica.
        replica: ReplicaId,
        /// Its next incarnation: the current one plus one.
        incarnation: u32,
        /// Its new key.
        key: PublicKey,
    },
    /// Raises the versions under which slots are executed, from the next slot on.
    RaiseVersions(Versions),
    /// Raises the limit of the service's state, from the next slot on.
    RaiseStateLimit {
        /// At most [`limits::STATE_LIMIT_BYTES`].
        bytes: u64,
    },
    /// Asks for the registered clients, a [`ClientList`]; changes nothing.
    ListClients,
    /// Makes another key the administrator's, in place of the one that signs this.
    ReplaceAdministrator {
        /// The new one.
        key: PublicKey,
    },
}

impl AdminCommand {
    /// The first version of the core's rules that knows the command. Under older ones it is malformed, as to the
    /// programs that knew nothing newer and may still run beside this one: so all answer the same. What raises the rules is known under all,
    /// and is ordered when no such program is left.
    #[must_use]
    pub fn since(&self) -> u16 {
        match self {
            AdminCommand::AddClient { .. }
            | AdminCommand::RevokeClient { .. }
            | AdminCommand::ReplaceReplica { .. }
            | AdminCommand::RaiseVersions(_) => 0,
            AdminCommand::RaiseStateLimit { .. }
            | AdminCommand::ListClients
            | AdminCommand::ReplaceAdministrator { .. } => 1,
        }
    }
}

/// The registered clients, ascending by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientList(pub Vec<(String, PublicKey)>);

/// All that can be registered, with names of any length, are one reply.
const _: () =
    assert!(4 + limits::CLIENTS * (4 + limits::CLIENT_NAME_BYTES + 32) <= limits::FRAME_BYTES);

impl Encode for ClientList {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_count(self.0.len(), out);
        for (name, key) in &self.0 {
            encode_bytes(name.as_bytes(), out);
            key.encode(out);
        }
    }
}

impl Decode for ClientList {
    fn decode(reader: &mut Reader) -> Result<ClientList, DecodeError> {
        let mut clients: Vec<(String, PublicKey)> = Vec::new();
        for _ in 0..reader.count("clients", limits::CLIENTS, 36)? {
            let name = decode_text(reader, "client name", limits::CLIENT_NAME_BYTES)?;
            if clients.last().is_some_and(|(last, _)| *last >= name) {
                return Err(DecodeError::NotCanonical("clients are not ascending"));
            }
            clients.push((name, Decode::decode(reader)?));
        }
        Ok(ClientList(clients))
    }
}

/// The result of a command as its session remembers it. Equal on all correct replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The session is open; the answer to what opens and renews it, and to what withdraws or confirms one of its numbers.
    Opened,
    /// The service's reply.
    Service(Bytes),
    /// What a command that had waited came to. It is kept until the client says that it has it ([`Command::Confirm`]).
    Waited {
        /// None of those that are told of commands that wait, or of sessions.
        outcome: Box<Outcome>,
        /// Whether something is handed over by it, which is the client's when that is confirmed within [`limits::OFFER_MS`], and else the
        /// next one's.
        offer: bool,
    },
    /// The administration command was carried out; for a replaced replica, the number of the
    /// configuration that it starts and its first slot.
    Administered {
        /// Number of the latest configuration.
        configuration: u64,
        /// First slot of the latest configuration.
        from_slot: u64,
    },
    /// What the administrator asked for, as the command says.
    Told(Bytes),
    /// The command was carried out, and its reply is larger than replicas send ([`limits::FRAME_BYTES`]). From version 1 of the rules on;
    /// before, that is [`Outcome::TooOld`].
    TooLarge {
        /// The reply's length.
        bytes: u64,
    },
    /// It waits: its outcome comes by itself. Told at once, and to who asks again, from version 1 of the rules on.
    Waits,
    /// The command was ordered and changed nothing.
    Refused(RefusalReason),
    /// The reply is gone: the number lies below what the client acknowledged, or was evicted. It
    /// may have executed.
    TooOld,
    /// There is no such session: it ended, was revoked, or never opened. An earlier try of the
    /// command may have executed. Also the answer to what closes a session.
    NoSession,
}

/// Why an ordered command was refused. It changed nothing, on any replica.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RefusalReason {
    /// The client's key is not registered, or was revoked.
    #[error("the client's key is not registered; register it with `perdura client add`")]
    UnknownClient,
    /// Only the administrator may do this.
    #[error("only the administrator may do this; use the key in admin.toml")]
    NotAdministrator,
    /// The command's number is too far above the acknowledged ones.
    #[error("too many commands of the session are unacknowledged")]
    WindowExceeded,
    /// The command does not decode.
    #[error("the command is malformed")]
    Malformed,
    /// The administration command contradicts the state (name taken, no such client, wrong
    /// incarnation), in words.
    #[error("{}", Printable(.0))]
    Contradiction(String),
    /// The service refused, in words.
    #[error("{}", Printable(.0))]
    Service(String),
    /// The number of the session that was to be opened is more than [`limits::NONCE_MS`] from agreed time, or lies below what may be opened.
    /// Nothing was remembered of it; a client whose clock is wrong numbers its sessions by this one.
    #[error(
        "no session with this number can be opened now: the group's clock shows {time} ms since 1970, and numbers start at {from}"
    )]
    NotNow {
        /// Agreed time.
        time: Time,
        /// The lowest number that can open a session now.
        from: u64,
    },
    /// It waited, and does so no longer: its client withdrew it, was not heard of for [`limits::ATTENDED_MS`], or did not confirm within
    /// [`limits::OFFER_MS`] what it was offered. It got nothing.
    #[error(
        "it was withdrawn while it waited: its client gave it up, was not heard of for 10 s, or did not take within 1 s what it was handed"
    )]
    Withdrawn,
    /// Not now: its client has used up its share of the slot, its session keeps too many bytes of replies, or this is so of a command before
    /// it. Nothing was remembered of it, and it may be carried out when it is ordered again. From version 2 of the rules on.
    #[error(
        "its client asked for more at once than its share, or has not acknowledged what it was answered"
    )]
    PutOff,
}

impl Command {
    /// What the service sees of an encoded command, if that is [`Command::Service`].
    #[must_use]
    pub fn service_content(encoded: &[u8]) -> Option<&[u8]> {
        let (tag, content) = encoded.split_first()?;
        (*tag == 1).then_some(content)
    }
}

impl Encode for Command {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Command::Open => out.push(0),
            Command::Service(content) => {
                out.push(1);
                out.extend_from_slice(content);
            }
            Command::Admin(command) => {
                out.push(2);
                command.encode(out);
            }
            Command::Renew => out.push(3),
            Command::Close => out.push(4),
            Command::Withdraw { number } => {
                out.push(5);
                number.encode(out);
            }
            Command::OpenBy { token } => {
                out.push(6);
                out.extend_from_slice(token);
            }
            Command::Confirm { number } => {
                out.push(7);
                number.encode(out);
            }
        }
    }
}

impl Decode for Command {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(Command::Open),
            1 => Ok(Command::Service(reader.take(reader.remaining())?)),
            2 => Ok(Command::Admin(AdminCommand::decode(reader)?)),
            3 => Ok(Command::Renew),
            4 => Ok(Command::Close),
            5 => Ok(Command::Withdraw { number: Decode::decode(reader)? }),
            6 => Ok(Command::OpenBy { token: Decode::decode(reader)? }),
            7 => Ok(Command::Confirm { number: Decode::decode(reader)? }),
            tag => Err(DecodeError::UnknownTag(tag)),
        }
    }
}

fn decode_text(
    reader: &mut Reader,
    what: &'static str,
    limit: usize,
) -> Result<String, DecodeError> {
    let bytes = reader.bytes(what, limit)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::NotCanonical("text is not UTF-8"))
}

impl Encode for AdminCommand {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            AdminCommand::AddClient { name, key } => {
                out.push(0);
                encode_bytes(name.as_bytes(), out);
                key.encode(out);
            }
            AdminCommand::RevokeClient { name } => {
                out.push(1);
                encode_bytes(name.as_bytes(), out);
            }
            AdminCommand::ReplaceReplica { replica, incarnation, key } => {
                out.push(2);
                replica.encode(out);
                incarnation.encode(out);
                key.encode(out);
            }
            AdminCommand::RaiseVersions(versions) => {
                out.push(3);
                versions.encode(out);
            }
            AdminCommand::RaiseStateLimit { bytes } => {
                out.push(4);
                bytes.encode(out);
            }
            AdminCommand::ListClients => out.push(5),
            AdminCommand::ReplaceAdministrator { key } => {
                out.push(6);
                key.encode(out);
            }
        }
    }
}

impl Decode for AdminCommand {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let limit = limits::CLIENT_NAME_BYTES;
        match u8::decode(reader)? {
            0 => Ok(AdminCommand::AddClient {
                name: decode_text(reader, "client name", limit)?,
                key: Decode::decode(reader)?,
            }),
            1 => {
                Ok(AdminCommand::RevokeClient { name: decode_text(reader, "client name", limit)? })
            }
            2 => Ok(AdminCommand::ReplaceReplica {
                replica: Decode::decode(reader)?,
                incarnation: Decode::decode(reader)?,
                key: Decode::decode(reader)?,
            }),
            3 => Ok(AdminCommand::RaiseVersions(Decode::decode(reader)?)),
            4 => Ok(AdminCommand::RaiseStateLimit { bytes: Decode::decode(reader)? }),
            5 => Ok(AdminCommand::ListClients),
            6 => Ok(AdminCommand::ReplaceAdministrator { key: Decode::decode(reader)? }),
            tag => Err(DecodeError::UnknownTag(tag)),
        }
    }
}

impl Outcome {
    /// The service's reply that a replica may attest to those outside of its group: none of an offer, which may be taken back.
    #[must_use]
    pub fn attesting(&self) -> Option<&Bytes> {
        match self {
            Outcome::Service(reply) => Some(reply),
            Outcome::Waited { outcome, offer: false } => outcome.attesting(),
            _ => None,
        }
    }
}

impl Encode for Outcome {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Outcome::Opened => out.push(0),
            Outcome::Service(reply) => {
                out.push(1);
                encode_bytes(reply, out);
            }
            Outcome::Administered { configuration, from_slot } => {
                out.push(2);
                configuration.encode(out);
                from_slot.encode(out);
            }
            Outcome::Refused(reason) => {
                out.push(3);
                reason.encode(out);
            }
            Outcome::TooOld => out.push(4),
            Outcome::NoSession => out.push(5),
            Outcome::Told(answer) => {
                out.push(6);
                encode_bytes(answer, out);
            }
            Outcome::TooLarge { bytes } => {
                out.push(7);
                bytes.encode(out);
            }
            Outcome::Waits => out.push(8),
            Outcome::Waited { outcome, offer } => {
                out.push(9);
                offer.encode(out);
                outcome.encode(out);
            }
        }
    }
}

impl Decode for Outcome {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let tag = u8::decode(reader)?;
        if tag != 9 {
            return Outcome::of_tag(tag, reader);
        }
        let offer = Decode::decode(reader)?;
        match u8::decode(reader)? {
            tag @ (1 | 3 | 4 | 7) => {
                let outcome = Box::new(Outcome::of_tag(tag, reader)?);
                Ok(Outcome::Waited { outcome, offer })
            }
            _ => Err(DecodeError::NotCanonical("what a command that waited came to")),
        }
    }
}

impl Outcome {
    fn of_tag(tag: u8, reader: &mut Reader) -> Result<Outcome, DecodeError> {
        match tag {
            0 => Ok(Outcome::Opened),
            1 => Ok(Outcome::Service(reader.bytes("reply", limits::FRAME_BYTES)?)),
            2 => Ok(Outcome::Administered {
                configuration: Decode::decode(reader)?,
                from_slot: Decode::decode(reader)?,
            }),
            3 => Ok(Outcome::Refused(RefusalReason::decode(reader)?)),
            4 => Ok(Outcome::TooOld),
            5 => Ok(Outcome::NoSession),
            6 => Ok(Outcome::Told(reader.bytes("answer", limits::FRAME_BYTES)?)),
            7 => Ok(Outcome::TooLarge { bytes: Decode::decode(reader)? }),
            8 => Ok(Outcome::Waits),
            tag => Err(DecodeError::UnknownTag(tag)),
        }
    }
}

impl Encode for RefusalReason {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            RefusalReason::UnknownClient => out.push(0),
            RefusalReason::NotAdministrator => out.push(1),
            RefusalReason::WindowExceeded => out.push(2),
            RefusalReason::Malformed => out.push(3),
            RefusalReason::Contradiction(text) => {
                out.push(4);
                encode_bytes(text.as_bytes(), out);
            }
            RefusalReason::Service(text) => {
                out.push(5);
                encode_bytes(text.as_bytes(), out);
            }
            RefusalReason::NotNow { time, from } => {
                out.push(6);
                time.encode(out);
                from.encode(out);
            }
            RefusalReason::Withdrawn => out.push(7),
            RefusalReason::PutOff => out.push(8),
        }
    }
}

impl Decode for RefusalReason {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(reader)? {
            0 => RefusalReason::UnknownClient,
            1 => RefusalReason::NotAdministrator,
            2 => RefusalReason::WindowExceeded,
            3 => RefusalReason::Malformed,
            4 => RefusalReason::Contradiction(decode_text(reader, "reason", 4096)?),
            5 => RefusalReason::Service(decode_text(reader, "reason", 4096)?),
            6 => RefusalReason::NotNow {
                time: Decode::decode(reader)?,
                from: Decode::decode(reader)?,
            },
            7 => RefusalReason::Withdrawn,
            8 => RefusalReason::PutOff,
            tag => return Err(DecodeError::UnknownTag(tag)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_service_sees_is_what_a_client_gave_it() {
        for content in ["", "content"] {
            let command = Command::Service(Bytes::from_static(content.as_bytes())).to_bytes();
            assert_eq!(Command::service_content(&command), Some(content.as_bytes()));
            assert_eq!(Command::from_bytes(command).unwrap().to_bytes()[1..], *content.as_bytes());
        }
        assert_eq!(Command::service_content(&Command::Open.to_bytes()), None);
        assert_eq!(Command::service_content(&[2, 0]), None);
        assert_eq!(Command::service_content(&[]), None);
    }

    #[test]
    fn the_longest_list_of_clients_is_one_reply() {
        let name = |number: usize| format!("{number:0>width$}", width = limits::CLIENT_NAME_BYTES);
        let key = PublicKey([7; 32]);
        let clients = (0..limits::CLIENTS).map(|number| (name(number), key)).collect();
        let list = ClientList(clients);
        let told = Outcome::Told(list.to_bytes());
        assert_eq!(Outcome::from_bytes(told.to_bytes()), Ok(told));
        assert_eq!(ClientList::from_bytes(list.to_bytes()), Ok(list));
        let twice = ClientList(vec![("a".into(), key), ("a".into(), key)]);
        assert!(ClientList::from_bytes(twice.to_bytes()).is_err());
    }
}
