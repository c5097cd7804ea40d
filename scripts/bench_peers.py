"""Measures Perdura beside etcd, ZooKeeper and Redis: the same writes, all durable, on this machine, in turn.

First a short calibration finds how each client is best connected; then every round starts each system anew,
one after the other. Ratios are taken within a round, against the better of etcd and ZooKeeper, and what is
printed are medians over rounds. `docs/peers.md` says how to read it.
"""

import argparse
import fcntl
import json
import os
import platform
import shutil
import signal
import sys
import time
from pathlib import Path

import bench_peers_chart
from bench_peers_processes import ENDS, Failed, Processes
from bench_peers_report import LABELS, PEERS, calibration_table, first_line, medians, table, warnings, with_ratios
from bench_peers_systems import ALL, ROOT, Choice, Load

CALIBRATION_S, CALIBRATION_WARM_UP_S = 3, 2
OURS = ("crash", "byzantine")
MARKER = "made-by-bench-peers"  # in the work directory, all of which is ours then; locked by a run


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
        help="where peers are installed and data is written, on the disk that is to be measured: a directory of its own, "
             "which is made (target/bench-peers of the project)")
    add("--out", type=Path, metavar="DIR", help="where bench-peers.json and bench-peers.svg go (the work directory)")
    options = parser.parse_args()
    if not all(c == "callers" or c.isdecimal() and int(c) > 0 for c in options.connections):
        parser.error("--connections: numbers, or `callers`")
    if not set(options.placements) <= {"all", "leader"}:
        parser.error("--placements: all, leader, or both")
    options.work = options.work.resolve()
    options.out = (options.out or options.work).resolve()
    return options


def install(options, processes):
    """The systems that can be measured here, their versions, and which peers cannot be, and why."""
    systems, versions, left_out = [], {}, {}
    for kind in (kind for kind in ALL if kind.name in options.systems):
        say(f"installing {kind.label}")
        system = kind(options.work, processes)
        try:
            versions[kind.name] = system.install()
            systems.append(system)
        except (Failed, OSError) as failed:
            if kind.name in OURS:
                raise
            left_out[kind.name] = str(failed)
            say(f"goes on without {kind.label}: {failed}")
    if not any(system.name in PEERS for system in systems):
        raise Failed("neither etcd nor ZooKeeper can be measured: ratios are against the better of them")
    return systems, versions, left_out


class Bench:
    """Runs of systems in a directory that is gone afterwards. A system that fails is left out from then on."""

    def __init__(self, options, processes, data, systems, left_out):
        self.options, self.processes, self.data = options, processes, data
        self.systems, self.left_out = systems, left_out
        # By system and callers: what it does best with, and a connection for each caller if that is asked for.
        self.best, self.equal = {}, {}

    def peers(self):
        """What ratios are against."""
        return [system.name for system in self.systems if system.name in PEERS]

    def with_system(self, system, runs):
        """Starts a system with empty disks, does the runs (callers, choice, warm-up, seconds), and ends it."""
        say(f"{system.label}: starts")
        results = []
        try:
            system.start(self.data / system.name)
            os.sync()
            for callers, choice, warm_up, seconds in runs:
                warm_up += 0 if results else system.first_warm_up_s
                load = Load(callers, choice, self.options.keys, self.options.value_size, warm_up, seconds, not results)
                found = system.measure(load)
                if not found["writes_s"] > 0:
                    raise Failed(f"none of its writes was acknowledged, with {callers} callers and connections {choice}")
                results.append({"system": system.name, "callers": callers, "connections": choice.connections,
                                "placement": choice.placement, **found})
                say(f"{system.label}: {callers} callers, connections {choice}: {found['writes_s']:.0f} writes/s, "
                    f"{found['server_cpu_us']:.1f} us of CPU")
        finally:
            self.processes.stop()
            shutil.rmtree(self.data / system.name, ignore_errors=True)
            os.sync()
        return results

    def or_leave_out(self, system, runs, when):
        """As `with_system`. If it fails, none of its results count from then on, for other rounds were without it."""
        try:
            return self.with_system(system, runs)
        except (Failed, OSError) as failed:
            self.systems.remove(system)
            self.left_out[system.name] = f"failed in {when}: {failed}"
            say(f"goes on without {system.label}, which failed in {when}: {failed}")
            return []

    def choices(self, system, callers):
        """The ways of connecting that are tried."""
        if system.name == "redis":
            return [Choice(callers, "")]
        numbers = sorted({min(callers, system.most_connections, callers if c == "callers" else int(c))
                          for c in self.options.connections})
        placements = [p for p in self.options.placements if p in system.placements] or [""]
        return [Choice(number, placement) for placement in placements for number in numbers]

    def calibrate(self):
        """Finds the best ways of connecting, and returns what was measured for that: of two tries of each way the
        faster one, for a server that compiles while it runs is slower in the first."""
        measured = []
        for system in list(self.systems):
            choices = {callers: self.choices(system, callers) for callers in self.options.callers}
            runs = [(callers, choice, CALIBRATION_WARM_UP_S, CALIBRATION_S)
                    for callers in choices for choice in choices[callers] if len(choices[callers]) > 1]
            tries = self.or_leave_out(system, 2 * runs, "the calibration") if runs else []
            results = [max(pair, key=lambda result: result["writes_s"]) for pair in zip(tries[:len(runs)], tries[len(runs):])]
            measured += results
            for callers in choices:
                speeds = {chosen(r): r["writes_s"] for r in results if r["callers"] == callers}
                self.best[system.name, callers] = max(choices[callers], key=lambda choice: speeds.get(choice, 0))
                equal = [choice for choice in choices[callers] if choice.connections == min(callers, system.most_connections)]
                if "callers" in self.options.connections:
                    self.equal[system.name, callers] = max(equal, key=lambda choice: speeds.get(choice, 0))
        return measured

    def round(self, number):
        """The results of a round, each with what it was measured as. Rounds begin with different systems."""
        say(f"round {number} of {self.options.rounds}")
        results = []
        first = (number - 1) % len(self.systems)
        for system in self.systems[first:] + self.systems[:first]:
            runs = []
            for callers in self.options.callers:
                key = system.name, callers
                ways = {self.best[key]: None, self.equal.get(key, self.best[key]): None}
                runs += [(callers, choice, self.options.warm_up, self.options.seconds) for choice in ways]
            for result in self.or_leave_out(system, runs, f"round {number}"):
                key = system.name, result["callers"]
                measured_as = [name for name, ways in (("best", self.best), ("equal", self.equal)) if ways.get(key) == chosen(result)]
                results.append({"round": number, "as": measured_as, **result})
        return results


