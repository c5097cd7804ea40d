//! A service whose replies state things to those outside, and whose commands prove such statements of another group.

#![allow(dead_code, missing_docs)]

pub mod single;

use bytes::Bytes;
use perdura_execution::{
    ExecutionContext, Failure, Interface, QueryContext, RestoreError, Service, Snapshot,
};
use perdura_protocol::attestation::Attestation;
use perdura_protocol::codec::{encode_bytes, encode_list};
use perdura_protocol::keys::Claim;
use perdura_protocol::statement::STATEMENT_BYTES;
use perdura_protocol::{
    ClusterId, Command, Decode, DecodeError, Encode, PublicKey, Reader, Scheme, SecretKey,
};
use std::sync::Arc;

/// The other group's id.
pub const ELSEWHERE: ClusterId = ClusterId([77; 16]);

/// Its members' keys: those that members have here, too, so that the group's id alone tells whose word it is.
pub fn elsewhere(scheme: Scheme, id: u8) -> SecretKey {
    SecretKey::from_seed(scheme, [10 + id; 32])
}

/// What was stated here, and proven of elsewhere, in order.
#[derive(Clone, Debug)]
pub struct Notary {
    said: Vec<Bytes>,
    scheme: Scheme,
}

impl Notary {
    pub fn new(scheme: Scheme) -> Notary {
        Notary { said: Vec::new(), scheme }
    }
}

/// A command: its reply states `text`, "TEXT, said here".
pub fn say(text: &str) -> Bytes {
    Bytes::from(format!("say {text}"))
}

/// What the reply to that states.
pub fn leaf(text: &str) -> Bytes {
    Bytes::from(format!("{text}, said here"))
}

/// What a reply states.
pub fn leaf_of(reply: &[u8]) -> Option<Bytes> {
    reply.ends_with(b", said here").then(|| Bytes::copy_from_slice(reply))
}

/// A command that is ordered only if the other group's members attested this leaf.
pub fn prove(leaf: &[u8], attestations: &[Attestation]) -> Bytes {
    let mut out = b"prove ".to_vec();
    encode_bytes(leaf, &mut out);
    encode_list(attestations, &mut out);
    out.into()
}

/// As a client sends it.
pub fn encoded(content: Bytes) -> Bytes {
    Command::Service(content).to_bytes()
}

struct Proof {
    leaf: Bytes,
    attestations: Vec<Attestation>,
}

impl Decode for Proof {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let leaf = reader.bytes("leaf", 512)?;
        Ok(Proof { leaf, attestations: reader.list("attestations", 1024, 80)? })
    }
}

fn proof(command: &[u8]) -> Option<Option<Proof>> {
    let encoded = command.strip_prefix(b"prove ")?;
    Some(Proof::from_bytes(Bytes::copy_from_slice(encoded)).ok())
}

struct Said(Vec<Bytes>);

impl Snapshot for Said {
    fn segments(&self) -> usize {
        self.0.len()
    }

    fn segment(&self, index: usize) -> Bytes {
        self.0[index].clone()
    }
}

impl Service for Notary {
    fn execute(&mut self, _: &ExecutionContext, command: &[u8]) -> Result<Bytes, Failure> {
        if command == b"all" {
            let all = [self.said.join(&b';'), b";".to_vec()].concat();
            return Ok(Bytes::from(all));
        }
        let text = match (command.strip_prefix(b"say "), proof(command).flatten()) {
            (Some(text), _) => leaf(std::str::from_utf8(text).map_err(|e| e.to_string())?),
            (None, Some(proof)) => Bytes::from([&proof.leaf[..], b", said elsewhere"].concat()),
            (None, None) => return Err("say, prove, or all".into()),
        };
        self.said.push(text.clone());
        Ok(text)
    }

    fn query(&self, _: &QueryContext<'_>, command: &[u8]) -> Option<Result<Bytes, String>> {
        // As if somebody could be made to sign what was never ordered.
        let text = command.strip_prefix(b"say ")?;
        Some(Ok(leaf(std::str::from_utf8(text).ok()?)))
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        Arc::new(Said(self.said.clone()))
    }

    fn install(&mut self, _: usize, segment: Bytes) -> Result<(), RestoreError> {
        self.said.push(segment);
        Ok(())
    }

    fn interface(&self) -> Arc<dyn Interface> {
        Arc::new(Seal(self.scheme))
    }
}

/// What it says by itself.
struct Seal(Scheme);

impl Interface for Seal {
    fn attested(&self, reply: &[u8]) -> Option<Bytes> {
        leaf_of(reply)
    }

    fn claims(&self, command: &[u8]) -> Option<Vec<Claim<[u8; STATEMENT_BYTES]>>> {
        let Some(proof) = proof(command) else { return Some(Vec::new()) };
        let Proof { leaf, attestations } = proof?;
        let key = |id: u8| -> PublicKey { elsewhere(self.0, id).public() };
        let claim = |one: &Attestation| one.claim(ELSEWHERE, &leaf, key(one.signer.0));
        attestations.iter().map(claim).collect()
    }
}
