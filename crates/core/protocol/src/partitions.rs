//! How the keys of a partitioned store are spread over replica groups (Augustus, EuroSys 2013, section 3.2).
//!
//! Each partition is a group of its own: with a log, a configuration and an id, so that whatever is signed is bound to its
//! group. The [`Map`] says which keys are whose, and who the first members of each group were. The administrator signs it; it is
//! part of every group's parameters, and never changes.

use crate::codec::{Decode, DecodeError, Encode, Reader, encode_bytes, encode_list};
use crate::ids::{ClusterId, Digest, Slot, View};
use crate::keys::{Claim, PublicKey, SecretKey, Signature};
use crate::limits;
use crate::quorum::Faults;
use crate::statement::{Context, STATEMENT_BYTES, StatementKind};
use bytes::Bytes;
use std::fmt;
use std::ops::RangeInclusive;

/// Number of a partition of its store, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PartitionId(pub u16);

impl PartitionId {
    /// As an index into an array with an entry per partition.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a partition's group: of the only one, that of the cluster.
#[must_use]
pub fn group_id(cluster: ClusterId, partition: PartitionId, partitions: usize) -> ClusterId {
    if partitions == 1 {
        return cluster;
    }
    let mut out = b"perdura.group.v1".to_vec();
    cluster.encode(&mut out);
    partition.encode(&mut out);
    let mut id = [0; 16];
    id.copy_from_slice(&Digest::of(&out).0[..16]);
    ClusterId(id)
}

/// Which keys are in which partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Distribution {
    /// By a hash of the key: evenly, whatever the keys are. A range of keys is in all partitions.
    Hash,
    /// By the key: partition 0 has those below the first bound, and each of the others those from its bound on. So what
    /// is read together can be kept together.
    Range {
        /// Where partitions 1 and up begin, ascending, none of them empty.
        bounds: Vec<Bytes>,
    },
}

/// A partition's group, as it was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its id, [`group_id`].
    pub id: ClusterId,
    /// Its fault bounds.
    pub faults: Faults,
    /// The keys of its first members, by replica id.
    pub members: Vec<PublicKey>,
}

/// The version that maps have for now.
pub const MAP_VERSION: u32 = 1;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// The store's cluster.
    pub cluster: ClusterId,
    /// [`MAP_VERSION`].
    pub version: u32,
    /// Which keys are whose.
    pub distribution: Distribution,
    /// By partition.
    pub groups: Vec<Group>,
    /// The keys of those, one at each server, who end what clients left: registered as clients, and good for nothing else.
    pub resolvers: Vec<PublicKey>,
}

/// What is wrong with a map.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapError {
    /// No partition, or too many.
    #[error("a store has 1 to {most} partitions, this one has {0}", most = limits::PARTITIONS)]
    Partitions(usize),
    /// There have to be as many bounds as partitions, less one.
    #[error("{partitions} partitions by range have {} bounds, here are {bounds}", partitions - 1)]
    Bounds {
        /// How many there are.
        bounds: usize,
        /// Of how many partitions.
        partitions: usize,
    },
    /// A partition would have no keys.
    #[error(
        "the bounds of partitions ascend, and none is empty: bound {0} is not above the one before"
    )]
    NotAscending(usize),
    /// A group's id is not that of its place.
    #[error("partition {0} has another group's id")]
    GroupId(usize),
    /// A group's members are too few or too many for its fault bounds.
    #[error("partition {partition} has {found} members, and {wanted} by its fault bounds")]
    Members {
        /// Which.
        partition: usize,
        /// How many it has.
        found: usize,
        /// How many it has to have.
        wanted: usize,
    },
    /// A version that this program does not know.
    #[error("the map has version {0}, and this program knows {MAP_VERSION}; use a newer one")]
    Version(u32),
}

