//! What a replica says of its group's state to those outside of the group, so that they can prove it to others: the votes of
//! partitions (Augustus, EuroSys 2013, section 3.3), above all.
//!
//! A *leaf* is a statement, some bytes that a service gives a meaning to. A replica signs many of them at once, of all that it
//! sends in one go: the hash of the root of a tree over them and of their number. So an [`Attestation`] of one leaf has
//! a signature that it shares with others, and a path from the leaf to the root.
//!
//! Leaves and nodes are hashed under tags of their own, so that no node is taken for a leaf; the place in the tree is bound by the
//! path's directions, and its shape by the number of leaves.

use crate::codec::{Decode, DecodeError, Encode, Reader, encode_list};
use crate::ids::{ClusterId, Digest, ReplicaId, Slot, View};
use crate::keys::{Claim, PublicKey, SecretKey, Signature};
use crate::limits;
use crate::statement::{Context, STATEMENT_BYTES, StatementKind};

/// The longest path in a tree of [`limits::ATTESTED`] leaves.
const LONGEST_PATH: usize = limits::ATTESTED.ilog2() as usize;
const _: () = assert!(limits::ATTESTED.is_power_of_two());

/// One replica's word for a leaf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attestation {
    /// Whose word.
    pub signer: ReplicaId,
    /// Number of the configuration in which it was said.
    pub configuration: u64,
    /// The leaf's place among those that were signed together.
    pub index: u32,
    /// How many they were, 1 to [`limits::ATTESTED`].
    pub count: u32,
    /// The hashes beside those on the way from the leaf to the root, from the leaf's on. Where there is none, on the right edge of
    /// the tree, none stands here.
    pub path: Vec<Digest>,
    /// Over (Attested, view 0, slot 0, hash of root and count), in that configuration of the group.
    pub signature: Signature,
}

fn hash_of_leaf(leaf: &[u8]) -> Digest {
    let mut out = Vec::with_capacity(24 + leaf.len());
    out.extend_from_slice(b"perdura.attested.leaf.v1");
    out.extend_from_slice(leaf);
    Digest::of(&out)
}

fn hash_of_node(left: Digest, right: Digest) -> Digest {
    let mut out = [0; 24 + 64];
    out[..24].copy_from_slice(b"perdura.attested.node.v1");
    out[24..56].copy_from_slice(&left.0);
    out[56..].copy_from_slice(&right.0);
    Digest::of(&out)
}

fn statement(
    (cluster, configuration): (ClusterId, u64),
    root: Digest,
    count: u32,
) -> [u8; STATEMENT_BYTES] {
    let mut out = b"perdura.attested.root.v1".to_vec();
    root.encode(&mut out);
    count.encode(&mut out);
    let context = Context { cluster, configuration };
    context.statement(StatementKind::Attested, View(0), Slot(0), Digest::of(&out))
}

impl Attestation {
    /// What is to be verified for this to be `key`'s word for `leaf`, about the group with this id; none if it is no such word,
    /// whatever the signature is.
    #[must_use]
    pub fn claim(
        &self,
        group: ClusterId,
        leaf: &[u8],
        key: PublicKey,
    ) -> Option<Claim<[u8; STATEMENT_BYTES]>> {
        if self.index >= self.count || self.count as usize > limits::ATTESTED {
            return None;
        }
        let mut hash = hash_of_leaf(leaf);
        let (mut index, mut width) = (self.index, self.count);
        let mut path = self.path.iter();
        while width > 1 {
            if index ^ 1 < width {
                let beside = *path.next()?;
                hash = match index & 1 {
                    0 => hash_of_node(hash, beside),
                    _ => hash_of_node(beside, hash),
                };
            }
            (index, width) = (index / 2, width.div_ceil(2));
        }
        if path.next().is_some() {
            return None;
        }
        let message = statement((group, self.configuration), hash, self.count);
        Some(Claim { key, message, signature: self.signature })
    }
}

