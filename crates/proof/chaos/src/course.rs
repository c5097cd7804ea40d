//! What all threads of a run share: its clock, whether it is over, and what was found.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Locks whatever became of other holders: what they left is looked at, not trusted.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a run ends before its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Something was found.
    Violation,
    /// A signal.
    Interrupted,
}

/// The course of a run.
pub struct Course {
    origin: Instant,
    end: Mutex<Option<End>>,
    ended: Condvar,
    violations: Mutex<Vec<String>>,
}

impl Course {
    /// Starts the clock.
    pub fn new() -> Course {
        Course {
            origin: Instant::now(),
            end: Mutex::new(None),
            ended: Condvar::new(),
            violations: Mutex::new(Vec::new()),
        }
    }

    /// Microseconds since the start.
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Ends the run before its time.
    pub fn end(&self, why: End) {
        lock(&self.end).get_or_insert(why);
        self.ended.notify_all();
    }

    /// Why it ends before its time, if it does.
    pub fn ends(&self) -> Option<End> {
        *lock(&self.end)
    }

    /// Waits; false if the run ends meanwhile.
    pub fn sleep(&self, time: Duration) -> bool {
        let guard = lock(&self.end);
        let (guard, _) = self
            .ended
            .wait_timeout_while(guard, time, |end| end.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        guard.is_none()
    }

    /// Asks every few milliseconds until there is an answer; none after `limit`, or when the run
    /// is interrupted.
    pub fn poll<T>(&self, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(answer) = ask() {
                return Some(answer);
            }
            if Instant::now() >= deadline || self.ends() == Some(End::Interrupted) {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Notes what must not be, and ends the run.
    pub fn violation(&self, what: String) {
        if self.ends() == Some(End::Interrupted) {
            return;
        }
        let at = self.now_us() as f64 / 1e6;
        eprintln!("{at:8.1} s  VIOLATION: {what}");
        lock(&self.violations).push(format!("at {at:.1} s: {what}"));
        self.end(End::Violation);
    }

    /// What was found.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.violations).clone()
    }
}
