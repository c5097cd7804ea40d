//! Threads that work for the event loop. One that panics says so, as one whose disk failed does:
//! otherwise the replica would go on, and nothing that it takes on would ever become durable (D3).

use super::keeper::{Completion, Completions};
use super::{panicked, threads, watch};
use rustix::process::nice;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// By so much a thread gives way that has time: where processors are scarce it gets a tenth of what
/// others get, and never nothing, so that what it has to do ends.
const NICENESS: i32 = 10;

/// Starts one whose work comes in long bursts that nobody waits for: it gives way to the event loops and
/// keepers of this machine, which would stand still else as often as it begins.
pub(super) fn spawn_patient<T: Send + 'static>(
    name: &'static str,
    completions: Completions,
    work: impl FnOnce(&Completions) -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    spawn(name, completions, move |completions| {
        if let Err(error) = nice(NICENESS) {
            tracing::debug!("the {name} does not give way to others: {error}");
        }
        work(completions)
    })
}

/// So long a thread that has time works before it lets others go first.
const WORKS: Duration = Duration::from_micros(500);

thread_local! {
    static WORKED_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Lets others go first, for who has time, if it has not just done that: to be called between small parts of
/// its work, of tens of microseconds. That it has time does not take the processor from it before its slice
/// is over, which is milliseconds, and a request crosses many threads.
pub(super) fn give_way() {
    watch::went_on();
    WORKED_SINCE.with(|since| {
        let now = Instant::now();
        match since.get() {
            Some(begun) if now.saturating_duration_since(begun) < WORKS => {}
            Some(_) => {
                std::thread::yield_now();
                since.set(Some(Instant::now()));
            }
            None => since.set(Some(now)),
        }
    });
}

/// Starts one.
pub(super) fn spawn<T: Send + 'static>(
    name: &'static str,
    completions: Completions,
    work: impl FnOnce(&Completions) -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    threads::spawn(name, move || {
        let _here = completions.watch().enter(name);
        match catch_unwind(AssertUnwindSafe(|| work(&completions))) {
            Ok(done) => done,
            Err(payload) => {
                let told = panicked::of_service(&*payload).map(Completion::Service);
                completions.push(told.unwrap_or(Completion::Panicked(name)));
                resume_unwind(payload)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Niceness of the thread, of Linux: field 19 of its `stat`.
    fn niceness() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(16).unwrap().parse().unwrap()
    }

    #[test]
    fn who_has_time_gives_way_and_nobody_else_does() {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let completions = Completions::new(waker);
        let own = niceness();
        let patient = spawn_patient("digester", completions.clone(), |_| niceness()).unwrap();
        assert_eq!(patient.join().unwrap(), (own + NICENESS).min(19));
        let other = spawn("keeper", completions, |_| niceness()).unwrap();
        assert_eq!((other.join().unwrap(), niceness()), (own, own));
    }

    #[test]
    fn a_panic_is_reported_and_an_end_is_not() {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let completions = Completions::new(waker);
        let thread = spawn("keeper", completions.clone(), |_| 7).unwrap();
        assert_eq!(thread.join().unwrap(), 7);
        assert!(completions.take().is_empty());
        let thread = spawn("keeper", completions.clone(), |_| panic!("as a test")).unwrap();
        assert!(thread.join().is_err());
        let told = completions.take();
        assert!(matches!(told[..], [Completion::Panicked("keeper")]));
    }
}
