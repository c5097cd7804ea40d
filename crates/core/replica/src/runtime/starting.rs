//! How far a replica has come that is starting: it reads its log and its newest state, restores that, and runs what the log holds beyond it.
//! With gigabytes that takes minutes, in which an operator wants to know whether it goes on, and a probe of liveness not to kill it.

use super::watch;
use perdura_durability::log::DIRECTORY as LOG;
use perdura_execution::{Asked, Call};
use perdura_protocol::Slot;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Who has made no progress for so long does not start: its disk hangs, or its service.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Between two lines, of which the first comes when it has taken that long.
const TELL: Duration = Duration::from_secs(5);

/// Where states are in a data directory.
const STATES: &str = "checkpoint";

/// See the module. Clones are of the same start.
#[derive(Clone, Debug, Default)]
pub(super) struct Starting(Arc<Come>);

#[derive(Debug, Default)]
struct Come {
    read_bytes: AtomicU64,
    total_bytes: AtomicU64,
    /// What it waits for before it reads anything, in words.
    waits: Mutex<Option<String>>,
    /// What it runs is asked here, up to this slot.
    runs: Mutex<Option<(Asked, Slot)>>,
    seen: Mutex<Option<Seen>>,
    /// At which slot of the log it was first found.
    found: Mutex<Option<(Slot, Instant)>>,
    ended: AtomicBool,
}

/// How far it had come.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Bytes read, and one more than the slot that was run last.
    come: (u64, u64),
    /// Since when it has come no further.
    since: Instant,
    begun: Instant,
}

impl Starting {
    /// It reads nothing yet, for this reason.
    pub fn waits(&self, why: String) {
        *self.waiting() = Some(why);
    }

    fn waiting(&self) -> MutexGuard<'_, Option<String>> {
        self.0.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It begins.
    pub fn begin(&self, now: Instant) {
        *self.seen() = Some(Seen { come: (0, 0), since: now, begun: now });
    }

    /// It begins to read this data directory.
    pub fn reads(&self, data: &Path, now: Instant) {
        *self.waiting() = None;
        let total = bytes_in(&data.join(LOG)) + bytes_in(&data.join(STATES));
        self.0.read_bytes.store(0, Ordering::Relaxed);
        self.0.total_bytes.store(total, Ordering::Relaxed);
        self.begin(now);
    }

