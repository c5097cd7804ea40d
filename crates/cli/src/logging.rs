//! What a replica logs, which goes to standard error: whatever becomes of that, closed, full or never read, nothing
//! becomes of the replica.
//!
//! Invariants: who logs never waits, and never learns of a failure; a line that was not written is counted; what fits into
//! the queue while nobody reads is written when somebody does.

use crate::process::LogLevel;
use anyhow::{Context, Result};
use perdura_cluster::protocol::text::Printable;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written. At usual levels a replica logs a few in a second.
const LINES: usize = 4096;

/// Longest wait for what was logged last, when the process ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// Ends with what was logged on standard error, as far as that takes it.
#[must_use = "what was logged last is written when it goes"]
pub struct Logging {
    queue: Queue,
}

impl Logging {
    /// Lines that were lost so far.
    pub fn lost(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.queue.lost)
    }

    /// For whoever ends the process without an end of this.
    pub fn farewell(&self) -> Farewell {
        Farewell(self.queue.clone())
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.farewell().say();
    }
}

/// Waits for what was logged last.
pub struct Farewell(Queue);

impl Farewell {
    /// Until it is written, as far as that takes it.
    pub fn say(self) {
        let (written, wait) = sync_channel(1);
        let deadline = Instant::now() + FAREWELL;
        let mut last = Item::Written(written);
        while let Err(std::sync::mpsc::TrySendError::Full(back)) = self.0.items.try_send(last) {
            if Instant::now() > deadline {
                return;
            }
            last = back;
            std::thread::sleep(Duration::from_millis(5));
        }
        // Nobody reads, else.
        let _ = wait.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

enum Item {
    Line(Vec<u8>),
    /// All before it was written.
    Written(SyncSender<()>),
}

/// Where lines wait for the thread that writes them.
#[derive(Clone)]
struct Queue {
    items: SyncSender<Item>,
    lost: Arc<AtomicU64>,
}

impl Queue {
    /// With a thread that writes to `to`.
    fn start(to: impl Write + Send + 'static) -> io::Result<Queue> {
        let (items, taken) = sync_channel(LINES);
        let lost = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&lost);
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || write_all(to, &taken, &counter))?;
        Ok(Queue { items, lost })
    }
}

impl Write for Queue {
    /// A whole line: `tracing-subscriber` gives each as one.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.items.try_send(Item::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Queue;

    fn make_writer(&'a self) -> Queue {
        self.clone()
    }
}

fn write_all(mut to: impl Write, taken: &Receiver<Item>, lost: &AtomicU64) {
    let mut told = 0;
    while let Ok(item) = taken.recv() {
        let line = match item {
            Item::Line(line) => line,
            Item::Written(written) => {
                let _ = written.try_send(());
                continue;
            }
        };
        if to.write_all(&line).and_then(|()| to.flush()).is_err() {
            lost.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        // There is somebody again who reads.
        let now = lost.load(Ordering::Relaxed);
        if now > told && writeln!(to, "({} lines of this log were lost)", now - told).is_ok() {
            told = now;
        }
    }
}

/// Sends logs of `level` and above to standard error, and panics with them.
///
/// # Errors
/// When there is no thread for it.
pub fn start(level: LogLevel) -> Result<Logging> {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let queue = Queue::start(io::stderr()).context("cannot start a thread for logs")?;
    tracing_subscriber::fmt()
        .with_writer(queue.clone())
        .log_internal_errors(false)
        .with_ansi(false)
        .with_max_level(level)
        .init();
    // The usual one writes to standard error, and waits there.
    std::panic::set_hook(Box::new(|panic| {
        if perdura_replica::runtime::panic_is_expected() {
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let backtrace = std::backtrace::Backtrace::capture();
        match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => {
                tracing::error!("thread {name:?} {}\n{backtrace}", Printable(&panic.to_string()));
            }
            _ => tracing::error!("thread {name:?} {}", Printable(&panic.to_string())),
        }
    }));
    Ok(Logging { queue })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// What may be written to it: nothing, all, or nothing without an end.
    struct Reader {
        text: Arc<Mutex<Vec<u8>>>,
        fails: Arc<Mutex<bool>>,
    }

    impl Write for Reader {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            if *self.fails.lock().unwrap() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.text.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_nobody_takes_are_counted_and_told_of_later() {
        let (text, fails) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(true)));
        let reader = Reader { text: Arc::clone(&text), fails: Arc::clone(&fails) };
        let mut queue = Queue::start(reader).unwrap();
        let lost = Arc::clone(&queue.lost);
        let logging = Logging { queue: queue.clone() };
        for _ in 0..3 {
            queue.write_all(b"unread\n").unwrap();
        }
        drop(logging);
        assert_eq!(lost.load(Ordering::Relaxed), 3);
        *fails.lock().unwrap() = false;
        let logging = Logging { queue: queue.clone() };
        queue.write_all(b"read\n").unwrap();
        drop(logging);
        let said = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        assert_eq!(said, "read\n(3 lines of this log were lost)\n");
    }

    /// While whoever reads stands still, so does the thread that writes, and nobody else.
    #[test]
    fn who_logs_does_not_wait_for_who_reads() {
        let (text, fails) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(false)));
        let reader = Reader { text: Arc::clone(&text), fails: Arc::clone(&fails) };
        let stuck = fails.lock().unwrap();
        let mut queue = Queue::start(reader).unwrap();
        for _ in 0..LINES + 10 {
            queue.write_all(b"line\n").unwrap();
        }
        // One is with the thread, or on its way there.
        let lost = queue.lost.load(Ordering::Relaxed);
        assert!((9..=10).contains(&lost), "{lost}");
        drop(stuck);
        drop(Logging { queue });
        let said = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        assert_eq!(said.matches("line\n").count() as u64, LINES as u64 + 10 - lost);
    }
}
