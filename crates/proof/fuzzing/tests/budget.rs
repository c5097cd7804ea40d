//! What a write costs a group, counted and not timed: allocations, messages, bytes, signatures, appends to the
//! log and flushes of it. All replicas, some clients and the links between them run on this thread, with a clock of
//! their own, so that the counts are the same on every machine. A count above its budget is a regression to be
//! explained, or mended; one far below is a budget to be lowered.

#[path = "budget/group.rs"]
mod group;

use group::{Counts, Group};
use perdura_fuzzing::memory::Counting;
use std::fmt::Write;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How far a count may be above its budget: a new compiler or library allocates a little differently.
const ABOVE: f64 = 1.02;

/// Below this part of it a budget says nothing any more.
const BELOW: f64 = 0.9;

/// A group and its load.
pub struct Setting {
    /// As u and r.
    faults: (u8, u8),
    value_bytes: usize,
    /// Each with one write in flight; over all clients.
    callers: u64,
    /// Turns that each disk takes for a flush. On slow ones several slots share it.
    flush_turns: u64,
    /// Writes of each caller that are counted, after a quarter as many.
    counted: u64,
}

/// What a write costs all replicas and clients, and the links between them; without sockets and disks, which are
/// not here. Signatures that are made are those that are sent by who makes them.
struct Budget {
    name: &'static str,
    setting: Setting,
    /// For each write.
    allocations: f64,
    allocated_bytes: f64,
    link_allocated_bytes: f64,
    wire_bytes: f64,
    /// For each slot.
    link_allocations: f64,
    messages: f64,
    verified: f64,
    signed: f64,
    appends: f64,
    records: f64,
    flushes: f64,
    /// From one slot to the next.
    turns: f64,
    /// Writes in a slot, at least.
    writes: f64,
}

const BUDGETS: [Budget; 5] = [
    Budget {
        name: "crash 1, 512 B",
        setting: Setting {
            faults: (1, 0),
            value_bytes: 512,
            callers: 64,
            flush_turns: 4,
            counted: 200,
        },
        allocations: 6.73,
        allocated_bytes: 4300.0,
        link_allocated_bytes: 1691.0,
        wire_bytes: 1704.0,
        link_allocations: 17.9,
        messages: 17.8,
        verified: 0.045,
        signed: 0.045,
        appends: 3.0,
        records: 6.0,
        flushes: 3.0,
        turns: 13.6,
        writes: 46.7,
    },
    Budget {
        name: "byzantine 1, 512 B",
        setting: Setting {
            faults: (1, 1),
            value_bytes: 512,
            callers: 64,
            flush_turns: 4,
            counted: 200,
        },
        allocations: 12.0,
        allocated_bytes: 8400.0,
        link_allocated_bytes: 2324.0,
        wire_bytes: 2348.0,
        link_allocations: 38.7,
        messages: 38.6,
        verified: 17.2,
        signed: 10.3,
        appends: 4.0,
        records: 8.2,
        flushes: 4.0,
        turns: 13.0,
        writes: 36.1,
    },
    Budget {
        name: "byzantine 1, 4 KiB",
        setting: Setting {
            faults: (1, 1),
            value_bytes: 4096,
            callers: 64,
            flush_turns: 4,
            counted: 200,
        },
        allocations: 12.9,
        allocated_bytes: 24264.0,
        link_allocated_bytes: 54898.0,
        wire_bytes: 16675.0,
        link_allocations: 56.9,
        messages: 38.6,
        verified: 17.2,
        signed: 10.3,
        appends: 4.0,
        records: 8.2,
        flushes: 4.0,
        turns: 13.0,
        writes: 36.1,
    },
    Budget {
        name: "crash 1, 4 KiB, slow disks",
        setting: Setting {
            faults: (1, 0),
            value_bytes: 4096,
            callers: 256,
            flush_turns: 400,
            counted: 50,
        },
        allocations: 8.28,
        allocated_bytes: 18873.0,
        link_allocated_bytes: 39086.0,
        wire_bytes: 12435.0,
        link_allocations: 25.2,
        messages: 11.6,
        verified: 0.045,
        signed: 0.045,
        appends: 3.0,
        // Beside what slots have, the newest vote that was heard of each, at most ten times in a second.
        records: 5.1,
        flushes: 1.5,
        turns: 200.0,
        writes: 64.1,
    },
    Budget {
        name: "byzantine 1, 4 KiB, slow disks",
        setting: Setting {
            faults: (1, 1),
            value_bytes: 4096,
            callers: 256,
            flush_turns: 400,
            counted: 50,
        },
        allocations: 12.12,
        allocated_bytes: 21649.0,
        link_allocated_bytes: 50478.0,
        wire_bytes: 16623.0,
        link_allocations: 53.8,
        messages: 36.2,
        verified: 24.1,
        signed: 10.1,
        appends: 4.0,
        records: 13.0,
        flushes: 2.0,
        turns: 200.0,
        writes: 64.1,
    },
];

/// Appends a line on a count that is not within its budget.
fn hold(out: &mut String, budget: &Budget, what: &str, is: f64, allowed: f64) {
    let said = if is > allowed * ABOVE {
        "above its budget: explain it or mend it"
    } else if is < allowed * BELOW {
        "far below its budget: lower that"
    } else {
        return;
    };
    let name = budget.name;
    writeln!(out, "{name}: {what} is {is:.2}, budgeted {allowed:.2}; {said}").unwrap();
}

/// What was counted between the two, held against the budget.
fn compare(out: &mut String, budget: &Budget, before: &Counts, after: &Counts) {
    let between = |of: fn(&Counts) -> u64| (of(after) - of(before)) as f64;
    let (writes, slots) = (between(|counts| counts.writes), between(|counts| counts.slots));
    let for_each = |count: f64, of: fn(&Counts) -> u64| between(of) / count;
    let write = |of| for_each(writes, of);
    let slot = |of| for_each(slots, of);
    for (what, is, allowed) in [
        ("allocations for a write", write(|counts| counts.core.allocations), budget.allocations),
        ("bytes allocated for a write", write(|counts| counts.core.bytes), budget.allocated_bytes),
        (
            "bytes allocated by links for a write",
            write(|counts| counts.links.bytes),
            budget.link_allocated_bytes,
        ),
        ("bytes on links for a write", write(|counts| counts.wire_bytes), budget.wire_bytes),
        (
            "allocations of links for a slot",
            slot(|counts| counts.links.allocations),
            budget.link_allocations,
        ),
        ("messages for a slot", slot(|counts| counts.messages), budget.messages),
        ("signatures verified for a slot", slot(|counts| counts.verified), budget.verified),
        ("signatures made for a slot", slot(|counts| counts.signed), budget.signed),
        ("appends for a slot", slot(|counts| counts.appends), budget.appends),
        ("records for a slot", slot(|counts| counts.records), budget.records),
        ("flushes for a slot", slot(|counts| counts.flushes), budget.flushes),
        ("turns for a slot", slot(|counts| counts.turns), budget.turns),
        ("slots for a hundred writes", 100.0 * slots / writes, 100.0 / budget.writes),
    ] {
        hold(out, budget, what, is, allowed);
    }
}

#[test]
fn a_write_costs_no_more_than_its_budget() {
    let mut out = String::new();
    for budget in &BUDGETS {
        let mut group = Group::new(&budget.setting);
        let writes = budget.setting.callers * budget.setting.counted;
        group.run(writes / 4);
        let before = group.counts();
        group.run(writes);
        compare(&mut out, budget, &before, &group.counts());
    }
    assert!(out.is_empty(), "\n{out}");
}
