//! How far a long command is: a bar on a terminal, a line every few seconds elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two lines.
const TOLD: Duration = Duration::from_secs(5);

/// How far it is with entries and their bytes.
pub struct Progress {
    done: &'static str,
    entries: u64,
    bytes: u64,
    // Of all bytes, where that is known.
    total: Option<u64>,
    begun: Instant,
    told: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Nothing is `done` yet, of so many bytes.
    pub fn new(done: &'static str, total: Option<u64>) -> Progress {
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| bar(total));
        Progress { done, entries: 0, bytes: 0, total, begun: now, told: now, bar }
    }

    /// So much more is.
    pub fn add(&mut self, entries: u64, bytes: u64) {
        self.entries += entries;
        self.bytes += bytes;
        if let Some(bar) = &self.bar {
            bar.set_position(self.bytes);
            bar.set_message(format!("{} entries", self.entries));
        } else if self.told.elapsed() >= TOLD {
            self.told = Instant::now();
            tell!("perdura: {}", self.text());
        }
    }

    /// So many bytes of the total need nothing done.
    pub fn pass_over(&mut self, bytes: u64) {
        self.total = self.total.map(|total| total.saturating_sub(bytes));
        if let (Some(bar), Some(total)) = (&self.bar, self.total) {
            bar.set_length(total);
        }
    }

    /// How far it is, in words.
    pub fn text(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let seconds = self.begun.elapsed().as_secs_f64();
        let of = match self.total.filter(|total| *total > self.bytes) {
            Some(total) => {
                let left = seconds * (total - self.bytes) as f64 / self.bytes.max(1) as f64;
                let left = if self.bytes == 0 {
                    String::new()
                } else {
                    format!(", about {left:.0} s left")
                };
                format!(" of {:.1} MiB, {seconds:.0} s{left}", mib(total))
            }
            None => format!(" MiB, {seconds:.0} s"),
        };
        format!("{} entries {}, {:.1}{of}", self.entries, self.done, mib(self.bytes))
    }

    /// Nothing is drawn any more.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(total: Option<u64>) -> ProgressBar {
    let template = match total {
        Some(_) => {
            "{wide_bar} {binary_bytes} of {binary_total_bytes}, {msg}, {elapsed} gone, {eta} left"
        }
        None => "{spinner} {binary_bytes}, {msg}, {binary_bytes_per_sec}, {elapsed} gone",
    };
    let bar = match total {
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::new_spinner(),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    bar.set_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_said_where_the_total_is_known() {
        let mut known = Progress::new("imported", Some(4 << 20));
        known.bar = None;
        assert_eq!(known.text(), "0 entries imported, 0.0 of 4.0 MiB, 0 s");
        known.begun = Instant::now().checked_sub(Duration::from_secs(6)).unwrap();
        known.add(10, 1 << 20);
        assert_eq!(known.text(), "10 entries imported, 1.0 of 4.0 MiB, 6 s, about 18 s left");
        known.pass_over(1 << 20);
        assert_eq!(known.text(), "10 entries imported, 1.0 of 3.0 MiB, 6 s, about 12 s left");
        known.add(5, 2 << 20);
        assert_eq!(known.text(), "15 entries imported, 3.0 MiB, 6 s");
        let mut unknown = Progress::new("exported", None);
        unknown.add(1, 1 << 19);
        assert_eq!(unknown.text(), "1 entries exported, 0.5 MiB, 0 s");
    }
}
