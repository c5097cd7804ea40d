"""What `make bench-peers` makes of its results: ratios, medians, warnings, and tables."""

import statistics

from bench_peers_systems import ALL, Choice

PEERS = ("etcd", "zookeeper")
LABELS = {system.name: system.label for system in ALL}
FIGURES = ("writes_s", "p50_us", "p99_us", "server_cpu_us", "client_cpu_us")
# The most writes a second of 512 bytes that were found on two virtual processors with all on loopback, medians of
# runs of several rounds. A run in which a peer is more than 15% below is no fair comparison, or one on a slower machine.
KNOWN = {("etcd", 64): 6370, ("etcd", 256): 10500, ("zookeeper", 64): 10830, ("zookeeper", 256): 13790,
         ("redis", 64): 62900, ("redis", 256): 78300}
VOID_BELOW = 0.85


def basis(peers):
    """What ratios are against, in words."""
    labels = [LABELS[peer] for peer in peers]
    return f"the better of {' and '.join(labels)}" if len(labels) > 1 else "".join(labels) or "nothing, for no peer was measured"


def quotient(a, b):
    return a / b if b > 0 else None


def with_ratios(results, peers):
    """Against the better of the peers in the same round: more throughput, less processor time. None without such."""
    rated = []
    for result in results:
        beside = [r for r in results if r["system"] in peers and (r["round"], r["callers"]) == (result["round"], result["callers"])]
        rated.append({
            **result,
            "ratio": quotient(result["writes_s"], max((r["writes_s"] for r in beside), default=0)),
            "cpu_ratio": quotient(min((r["server_cpu_us"] for r in beside), default=0), result["server_cpu_us"]) if beside else None})
    return rated


def median(values):
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def medians(systems, rated, callers_list):
    """A row for each number of callers and each system that has results."""
    rows = []
    for callers in callers_list:
        for system in systems:
            mine = [r for r in rated if r["system"] == system and r["callers"] == callers]
            if not mine:
                continue
            row = {key: mine[0][key] for key in ("system", "callers", "connections", "placement")}
            row["label"] = LABELS[system]
            row.update({figure: median(r[figure] for r in mine) for figure in (*FIGURES, "ratio", "cpu_ratio")})
            ratios = [r["ratio"] for r in mine if r["ratio"] is not None]
            row["ratio_least"], row["ratio_most"] = min(ratios, default=None), max(ratios, default=None)
            row["errors"] = sum(r["errors"] for r in mine)
            rows.append(row)
    return rows


def warnings(rows, rows_equal, left_out, peers, workload):
    found = [f"left out: {LABELS[name]}: {first_line(why)}" for name, why in left_out.items()]
    if any(name in PEERS for name in left_out):
        found.append(f"ratios are against {basis(peers)}")
    for row in rows:
        known = KNOWN.get((row["system"], row["callers"]))
        expected = (known or 0) * workload["scale"]
        if workload["value_size"] == 512 and row["writes_s"] < VOID_BELOW * expected:
            found.append(f"VOID: {row['label']} does {row['writes_s']:.0f} writes/s with {row['callers']} in flight, more than 15% "
                         f"below the {expected:.0f} that are known of it: a busy or slower machine (--scale), or other settings")
    for row in rows + [row for row in rows_equal if row not in rows]:
        if row["errors"]:
            found.append(f"{row['errors']} writes of {row['label']} failed with {row['callers']} in flight and connections "
                         f"{connected(row)}; they do not count")
    return found


def first_line(why):
    return why.splitlines()[0].rstrip(":")


def connected(row):
    return str(Choice(row["connections"], row["placement"]))


def calibration_table(measured):
    lines = [f"{'calibration':<22}{'callers':>8}  {'connections':<14}{'writes/s':>10}{'p50 us':>9}"]
    for r in measured:
        lines.append(f"{LABELS[r['system']]:<22}{r['callers']:>8}  {connected(r):<14}{r['writes_s']:>10.0f}{r['p50_us']:>9.0f}")
    return lines


def times(ratio):
    return "-" if ratio is None else f"{ratio:.2f}"


def rows_table(title, rows):
    lines = [f"{title:<22}{'callers':>8}  {'connections':<14}{'writes/s':>10}{'ratio':>8}{'(least-most)':>15}{'p50 us':>9}"
             f"{'server us':>11}{'less':>8}{'client us':>11}"]
    for row in rows:
        spread = f"({times(row['ratio_least'])}-{times(row['ratio_most'])})"
        lines.append(f"{row['label']:<22}{row['callers']:>8}  {connected(row):<14}{row['writes_s']:>10.0f}{times(row['ratio']):>8}{spread:>15}"
                     f"{row['p50_us']:>9.0f}{row['server_cpu_us']:>11.1f}{times(row['cpu_ratio']):>8}{row['client_cpu_us']:>11.1f}")
    return lines


def table(report):
    lines = rows_table("as each does best", report["medians"])
    if report["medians_equal"]:
        lines += [""] + rows_table("one for each caller", report["medians_equal"])
    against = basis(report["against"])
    return lines + [f"ratio: writes a second over those of {against}; less: its server CPU over this one's.",
                    "server us, client us: microseconds of CPU for a write, of all server processes, and of the client."]
