//! The services that come with Perdura.

use perdura_execution::Service;
use perdura_protocol::ServiceName;
use perdura_store::Store;
use perdura_tuples::TupleSpaces;

/// A service that `perdura replica` runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ServiceKind {
    /// The key-value store.
    #[default]
    KeyValue,
    /// The tuple spaces.
    TupleSpaces,
}

impl ServiceKind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> ServiceName {
        ServiceName::literal(match self {
            ServiceKind::KeyValue => "kv",
            ServiceKind::TupleSpaces => "tuples",
        })
    }

    /// The newest version of its rules, with which a new cluster starts: all of its replicas run a program that knows it.
    #[must_use]
    pub fn newest_version(self) -> u16 {
        match self {
            ServiceKind::KeyValue => Store::new(0).newest_version(),
            ServiceKind::TupleSpaces => TupleSpaces::new(0).newest_version(),
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn of(name: &ServiceName) -> Option<ServiceKind> {
        [ServiceKind::KeyValue, ServiceKind::TupleSpaces]
            .into_iter()
            .find(|kind| kind.name() == *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_clusters_start_with_what_this_program_knows() {
        assert_eq!(ServiceKind::KeyValue.newest_version(), 3);
        assert_eq!(ServiceKind::TupleSpaces.newest_version(), 3);
    }
}