def chosen(result):
    return Choice(result["connections"], result["placement"])


def machine():
    model = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {"processors": os.cpu_count(), "model": model[0] if model else platform.machine(), "kernel": platform.release()}


def rounds(number):
    return f"{number} interleaved rounds (medians)" if number > 1 else "one round"


def settings(options):
    return [f"{options.value_size} B values, 16 B keys, {options.keys} keys, uniformly random; closed loop;",
            f"{rounds(options.rounds)} of {options.seconds:g} s after {options.warm_up:g} s of warm-up; all on loopback."]


def report_of(fixed, bench, results):
    """All that is known after some rounds: what is written as JSON, printed, and drawn."""
    workload = fixed["workload"]
    parts = {}
    for name, medians_key, rounds_key in (("best", "medians", "rounds"), ("equal", "medians_equal", "rounds_equal")):
        parts[rounds_key] = with_ratios([r for r in results if name in r["as"]], bench.peers())
        parts[medians_key] = medians([system.name for system in bench.systems], parts[rounds_key], workload["callers"])
    found = warnings(parts["medians"], parts["medians_equal"], bench.left_out, bench.peers(), workload)
    return {**fixed, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "rounds_done": max((r["round"] for r in results), default=0), "against": bench.peers(), "left_out": bench.left_out,
            "void": any(warning.startswith("VOID") for warning in found), "warnings": found, **parts}


def write(report, out):
    """Each file is replaced as a whole."""
    for name, content in (("bench-peers.json", json.dumps(report, indent=1) + "\n"), ("bench-peers.svg", bench_peers_chart.draw(report))):
        new = out / f".{name}.new"
        new.write_text(content, encoding="utf-8")
        new.replace(out / name)


def measure(options, processes):
    systems, versions, left_out = install(options, processes)
    host = machine()
    print(f"{host['processors']} processors ({host['model']}), Linux {host['kernel']}")
    print("\n".join(settings(options)))
    for system in systems:
        print(f"{system.label}: {versions[system.name]}; {system.settings}")
    for name, why in left_out.items():
        print(f"left out: {LABELS[name]}: {first_line(why)}")
    sys.stdout.flush()

    options.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options, processes, options.work / "run", systems, left_out)
    measured = bench.calibrate()
    if measured:
        print("\n" + "\n".join(calibration_table(measured)), flush=True)
    fixed = {
        "machine": host, "versions": versions,
        "workload": {key: getattr(options, key) for key in ("callers", "value_size", "keys", "seconds", "warm_up", "rounds", "scale")},
        "settings": {system.name: system.settings for system in systems}, "calibration": measured}
    results, report = [], None
    for number in range(1, options.rounds + 1):
        if not bench.peers():
            break
        results += bench.round(number)
        report = report_of(fixed, bench, results)
        write(report, options.out)
        say(f"wrote {options.out / 'bench-peers.json'} and bench-peers.svg, after {number} of {options.rounds} rounds")
    if report:
        print("\n" + "\n".join(table(report) + report["warnings"]))
        print(f"wrote {options.out / 'bench-peers.json'} and {options.out / 'bench-peers.svg'}", flush=True)
    if not bench.peers():
        raise Failed("no peer is left to take ratios against:\n" + "\n".join(left_out.values()))
    if any(name in left_out for name in OURS):
        raise Failed("\n".join(f"{LABELS[name]} {left_out[name]}" for name in OURS if name in left_out))


def hold(work):
    """The work directory for this run alone: a new or an empty one, or one that a run made. What a run left that
    was killed is removed."""
    marker = work / MARKER
    try:
        work.mkdir(parents=True, exist_ok=True)
        if not marker.exists() and any(work.iterdir()):
            raise Failed(f"{work} was not made by bench-peers, and is not empty: name a directory that is not there yet with --work "
                         "(or remove this one, if all in it may go)")
        lock = open(marker, "a", encoding="utf-8")
    except OSError as error:
        raise Failed(f"{work}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise Failed(f"another run uses {work}: wait for it, or name another with --work") from error
    shutil.rmtree(work / "run", ignore_errors=True)
    (work / "bin").mkdir(exist_ok=True)
    return lock


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    options = arguments()
    processes = Processes()
    for number in ENDS:
        signal.signal(number, interrupted)
    try:
        lock = hold(options.work)
        try:
            measure(options, processes)
        finally:
            for number in ENDS:
                signal.signal(number, signal.SIG_IGN)
            processes.stop()
            shutil.rmtree(options.work / "run", ignore_errors=True)
            lock.close()
    except (Failed, OSError) as failed:
        sys.exit(f"bench-peers: {failed}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
