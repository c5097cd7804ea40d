//! A run as a picture: results per second, the longest wait, and below them a lane for each kind of
//! fault that was injected. SVG as text; nothing in it needs a library.

use crate::faults::FaultKind;
use crate::service::Workload;
use crate::timeline::Event;
use crate::waits::Sample;
use std::fmt::Write;

const WIDTH: f64 = 1400.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 60.0;
const PANEL: f64 = 180.0;
const GAP: f64 = 34.0;
const LANE: f64 = 15.0;

/// Most points along the time.
const POINTS: u64 = 600;

/// The shortest and the longest wait of the scale, milliseconds.
const WAITS: (f64, f64) = (1.0, 60_000.0);

/// Of the two workloads of a service.
const COLOURS: [&str; 2] = ["#3b6ea5", "#e08e2b"];

/// Where a time is.
struct Scale {
    to_us: f64,
}

impl Scale {
    fn x(&self, us: u64) -> f64 {
        let part = (us as f64 / self.to_us).min(1.0);
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }
}

fn colour(kind: FaultKind) -> &'static str {
    match kind {
        _ if kind.is_disaster() => "#b3261e",
        FaultKind::Kill
        | FaultKind::KillLeader
        | FaultKind::Restart
        | FaultKind::Pause
        | FaultKind::PauseLeader => "#7a4fa3",
        FaultKind::FullDisk
        | FaultKind::FsyncError
        | FaultKind::LogRot
        | FaultKind::CheckpointRot
        | FaultKind::RunningRot
        | FaultKind::LostDisk
        | FaultKind::Liar
        | FaultKind::TakenBack => "#2e7d4f",
        FaultKind::ClockJump => "#8a6d1d",
        _ => "#50788c",
    }
}

/// The picture of a run that ended at `to`, in microseconds.
pub fn draw(
    title: &str,
    workloads: [Workload; 2],
    events: &[Event],
    samples: &[Sample],
    to: u64,
) -> String {
    let to = to.max(1_000_000);
    let bin = to.div_ceil(POINTS).max(1_000_000);
    let scale = Scale { to_us: to as f64 };
    let mut kinds: Vec<FaultKind> = events.iter().map(|event| event.kind).collect();
    kinds.sort();
    kinds.dedup();
    let lanes = TOP + 2.0 * (PANEL + GAP);
    let height = lanes + kinds.len() as f64 * LANE + 50.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"DejaVu Sans, sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut svg, LEFT, 22.0, "start", 15, title);
    shade(&mut svg, &scale, events, lanes + kinds.len() as f64 * LANE);
    throughput(&mut svg, &scale, workloads, samples, (bin, to));
    waits(&mut svg, &scale, samples, (bin, to));
    for (row, kind) in kinds.iter().enumerate() {
        lane(&mut svg, &scale, *kind, events, lanes + row as f64 * LANE);
    }
    time_axis(&mut svg, &scale, to, lanes + kinds.len() as f64 * LANE + 6.0);
    svg.push_str("</svg>\n");
    svg
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, size: u32, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{content}</text>"
    );
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
    );
}

/// Times of faults behind everything: more than u failed in red, leaders killed in violet.
fn shade(svg: &mut String, scale: &Scale, events: &[Event], bottom: f64) {
    for event in events {
        let (from, to) = (scale.x(event.began), scale.x(event.end()));
        let (colour, opacity) = match event.kind {
            kind if kind.is_disaster() => ("#b3261e", 0.16),
            FaultKind::KillLeader => ("#7a4fa3", 0.16),
            _ => ("#777777", 0.07),
        };
        let _ = writeln!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\" \
             opacity=\"{opacity}\"/>",
            (to - from).max(0.5),
            bottom - TOP
        );
    }
}

fn throughput(
    svg: &mut String,
    scale: &Scale,
    workloads: [Workload; 2],
    samples: &[Sample],
    (bin, to): (u64, u64),
) {
    let bins = to.div_ceil(bin) as usize;
    let mut counts = [vec![0_u64; bins], vec![0_u64; bins]];
    for sample in samples.iter().filter(|sample| sample.ok && sample.ended < to) {
        let row = usize::from(sample.workload == workloads[1]);
        counts[row][(sample.ended / bin) as usize] += 1;
    }
    let rate = |count: u64| count as f64 * 1e6 / bin as f64;
    let most = counts.iter().flatten().map(|count| rate(*count)).fold(1.0, f64::max);
    let top = round_up(most);
    let y = |value: f64| TOP + PANEL * (1.0 - value / top);
    text(svg, LEFT, TOP - 8.0, "start", 12, "results per second");
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        line(svg, (LEFT, y(value)), (WIDTH - RIGHT, y(value)), "#dddddd");
        text(svg, LEFT - 6.0, y(value) + 4.0, "end", 11, &format!("{value:.0}"));
    }
    for (row, (workload, colour)) in workloads.iter().zip(COLOURS).enumerate() {
        let points = counts[row].iter().enumerate().map(|(at, count)| {
            let middle = (at as u64 * bin + bin / 2).min(to);
            format!("{:.1},{:.1}", scale.x(middle), y(rate(*count)))
        });
        polyline(svg, &points.collect::<Vec<_>>(), colour);
        let x = LEFT + 150.0 + 120.0 * row as f64;
        line(svg, (x, TOP - 12.0), (x + 18.0, TOP - 12.0), colour);
        text(svg, x + 22.0, TOP - 8.0, "start", 11, workload.name());
    }
}

