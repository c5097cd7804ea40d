//! The load generator, which is the same for all systems: callers that call again as soon as they have an answer.

mod http;
mod measure;
mod target;
mod workload;

pub use measure::{Load, Measured, Working, measure};
use target::Caller;
pub use target::{Level, Target};
pub use workload::Workload;