/// Signs `leaves`, 1 to [`limits::ATTESTED`], with one signature; gives an attestation of each.
///
/// # Panics
/// When there are none or too many.
#[must_use]
pub fn attest(
    (group, configuration): (ClusterId, u64),
    leaves: &[impl AsRef<[u8]>],
    (signer, key): (ReplicaId, &SecretKey),
) -> Vec<Attestation> {
    assert!((1..=limits::ATTESTED).contains(&leaves.len()));
    let count = leaves.len() as u32;
    let mut level: Vec<Digest> = leaves.iter().map(|leaf| hash_of_leaf(leaf.as_ref())).collect();
    let mut paths: Vec<Vec<Digest>> = vec![Vec::new(); leaves.len()];
    let mut depth = 0;
    while level.len() > 1 {
        for (index, path) in paths.iter_mut().enumerate() {
            if let Some(beside) = level.get((index >> depth) ^ 1) {
                path.push(*beside);
            }
        }
        let pairs = level.chunks(2);
        level = pairs
            .map(|pair| if let [left, right] = *pair { hash_of_node(left, right) } else { pair[0] })
            .collect();
        depth += 1;
    }
    let signature = key.sign(&statement((group, configuration), level[0], count));
    let of = |(index, path)| Attestation { signer, configuration, index, count, path, signature };
    (0..count).zip(paths).map(of).collect()
}

/// What a replica attests of its replies to one session, all under one root, on their way to the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attested {
    /// The session's number.
    pub nonce: u64,
    /// As [`Attestation::configuration`].
    pub configuration: u64,
    /// As [`Attestation::count`].
    pub count: u32,
    /// As [`Attestation::signature`].
    pub signature: Signature,
    /// Number of the command whose reply it is, index and path of its leaf.
    pub leaves: Vec<(u64, u32, Vec<Digest>)>,
}

impl Attested {
    /// The attestations by the numbers of commands, if the replica `signer` sent this.
    pub fn by_number(self, signer: ReplicaId) -> impl Iterator<Item = (u64, Attestation)> {
        let Attested { configuration, count, signature, leaves, .. } = self;
        leaves.into_iter().map(move |(number, index, path)| {
            (number, Attestation { signer, configuration, index, count, path, signature })
        })
    }
}

impl Encode for (u64, u32, Vec<Digest>) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
        encode_list(&self.2, out);
    }
}

impl Decode for (u64, u32, Vec<Digest>) {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (number, index) = (Decode::decode(reader)?, Decode::decode(reader)?);
        Ok((number, index, reader.list("path of an attestation", LONGEST_PATH, 32)?))
    }
}

impl Encode for Attested {
    fn encode(&self, out: &mut Vec<u8>) {
        self.nonce.encode(out);
        self.configuration.encode(out);
        self.count.encode(out);
        self.signature.encode(out);
        encode_list(&self.leaves, out);
    }
}

impl Decode for Attested {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Attested {
            nonce: Decode::decode(reader)?,
            configuration: Decode::decode(reader)?,
            count: Decode::decode(reader)?,
            signature: Decode::decode(reader)?,
            leaves: reader.list("attested replies", limits::ATTESTED, 16)?,
        })
    }
}

impl Encode for Attestation {
    fn encode(&self, out: &mut Vec<u8>) {
        self.signer.encode(out);
        self.configuration.encode(out);
        self.index.encode(out);
        self.count.encode(out);
        encode_list(&self.path, out);
        self.signature.encode(out);
    }
}

impl Decode for Attestation {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Attestation {
            signer: Decode::decode(reader)?,
            configuration: Decode::decode(reader)?,
            index: Decode::decode(reader)?,
            count: Decode::decode(reader)?,
            path: reader.list("path of an attestation", LONGEST_PATH, 32)?,
            signature: Decode::decode(reader)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Scheme;
    use std::collections::BTreeSet;

    const GROUP: ClusterId = ClusterId([5; 16]);

    fn key() -> SecretKey {
        SecretKey::from_seed(Scheme::KeyedHash, [7; 32])
    }

    fn attested(leaves: &[Vec<u8>]) -> Vec<Attestation> {
        attest((GROUP, 3), leaves, (ReplicaId(2), &key()))
    }

