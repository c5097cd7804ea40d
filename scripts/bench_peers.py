"""Measures Perdura beside etcd, ZooKeeper and Redis: the same writes, all durable, on this machine, in turn.

First a short calibration finds how each client is best connected; then every round starts each system anew,
one after the other. Ratios are taken within a round, against the better of etcd and ZooKeeper, and what is
printed are medians over rounds. `docs/experiments.md` says how to read it.
"""

import argparse
import fcntl
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path

import bench_peers_chart
from bench_peers_systems import ALL, ENDS, ROOT, Choice, Failed, Load, Processes

CALIBRATION_S, CALIBRATION_WARM_UP_S = 3, 2
# Writes a second of 512 bytes that were found on two virtual processors with all on loopback. A run in which
# a peer is more than 15% below is no fair comparison, or one on a slower machine.
KNOWN = {("etcd", 64): 5300, ("zookeeper", 64): 9500, ("redis", 64): 8300, ("redis", 256): 25900}
VOID_BELOW = 0.85
PEERS = ("etcd", "zookeeper")
FIGURES = ("writes_s", "p50_us", "p99_us", "server_cpu_us", "client_cpu_us", "ratio", "cpu_ratio")


def say(text):
    print(text, file=sys.stderr, flush=True)


def positive(kind):
    def parse(text):
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < 1e9:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
        return number
    return parse


