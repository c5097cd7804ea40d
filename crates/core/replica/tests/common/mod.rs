//! What one node starts with: replica `i` has key `10 + i`, the administrator key 1.

#![allow(dead_code)] // Each test binary uses its part.

use perdura_execution::{Genesis, Service, any_service};
use perdura_protocol::configuration::{Configuration, Member, Parameters};
use perdura_protocol::{ClusterId, Faults, PublicKey, ReplicaId, Scheme, SecretKey, Slot};
use perdura_replica::node::{BACKLOG_BYTES, Boot, Found};
use perdura_store::Store;

/// The cluster.
pub const CLUSTER: ClusterId = ClusterId([9; 16]);

/// The bounds u and r of a cluster whose keys are of this scheme.
fn parameters(scheme: Scheme, (u, r): (u8, u8)) -> Parameters {
    Parameters {
        depth: 32,
        checkpoint_bytes: 1 << 24,
        ..Parameters::small(
            CLUSTER,
            Faults::new(u, r).unwrap(),
            SecretKey::from_seed(scheme, [1; 32]).public(),
        )
    }
}

/// A replica of it that starts for the first time.
pub fn boot(me: u8, scheme: Scheme, faults: (u8, u8), clients: Vec<(String, PublicKey)>) -> Boot {
    boot_around(me, scheme, faults, clients, || Store::new(1 << 30))
}

/// The same of any service.
pub fn boot_around<S: Service>(
    me: u8,
    scheme: Scheme,
    faults: (u8, u8),
    clients: Vec<(String, PublicKey)>,
    make_service: impl Fn() -> S + Send + 'static,
) -> Boot {
    let parameters = parameters(scheme, faults);
    let key = |id: u8| SecretKey::from_seed(scheme, [10 + id; 32]);
    let members = (0..parameters.faults.n() as u8)
        .map(|id| Member { key: key(id).public(), incarnation: 0 })
        .collect();
    let configuration = Configuration { id: 0, from_slot: Slot(0), members };
    Boot {
        me: ReplicaId(me),
        key: key(me),
        scheme,
        parameters,
        latest: configuration.clone(),
        genesis: Genesis { configuration, clients },
        entropy: [3; 32],
        make_service: Box::new(any_service(make_service)),
        found: Found::default(),
        backlog_bytes: BACKLOG_BYTES,
        place: None,
        state_transfer: Default::default(),
    }
}
