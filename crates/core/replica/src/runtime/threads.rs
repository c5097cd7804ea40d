//! Threads of a replica. Where several replicas are one process, each thread has its partition in its name and in what it logs, and so
//! have those that it starts.

use perdura_protocol::PartitionId;
use std::cell::Cell;
use std::io;
use std::thread::JoinHandle;
use tracing::Span;

/// Bytes of a thread's name that Linux shows.
const NAME_BYTES: usize = 15;

thread_local! {
    static PARTITION: Cell<Option<PartitionId>> = const { Cell::new(None) };
}

/// Starts a thread of the replica that this one is a thread of.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    start(PARTITION.get(), Span::current(), name, work)
}

/// Starts the first thread of the replica that has this partition.
pub(super) fn spawn_first<T: Send + 'static>(
    partition: PartitionId,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // Of the level at which something is always logged.
    let span = tracing::error_span!("member", partition = partition.0);
    start(Some(partition), span, name, work)
}

fn start<T: Send + 'static>(
    partition: Option<PartitionId>,
    span: Span,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let mut name = match partition {
        Some(partition) => format!("p{partition}-{name}"),
        None => name.to_owned(),
    };
    name.truncate(NAME_BYTES);
    std::thread::Builder::new().name(name).spawn(move || {
        PARTITION.set(partition);
        span.in_scope(work)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    #[test]
    fn a_partition_is_inherited_and_names_are_short() {
        let alone = spawn("checkpointer", || (name(), spawn("keeper", name).unwrap()));
        let (first, second) = alone.unwrap().join().unwrap();
        assert_eq!((&*first, &*second.join().unwrap()), ("checkpointer", "keeper"));
        let first = spawn_first(PartitionId(63), "loop", || {
            let of_its_own = spawn("checkpointer", || spawn("keeper", name).unwrap());
            (name(), of_its_own.unwrap(), spawn("checkpointer", name).unwrap())
        });
        let (first, second, long) = first.unwrap().join().unwrap();
        let third = second.join().unwrap().join().unwrap();
        assert_eq!((&*first, &*third), ("p63-loop", "p63-keeper"));
        assert_eq!(long.join().unwrap(), "p63-checkpointe");
    }
}
