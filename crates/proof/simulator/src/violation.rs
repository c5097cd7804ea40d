//! How a run fails.

use crate::options::SimulationOptions;
use perdura_execution::ServicePanic;
use std::any::Any;

/// A rule of docs/design.md was broken, or the run itself broke down.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{rule} violated at {at_us} us, step {step}: {what}\n  replay: {options}")]
pub struct Violation {
    /// The checker that saw it.
    pub rule: &'static str,
    /// What it saw.
    pub what: String,
    /// Virtual time, microseconds.
    pub at_us: u64,
    /// The step.
    pub step: u64,
    /// Fault events until then.
    pub faults: u64,
    /// The run.
    pub options: SimulationOptions,
}

/// What a checker saw, before it is known when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The checker.
    pub rule: &'static str,
    /// What it saw.
    pub what: String,
}

impl Broken {
    /// `rule` is broken.
    pub fn new(rule: &'static str, what: impl Into<String>) -> Broken {
        Broken { rule, what: what.into() }
    }

    /// Something that runs panicked.
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Broken {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .or_else(|| panic.downcast_ref::<ServicePanic>().map(ToString::to_string));
        Broken::new("Assertion", text.unwrap_or_default())
    }
}

/// A checker's verdict.
pub type Check = Result<(), Broken>;