    /// So many bytes more were read.
    pub fn read(&self, bytes: u64) {
        watch::went_on();
        if !self.0.ended.load(Ordering::Relaxed) {
            self.0.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// All is read; what the log holds is run up to `last`, which is asked here.
    pub fn runs(&self, asked: Asked, last: Slot) {
        *self.0.found.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.0.runs.lock().unwrap_or_else(PoisonError::into_inner) = Some((asked, last));
    }

    /// It has started, or will not.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }

    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> Option<(Asked, Slot)> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has come further within the last [`TIMEOUT`]; who waits for others, and a service that restores its state, have all the time that
    /// they take.
    pub fn goes_on(&self, now: Instant) -> bool {
        let asked = self.asked();
        let restores = asked.as_ref().is_some_and(|(asked, _)| is_restoring(asked));
        let read = self.0.read_bytes.load(Ordering::Relaxed);
        let come = (read, asked.map_or(0, |(asked, _)| 1 + asked.slot().0));
        let waits = self.waiting().is_some();
        let mut seen = self.seen();
        let Some(seen) = &mut *seen else { return true };
        if seen.come != come || waits || restores {
            (seen.come, seen.since) = (come, now);
        }
        now.saturating_duration_since(seen.since) < TIMEOUT
    }

    /// How far it has come, in words.
    pub fn text(&self, now: Instant) -> String {
        if let Some(why) = &*self.waiting() {
            return why.clone();
        }
        if let Some((asked, last)) = self.asked() {
            return match asked.slot() {
                Slot(0) => "starting: restoring the state".to_owned(),
                slot if is_restoring(&asked) => {
                    format!("starting: restoring the state of slot {slot}")
                }
                slot => {
                    let text =
                        format!("starting: running what the log holds, slot {slot} of {last}");
                    text + &self.left(slot, last, now)
                }
            };
        }
        let Some(Seen { begun, .. }) = *self.seen() else { return "starting".to_owned() };
        let took = now.saturating_duration_since(begun).as_secs_f64();
        let total = self.0.total_bytes.load(Ordering::Relaxed) as f64;
        let read = self.0.read_bytes.load(Ordering::Relaxed) as f64;
        let mut text =
            format!("starting: {:.0} MB of log and state read in {took:.0} s", read / 1e6);
        // Some is read twice, and some not at all.
        if read < total {
            text += &format!(", of about {:.0} MB", total / 1e6);
            if read > 0.0 {
                text += &format!("; about {:.0} s left", took * (total - read) / read);
            }
        }
        text + "; then the state is restored, and what the log holds is run"
    }

    /// How long what is left of the log will take, in words, by how long it took since somebody asked first.
    fn left(&self, slot: Slot, last: Slot, now: Instant) -> String {
        let mut found = self.0.found.lock().unwrap_or_else(PoisonError::into_inner);
        // Until it has begun it was asked last in the life before.
        let known = found.filter(|(first, _)| *first <= slot);
        let (first, since) = *found.insert(known.unwrap_or((slot, now)));
        let (ran, left) = (slot.0.saturating_sub(first.0), last.0.saturating_sub(slot.0));
        let took = now.saturating_duration_since(since).as_secs_f64();
        match ran {
            0 => String::new(),
            _ => format!("; about {:.0} s left", (took * left as f64 / ran as f64).max(1.0)),
        }
    }

    /// Writes that to the log now and then, from a thread of its own, until it has ended.
    pub fn tell(&self) -> std::io::Result<()> {
        let starting = self.clone();
        super::threads::spawn("start", move || {
            let mut told = Instant::now();
            while !starting.0.ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                if told.elapsed() >= TELL {
                    told = Instant::now();
                    tracing::info!("{}", starting.text(told));
                }
            }
        })?;
        Ok(())
    }
}

/// Whether its service is being asked to restore a state.
fn is_restoring(asked: &Asked) -> bool {
    matches!(asked.now(), Some((Call::Install, _)))
}

/// Ends a start when it is dropped, however that ended.
pub(super) struct Ending(pub Starting);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Bytes of the files in a directory; what cannot be read counts nothing, for whoever opens it says so.
fn bytes_in(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| Some(entry.metadata().ok()?.len());
    entries.flatten().filter_map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_goes_on_and_says_how_far_it_is() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(LOG)).unwrap();
        std::fs::write(directory.path().join(LOG).join("1"), vec![0; 8_000_000]).unwrap();
        let (starting, begun) = (Starting::default(), Instant::now());
        assert_eq!(starting.text(begun), "starting");
        let later = |seconds| begun + Duration::from_secs(seconds);
        starting.begin(begun);
        assert!(!starting.goes_on(later(30)), "its disk hangs before a byte is read");
        starting.waits("starting: waits".to_owned());
        assert!(starting.goes_on(later(90)));
        assert_eq!(starting.text(later(90)), "starting: waits");
        starting.reads(directory.path(), begun);
        let then = "; then the state is restored, and what the log holds is run";
        assert_eq!(
            starting.text(later(1)),
            format!("starting: 0 MB of log and state read in 1 s, of about 8 MB{then}")
        );
        assert!(starting.goes_on(later(29)) && !starting.goes_on(later(30)));
        starting.read(2_000_000);
        assert!(starting.goes_on(later(31)) && starting.goes_on(later(60)));
        assert_eq!(
            starting.text(later(10)),
            format!(
                "starting: 2 MB of log and state read in 10 s, of about 8 MB; about 30 s left{then}"
            )
        );
        assert!(!starting.goes_on(later(61)));
        starting.read(7_000_000);
        assert_eq!(
            starting.text(later(10)),
            format!("starting: 9 MB of log and state read in 10 s{then}")
        );
        let asked = Asked::default();
        starting.runs(asked.clone(), Slot(9));
        assert!(starting.goes_on(later(62)));
        assert_eq!(starting.text(later(62)), "starting: restoring the state");
        asked.about(Call::Install, Slot(7), || {
            assert!(starting.goes_on(later(600)) && starting.goes_on(later(700)));
            assert_eq!(starting.text(later(700)), "starting: restoring the state of slot 7");
        });
        assert!(starting.goes_on(later(701)) && !starting.goes_on(later(730)));
        assert_eq!(starting.text(later(701)), "starting: running what the log holds, slot 7 of 9");
        asked.about(Call::Execute, Slot(8), || {
            assert_eq!(
                starting.text(later(711)),
                "starting: running what the log holds, slot 8 of 9; about 10 s left"
            );
        });
        starting.end();
        starting.read(1_000_000);
        assert_eq!(starting.0.read_bytes.load(Ordering::Relaxed), 9_000_000);
    }
}
