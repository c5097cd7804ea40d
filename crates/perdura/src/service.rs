//! The services that come with Perdura.

use perdura_protocol::ServiceName;

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

    /// The one of that name.
    #[must_use]
    pub fn of(name: &ServiceName) -> Option<ServiceKind> {
        [ServiceKind::KeyValue, ServiceKind::TupleSpaces]
            .into_iter()
            .find(|kind| kind.name() == *name)
    }
}
