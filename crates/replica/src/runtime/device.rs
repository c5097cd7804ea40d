//! A simulated device for the log, so that experiments on one machine show how a group does on the
//! disks of another (Dura-SMaRt, USENIX ATC 2013, section 5: a SCSI disk and a SATA SSD).
//!
//! The log is written and flushed as ever; what is then said to be durable is said no sooner than the
//! device would have said it. The device is a queue: it writes at its bandwidth, and each flush takes
//! its latency. Writes that nobody flushes (`async`) take its time too, but nobody waits for them.

use perdura_durability::log::Work;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A device as an experiment describes it: `delay_ms=5,mb_s=130`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogDevice {
    delay: Duration,
    bytes_per_s: u64,
}

/// Longest delay of a flush, milliseconds: above it followers would suspect every leader.
const DELAY_MS: f64 = 500.0;

/// Largest bandwidth, MB/s (of 10^6 bytes).
const MB_S: f64 = 1_000_000.0;

/// Least bandwidth, MB/s.
const LEAST_MB_S: f64 = 0.1;

impl FromStr for LogDevice {
    type Err = String;

    /// Both fields, in any order; fractions are taken.
    fn from_str(text: &str) -> Result<LogDevice, String> {
        let (mut delay_ms, mut mb_s) = (None, None);
        for field in text.split(',') {
            let (name, value) = field.split_once('=').unwrap_or((field, ""));
            let (place, least, most) = match name {
                "delay_ms" => (&mut delay_ms, 0.0, DELAY_MS),
                "mb_s" => (&mut mb_s, LEAST_MB_S, MB_S),
                _ => return Err(format!("{name:?} is neither delay_ms nor mb_s")),
            };
            let number = value.parse::<f64>().ok().filter(|number| (least..=most).contains(number));
            let Some(number) = number else {
                return Err(format!("{name} is a number from {least} to {most}, not {value:?}"));
            };
            if place.replace(number).is_some() {
                return Err(format!("{name} is there twice"));
            }
        }
        let (Some(delay_ms), Some(mb_s)) = (delay_ms, mb_s) else {
            return Err("give both fields, as in delay_ms=5,mb_s=130".to_owned());
        };
        // To the microsecond and to the byte.
        let delay = Duration::from_micros((delay_ms * 1e3).round() as u64);
        Ok(LogDevice { delay, bytes_per_s: (mb_s * 1e6).round() as u64 })
    }
}

impl fmt::Display for LogDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delay_ms = self.delay.as_micros() as f64 / 1e3;
        let mb_s = self.bytes_per_s as f64 / 1e6;
        write!(f, "delay_ms={delay_ms},mb_s={mb_s}")
    }
}

/// Its queue.
#[derive(Debug)]
pub(super) struct Queue {
    device: LogDevice,
    // What was handed to it so far, and when it will be done with that.
    taken: Work,
    done: Option<Instant>,
}

impl Queue {
    /// Empty, of a log that has asked for `taken` before.
    pub fn new(device: LogDevice, taken: Work) -> Queue {
        Queue { device, taken, done: None }
    }

    /// The log began to write at `begun` and has asked for `total` in all by now: when the device is
    /// done with it. None if nothing was flushed, and so nothing waits for it.
    pub fn take(&mut self, begun: Instant, total: Work) -> Option<Instant> {
        let flushes = total.flushes.saturating_sub(self.taken.flushes);
        let bytes = total.bytes.saturating_sub(self.taken.bytes);
        self.taken = total;
        let delay = self.device.delay.saturating_mul(u32::try_from(flushes).unwrap_or(u32::MAX));
        let writing = Duration::from_secs_f64(bytes as f64 / self.device.bytes_per_s as f64);
        let begins = self.done.map_or(begun, |done| done.max(begun));
        let done = begins + delay.saturating_add(writing);
        self.done = Some(done);
        (flushes > 0).then_some(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn disk() -> LogDevice {
        "delay_ms=5,mb_s=100".parse().unwrap()
    }

    #[test]
    fn a_flush_takes_its_delay_and_the_bytes_their_time() {
        let start = Instant::now();
        let mut queue = Queue::new(disk(), Work { flushes: 7, bytes: 70 });
        let total = Work { flushes: 8, bytes: 70 + 200_000 };
        assert_eq!(queue.take(start, total), Some(start + 7 * MS));
        // A disk that was idle does not make up for it.
        let total = Work { flushes: 10, ..total };
        assert_eq!(queue.take(start + 50 * MS, total), Some(start + 60 * MS));
    }

    #[test]
    fn what_comes_while_it_is_busy_waits_for_its_turn() {
        let start = Instant::now();
        let mut queue = Queue::new(disk(), Work::default());
        let mut total = Work { flushes: 0, bytes: 1_000_000 };
        assert_eq!(queue.take(start, total), None, "nobody waits for what is not flushed");
        total.flushes += 1;
        assert_eq!(queue.take(start + MS, total), Some(start + 15 * MS), "but a flush does");
        total.flushes += 1;
        assert_eq!(queue.take(start + 2 * MS, total), Some(start + 20 * MS));
    }

    #[test]
    fn it_is_written_as_it_is_read() {
        for text in ["delay_ms=5,mb_s=130", "delay_ms=0.9,mb_s=130.7", "delay_ms=0,mb_s=0.1"] {
            assert_eq!(text.parse::<LogDevice>().unwrap().to_string(), text);
        }
        assert_eq!("mb_s=100,delay_ms=5".parse(), Ok(disk()));
        for (text, named) in [
            ("", "neither"),
            ("delay_ms=5", "both"),
            ("delay_ms=5,mb_s=0", "mb_s is a number from 0.1"),
            ("delay_ms=-1,mb_s=1", "delay_ms is a number from 0"),
            ("delay_ms=NaN,mb_s=1", "NaN"),
            ("delay_ms=5,delay_ms=5,mb_s=1", "twice"),
            ("delay_ms=5,mb_s", "mb_s is"),
            ("delay=5,mb_s=1", "\"delay\""),
        ] {
            let error = text.parse::<LogDevice>().unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
