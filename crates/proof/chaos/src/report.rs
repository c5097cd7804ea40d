//! What came of a run: in words, as JSON, and as a picture.

use crate::chart;
use crate::excuses::Excused;
use crate::faults::FaultKind;
use crate::history::{Judged, ShardId};
use crate::inject::Scene;
use crate::service::{Service, Workload};
use crate::timeline::Event;
use crate::volume::Make;
use crate::waits::{Sample, Samples, around, longest, percentile};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Operations called within this time after a leader was killed wait for the next one.
const AFTER_KILL_US: u64 = 1_000_000;

/// The aim for waits over leader kills, milliseconds.
const AIM_MS: u64 = 500;

/// A run's outcome.
pub struct ChaosReport {
    /// The group's bounds, and its service.
    pub group: String,
    /// The service.
    pub service: Service,
    /// The seed.
    pub seed: u64,
    /// Kinds that were to be injected.
    pub kinds: Vec<FaultKind>,
    /// Kinds that this machine does not offer, and why.
    pub left_out: Vec<(FaultKind, String)>,
    /// Kinds that have to have fired.
    pub must_fire: Vec<FaultKind>,
    /// What was found.
    pub violations: Vec<String>,
    make: Make,
    from: u64,
    to: u64,
    events: Vec<Event>,
    samples: Vec<Sample>,
    judged: BTreeMap<Workload, Judged>,
    excused: Excused,
    // When this program itself did.
    stood_still: Vec<(u64, u64)>,
}

/// Waits over leader kills, microseconds.
struct Kills {
    count: usize,
    // Of more, a disaster struck within the second that is looked at: clients waited for that.
    overtaken: usize,
    // Of each kill, the longest wait.
    longest: Vec<u64>,
    // Of all operations around all kills.
    all: Vec<u64>,
}

fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

impl ChaosReport {
    /// Of a run that injected faults between two times.
    pub fn new(
        scene: &Scene,
        (from, to): (u64, u64),
        samples: &Samples,
        verdicts: &BTreeMap<ShardId, Judged>,
        make: Make,
    ) -> ChaosReport {
        let mut judged: BTreeMap<Workload, Judged> = BTreeMap::new();
        for ((workload, _), one) in verdicts {
            judged.entry(*workload).or_default().add(*one);
        }
        let events = scene.timeline.events();
        let mut excused = Excused::default();
        for failure in samples.failures() {
            let Sample { invoked, ended, .. } = failure.sample;
            let stood = scene.course.standstills().between(invoked, ended);
            if !excused.takes(&events, &failure.sample, scene.cluster.faults, stood) {
                scene.course.violation(format!(
                    "a call of the {} workload, from {:.1} s to {:.1} s, got no result although at \
                     most u replicas had failed: {}",
                    failure.sample.workload.name(),
                    invoked as f64 / 1e6,
                    ended as f64 / 1e6,
                    failure.why
                ));
            }
        }
        let all = samples.all();
        if excused.says_too_little(all.len()) {
            scene.course.violation(format!(
                "{} of {} calls have no result since this program stood still: the run says too little, on a machine that is too busy",
                excused.by_standstills,
                all.len()
            ));
        }
        ChaosReport {
            group: String::new(),
            service: Service::Kv,
            seed: 0,
            kinds: Vec::new(),
            left_out: Vec::new(),
            must_fire: Vec::new(),
            violations: scene.course.violations(),
            make,
            from,
            to,
            events,
            samples: all,
            judged,
            excused,
            stood_still: scene.course.standstills().all(),
        }
    }

    fn fired(&self, kind: FaultKind) -> (usize, usize) {
        let of_kind = self.events.iter().filter(|event| event.kind == kind);
        let fired = of_kind.clone().filter(|event| event.fired).count();
        (fired, of_kind.count())
    }

    fn never_fired(&self) -> Vec<String> {
        let never = self.kinds.iter().filter(|kind| self.fired(**kind).0 == 0);
        never.map(|kind| kind.name()).collect()
    }

    /// Whether the run failed.
    pub fn failed(&self) -> bool {
        let missing = self.must_fire.iter().any(|kind| self.fired(*kind).0 == 0);
        !self.violations.is_empty() || missing
    }

