//! A simulated device for the log, so that experiments on one machine show how a group does on the
//! disks of another (Dura-SMaRt, USENIX ATC 2013, section 5: a SCSI disk and a SATA SSD).
//!
//! It wraps the disk: the log is written and flushed as ever, and a flush comes back no sooner than the
//! device would have done it. The device is a queue: it writes at its bandwidth, and each flush takes
//! its latency. Writes that nobody flushes (`async`) cost nothing until somebody does.

use super::starting::Starting;
use perdura_durability::{Disk, DiskError};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
struct Queue {
    device: LogDevice,
    // What was written since the last flush, and when that began.
    bytes: u64,
    begun: Option<Instant>,
    // When it will be done with what was flushed.
    done: Option<Instant>,
}

impl Queue {
    fn new(device: LogDevice) -> Queue {
        Queue { device, bytes: 0, begun: None, done: None }
    }

    fn write(&mut self, now: Instant, bytes: u64) {
        self.begun.get_or_insert(now);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// A flush that was asked for at `now`: when the device is done with it.
    fn flush(&mut self, now: Instant) -> Instant {
        let begun = self.begun.take().unwrap_or(now);
        let bytes = std::mem::take(&mut self.bytes);
        let writing = Duration::from_secs_f64(bytes as f64 / self.device.bytes_per_s as f64);
        let written = self.done.map_or(begun, |done| done.max(begun)) + writing;
        // What was written while nobody waited is there already; the flush itself takes its time.
        let done = written.max(now) + self.device.delay;
        self.done = Some(done);
        done
    }
}

/// A disk whose log is on a [`LogDevice`], if one was given.
#[derive(Debug)]
pub(super) struct Paced<D> {
    disk: D,
    queue: Option<Arc<Mutex<Queue>>>,
    starting: Starting,
}

impl<D: Disk> Paced<D> {
    /// What is read of it is a part of this start.
    pub fn new(disk: D, device: Option<LogDevice>, starting: Starting) -> Paced<D> {
        let queue = device.map(|device| Arc::new(Mutex::new(Queue::new(device))));
        Paced { disk, queue, starting }
    }

    /// The queue, if `name` is of the log.
    fn queue_of(&self, name: &str) -> Option<MutexGuard<'_, Queue>> {
        let queue = self.queue.as_ref()?;
        let directory = name.split_once('/').map_or(name, |(directory, _)| directory);
        let is_of_log = directory == perdura_durability::log::DIRECTORY;
        is_of_log.then(|| queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn writes(&self, name: &str, bytes: u64) {
        if let Some(mut queue) = self.queue_of(name) {
            queue.write(Instant::now(), bytes);
        }
    }

    /// A flush comes back no sooner than it would from the device.
    fn flushes(
        &mut self,
        name: &str,
        flush: impl FnOnce(&mut D) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let done = self.queue_of(name).map(|mut queue| queue.flush(Instant::now()));
        flush(&mut self.disk)?;
        if let Some(done) = done {
            std::thread::sleep(done.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}

impl<D: Disk> Disk for Paced<D> {
    fn handle(&self) -> Self {
        let (queue, starting) = (self.queue.clone(), self.starting.clone());
        Paced { disk: self.disk.handle(), queue, starting }
    }

    fn create(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.writes(name, size_bytes);
        self.disk.create(name, size_bytes)
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        self.disk.read_at(name, offset, buffer)?;
        self.starting.read(buffer.len() as u64);
        Ok(())
    }

    fn read_through(
        &mut self,
        name: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), DiskError> {
        self.disk.read_through(name, offset, buffer)?;
        self.starting.read(buffer.len() as u64);
        Ok(())
    }

    fn write_at(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.writes(name, data.len() as u64);
        self.disk.write_at(name, offset, data)
    }

    fn write_through(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.writes(name, data.len() as u64);
        self.disk.write_through(name, offset, data)
    }

    fn release(&mut self, name: &str) {
        self.disk.release(name);
    }

    fn write_zeros(&mut self, name: &str, offset: u64, length_bytes: u64) -> Result<(), DiskError> {
        self.writes(name, length_bytes);
        self.disk.write_zeros(name, offset, length_bytes)
    }

    fn sync(&mut self, name: &str) -> Result<(), DiskError> {
        self.flushes(name, |disk| disk.sync(name))
    }

    fn sync_directory(&mut self, directory: &str) -> Result<(), DiskError> {
        self.flushes(directory, |disk| disk.sync_directory(directory))
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn shrink(&mut self, name: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.disk.shrink(name, size_bytes)
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }

    fn list(&mut self, directory: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(directory)
    }

    fn len(&mut self, name: &str) -> Result<u64, DiskError> {
        self.disk.len(name)
    }

    fn exists(&mut self, name: &str) -> Result<bool, DiskError> {
        self.disk.exists(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_durability::MemoryDisk;

    const MS: Duration = Duration::from_millis(1);

    fn disk() -> LogDevice {
        "delay_ms=5,mb_s=100".parse().unwrap()
    }

    #[test]
    fn a_flush_takes_its_delay_and_the_bytes_their_time() {
        let start = Instant::now();
        let mut queue = Queue::new(disk());
        queue.write(start, 100_000);
        queue.write(start + MS, 100_000);
        assert_eq!(queue.flush(start + MS), start + 7 * MS, "from the first write on");
        // A disk that was idle does not make up for it.
        let later = start + 50 * MS;
        assert_eq!([queue.flush(later), queue.flush(later)], [later + 5 * MS, later + 10 * MS]);
    }

    /// After each flush the log writes a mark, which nobody waits for.
    #[test]
    fn what_was_written_long_before_saves_no_delay() {
        let start = Instant::now();
        let mut queue = Queue::new(disk());
        queue.write(start, 100_000);
        assert_eq!(queue.flush(start), start + 6 * MS);
        queue.write(start + 6 * MS, 4096);
        let later = start + 500 * MS;
        queue.write(later, 100_000);
        assert_eq!(queue.flush(later), later + 5 * MS);
    }

    #[test]
    fn what_comes_while_it_is_busy_waits_for_its_turn() {
        let start = Instant::now();
        let mut queue = Queue::new(disk());
        queue.write(start, 1_000_000);
        assert_eq!(queue.flush(start + MS), start + 15 * MS);
        assert_eq!(queue.flush(start + 2 * MS), start + 20 * MS);
    }

    #[test]
    fn the_log_alone_is_on_it() {
        let paced = Paced::new(MemoryDisk::new(), Some(disk()), Starting::default());
        let is_paced = |name| paced.queue_of(name).is_some();
        assert_eq!(
            ["log/0001", "log", "checkpoint/0001", "superblock"].map(is_paced),
            [true, true, false, false]
        );
        let mut other = paced.handle();
        other.create("log/0001", 0).unwrap();
        other.write_at("log/0001", 0, &[7; 100]).unwrap();
        assert_eq!(paced.queue_of("log").unwrap().bytes, 100, "its handles share the device");
        other.sync("log/0001").unwrap();
        assert_eq!(paced.queue_of("log").unwrap().bytes, 0);
        assert!(Paced::new(MemoryDisk::new(), None, Starting::default()).queue_of("log").is_none());
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
