//! What the members of a cluster agree on: who they are (a [`Configuration`], replaced by ordered
//! commands) and the [`Parameters`] fixed when the cluster was made and hashed into data files.

use crate::codec::{Decode, DecodeError, Encode, Reader, encode_list};
use crate::fields::Fields;
use crate::ids::{ClusterId, Digest, ReplicaId, Slot};
use crate::keys::PublicKey;
use crate::limits::{self, COST_PER_MS};
use crate::partitions::{Map, PartitionId};
use crate::quorum::Faults;
use crate::statement::Context;
use crate::versions::{ServiceName, Versions};
use std::sync::Arc;

/// A replica as the others know it. Blank is not amnesiac: who lost its disk comes back as a new
/// incarnation with a fresh key (rule D8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Signs its statements and its TLS handshakes.
    pub key: PublicKey,
    /// 0 for the first; one more with each replacement.
    pub incarnation: u32,
}

/// The members from a slot on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Configuration {
    /// 0 for the first; one more with each replacement.
    pub id: u64,
    /// First slot that is agreed on in this configuration.
    pub from_slot: Slot,
    /// By replica id.
    pub members: Vec<Member>,
}

impl Configuration {
    /// The key of `replica`, if there is such a member.
    #[must_use]
    pub fn key(&self, replica: ReplicaId) -> Option<PublicKey> {
        self.members.get(replica.index()).map(|member| member.key)
    }

    /// The context of statements made in this configuration.
    #[must_use]
    pub fn context(&self, cluster: ClusterId) -> Context {
        Context { cluster, configuration: self.id }
    }
}

impl Encode for Member {
    fn encode(&self, out: &mut Vec<u8>) {
        self.key.encode(out);
        self.incarnation.encode(out);
    }
}

impl Decode for Member {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Member { key: Decode::decode(reader)?, incarnation: Decode::decode(reader)? })
    }
}

impl Encode for Configuration {
    fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.from_slot.encode(out);
        encode_list(&self.members, out);
    }
}

impl Decode for Configuration {
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Configuration {
            id: Decode::decode(reader)?,
            from_slot: Decode::decode(reader)?,
            members: reader.list("members", limits::REPLICAS, 36)?,
        })
    }
}

/// How much of the log is on disk before a reply leaves. Number 3 is not given again: data directories have it, and are refused for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Durability {
    /// Written and flushed. What a client saw survives the crash of all replicas at once.
    Sync = 0,
    /// Written, flushed by the operating system in its own time. A reboot makes a replica amnesiac.
    Async = 1,
    /// Kept in memory. Any restart makes a replica amnesiac.
    None = 2,
}

impl Durability {
    /// All of them.
    pub const ALL: [Durability; 3] = [Durability::Sync, Durability::Async, Durability::None];

    /// As in configuration files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Durability::Sync => "sync",
            Durability::Async => "async",
            Durability::None => "none",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Durability> {
        Durability::ALL.into_iter().find(|durability| durability.name() == name)
    }

    /// Whether the log is flushed before a reply leaves.
    #[must_use]
    pub fn is_flushed(self) -> bool {
        match self {
            Durability::Sync => true,
            Durability::Async | Durability::None => false,
        }
    }
}

/// Who stores which checkpoint (rule D6). Number 2 is not given again: there are digests of parameters with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Schedule {
    /// All replicas at the same slots: what Dura-SMaRt compares sequential checkpointing with (USENIX
    /// ATC 2013, section 3.2), and how clusters were made before there was a choice.
    #[default]
    Coordinated = 0,
    /// One replica after the other, an n-th of the checkpoint interval apart; all of them sign the
    /// digest of each of these states.
    Sequential = 1,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Schedule; 2] = [Schedule::Coordinated, Schedule::Sequential];

    /// As in configuration files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Schedule::Coordinated => "coordinated",
            Schedule::Sequential => "sequential",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Schedule> {
        Schedule::ALL.into_iter().find(|schedule| schedule.name() == name)
    }
}

/// From a boundary to the next: the first of them that is reached makes it due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// Slots, at least 1.
    pub slots: u64,
    /// Bytes of batches, at least 1.
    pub bytes: u64,
    /// What their commands cost under rules that know costs for it (version 3), at least 1.
    pub cost: u64,
    /// Agreed time since the first slot, milliseconds, and how many slots it takes besides.
    pub time: Option<(u64, u64)>,
}

/// Slots before which agreed time makes no checkpoint due: what is asked for rarely is replayed soon. A slot takes no longer than half a
/// second by default, unless one command does.
const TIMED_SLOTS: u64 = 16;

