//! Writes in a second over time, a chart for each run below the other, with what happened behind.

use super::run::Course;
use super::{Scene, WINDOW_S};
use anyhow::Result;
use plotters::prelude::*;

const WIDTH: u32 = 1000;

const CHART_HEIGHT: u32 = 300;

const FONT: &str = "sans-serif";

const LINE: RGBColor = RGBColor(0, 114, 178);

/// Where a replica wished for another leader.
const GIVEN_UP: RGBColor = RGBColor(213, 94, 0);

/// Colours of the replicas that store checkpoints (Okabe and Ito, 2008), and of a recovery.
const REPLICAS: [RGBColor; 4] = [
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(120, 120, 120),
];

/// All runs, in one picture.
pub fn picture(scene: Scene, title: &str, courses: &[(u32, Course)]) -> Result<String> {
    let mut svg = String::new();
    {
        let count = u32::try_from(courses.len().max(1))?;
        let size = (WIDTH, 40 + CHART_HEIGHT * count);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        let area = area.titled(title, (FONT, 18))?;
        let most = courses.iter().flat_map(|(_, course)| course.windows()).max().unwrap_or(1);
        let most = f64::from(most.max(1)) / WINDOW_S * 1.05;
        for ((round, course), area) in courses.iter().zip(area.split_evenly((count as usize, 1))) {
            chart(scene, *round, course, most, &area)?;
        }
        area.present()?;
    }
    Ok(svg)
}

fn chart(
    scene: Scene,
    round: u32,
    course: &Course,
    most: f64,
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Result<()> {
    let what = match scene {
        Scene::Recovery => "grey: a replica takes the state over",
        Scene::Checkpoints => "bars: checkpoints, a colour for each replica",
    };
    let caption = format!(
        "{}, round {round}; {what}; lines: wishes for another leader",
        course.variant.name(scene)
    );
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 14))
        .margin(10)
        .margin_right(30)
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..course.seconds, 0.0..most)?;
    chart
        .configure_mesh()
        .light_line_style(BLACK.mix(0.04))
        .label_style((FONT, 13))
        .x_desc("seconds")
        .y_desc("writes in a second")
        .y_label_formatter(&|value| format!("{value:.0}"))
        .draw()?;
    let behind = match course.recovery {
        Some(recovery) => {
            let to_s = recovery.to_s.unwrap_or(course.seconds);
            vec![(recovery.from_s, to_s, 3, 0.0, 1.0)]
        }
        None => {
            let bar = |one: &super::checkpoints::Stored| {
                let low = 0.02 * one.replica as f64;
                (one.from_s.max(0.0), one.to_s.min(course.seconds), one.replica, low, low + 0.02)
            };
            course.checkpoints.iter().map(bar).collect()
        }
    };
    chart.draw_series(behind.into_iter().map(|(from_s, to_s, colour, low, high)| {
        let style = REPLICAS[colour % REPLICAS.len()].mix(if high >= 1.0 { 0.2 } else { 0.9 });
        Rectangle::new([(from_s, low * most), (to_s, high * most)], style.filled())
    }))?;
    chart.draw_series(course.given_up.iter().map(|one| {
        PathElement::new([(one.at_s, 0.0), (one.at_s, most)], GIVEN_UP.mix(0.5).stroke_width(1))
    }))?;
    let points = course
        .windows()
        .into_iter()
        .enumerate()
        .map(|(index, count)| ((index as f64 + 0.5) * WINDOW_S, f64::from(count) / WINDOW_S));
    chart.draw_series(LineSeries::new(points, LINE.stroke_width(1)))?;
    Ok(())
}