    fn holds(attestation: &Attestation, group: ClusterId, leaf: &[u8]) -> bool {
        let claim = attestation.claim(group, leaf, key().public());
        claim.is_some_and(|claim| {
            Scheme::KeyedHash.verify(claim.key, &claim.message, claim.signature)
        })
    }

    fn leaves(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|index| format!("leaf {index}").into_bytes()).collect()
    }

    #[test]
    fn each_leaf_of_a_tree_of_any_size_is_attested_and_no_other_leaf_is() {
        for count in 1..=40 {
            let leaves = leaves(count);
            let attested = attested(&leaves);
            let shared: BTreeSet<Signature> = attested.iter().map(|one| one.signature).collect();
            assert_eq!((attested.len(), shared.len()), (count, 1));
            for (place, attestation) in attested.iter().enumerate() {
                for (other, leaf) in leaves.iter().enumerate() {
                    assert_eq!(holds(attestation, GROUP, leaf), other == place, "{count}");
                }
            }
        }
    }

    #[test]
    fn it_is_bound_to_its_group_its_configuration_and_its_place() {
        let leaves = leaves(5);
        for (attestation, leaf) in attested(&leaves).into_iter().zip(&leaves) {
            assert!(!holds(&attestation, ClusterId([6; 16]), leaf));
            let with = |change: fn(&mut Attestation)| {
                let mut other = attestation.clone();
                change(&mut other);
                holds(&other, GROUP, leaf)
            };
            assert!(!with(|one| one.configuration = 4));
            assert!(!with(|one| one.index ^= 1));
            assert!(!with(|one| one.count += 1));
            assert!(!with(|one| one.count = 0));
            assert!(!with(|one| one.path.push(Digest::ZERO)));
            assert!(!with(|one| one.path.truncate(one.path.len() - 1)));
        }
    }

    /// A node's two hashes, taken for a leaf, would make a leaf of what nobody said.
    #[test]
    fn a_node_is_no_leaf() {
        let leaves = leaves(4);
        let attested = attested(&leaves);
        let node = [hash_of_leaf(&leaves[0]).0, hash_of_leaf(&leaves[1]).0].concat();
        let mut forged = attested[0].clone();
        forged.path.remove(0);
        (forged.index, forged.count) = (0, 2);
        assert!(!holds(&forged, GROUP, &node));
    }

    #[test]
    fn what_is_sent_of_many_is_each_of_them() {
        let attestations = attested(&leaves(limits::ATTESTED));
        let Attestation { configuration, count, signature, .. } = attestations[0];
        let leaf = |one: &Attestation| (u64::from(one.index) + 7, one.index, one.path.clone());
        let leaves = attestations.iter().map(leaf).collect();
        let sent = Attested { nonce: 5, configuration, count, signature, leaves };
        let back = Attested::from_bytes(sent.to_bytes()).unwrap();
        assert_eq!(back, sent);
        let (numbers, ones): (Vec<u64>, Vec<Attestation>) = back.by_number(ReplicaId(2)).unzip();
        assert!(ones == attestations && numbers.into_iter().eq(7..7 + u64::from(count)));
        let mut more = sent.clone();
        more.leaves.push((1, 1, Vec::new()));
        assert!(Attested::from_bytes(more.to_bytes()).is_err());
        let mut longer = sent;
        longer.leaves[0].2.push(Digest::ZERO);
        assert!(Attested::from_bytes(longer.to_bytes()).is_err());
    }

    #[test]
    fn it_is_decoded_as_it_was_encoded_and_its_path_is_bounded() {
        for attestation in attested(&leaves(limits::ATTESTED)).into_iter().step_by(97) {
            assert_eq!(attestation.path.len(), LONGEST_PATH);
            assert_eq!(Attestation::from_bytes(attestation.to_bytes()), Ok(attestation.clone()));
            let mut longer = attestation;
            longer.path.push(Digest::ZERO);
            assert!(Attestation::from_bytes(longer.to_bytes()).is_err());
        }
    }
}
