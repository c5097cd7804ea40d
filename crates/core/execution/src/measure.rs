//! What a service says of itself to those who watch a replica.

/// One number. It is not part of the state, and no reply depends on it: replicas that started at different times say different ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measure {
    /// As in the replica's metrics; those of one name have the same help and kind, and other labels.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// Name and value of a label; none where there is one number of this name.
    pub label: Option<(&'static str, &'static str)>,
    /// The number.
    pub value: u64,
    /// Whether it counts since the process started, and so never falls while that runs.
    pub grows: bool,
}

impl Measure {
    /// What is counted since the process started.
    #[must_use]
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Measure {
        Measure { name, help, label: None, value, grows: true }
    }

    /// What is so now.
    #[must_use]
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Measure {
        Measure { name, help, label: None, value, grows: false }
    }

    /// With a label.
    #[must_use]
    pub fn of(self, name: &'static str, value: &'static str) -> Measure {
        Measure { label: Some((name, value)), ..self }
    }
}
