//! What an experiment found, as pictures (SVG).

use super::measure::Curve;
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const SIZE: (u32, u32) = (900, 560);

/// Of all texts.
pub const FONT: &str = "sans-serif";

/// Colours that people tell apart, whatever colours they see (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(130, 130, 130),
];

/// Of a series.
pub fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// The powers of ten around all positive numbers of these; 1 to 10 if there are none.
fn decades(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    let positive: Vec<f64> = numbers.filter(|number| *number > 0.0).collect();
    let least = positive.iter().copied().fold(f64::INFINITY, f64::min);
    let most = positive.iter().copied().fold(0.0, f64::max);
    if positive.is_empty() {
        return (1.0, 10.0);
    }
    let low = 10f64.powf(least.log10().floor());
    (low, 10f64.powf(most.log10().ceil()).max(10.0 * low))
}

/// Peak throughput of each setting, as a bar.
pub fn bars(title: &str, curves: &[Curve]) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let count = i32::try_from(curves.len())?;
        let (_, most) = decades(curves.iter().map(Curve::peak_ops_s));
        // The first setting stands at the top.
        let of_row = |row: i32| curves.iter().rev().nth(usize::try_from(row).unwrap_or(usize::MAX));
        let mut chart = ChartBuilder::on(&area)
            .caption(title, (FONT, 18))
            .margin(16)
            .margin_right(48)
            .x_label_area_size(48)
            .y_label_area_size(110)
            .build_cartesian_2d((1f64..most).log_scale(), (0..count - 1).into_segmented())?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(curves.len())
            .label_style((FONT, 15))
            .x_desc("writes in a second, at most")
            .x_label_formatter(&|value| value.to_string())
            .y_label_formatter(&|row| match row {
                SegmentValue::CenterOf(row) => {
                    of_row(*row).map(|curve| curve.setting.name.to_owned()).unwrap_or_default()
                }
                SegmentValue::Exact(_) | SegmentValue::Last => String::new(),
            })
            .draw()?;
        for (row, (index, curve)) in (0..).zip(curves.iter().enumerate().rev()) {
            let peak = curve.peak_ops_s().max(1.0);
            let top =
                if row + 1 < count { SegmentValue::Exact(row + 1) } else { SegmentValue::Last };
            let corners = [(1.0, SegmentValue::Exact(row)), (peak, top)];
            let mut bar = Rectangle::new(corners, colour(index).filled());
            bar.set_margin(6, 6, 0, 0);
            chart.draw_series([bar])?;
            let style =
                (FONT, 15).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
            let text = Text::new(format!("{:.0}", curve.peak_ops_s()), (6, 0), style);
            let end = EmptyElement::at((peak, SegmentValue::CenterOf(row)));
            chart.draw_series([end + text])?;
        }
        area.present()?;
    }
    Ok(svg)
}

/// Latency over throughput, a line for each setting; along it the callers become more.
pub fn lines(title: &str, curves: &[Curve]) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let points: Vec<Vec<(f64, f64)>> = curves
            .iter()
            .map(|curve| {
                let medians = curve.points.iter().map(|point| point.median());
                let point = medians.map(|point| (point.throughput_ops_s, point.p50_us / 1000.0));
                point.filter(|(ops_s, ms)| *ops_s > 0.0 && *ms > 0.0).collect()
            })
            .collect();
        let (least, most) = decades(points.iter().flatten().map(|(ops_s, _)| *ops_s));
        let (low, high) = decades(points.iter().flatten().map(|(_, ms)| *ms));
        let mut chart = ChartBuilder::on(&area)
            .caption(title, (FONT, 18))
            .margin(16)
            .margin_right(48)
            .x_label_area_size(48)
            .y_label_area_size(64)
            .build_cartesian_2d((least..most).log_scale(), (low..high).log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(BLACK.mix(0.06))
            .label_style((FONT, 15))
            .x_desc("writes in a second")
            .y_desc("latency, median (ms)")
            .x_label_formatter(&|value| value.to_string())
            .y_label_formatter(&|value| value.to_string())
            .draw()?;
        for (index, (curve, points)) in curves.iter().zip(points).enumerate() {
            let style = colour(index).stroke_width(2);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style))?
                .label(curve.setting.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
            let dots =
                points.into_iter().map(|point| Circle::new(point, 4, colour(index).filled()));
            chart.draw_series(dots)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font((FONT, 15))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::Setting;
    use crate::paper::measure::{Point, Sample};

    fn curve(name: &str, figures: &[(u32, f64)]) -> Curve {
        let point = |(callers, throughput_ops_s): &(u32, f64)| {
            let p50_us = f64::from(*callers) * 1e6 / throughput_ops_s.max(1.0);
            let (p99_us, server_cpu_us_per_op, errors) = (2.0 * p50_us, None, 0);
            let sample = Sample {
                throughput_ops_s: *throughput_ops_s,
                p50_us,
                p99_us,
                server_cpu_us_per_op,
                errors,
            };
            Point { callers: *callers, rounds: vec![sample] }
        };
        let setting = Setting::parse(name).unwrap();
        Curve { setting, points: figures.iter().map(point).collect() }
    }

    #[test]
    fn every_setting_is_in_both_pictures_also_if_nothing_was_written() {
        let curves = [
            curve("none", &[(1, 700.0), (64, 9_000.0)]),
            curve("sync-disk", &[(1, 90.0), (64, 4_000.0)]),
            curve("sync-ssd", &[(1, 0.0)]),
        ];
        for svg in [bars("Peaks", &curves).unwrap(), lines("Curves", &curves).unwrap()] {
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            for curve in &curves {
                assert!(svg.contains(curve.setting.name), "{}", curve.setting.name);
            }
        }
        let nothing = [curve("none", &[(1, 0.0)])];
        assert!(bars("Peaks", &nothing).is_ok() && lines("Curves", &nothing).is_ok());
    }

    #[test]
    fn axes_end_at_powers_of_ten() {
        assert_eq!(decades([3.0, 0.0, 4000.0].into_iter()), (1.0, 10_000.0));
        assert_eq!(decades([10.0].into_iter()), (10.0, 100.0));
        assert_eq!(decades([0.0].into_iter()), (1.0, 10.0));
    }
}
