//! What all threads of a run share: its clock, whether it is over, and what was found.

use crate::standstill::{BEAT, Standstills};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
    standstills: Standstills,
}

impl Course {
    /// Starts the clock.
    pub fn new() -> Course {
        Course {
            origin: Instant::now(),
            end: Mutex::new(None),
            ended: Condvar::new(),
            violations: Mutex::new(Vec::new()),
            standstills: Standstills::default(),
        }
    }

    /// Microseconds since the start.
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Notes from now on when this program itself stands still.
    pub fn note_standstills(self: &Arc<Course>) {
        let course = Arc::downgrade(self);
        self.standstills.beat(self.now_us());
        std::thread::spawn(move || {
            while let Some(course) = course.upgrade() {
                let now = course.now_us();
                if let Some(time) = course.standstills.beat(now) {
                    let (at, time) = (now as f64 / 1e6, time as f64 / 1e6);
                    println!("{at:8.1} s  this program itself stood still for {time:.1} s");
                }
                drop(course);
                std::thread::sleep(BEAT);
            }
        });
    }

    /// When this program itself stood still.
    pub fn standstills(&self) -> &Standstills {
        &self.standstills
    }

    /// For how long this program has run since then.
    pub fn ran_since(&self, since: u64) -> Duration {
        let now = self.now_us();
        let stood = self.standstills.between(since, now);
        Duration::from_micros(now.saturating_sub(since).saturating_sub(stood))
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
    /// is interrupted. Time in which this program stood still does not count.
    pub fn poll<T>(&self, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
        let begun = self.now_us();
        loop {
            if let Some(answer) = ask() {
                return Some(answer);
            }
            if self.ran_since(begun) >= limit || self.ends() == Some(End::Interrupted) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_leaves_out_the_time_in_which_this_program_stood_still() {
        let answers_the_third_time = |course: &Course| {
            let mut asked = 0;
            course.poll(Duration::from_micros(1), || {
                asked += 1;
                (asked == 3).then_some(asked)
            })
        };
        assert_eq!(answers_the_third_time(&Course::new()), None);
        let stood_still = Course::new();
        let beats = [0, u64::MAX].map(|now| stood_still.standstills().beat(now));
        assert_eq!(beats, [None, Some(u64::MAX)]);
        assert_eq!(answers_the_third_time(&stood_still), Some(3));
    }
}