impl Map {
    /// Holds the map against its bounds.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), MapError> {
        let count = self.groups.len();
        if self.version != MAP_VERSION {
            return Err(MapError::Version(self.version));
        }
        if !(1..=limits::PARTITIONS).contains(&count) {
            return Err(MapError::Partitions(count));
        }
        if let Distribution::Range { bounds } = &self.distribution {
            if bounds.len() + 1 != count {
                return Err(MapError::Bounds { bounds: bounds.len(), partitions: count });
            }
            let before = std::iter::once(&[][..]).chain(bounds.iter().map(|bound| &bound[..]));
            if let Some(index) = before.zip(bounds).position(|(before, bound)| *before >= **bound) {
                return Err(MapError::NotAscending(index));
            }
        }
        for (partition, group) in self.groups.iter().enumerate() {
            if group.id != group_id(self.cluster, PartitionId(partition as u16), count) {
                return Err(MapError::GroupId(partition));
            }
            let (found, wanted) = (group.members.len(), group.faults.n());
            if found != wanted {
                return Err(MapError::Members { partition, found, wanted });
            }
        }
        Ok(())
    }

    /// Number of partitions.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.groups.len()
    }

    /// The group of a partition; none if there is no such partition.
    #[must_use]
    pub fn group(&self, partition: PartitionId) -> Option<&Group> {
        self.groups.get(partition.index())
    }

    /// The partition of the group with this id.
    #[must_use]
    pub fn partition_of_group(&self, id: ClusterId) -> Option<PartitionId> {
        let index = self.groups.iter().position(|group| group.id == id)?;
        Some(PartitionId(index as u16))
    }

    /// The partition that has a key.
    #[must_use]
    pub fn partition_of(&self, key: &[u8]) -> PartitionId {
        PartitionId(match &self.distribution {
            Distribution::Hash => {
                let digest = Digest::of(key);
                let mut word = [0; 8];
                word.copy_from_slice(&digest.0[..8]);
                let scaled = u128::from(u64::from_le_bytes(word)) * self.groups.len() as u128;
                (scaled >> 64) as u16
            }
            Distribution::Range { bounds } => {
                bounds.partition_point(|bound| **bound <= *key) as u16
            }
        })
    }

    /// The partitions that may have keys from `start` on and below `end`.
    #[must_use]
    pub fn partitions_of_range(&self, start: &[u8], end: Option<&[u8]>) -> RangeInclusive<u16> {
        let last = self.groups.len() as u16 - 1;
        match &self.distribution {
            Distribution::Hash => 0..=last,
            Distribution::Range { bounds } => {
                let first = self.partition_of(start).0;
                let below = |end: &[u8]| bounds.partition_point(|bound| **bound < *end) as u16;
                first..=end.map_or(last, below).max(first)
            }
        }
    }

    /// No key of a partition is below this one.
    #[must_use]
    pub fn begin_of(&self, partition: PartitionId) -> Bytes {
        match &self.distribution {
            Distribution::Range { bounds } if partition.0 > 0 => {
                bounds.get(partition.index() - 1).cloned().unwrap_or_default()
            }
            _ => Bytes::new(),
        }
    }

    /// The hash that stands for it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut out = b"perdura.map.v1".to_vec();
        self.encode(&mut out);
        Digest::of(&out)
    }

    fn statement(&self) -> [u8; STATEMENT_BYTES] {
        let context = Context { cluster: self.cluster, configuration: 0 };
        context.statement(StatementKind::Map, View(0), Slot(0), self.digest())
    }

    /// The administrator's signature over it.
    #[must_use]
    pub fn sign(&self, administrator: &SecretKey) -> Signature {
        administrator.sign(&self.statement())
    }

    /// That `signature` is the administrator's over it: to be verified.
    #[must_use]
    pub fn claim(
        &self,
        administrator: PublicKey,
        signature: Signature,
    ) -> Claim<[u8; STATEMENT_BYTES]> {
        Claim { key: administrator, message: self.statement(), signature }
    }
}

impl Encode for PartitionId {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }
}

impl Decode for PartitionId {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(PartitionId(u16::from_le_bytes(reader.array()?)))
    }
}

impl Encode for Group {
    fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        out.push(self.faults.u() as u8);
        out.push(self.faults.r() as u8);
        encode_list(&self.members, out);
    }
}