/// How long it takes at most to execute what is between two checkpoints of a replica, if nothing else is said, milliseconds. A log goes back by
/// less than three of them, so that a replay takes about a minute at most.
pub const CHECKPOINT_MS: u64 = 20_000;

/// Most slots between two checkpoints of a replica: for each slot in its log it keeps some hundred
/// bytes in memory.
const MOST_INTERVAL: u64 = 1 << 20;

/// Fixed for the life of a cluster; equal on all replicas, checked by hash at every handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// The cluster.
    pub cluster: ClusterId,
    /// Fault bounds.
    pub faults: Faults,
    /// When replies leave.
    pub durability: Durability,
    /// Slots in agreement at once, 1 to 256. Enough to fill a network round trip and a flush.
    pub depth: u64,
    /// Slots between two checkpoints of a replica, 64 to 2^20.
    pub checkpoint_interval: u64,
    /// Bytes of batches after which a checkpoint is due even earlier, so that logs stay short under
    /// large commands. At least 1 MiB outside of tests.
    pub checkpoint_bytes: u64,
    /// How many times rarer the checkpoints of a large state may be, 1 to 64; see [`Parameters::boundary`].
    pub checkpoint_stretch: u64,
    /// Agreed milliseconds after which a checkpoint is due even earlier, 1,000 to 3,600,000, for services whose commands take long: what took
    /// no longer to execute takes no longer to replay. Without it a checkpoint waits for slots, bytes and costs alone.
    pub checkpoint_ms: Option<u64>,
    /// Who stores which checkpoint.
    pub schedule: Schedule,
    /// Largest difference between a fresh Propose's time and the local clock, milliseconds.
    pub max_skew_ms: u64,
    /// Largest service state, bytes; commands that would exceed it are refused.
    pub state_limit_bytes: u64,
    /// What is replicated.
    pub service: ServiceName,
    /// The versions with which the cluster starts; those in force are ordered state.
    pub versions: Versions,
    /// Signs configuration commands.
    pub administrator: PublicKey,
    /// Of a group that has one of several partitions: which keys are whose. The administrator signed it.
    pub map: Option<Arc<Map>>,
}

impl Parameters {
    /// Of a small group with a key-value store, as tests and examples have them: a checkpoint is due every 64 slots or MiB, and the state may have a GiB.
    #[must_use]
    pub fn small(cluster: ClusterId, faults: Faults, administrator: PublicKey) -> Parameters {
        Parameters {
            cluster,
            faults,
            durability: Durability::Sync,
            depth: 8,
            checkpoint_interval: 64,
            checkpoint_bytes: 1 << 20,
            checkpoint_stretch: 1,
            checkpoint_ms: None,
            schedule: Schedule::default(),
            max_skew_ms: 500,
            state_limit_bytes: 1 << 30,
            service: ServiceName::literal("kv"),
            versions: Versions::NEW,
            administrator,
            map: None,
        }
    }

    /// How long an offer lasts on the clock, milliseconds: [`limits::OFFER_MS`]. Where replicas may lie, agreed time can jump by twice
    /// `max_skew_ms` as soon as something is offered, and half a second has to be left behind that; no longer than clients count as there.
    #[must_use]
    pub fn offer_ms(&self) -> u64 {
        if !self.faults.is_byzantine() {
            return limits::OFFER_MS;
        }
        let jump = self.max_skew_ms.saturating_mul(2);
        jump.saturating_add(limits::OFFER_MS / 2).clamp(limits::OFFER_MS, limits::ATTENDED_MS)
    }

    /// Which partition this group has; none where there is only one.
    #[must_use]
    pub fn partition(&self) -> Option<PartitionId> {
        self.map.as_ref()?.partition_of_group(self.cluster)
    }

    /// The id of the whole cluster, which is that of its group where there is only one.
    #[must_use]
    pub fn whole_cluster(&self) -> ClusterId {
        self.map.as_ref().map_or(self.cluster, |map| map.cluster)
    }

