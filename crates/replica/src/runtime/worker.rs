//! Threads that work for the event loop. One that panics says so like one whose disk failed:
//! otherwise the replica would go on, and nothing that it takes on would ever become durable (D3).

use super::keeper::{Completion, Completions};
use std::io;
use std::thread::JoinHandle;

/// Reports the end of a thread that did not mean to end.
struct Alarm {
    name: &'static str,
    completions: Completions,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let name = self.name;
            self.completions.push(Completion::Failed(format!("the {name} panicked: report this")));
        }
    }
}

/// Starts one.
pub(super) fn spawn<T: Send + 'static>(
    name: &'static str,
    completions: Completions,
    work: impl FnOnce(&Completions) -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.into()).spawn(move || {
        let alarm = Alarm { name, completions };
        work(&alarm.completions)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn a_panic_is_reported_and_an_end_is_not() {
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let completions = Completions { waiting: Arc::new(Mutex::new(Vec::new())), waker };
        let thread = spawn("keeper", completions.clone(), |_| 7).unwrap();
        assert_eq!(thread.join().unwrap(), 7);
        assert!(completions.take().is_empty());
        let thread = spawn("keeper", completions.clone(), |_| panic!("as a test")).unwrap();
        assert!(thread.join().is_err());
        let told = completions.take();
        assert!(matches!(&told[..], [Completion::Failed(why)] if why.contains("keeper panicked")));
    }
}