fn waits(svg: &mut String, scale: &Scale, samples: &[Sample], (bin, to): (u64, u64)) {
    let top = TOP + PANEL + GAP;
    let bins = to.div_ceil(bin) as usize;
    let mut longest = vec![0_u64; bins];
    for sample in samples.iter().filter(|sample| !sample.waits) {
        // A wait is felt in all the time that it lasts.
        let (first, last) = (sample.invoked / bin, sample.ended / bin);
        for at in first..=last {
            if let Some(place) = longest.get_mut(at as usize) {
                *place = (*place).max(sample.ended - sample.invoked);
            }
        }
    }
    let decades = (WAITS.1 / WAITS.0).ln();
    let y = |ms: f64| {
        let part = (ms.clamp(WAITS.0, WAITS.1) / WAITS.0).ln() / decades;
        top + PANEL * (1.0 - part)
    };
    text(svg, LEFT, top - 8.0, "start", 12, "longest wait of a call, logarithmic");
    for (ms, label) in [
        (1.0, "1 ms"),
        (10.0, "10 ms"),
        (100.0, "100 ms"),
        (500.0, "500 ms"),
        (1e3, "1 s"),
        (1e4, "10 s"),
        (6e4, "60 s"),
    ] {
        let colour = if label == "500 ms" { "#7a4fa3" } else { "#dddddd" };
        line(svg, (LEFT, y(ms)), (WIDTH - RIGHT, y(ms)), colour);
        text(svg, LEFT - 6.0, y(ms) + 4.0, "end", 11, label);
    }
    let points = longest.iter().enumerate().map(|(at, wait)| {
        let middle = (at as u64 * bin + bin / 2).min(to);
        format!("{:.1},{:.1}", scale.x(middle), y(*wait as f64 / 1000.0))
    });
    polyline(svg, &points.collect::<Vec<_>>(), "#333333");
}

fn polyline(svg: &mut String, points: &[String], colour: &str) {
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.3\"/>",
        points.join(" ")
    );
}

/// One kind's events: dark while the fault lasted, light until all was well again.
fn lane(svg: &mut String, scale: &Scale, kind: FaultKind, events: &[Event], y: f64) {
    line(svg, (LEFT, y + LANE), (WIDTH - RIGHT, y + LANE), "#eeeeee");
    text(svg, LEFT - 6.0, y + LANE - 4.0, "end", 11, &kind.name());
    for event in events.iter().filter(|event| event.kind == kind) {
        let from = scale.x(event.began);
        let spans = [(event.end(), 0.35), (event.healed.unwrap_or(event.end()), 1.0)];
        for (to, opacity) in spans {
            let width = (scale.x(to) - from).max(1.5);
            let opacity = if event.fired { opacity } else { 0.2 };
            let _ = writeln!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
                 fill=\"{}\" opacity=\"{opacity}\"/>",
                y + 3.0,
                LANE - 5.0,
                colour(kind)
            );
        }
    }
}

fn time_axis(svg: &mut String, scale: &Scale, to: u64, y: f64) {
    let seconds = to as f64 / 1e6;
    let step = [5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0]
        .into_iter()
        .find(|step| seconds / step <= 16.0)
        .unwrap_or(7200.0);
    let mut at = 0.0;
    while at <= seconds {
        let x = scale.x((at * 1e6) as u64);
        line(svg, (x, y), (x, y + 5.0), "#333333");
        let label =
            if step < 60.0 { format!("{at:.0} s") } else { format!("{:.0} min", at / 60.0) };
        text(svg, x, y + 18.0, "middle", 11, &label);
        at += step;
    }
}

/// The next 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|top| *top >= value)
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Service;

    #[test]
    fn a_run_is_drawn_with_a_lane_for_each_kind_that_came() {
        let event =
            |kind, began| Event { began, healed: Some(began + 1_000_000), ..Event::of(kind) };
        let events = [event(FaultKind::Kill, 1_000_000), event(FaultKind::KillAll, 5_000_000)];
        let samples: Vec<Sample> = (0..100)
            .map(|at| Sample {
                workload: Workload::Tuples,
                invoked: at * 100_000,
                ended: at * 100_000 + 5_000,
                ok: true,
                may_take: 20_000_000,
                over: false,
                waits: false,
            })
            .collect();
        let svg = draw("a < b", Service::Tuples.workloads(), &events, &samples, 10_000_000);
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        assert!(svg.contains(">tuples</text>") && svg.contains(">queue</text>"));
        assert!(svg.contains(">kill</text>") && svg.contains(">kill-all</text>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!(round_up(101.0), 200.0);
        assert_eq!(round_up(0.3), 0.5);
    }
}
