//! The picture of a race (SVG): for each load, throughput and the store's processor time for a call, as bars.

use super::load::{Level, Measured, Workload};
use super::report::{RacePoint, RaceReport};
use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 1100;
const HEAD: i32 = 70;
const FOOT: i32 = 20;
/// Of a row of panels: above its bars, ...
const TITLE: i32 = 46;
/// ... and from one bar to the next.
const STEP: i32 = 24;
const BAR: i32 = 16;
/// Where panels begin, and how long their longest bars are.
const PANELS: [(i32, i32); 2] = [(260, 320), (690, 320)];
const FONT: &str = "sans-serif";

/// Perdura where replicas may lie, where they may stop, and Redis: tones that people tell apart, whatever colours they see (Okabe and Ito, 2008).
const BYZANTINE: RGBColor = RGBColor(0, 114, 178);
const CRASH: RGBColor = RGBColor(86, 180, 233);
const REDIS: RGBColor = RGBColor(230, 159, 0);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn colour(place: RacePoint) -> RGBColor {
    match place.system.name().split('-').next() {
        Some("byzantine") => BYZANTINE,
        Some("crash") => CRASH,
        _ => REDIS,
    }
}

fn write(area: &Area<'_>, text: &str, size: i32, at: (i32, i32), side: HPos) -> Result<()> {
    let style = (FONT, size).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

fn bars(
    area: &Area<'_>,
    rows: &[(RacePoint, Measured)],
    (left, longest): (i32, i32),
    top: i32,
    figure: impl Fn(&Measured) -> f64,
) -> Result<()> {
    let most = rows.iter().map(|(_, one)| figure(one)).fold(f64::MIN_POSITIVE, f64::max);
    for (index, (place, one)) in (0..).zip(rows) {
        let y = top + index * STEP;
        let length = (f64::from(longest) * figure(one) / most).round() as i32;
        let corners = [(left, y), (left + length.max(1), y + BAR)];
        area.draw(&Rectangle::new(corners, colour(*place).filled()))?;
        let number = format!("{:.0}", figure(one));
        write(area, &number, 13, (left + length.max(1) + 6, y + BAR / 2), HPos::Left)?;
    }
    Ok(())
}

/// The picture of one level and number of callers; none if nothing was measured there.
pub fn draw(report: &RaceReport, level: Level, callers: u32) -> Result<Option<String>> {
    let medians = report.medians();
    let of = |workload: Workload| -> Vec<(RacePoint, Measured)> {
        let is_here = |place: &RacePoint| {
            place.workload == workload && place.level == level && place.callers == callers
        };
        medians.iter().filter(|(place, _)| is_here(place)).cloned().collect()
    };
    let groups: Vec<_> = Workload::ALL.map(|workload| (workload, of(workload))).into();
    let groups: Vec<_> = groups.into_iter().filter(|(_, rows)| !rows.is_empty()).collect();
    if groups.is_empty() {
        return Ok(None);
    }
    let height: i32 =
        groups.iter().map(|(_, rows)| TITLE + STEP * i32::try_from(rows.len()).unwrap_or(0)).sum();
    let mut svg = String::new();
    {
        let size = (WIDTH, u32::try_from(HEAD + height + FOOT)?);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        let what = match level {
            Level::Api => "calls of the network",
            Level::Http => "calls of the JSON API over HTTP",
        };
        let settings = &report.settings;
        write(
            &area,
            &format!("Buzzer on Perdura, Retwis on Redis: {what}"),
            19,
            (20, 26),
            HPos::Left,
        )?;
        let under = format!(
            "{callers} callers, {} users, all on one machine with {} processors; medians of {} rounds",
            settings.users, settings.machine.processors, settings.rounds
        );
        write(&area, &under, 13, (20, 50), HPos::Left)?;
        let mut top = HEAD;
        for (workload, rows) in &groups {
            write(&area, workload.name(), 16, (20, top + 20), HPos::Left)?;
            write(&area, "calls in a second", 13, (PANELS[0].0, top + 22), HPos::Left)?;
            write(&area, "store CPU for a call, µs", 13, (PANELS[1].0, top + 22), HPos::Left)?;
            top += TITLE - 10;
            for (index, (place, _)) in (0..).zip(rows) {
                let at = (PANELS[0].0 - 10, top + index * STEP + BAR / 2);
                write(&area, &place.system.label(), 13, at, HPos::Right)?;
            }
            bars(&area, rows, PANELS[0], top, |one| one.calls_s)?;
            bars(&area, rows, PANELS[1], top, |one| one.store_cpu_us)?;
            top += STEP * i32::try_from(rows.len())? + 10;
        }
        area.present()?;
    }
    Ok(Some(svg))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_is_in_the_picture() {
        let report = crate::report::tests::report();
        let svg = draw(&report, Level::Api, 64).unwrap().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for words in ["Perdura, crash 1, 2 partitions", "Redis, fsync always", "mix", "600"] {
            assert!(svg.contains(words), "{words}");
        }
        assert!(draw(&report, Level::Http, 64).unwrap().is_none());
        assert!(draw(&report, Level::Api, 8).unwrap().is_none());
    }
}