    fn disasters(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|event| event.fired && event.kind.is_disaster())
    }

    fn kills(&self) -> Kills {
        let kills =
            self.events.iter().filter(|event| event.kind == FaultKind::KillLeader && event.fired);
        let mut found = Kills { count: 0, overtaken: 0, longest: Vec::new(), all: Vec::new() };
        for event in kills {
            let after = event.began..event.began + AFTER_KILL_US;
            if self.disasters().any(|disaster| after.contains(&disaster.began)) {
                found.overtaken += 1;
                continue;
            }
            let waits = around(&self.samples, event.began, AFTER_KILL_US);
            found.count += 1;
            found.longest.extend(waits.iter().max());
            found.all.extend(waits);
        }
        found
    }

    /// Waits of operations that met no fault.
    fn calm(&self) -> Vec<u64> {
        let met = |sample: &Sample| {
            let meets =
                |event: &Event| event.began <= sample.ended && event.end() >= sample.invoked;
            self.events.iter().any(meets)
        };
        let calm = self.samples.iter().filter(|sample| sample.ok && !sample.waits && !met(sample));
        calm.map(|sample| sample.ended - sample.invoked).collect()
    }

    fn minutes(&self) -> f64 {
        (self.to - self.from) as f64 / 60e6
    }

    /// In words.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "\n{}, seed {}, {:.1} minutes of faults, disks: {:?}\n",
            self.group,
            self.seed,
            self.minutes(),
            self.make
        );
        self.write_operations(&mut text);
        self.write_excused(&mut text);
        self.write_faults(&mut text);
        self.write_waits(&mut text);
        for violation in &self.violations {
            let _ = writeln!(text, "VIOLATION {violation}");
        }
        let missing = self.must_fire.iter().filter(|kind| self.fired(**kind).0 == 0);
        for kind in missing {
            let _ = writeln!(text, "NEVER FIRED {}", kind.name());
        }
        let _ = writeln!(text, "{} violations", self.violations.len());
        text
    }

    fn write_operations(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "{:14} {:>9} {:>9} {:>10} {:>8} {:>8} {:>7}",
            "workload", "checked", "a minute", "an hour", "unknown", "refused", "shards"
        );
        for (workload, judged) in &self.judged {
            let per_minute = judged.operations as f64 / self.minutes().max(0.001);
            let _ = writeln!(
                text,
                "{:14} {:>9} {:>9.0} {:>10.0} {:>8} {:>8} {:>7}",
                workload.name(),
                judged.operations,
                per_minute,
                60.0 * per_minute,
                judged.unknown,
                judged.refused,
                judged.shards
            );
            if judged.in_part > 0 {
                let _ = writeln!(
                    text,
                    "    of {} shards the order is not judged: somebody who waited there does not know what he got",
                    judged.in_part
                );
            }
        }
    }

    fn write_excused(&self, text: &mut String) {
        let Excused { by_disasters, by_clocks, by_standstills } = self.excused;
        let _ = writeln!(
            text,
            "calls that need not have a result, and have none: {by_disasters} while more than u had \
             failed, {by_clocks} that waited for a time that a clock had led astray, {by_standstills} while this program \
             itself stood still"
        );
        for (began, ended) in &self.stood_still {
            let _ = writeln!(
                text,
                "this program itself, with all clients and proxies, stood still from {:.1} s to {:.1} s: somebody stopped it, \
                 or the machine gave it no time. Waits over that time say nothing of the cluster",
                *began as f64 / 1e6,
                *ended as f64 / 1e6
            );
        }
    }

    fn write_faults(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n{:15} {:>6} {:>6}   {:>21}   {:>21}",
            "fault", "fired", "tried", "longest wait of a call", "well again after, most"
        );
        for kind in &self.kinds {
            let (fired, tried) = self.fired(*kind);
            let of_kind = || self.events.iter().filter(|event| event.kind == *kind);
            let wait = of_kind().map(|event| longest(&self.samples, event.began, event.end()));
            let away = of_kind().filter_map(|event| Some(event.level? - event.began));
            let _ = writeln!(
                text,
                "{:15} {:>6} {:>6}   {:>19.0} ms   {:>20.1} s",
                kind.name(),
                fired,
                tried,
                ms(wait.max().unwrap_or_default()),
                ms(away.max().unwrap_or_default()) / 1000.0
            );
        }
        let never = self.never_fired();
        if !never.is_empty() {
            let _ = writeln!(text, "never fired in this run: {}", never.join(", "));
        }
        for (kind, why) in &self.left_out {
            let _ = writeln!(text, "left out: {} ({why})", kind.name());
        }
    }

    fn write_waits(&self, text: &mut String) {
        let mut calm = self.calm();
        let _ = writeln!(
            text,
            "\nwaits without a fault: median {:.1} ms, p99 {:.1} ms, longest {:.1} ms",
            ms(percentile(&mut calm, 50.0)),
            ms(percentile(&mut calm, 99.0)),
            ms(percentile(&mut calm, 100.0))
        );
        let mut kills = self.kills();
        if kills.count == 0 {
            return;
        }
        let p99 = ms(percentile(&mut kills.longest, 99.0));
        let _ = writeln!(
            text,
            "leader kills: {}. The longest wait of any client over a kill: median {:.0} ms, p99 \
             {p99:.0} ms (aim: below {AIM_MS} ms), longest {:.0} ms\n\
             all calls under way at a kill or made in the second after it: median {:.0} ms, p99 \
             {:.0} ms",
            kills.count,
            ms(percentile(&mut kills.longest, 50.0)),
            ms(percentile(&mut kills.longest, 100.0)),
            ms(percentile(&mut kills.all, 50.0)),
            ms(percentile(&mut kills.all, 99.0))
        );
        if kills.overtaken > 0 {
            let _ = writeln!(
                text,
                "{} more leader kills are not in these figures: more than u failed within the second \
                 after them",
                kills.overtaken
            );
        }
    }

    fn timeline(&self) -> String {
        let mut text = String::from(
            "   began  fault           whom       over after  well after  longest wait  what\n",
        );
        for event in &self.events {
            let after = |at: Option<u64>| {
                at.map_or("-".to_owned(), |at| format!("{:.1} s", (at - event.began) as f64 / 1e6))
            };
            let _ = writeln!(
                text,
                "{:6.1} s  {:15} {:9} {:>11} {:>11} {:>10.0} ms  {}{}",
                event.began as f64 / 1e6,
                event.kind.name(),
                event.whom(),
                after(event.healed),
                after(event.level),
                ms(longest(&self.samples, event.began, event.end())),
                event.detail,
                if event.fired { "" } else { "  (no effect)" }
            );
        }
        text
    }

    fn json(&self) -> Value {
        let mut kills = self.kills();
        let mut calm = self.calm();
        let events = self.events.iter().map(|event| {
            json!({
                "kind": event.kind.name(),
                "replicas": event.replicas,
                "fired": event.fired,
                "began_s": event.began as f64 / 1e6,
                "healed_s": event.healed.map(|at| at as f64 / 1e6),
                "level_s": event.level.map(|at| at as f64 / 1e6),
                "longest_wait_ms": ms(longest(&self.samples, event.began, event.end())),
                "detail": event.detail,
            })
        });
        let workloads = self.judged.iter().map(|(workload, judged)| {
            let value = json!({
                "checked": judged.operations,
                "checked_per_minute": judged.operations as f64 / self.minutes().max(0.001),
                "unknown": judged.unknown,
                "refused": judged.refused,
                "shards": judged.shards,
                "judged_in_part": judged.in_part,
            });
            (workload.name().to_owned(), value)
        });
        let faults = self.kinds.iter().map(|kind| {
            let (fired, tried) = self.fired(*kind);
            (kind.name(), json!({"fired": fired, "tried": tried}))
        });
        let left_out =
            self.left_out.iter().map(|(kind, why)| json!({"kind": kind.name(), "why": why}));
        json!({
            "group": self.group,
            "service": self.service.name(),
            "seed": self.seed,
            "minutes": self.minutes(),
            "disks": format!("{:?}", self.make),
            "passed": !self.failed(),
            "violations": self.violations,
            "excused": {
                "by_disasters": self.excused.by_disasters,
                "by_clocks": self.excused.by_clocks,
                "by_standstills": self.excused.by_standstills,
            },
            "stood_still_s": self.stood_still.iter().map(|(began, ended)| [*began as f64 / 1e6, *ended as f64 / 1e6]).collect::<Vec<_>>(),
            "workloads": workloads.collect::<serde_json::Map<_, _>>(),
            "faults": faults.collect::<serde_json::Map<_, _>>(),
            "left_out": left_out.collect::<Vec<_>>(),
            "waits_without_fault_ms": {
                "p50": ms(percentile(&mut calm, 50.0)),
                "p99": ms(percentile(&mut calm, 99.0)),
                "max": ms(percentile(&mut calm, 100.0)),
            },
            "leader_kills": {
                "count": kills.count,
                "overtaken": kills.overtaken,
                "longest_wait_p50_ms": ms(percentile(&mut kills.longest, 50.0)),
                "longest_wait_p99_ms": ms(percentile(&mut kills.longest, 99.0)),
                "longest_wait_max_ms": ms(percentile(&mut kills.longest, 100.0)),
                "all_calls_p99_ms": ms(percentile(&mut kills.all, 99.0)),
            },
            "events": events.collect::<Vec<_>>(),
        })
    }

    /// Writes `report.txt`, `report.json` and `chart.svg`.
    pub fn write(&self, out: &Path) -> Result<()> {
        let text = format!("{}\n{}", self.text(), self.timeline());
        let json = serde_json::to_string_pretty(&self.json())?;
        let title = format!("perdura {}, seed {}", self.group, self.seed);
        let chart =
            chart::draw(&title, self.service.workloads(), &self.events, &self.samples, self.to);
        for (name, content) in
            [("report.txt", text), ("report.json", json + "\n"), ("chart.svg", chart)]
        {
            fs::write(out.join(name), content).with_context(|| format!("cannot write {name}"))?;
        }
        Ok(())
    }
}