def arguments():
    names = [system.name for system in ALL]

    def names_list(text):
        chosen = text.split(",")
        unknown = set(chosen) - set(names)
        if unknown:
            raise argparse.ArgumentTypeError(f"no system {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        return chosen

    parser = argparse.ArgumentParser(prog="bench-peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--callers", type=lambda text: [positive(int)(part) for part in text.split(",")], default=[64, 256], metavar="N,...",
        help="writes in flight (64,256)")
    add("--value-size", type=positive(int), default=512, metavar="B", help="bytes of a value (512)")
    add("--keys", type=positive(int), default=10000, metavar="N", help="keys, of 16 bytes each (10000)")
    add("--seconds", type=positive(float), default=8, metavar="S", help="of each run (8)")
    add("--warm-up", type=positive(float), default=4, metavar="S", help="before each run (4)")
    add("--rounds", type=positive(int), default=5, metavar="N", help="over all systems (5)")
    add("--systems", type=names_list, default=names, metavar="NAME,...", help=",".join(names))
    add("--connections", type=lambda text: text.split(","), default=["1", "8", "callers"], metavar="N,...",
        help="connections of a client to try; `callers` is as many as callers (1,8,callers)")
    add("--placements", type=lambda text: text.split(","), default=["all", "leader"], metavar="all,leader",
        help="what clients of etcd and ZooKeeper connect to (both are tried)")
    add("--scale", type=positive(float), default=1.0, metavar="F", help="speed of this machine against that of the known figures (1)")
    add("--work", type=Path, default=ROOT / "target/bench-peers", metavar="DIR",
        help="where peers are installed and data is written: on the disk that is to be measured (target/bench-peers)")
    add("--out", type=Path, metavar="DIR", help="where bench-peers.json and bench-peers.svg go (the work directory)")
    options = parser.parse_args()
    if not all(c == "callers" or c.isdecimal() and int(c) > 0 for c in options.connections):
        parser.error("--connections: numbers, or `callers`")
    if not set(options.placements) <= {"all", "leader"}:
        parser.error("--placements: all, leader, or both")
    return options


def install(options):
    """The systems that can be measured here, and their versions. A peer that cannot be is left out."""
    systems, versions, missing = [], {}, {}
    for kind in (kind for kind in ALL if kind.name in options.systems):
        say(f"installing {kind.label}")
        system = kind(options.work)
        try:
            versions[kind.name] = system.install()
            systems.append(system)
        except Failed as failed:
            if kind.name in ("crash", "byzantine"):
                raise
            missing[kind.name] = str(failed)
            say(f"goes on without {kind.label}: {failed}")
    if not any(system.name in PEERS for system in systems):
        raise Failed("neither etcd nor ZooKeeper can be measured: ratios are against the better of them")
    return systems, versions, missing


class Bench:
    """Runs of systems in a directory that is gone afterwards."""

    def __init__(self, options, processes, data):
        self.options, self.processes, self.data = options, processes, data

    def with_system(self, system, runs):
        """Starts a system with empty disks, does the runs (callers, choice, warm-up, seconds), and ends it."""
        say(f"{system.label}: starts")
        results = []
        try:
            system.start(self.data / system.name, self.processes)
            os.sync()
            for callers, choice, warm_up, seconds in runs:
                warm_up += 0 if results else system.first_warm_up_s
                load = Load(callers, choice, self.options.keys, self.options.value_size, warm_up, seconds, not results)
                found = system.measure(load)
                results.append({"system": system.name, "callers": callers, "connections": choice.connections,
                                "placement": choice.placement, **found})
                say(f"{system.label}: {callers} callers, connections {choice}: {found['writes_s']:.0f} writes/s, "
                    f"{found['server_cpu_us']:.1f} us of CPU")
        finally:
            self.processes.stop()
            shutil.rmtree(self.data / system.name, ignore_errors=True)
            os.sync()
        return results

    def choices(self, system, callers):
        """The ways of connecting that are tried."""
        if system.name == "redis":
            return [Choice(callers, "")]
        numbers = sorted({min(callers, system.most_connections, callers if c == "callers" else int(c))
                          for c in self.options.connections})
        placements = [p for p in self.options.placements if p in system.placements] or [""]
        return [Choice(number, placement) for placement in placements for number in numbers]

    def calibrate(self, systems):
        """The best way of connecting for each system and number of callers, and what was measured for that."""
        best, measured = {}, []
        for system in systems:
            choices = {callers: self.choices(system, callers) for callers in self.options.callers}
            runs = [(callers, choice, CALIBRATION_WARM_UP_S, CALIBRATION_S)
                    for callers in choices for choice in choices[callers] if len(choices[callers]) > 1]
            results = self.with_system(system, runs) if runs else []
            measured += results
            for callers in choices:
                mine = [result for result in results if result["callers"] == callers]
                fastest = max(mine, key=lambda result: result["writes_s"], default=None)
                best[system.name, callers] = (
                    Choice(fastest["connections"], fastest["placement"]) if fastest else choices[callers][0])
        return best, measured

    def rounds(self, systems, best):
        """All results, with the number of their round. Each round begins with another system."""
        results = []
        for number in range(self.options.rounds):
            say(f"round {number + 1} of {self.options.rounds}")
            first = number % len(systems)
            found = []
            for system in systems[first:] + systems[:first]:
                runs = [(callers, best[system.name, callers], self.options.warm_up, self.options.seconds)
                        for callers in self.options.callers]
                found += self.with_system(system, runs)
            add_ratios(found)
            results += [{"round": number + 1, **result} for result in found]
        return results


def add_ratios(found):
    """Against the better of etcd and ZooKeeper in the same round: more throughput, less processor time."""
    for result in found:
        peers = [peer for peer in found if peer["system"] in PEERS and peer["callers"] == result["callers"]]
        result["ratio"] = result["writes_s"] / max(peer["writes_s"] for peer in peers)
        result["cpu_ratio"] = min(peer["server_cpu_us"] for peer in peers) / max(result["server_cpu_us"], 0.001)


def medians(systems, results, callers_list):
    rows = []
    for callers in callers_list:
        for system in systems:
            mine = [r for r in results if r["system"] == system.name and r["callers"] == callers]
            row = {key: mine[0][key] for key in ("system", "callers", "connections", "placement")}
            row["label"] = system.label
            row.update({figure: statistics.median(r[figure] for r in mine) for figure in FIGURES})
            row["ratio_least"], row["ratio_most"] = min(r["ratio"] for r in mine), max(r["ratio"] for r in mine)
            row["errors"] = sum(r["errors"] for r in mine)
            rows.append(row)
    return rows


def warnings(rows, options):
    found = []
    for row in rows:
        known = KNOWN.get((row["system"], row["callers"]))
        if known and options.value_size == 512 and row["writes_s"] < VOID_BELOW * known * options.scale:
            found.append(f"VOID: {row['label']} does {row['writes_s']:.0f} writes/s with {row['callers']} in flight, more than 15% "
                         f"below the {known * options.scale:.0f} that are known of it: a busy or slower machine (--scale), or other settings")
        if row["errors"]:
            found.append(f"{row['errors']} writes of {row['label']} failed with {row['callers']} in flight; they do not count")
    return found


def connected(row):
    return str(Choice(row["connections"], row["placement"]))


def calibration_table(measured, labels):
    lines = [f"{'calibration':<22}{'callers':>8}  {'connections':<14}{'writes/s':>10}{'p50 us':>9}"]
    for r in measured:
        lines.append(f"{labels[r['system']]:<22}{r['callers']:>8}  {connected(r):<14}{r['writes_s']:>10.0f}{r['p50_us']:>9.0f}")
    return lines


def table(rows):
    lines = [f"{'':<22}{'callers':>8}  {'connections':<14}{'writes/s':>10}{'ratio':>8}{'(least-most)':>15}{'p50 us':>9}"
             f"{'server us':>11}{'less':>8}{'client us':>11}"]
    for row in rows:
        spread = f"({row['ratio_least']:.2f}-{row['ratio_most']:.2f})"
        lines.append(f"{row['label']:<22}{row['callers']:>8}  {connected(row):<14}{row['writes_s']:>10.0f}{row['ratio']:>8.2f}{spread:>15}"
                     f"{row['p50_us']:>9.0f}{row['server_cpu_us']:>11.1f}{row['cpu_ratio']:>8.2f}{row['client_cpu_us']:>11.1f}")
    return lines + ["ratio: writes a second over those of the better of etcd and ZooKeeper; less: its server CPU over this one's.",
                    "server us, client us: microseconds of CPU for a write, of all server processes, and of the client."]


def machine():
    model = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {"processors": os.cpu_count(), "model": model[0] if model else platform.machine(), "kernel": platform.release()}


def rounds(number):
    return f"{number} interleaved rounds (medians)" if number > 1 else "one round"


def settings(options):
    return [f"{options.value_size} B values, 16 B keys, {options.keys} keys, uniformly random, all written once before; closed loop;",
            f"{rounds(options.rounds)} of {options.seconds:g} s after {options.warm_up:g} s of warm-up; all on loopback."]


def measure(options, processes):
    systems, versions, missing = install(options)
    host = machine()
    labels = {system.name: system.label for system in systems}
    print(f"{host['processors']} processors ({host['model']}), Linux {host['kernel']}")
    print("\n".join(settings(options)))
    for system in systems:
        print(f"{system.label}: {versions[system.name]}; {system.settings}")
    for name, why in missing.items():
        print(f"left out: {name}: {why.splitlines()[0]}")
    sys.stdout.flush()

    bench = Bench(options, processes, options.work / "run")
    best, measured = bench.calibrate(systems)
    if measured:
        print("\n" + "\n".join(calibration_table(measured, labels)), flush=True)
    results = bench.rounds(systems, best)
    rows = medians(systems, results, options.callers)
    found = warnings(rows, options)
    print("\n" + "\n".join(table(rows) + found))

    out = options.out or options.work
    out.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": host, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "versions": versions, "left_out": missing,
        "void": any(warning.startswith("VOID") for warning in found), "warnings": found,
        "workload": {key: getattr(options, key) for key in ("callers", "value_size", "keys", "seconds", "warm_up", "rounds", "scale")},
        "settings": {system.name: system.settings for system in systems},
        "medians": rows, "calibration": measured, "rounds": results}
    (out / "bench-peers.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "bench-peers.svg").write_text(bench_peers_chart.draw(report))
    print(f"wrote {out / 'bench-peers.json'} and {out / 'bench-peers.svg'}")


def hold(work):
    """The work directory for this run alone. What a run left that was killed is removed."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "bin").mkdir(exist_ok=True)
    lock = open(work / "lock", "w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Failed(f"another run uses {work}: wait for it, or name another with --work") from error
    shutil.rmtree(work / "run", ignore_errors=True)
    return lock


def interrupted(*_):
    raise KeyboardInterrupt


def too_long(*_):
    raise Failed("a load client has not ended two minutes after it should have")


def main():
    options = arguments()
    options.work = options.work.resolve()
    processes = Processes()
    for number in ENDS:
        signal.signal(number, interrupted)
    signal.signal(signal.SIGALRM, too_long)
    try:
        lock = hold(options.work)
        try:
            measure(options, processes)
        finally:
            for number in (*ENDS, signal.SIGALRM):
                signal.signal(number, signal.SIG_IGN)
            processes.stop()
            shutil.rmtree(options.work / "run", ignore_errors=True)
            lock.close()
    except Failed as failed:
        sys.exit(f"bench-peers: {failed}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