    /// The hash that stands in data files and handshakes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        match self.versions.rules {
            0 => self.first_digest(),
            _ => {
                let mut out = b"perdura.parameters.v2".to_vec();
                self.fields().encode(&mut out);
                Digest::of(&out)
            }
        }
    }

    /// All of them by name. What may be passed over by who does not know it is no parameter: it is not hashed.
    fn fields(&self) -> Fields {
        let mut fields = Fields::default();
        fields.require("cluster", &self.cluster);
        fields.require("u", &(self.faults.u() as u8));
        fields.require("r", &(self.faults.r() as u8));
        fields.require("durability", &(self.durability as u8));
        fields.require("depth", &self.depth);
        fields.require("checkpoint-interval", &self.checkpoint_interval);
        fields.require("checkpoint-bytes", &self.checkpoint_bytes);
        fields.require("checkpoint-stretch", &self.checkpoint_stretch);
        // Clusters that have none have the digest that they always had.
        if let Some(ms) = &self.checkpoint_ms {
            fields.require("checkpoint-ms", ms);
        }
        fields.require("schedule", &(self.schedule as u8));
        fields.require("max-skew-ms", &self.max_skew_ms);
        fields.require("state-limit-bytes", &self.state_limit_bytes);
        fields.require("service", &self.service);
        fields.require("rules", &self.versions.rules);
        fields.require("service-version", &self.versions.service);
        fields.require("administrator", &self.administrator);
        // A cluster of one group has none, and the digest that it always had.
        if let Some(map) = &self.map {
            fields.require("map", &map.digest());
        }
        fields
    }

    /// As of 0.1.0.
    fn first_digest(&self) -> Digest {
        let mut out = b"perdura.parameters.v1".to_vec();
        self.cluster.encode(&mut out);
        out.push(self.faults.u() as u8);
        out.push(self.faults.r() as u8);
        out.push(self.durability as u8);
        for number in [
            self.depth,
            self.checkpoint_interval,
            self.checkpoint_bytes,
            self.max_skew_ms,
            self.state_limit_bytes,
        ] {
            number.encode(&mut out);
        }
        self.administrator.encode(&mut out);
        // Clusters were made before there was a choice; later there was one of two.
        match self.service.as_str() {
            "kv" => {}
            "tuples" => out.push(1),
            _ => {
                out.push(2);
                self.service.encode(&mut out);
            }
        }
        if self.schedule != Schedule::Coordinated {
            out.extend_from_slice(self.schedule.name().as_bytes());
        }
        if self.checkpoint_stretch != 1 {
            out.extend_from_slice(b"stretch");
            self.checkpoint_stretch.encode(&mut out);
        }
        if let Some(ms) = self.checkpoint_ms {
            out.extend_from_slice(b"time");
            ms.encode(&mut out);
        }
        Digest::of(&out)
    }

    /// How far it is from a boundary to the next: a state is digested at each. `state_bytes` is the size
    /// of the service's state at the first of them (0 at the start), equal on all replicas.
    ///
    /// Where writes go all over a state, its digests and checkpoints cost as much as the state is large.
    /// So they are rarer where that is large. Counted in slots, by as many times as the state is larger
    /// than a 32nd of `checkpoint_bytes`, at most by `checkpoint_stretch`, and at most 2^20 slots apart.
    /// Counted in bytes, by as many times as it is larger than `checkpoint_bytes`, at most by a quarter
    /// of `checkpoint_stretch`: the log, which is in memory after a restart, stays in proportion to the
    /// state.
    ///
    /// What bounds the time of a replay, costs and agreed time, is the same however large the state is.
    #[must_use]
    pub fn boundary(&self, state_bytes: u64) -> Interval {
        let parts = match self.schedule {
            Schedule::Coordinated => 1,
            Schedule::Sequential => self.faults.n() as u64,
        };
        let stretch = self.checkpoint_stretch.max(1);
        let times = state_bytes.saturating_mul(32) / self.checkpoint_bytes.max(1);
        let most_slots = MOST_INTERVAL.max(self.checkpoint_interval);
        let slots =
            self.checkpoint_interval.saturating_mul(times.clamp(1, stretch)).min(most_slots);
        let bytes = state_bytes.clamp(self.checkpoint_bytes, self.most_checkpoint_bytes());
        let cost = self.checkpoint_ms.unwrap_or(CHECKPOINT_MS).saturating_mul(COST_PER_MS);
        Interval {
            slots: (slots / parts).max(1),
            bytes: (bytes / parts).max(1),
            cost: (cost / parts).max(1),
            time: self.checkpoint_ms.map(|ms| {
                let slots = TIMED_SLOTS.min(slots);
                ((ms / parts).max(1), (slots / parts).max(1))
            }),
        }
    }

    /// Most bytes of batches between two checkpoints of a replica, however large the state is.
    #[must_use]
    pub fn most_checkpoint_bytes(&self) -> u64 {
        let most = self.checkpoint_bytes.saturating_mul(self.checkpoint_stretch.max(4)) / 4;
        most.max(self.checkpoint_bytes)
    }
}