impl Encode for Map {
    fn encode(&self, out: &mut Vec<u8>) {
        self.cluster.encode(out);
        self.version.encode(out);
        match &self.distribution {
            Distribution::Hash => out.push(0),
            Distribution::Range { bounds } => {
                out.push(1);
                (bounds.len() as u32).encode(out);
                bounds.iter().for_each(|bound| encode_bytes(bound, out));
            }
        }
        encode_list(&self.groups, out);
        encode_list(&self.resolvers, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Scheme;

    fn map(distribution: Distribution, partitions: usize) -> Map {
        let (cluster, faults) = (ClusterId([7; 16]), Faults::new(1, 0).unwrap());
        let group = |index| Group {
            id: group_id(cluster, PartitionId(index), partitions),
            faults,
            members: vec![PublicKey([index as u8; 32]); 3],
        };
        let groups = (0..partitions as u16).map(group).collect();
        let resolvers = vec![PublicKey([200; 32])];
        Map { cluster, version: MAP_VERSION, distribution, groups, resolvers }
    }

    fn by_range(bounds: &[&'static str], partitions: usize) -> Map {
        let bounds = bounds.iter().map(|bound| Bytes::from_static(bound.as_bytes())).collect();
        map(Distribution::Range { bounds }, partitions)
    }

    #[test]
    fn each_key_has_one_partition_and_a_range_all_of_its_keys() {
        let map = by_range(&["f", "p"], 3);
        assert_eq!(map.check(), Ok(()));
        let of = |key: &str| map.partition_of(key.as_bytes()).0;
        assert_eq!([of(""), of("ezz"), of("f"), of("o"), of("p"), of("z")], [0, 0, 1, 1, 2, 2]);
        let range = |start: &str, end: Option<&str>| {
            map.partitions_of_range(start.as_bytes(), end.map(str::as_bytes))
        };
        assert_eq!(range("", None), 0..=2);
        assert_eq!(range("a", Some("f")), 0..=0);
        assert_eq!(range("a", Some("fa")), 0..=1);
        assert_eq!(range("g", Some("z")), 1..=2);
        assert_eq!(range("z", Some("a")), 2..=2);
    }

    #[test]
    fn hashed_keys_are_spread_evenly_and_a_range_is_everywhere() {
        let map = map(Distribution::Hash, 5);
        assert_eq!(map.check(), Ok(()));
        let mut count = [0; 5];
        for number in 0u32..5_000 {
            count[map.partition_of(&number.to_le_bytes()).index()] += 1;
        }
        assert!(count.iter().all(|count| (850..1150).contains(count)), "{count:?}");
        assert_eq!(map.partitions_of_range(b"a", Some(b"b")), 0..=4);
        // It is a promise to all clients for good.
        assert_eq!(map.partition_of(b"key").0, 3);
    }

    #[test]
    fn groups_have_ids_of_their_own_and_the_only_one_its_clusters() {
        let cluster = ClusterId([7; 16]);
        assert_eq!(group_id(cluster, PartitionId(0), 1), cluster);
        let (a, b) = (group_id(cluster, PartitionId(0), 2), group_id(cluster, PartitionId(1), 2));
        assert!(a != b && a != cluster && b != cluster);
        let map = map(Distribution::Hash, 2);
        assert_eq!(map.partition_of_group(b), Some(PartitionId(1)));
        assert_eq!(map.partition_of_group(cluster), None);
    }

    #[test]
    fn maps_that_leave_keys_or_groups_out_are_refused() {
        let ranged = |bounds: &[&'static str], partitions| by_range(bounds, partitions).check();
        assert_eq!(ranged(&["f"], 3), Err(MapError::Bounds { bounds: 1, partitions: 3 }));
        assert_eq!(ranged(&["p", "f"], 3), Err(MapError::NotAscending(1)));
        assert_eq!(ranged(&["f", "f"], 3), Err(MapError::NotAscending(1)));
        assert_eq!(ranged(&["", "f"], 3), Err(MapError::NotAscending(0)));
        let wrong = |change: fn(&mut Map)| {
            let mut map = map(Distribution::Hash, 2);
            change(&mut map);
            map.check()
        };
        assert_eq!(wrong(|map| map.groups.clear()), Err(MapError::Partitions(0)));
        assert_eq!(wrong(|map| map.version = 2), Err(MapError::Version(2)));
        assert_eq!(wrong(|map| map.groups.swap(0, 1)), Err(MapError::GroupId(0)));
        let few = MapError::Members { partition: 1, found: 2, wanted: 3 };
        assert_eq!(wrong(|map| map.groups[1].members.truncate(2)), Err(few));
    }

    #[test]
    fn the_administrators_signature_covers_all_of_it() {
        let key = SecretKey::from_seed(Scheme::Ed25519, [3; 32]);
        let map = by_range(&["f", "p"], 3);
        let signature = map.sign(&key);
        let holds = |map: &Map| {
            let claim = map.claim(key.public(), signature);
            Scheme::Ed25519.verify(claim.key, &claim.message, claim.signature)
        };
        assert!(holds(&map));
        let other = by_range(&["f", "q"], 3);
        assert!(!holds(&other));
        let mut other = map.clone();
        other.groups[2].members[0] = PublicKey([9; 32]);
        assert!(!holds(&other));
        let mut other = map.clone();
        other.resolvers.push(PublicKey([9; 32]));
        assert!(!holds(&other));
    }
}
