//! Wall clocks that jump. The replica gets a clock that can be set the first time that it is
//! struck, by a restart with libfaketime, and keeps it.

use super::{Injected, Scene};
use crate::cluster::faketime;
use crate::service::Service;
use anyhow::{Context, Result};
use perdura_adversary::Random;
use std::time::Duration;

/// Jumps in milliseconds: within `max_skew_ms`, beyond it, a minute, an hour, a working day.
const JUMPS_MS: [i64; 6] = [200, 900, 5_000, 60_000, 3_600_000, 28_800_000];

/// Those of a minute at most.
const SHORT_JUMPS: usize = 4;

/// A log line shows a jump at least this large for certain.
const VISIBLE_MS: i64 = 60_000;

/// libfaketime reads its file once a second.
const NOTICED: Duration = Duration::from_millis(1_100);

/// The jumps that are drawn. Where one clock that is ahead can lead agreed time with it, waits last
/// until the others have caught up with it: after an hour nothing would be left to judge.
fn jumps(scene: &Scene) -> &'static [i64] {
    let is_followed = scene.cluster.faults.r() == 0 && scene.service == Service::Tuples;
    if is_followed { &JUMPS_MS[..SHORT_JUMPS] } else { &JUMPS_MS }
}

fn drawn(jumps: &[i64], random: &mut Random) -> i64 {
    let jump = *random.pick(jumps);
    if random.percent(50) { jump } else { -jump }
}

/// Two to four jumps, the last one back.
pub(super) fn jump(scene: &Scene, victim: usize, random: &mut Random) -> Result<Injected> {
    let library = faketime().context("libfaketime is not installed")?;
    let host = scene.host(victim);
    let mut jumps = Vec::new();
    let mut fired = true;
    if !host.has_clock() {
        // Its log shows whether the clock really is another one.
        let first = if random.percent(50) { VISIBLE_MS } else { -VISIBLE_MS };
        host.stop(&scene.course)?;
        host.set_clock(first)?;
        let length = host.log_length();
        scene.cluster.start_with_clock(victim, &library)?;
        jumps.push(first);
        let shown = scene.course.poll(Duration::from_secs(10), || {
            let log = host.log_since(length);
            log.lines().next().and_then(offset_of)
        });
        fired = shown.is_some_and(|shown| (shown - first).abs() < VISIBLE_MS / 2);
        scene.hold(500, 3_000, random);
    }
    for _ in 0..random.between(1, 3) {
        let next = drawn(self::jumps(scene), random);
        host.set_clock(next)?;
        jumps.push(next);
        scene.course.sleep(NOTICED);
        scene.hold(200, 5_000, random);
    }
    host.set_clock(0)?;
    std::thread::sleep(NOTICED);
    let ahead_ms = jumps.iter().copied().max().unwrap_or_default().max(0);
    let detail = format!("off by {jumps:?} ms, and back");
    Ok(Injected { ahead_us: 1000 * ahead_ms.unsigned_abs(), ..Injected::new(detail, fired) })
}

/// By how much the time at the start of a log line differs from that of this machine.
fn offset_of(line: &str) -> Option<i64> {
    // 2026-11-21T09:14:33.123456Z
    let time = line.split_whitespace().next()?.strip_suffix('Z')?;
    let (date, time) = time.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let seconds = days_since_1970(year, month, day) as f64 * 86_400.0
        + hour * 3_600.0
        + minute * 60.0
        + second;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(((seconds - now.as_secs_f64()) * 1000.0) as i64)
}

/// Howard Hinnant's `days_from_civil`.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted() {
        assert_eq!(days_since_1970(1970, 1, 1), 0);
        assert_eq!(days_since_1970(2000, 3, 1), 11_017);
        assert_eq!(days_since_1970(2024, 2, 29), 19_782);
    }

    #[test]
    fn the_time_of_a_line_is_read() {
        assert!(offset_of("1970-01-02T00:00:00.5Z  INFO x").is_some_and(|ms| ms < -1_000_000_000));
        assert_eq!(offset_of("no time"), None);
    }
}
