//! A replica's settings, as the tests of single machines and of groups of them have them.

use perdura_agreement::Settings;
use perdura_protocol::configuration::Parameters;
use perdura_protocol::{ClusterId, Faults, ReplicaId, Scheme, SecretKey, limits};

/// Of replica `me` of a cluster whose administrator has replica 0's key.
pub fn settings(
    cluster: ClusterId,
    faults: Faults,
    me: ReplicaId,
    key: impl Fn(u8) -> SecretKey,
) -> Settings {
    let parameters = Parameters::small(cluster, faults, key(0).public());
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