/// The configurations that a replica knows, by the slots they govern.
#[derive(Clone, Debug)]
pub struct Configurations {
    cluster: ClusterId,
    // Ascending by id and from_slot; never empty.
    known: Vec<Configuration>,
}

impl Configurations {
    /// Configurations kept; older ones have no statement in any window.
    const KEPT: usize = 16;

    /// Starting from `first`.
    #[must_use]
    pub fn new(cluster: ClusterId, first: Configuration) -> Configurations {
        Configurations { cluster, known: vec![first] }
    }

    /// Learns one; one that is known already is passed over. It need not be the newest: who was
    /// started with the newest one alone comes to know those before it as it executes.
    pub fn add(&mut self, configuration: Configuration) {
        let Err(place) = self.known.binary_search_by_key(&configuration.id, |known| known.id)
        else {
            return;
        };
        self.known.insert(place, configuration);
        if self.known.len() > Self::KEPT {
            self.known.remove(0);
        }
    }

    /// Starts over from what a restored state says.
    pub fn restart(&mut self, known: &[Configuration]) {
        if !known.is_empty() {
            self.known = known[known.len().saturating_sub(Self::KEPT)..].to_vec();
        }
    }

    /// Learns what a state says, and keeps what is known here beyond it: the slots after the state
    /// may be governed by either.
    pub fn learn(&mut self, known: &[Configuration]) {
        for configuration in known {
            self.add(configuration.clone());
        }
    }

    /// The one with the highest number.
    #[must_use]
    pub fn latest(&self) -> &Configuration {
        self.known.last().expect("never empty")
    }

    /// The one that governs `slot`; the oldest known for slots before it.
    #[must_use]
    pub fn at(&self, slot: Slot) -> &Configuration {
        self.known.iter().rev().find(|c| c.from_slot <= slot).unwrap_or(&self.known[0])
    }

    /// The one that governs `slot`; none for slots before the oldest known: what is signed about
    /// them cannot be judged here.
    #[must_use]
    pub fn governing(&self, slot: Slot) -> Option<&Configuration> {
        Some(self.at(slot)).filter(|configuration| configuration.from_slot <= slot)
    }

    /// The one with this number.
    #[must_use]
    pub fn by_id(&self, id: u64) -> Option<&Configuration> {
        self.known.iter().find(|configuration| configuration.id == id)
    }

    /// Whether statements about `slot` can be made in configuration `id`, by those that are known.
    ///
    /// Who knows not all of them, as who was away or joined later, cannot tell the numbers apart that
    /// lie between two that it knows, nor those below or above all of them.
    #[must_use]
    pub fn may_govern(&self, id: u64, slot: Slot) -> bool {
        let next = self.known.partition_point(|known| known.from_slot <= slot);
        let at_least = next.checked_sub(1).map_or(0, |last| self.known[last].id);
        at_least <= id && self.known.get(next).is_none_or(|next| id < next.id)
    }

    /// The context of statements about `slot`.
    #[must_use]
    pub fn context_at(&self, slot: Slot) -> Context {
        self.at(slot).context(self.cluster)
    }

    /// The key with which `replica` signs about `slot`.
    #[must_use]
    pub fn key_at(&self, slot: Slot, replica: ReplicaId) -> Option<PublicKey> {
        self.at(slot).key(replica)
    }

