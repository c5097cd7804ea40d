//! What came out, as a picture: small charts beside and below each other, with a line for each series.

use super::report::base;
use super::{Experiment, Point};
use crate::paper::plot::{FONT, colour};
use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

/// Of a chart.
const SIZE: (u32, u32) = (330, 280);

struct Chart {
    caption: String,
    x: &'static str,
    y: &'static str,
    lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Charts in rows.
pub fn picture(experiment: Experiment, title: &str, points: &[Point]) -> Result<String> {
    let rows = rows(experiment, points);
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1).max(1);
    let mut svg = String::new();
    {
        let size =
            (SIZE.0 * u32::try_from(columns)?.max(2), 36 + SIZE.1 * u32::try_from(rows.len())?);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        let area = area.titled(title, (FONT, 18))?;
        for (charts, area) in rows.iter().zip(area.split_evenly((rows.len(), 1))) {
            for (chart, area) in charts.iter().zip(area.split_evenly((1, columns.max(2)))) {
                draw(chart, &area)?;
            }
        }
        area.present()?;
    }
    Ok(svg)
}

fn draw(chart: &Chart, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
    let all = || chart.lines.iter().flat_map(|(_, points)| points);
    let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max);
    let (right, top) = (most(|point| point.0), most(|point| point.1));
    let right = if right > 0.0 { right * 1.05 } else { 1.0 };
    let top = if top > 0.0 { top * 1.1 } else { 1.0 };
    let mut drawn = ChartBuilder::on(area)
        .caption(&chart.caption, (FONT, 14))
        .margin(8)
        .margin_right(16)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    drawn
        .configure_mesh()
        .light_line_style(BLACK.mix(0.04))
        .label_style((FONT, 12))
        .x_desc(chart.x)
        .y_desc(chart.y)
        .x_label_formatter(&tick)
        .y_label_formatter(&tick)
        .draw()?;
    for (index, (name, points)) in chart.lines.iter().enumerate() {
        let style = colour(index).stroke_width(2);
        drawn
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        let dots = points.iter().map(|point| Circle::new(*point, 3, colour(index).filled()));
        drawn.draw_series(dots)?;
    }
    drawn
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .label_font((FONT, 12))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// Lines of those points that are of `workload`, by what `series` says, with `x` and `y` of each.
fn lines(
    points: &[Point],
    workload: Option<&str>,
    series: impl Fn(&Point) -> String,
    x: impl Fn(&Point) -> f64,
    y: impl Fn(&Point) -> Option<f64>,
) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for point in points.iter().filter(|one| workload.is_none_or(|name| name == one.workload)) {
        let Some(y) = y(point) else { continue };
        let name = series(point);
        match lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push((x(point), y)),
            None => lines.push((name, vec![(x(point), y)])),
        }
    }
    lines
}

fn rows(experiment: Experiment, points: &[Point]) -> Vec<Vec<Chart>> {
    let mut workloads: Vec<&'static str> = Vec::new();
    for point in points {
        if !workloads.contains(&point.workload) {
            workloads.push(point.workload);
        }
    }
    let over =
        |name: &'static str| move |point: &Point| point.over(base(experiment, points, point), name);
    let plain = |name: &'static str| move |point: &Point| Some(point.figure(name));
    let by_partitions = |point: &Point| format!("P = {}", point.partitions);
    let global = |point: &Point| f64::from(point.global);
    let chart = |caption: String, x, y, lines| Chart { caption, x, y, lines };
    match experiment {
        Experiment::Fig3And4 => {
            let of = |y: &'static str, figure: &dyn Fn(&Point) -> Option<f64>| {
                let each = workloads.iter().map(|name| {
                    let lines = lines(points, Some(name), by_partitions, global, figure);
                    chart(format!("workload {name}"), "% global", y, lines)
                });
                each.collect::<Vec<Chart>>()
            };
            vec![
                of("server CPU, times local", &over("server_cpu_us_per_txn")),
                of("latency, mean (ms)", &plain("mean_ms")),
                of("latency, p95 (ms)", &plain("p95_ms")),
            ]
        }
        Experiment::Table4 => {
            let each = workloads.iter().map(|name| {
                let lines =
                    lines(points, Some(name), by_partitions, global, plain("aborts_percent"));
                chart(format!("workload {name}"), "% global", "aborts (%)", lines)
            });
            vec![each.collect()]
        }
        Experiment::Fig5 => {
            let series = |point: &Point| format!("{}, {}% global", point.workload, point.global);
            let liars = |point: &Point| f64::from(point.liars);
            let of = |caption: &str, y, name| {
                let lines = lines(points, None, series, liars, over(name));
                chart(caption.to_owned(), "% of clients that lie", y, lines)
            };
            vec![vec![
                of("throughput of correct clients", "of that without liars", "committed_s"),
                of("their latency, p99", "times that without liars", "p99_ms"),
            ]]
        }
        Experiment::Locks => {
            let series = |point: &Point| point.workload.to_owned();
            let partitions = |point: &Point| f64::from(point.partitions);
            let of = |y, name| {
                let lines = lines(points, None, series, partitions, plain(name));
                chart("inserts beside range reads".to_owned(), "partitions", y, lines)
            };
            vec![vec![
                of("aborts (%)", "aborts_percent"),
                of("transactions in a second", "committed_s"),
            ]]
        }
    }
}

/// A number beside an axis, without what adding up tenths leaves behind.
fn tick(value: &f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_short() {
        let all = [0.0, 0.6000000000000001, 1.0, 250.0, 0.25].map(|value| tick(&value));
        assert_eq!(all, ["0", "0.6", "1", "250", "0.25"]);
    }
    use crate::paper::augustus::run::Figures;

    #[test]
    fn every_series_is_in_the_picture_also_if_nothing_was_committed() {
        let names = [
            "server_cpu_us_per_txn",
            "mean_ms",
            "p95_ms",
            "aborts_percent",
            "committed_s",
            "p99_ms",
        ];
        for figure in [0.0, 7.5] {
            let of = |workload, partitions, global, liars| {
                let round = Figures::from(names.map(|name| (name.to_owned(), figure)));
                Point { workload, partitions, global, liars, rounds: vec![round] }
            };
            let points = [
                of("A", 2, 0, 0),
                of("A", 2, 100, 0),
                of("A", 2, 100, 32),
                of("intervals", 4, 100, 0),
            ];
            for experiment in
                [Experiment::Fig3And4, Experiment::Table4, Experiment::Fig5, Experiment::Locks]
            {
                let svg = picture(experiment, "Augustus", &points).unwrap();
                assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
                let series = match experiment {
                    Experiment::Fig5 => "A, 100% global",
                    Experiment::Locks => "intervals",
                    _ => "P = 2",
                };
                assert!(svg.contains(series) || figure == 0.0, "{experiment:?}");
            }
        }
    }
}
