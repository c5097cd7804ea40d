//! A replica's settings, as the tests of single machines and of groups of them have them.

use perdura_agreement::Settings;
use perdura_protocol::configuration::{Durability, Parameters};
use perdura_protocol::{ClusterId, Faults, ReplicaId, Scheme, SecretKey, limits};

/// Of replica `me` of a cluster whose administrator has replica 0's key.
pub fn settings(
    cluster: ClusterId,
    faults: Faults,
    me: ReplicaId,
    key: impl Fn(u8) -> SecretKey,
) -> Settings {
    let parameters = Parameters {
        cluster,
        faults,
        durability: Durability::Sync,
        depth: 8,
        checkpoint_interval: 64,
        checkpoint_bytes: 1 << 20,
        checkpoint_stretch: 1,
        checkpoint_ms: None,
        max_skew_ms: 500,
        state_limit_bytes: 1 << 30,
        schedule: Default::default(),
        service: perdura_protocol::ServiceName::literal("kv"),
        versions: perdura_protocol::Versions::NEW,
        administrator: key(0).public(),
        map: None,
    };
    Settings {
        me,
        key: key(me.0),
        scheme: Scheme::KeyedHash,
        parameters,
        entropy: [1; 32],
        window: limits::WINDOW,
        one_seeder: false,
    }
}