    /// All that are known, ascending.
    #[must_use]
    pub fn known(&self) -> &[Configuration] {
        &self.known
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partitions::{Distribution, Group, MAP_VERSION, group_id};

    #[test]
    fn a_large_state_has_its_boundaries_further_apart() {
        const MIB: u64 = 1 << 20;
        let mut parameters = Parameters {
            cluster: ClusterId([1; 16]),
            faults: Faults::new(1, 0).unwrap(),
            durability: Durability::Sync,
            depth: 32,
            checkpoint_interval: 300,
            checkpoint_bytes: 240 * MIB,
            checkpoint_stretch: 12,
            checkpoint_ms: None,
            schedule: Schedule::Sequential,
            max_skew_ms: 500,
            state_limit_bytes: 1 << 30,
            service: ServiceName::literal("kv"),
            versions: Versions::NEW,
            administrator: crate::SecretKey::from_seed(crate::Scheme::KeyedHash, [1; 32]).public(),
            map: None,
        };
        for (state, slots, bytes) in [
            (0, 100, 80 * MIB),
            (14 * MIB, 100, 80 * MIB),
            (15 * MIB, 200, 80 * MIB),
            (30 * MIB, 400, 80 * MIB),
            (90 * MIB, 1200, 80 * MIB),
            (240 * MIB, 1200, 80 * MIB),
            (480 * MIB, 1200, 160 * MIB),
            (720 * MIB, 1200, 240 * MIB),
            (u64::MAX, 1200, 240 * MIB),
        ] {
            let Interval { slots: after, bytes: or, .. } = parameters.boundary(state);
            assert_eq!((after, or), (slots, bytes), "{} MiB", state / MIB);
        }
        assert_eq!(parameters.most_checkpoint_bytes(), 720 * MIB);
        let stretched = parameters.digest();
        parameters.checkpoint_stretch = 1;
        assert_ne!(parameters.digest(), stretched);
        let cost = CHECKPOINT_MS * COST_PER_MS / 3;
        let interval = Interval { slots: 100, bytes: 80 * MIB, cost, time: None };
        assert_eq!(parameters.boundary(u64::MAX), interval);
        parameters.checkpoint_ms = Some(3_000);
        let interval = Interval { cost: 1_000 * COST_PER_MS, time: Some((1_000, 5)), ..interval };
        assert_eq!(parameters.boundary(u64::MAX), interval, "whatever the state");
        assert_eq!(parameters.most_checkpoint_bytes(), 240 * MIB);
        parameters.checkpoint_bytes = u64::MAX;
        assert_eq!(parameters.boundary(1 << 40).bytes, u64::MAX / 3, "never by bytes");
        parameters.checkpoint_bytes = 240 * MIB;
        parameters.schedule = Schedule::Coordinated;
        let cost = 3_000 * COST_PER_MS;
        let interval = Interval { slots: 300, bytes: 240 * MIB, cost, time: Some((3_000, 16)) };
        assert_eq!(parameters.boundary(0), interval);
    }

    /// Data directories and handshakes of a cluster of one group are held against what they always were.
    #[test]
    fn a_map_is_part_of_the_digest_and_none_is_not() {
        let cluster = ClusterId([1; 16]);
        let faults = Faults::new(1, 0).unwrap();
        let mut parameters = Parameters {
            cluster,
            faults,
            durability: Durability::Sync,
            depth: 32,
            checkpoint_interval: 16_384,
            checkpoint_bytes: 1 << 28,
            checkpoint_stretch: 16,
            checkpoint_ms: None,
            schedule: Schedule::Sequential,
            max_skew_ms: 500,
            state_limit_bytes: 1 << 30,
            service: ServiceName::literal("kv"),
            versions: Versions { rules: 1, service: 1 },
            administrator: PublicKey([9; 32]),
            map: None,
        };
        let alone = "818b020e8fc4fece0848a4e1c89ccc6644dadf945325c1bf46ea483da08304d0";
        assert_eq!(parameters.digest().to_string(), alone);
        assert_eq!((parameters.partition(), parameters.whole_cluster()), (None, cluster));
        let group = |partition, key| Group {
            id: group_id(cluster, PartitionId(partition), 2),
            faults,
            members: vec![PublicKey([key; 32]); 3],
        };
        let map = |key| Map {
            cluster,
            version: MAP_VERSION,
            distribution: Distribution::Hash,
            groups: vec![group(0, 1), group(1, key)],
            resolvers: Vec::new(),
        };
        parameters.cluster = map(2).groups[1].id;
        parameters.map = Some(Arc::new(map(2)));
        assert_eq!(parameters.partition(), Some(PartitionId(1)));
        assert_eq!(parameters.whole_cluster(), cluster);
        let digest = parameters.digest();
        parameters.map = Some(Arc::new(map(3)));
        assert_ne!(parameters.digest(), digest);
    }

    #[test]
    fn statements_about_a_slot_are_made_in_the_configuration_that_governs_it() {
        let one = |id, from_slot| Configuration { id, from_slot: Slot(from_slot), members: vec![] };
        let mut known = Configurations::new(ClusterId([1; 16]), one(2, 100));
        known.add(one(3, 200));
        known.add(one(6, 500));
        let may = |slot| (0..9).filter(|id| known.may_govern(*id, Slot(slot))).collect::<Vec<_>>();
        assert_eq!(may(99), [0, 1], "what was before is not known here");
        assert_eq!((may(100), may(199)), (vec![2], vec![2]));
        assert_eq!((may(200), may(499)), (vec![3, 4, 5], vec![3, 4, 5]));
        assert_eq!(may(500), [6, 7, 8], "newer ones may not be known yet");
    }
}
