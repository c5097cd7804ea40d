"""What of `make bench-peers` can be tested without peers: python3 -B -m unittest discover scripts"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock
from xml.dom import minidom

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bench_peers  # noqa: E402
import bench_peers_chart  # noqa: E402
from bench_peers_processes import Failed, Processes, cpu_s, within  # noqa: E402
from bench_peers_report import basis, table, with_ratios  # noqa: E402
from bench_peers_systems import Choice, Load, Redis  # noqa: E402

FIXED = {"machine": {"processors": 2}, "versions": {"etcd": "etcd 3"}, "calibration": [],
         "workload": {"callers": [64], "value_size": 16, "seconds": 1, "rounds": 3, "scale": 1.0}}


class Fake:
    """A system that answers from a script: writes a second, or an exception, for each run."""

    placements, most_connections, first_warm_up_s = [""], 1 << 16, 0

    def __init__(self, name, *script):
        self.name, self.label, self.script = name, name, list(script)

    def start(self, data):
        data.mkdir(parents=True)

    def measure(self, load):
        found = self.script.pop(0)
        if isinstance(found, Exception):
            raise found
        return {"writes_s": found, "p50_us": 1.0, "p99_us": 2.0, "errors": 0, "server_cpu_us": 1e6 / max(found, 1), "client_cpu_us": 1.0}


class Options:
    callers, connections, placements, keys, value_size = [64], ["callers"], ["all"], 10, 16
    warm_up, seconds, rounds = 1, 1, 3


class Rounds(unittest.TestCase):
    def setUp(self):
        quiet = mock.patch.object(bench_peers, "say")
        quiet.start()
        self.addCleanup(quiet.stop)

    def run_rounds(self, *systems):
        with tempfile.TemporaryDirectory() as data:
            bench = bench_peers.Bench(Options(), Processes(), Path(data), list(systems), {})
            bench.calibrate()
            results = []
            for number in range(1, Options.rounds + 1):
                results += bench.round(number)
            return bench_peers.report_of(FIXED, bench, results)

    def test_a_peer_that_fails_is_left_out_of_all_rounds(self):
        report = self.run_rounds(
            Fake("etcd", 100, 100, 100), Fake("zookeeper", 200, Failed("a server\nended"), 200), Fake("crash", 400, 400, 400))
        self.assertEqual(report["against"], ["etcd"])
        self.assertIn("failed in round 2", report["left_out"]["zookeeper"])
        rows = {row["system"]: row for row in report["medians"]}
        self.assertEqual(set(rows), {"etcd", "crash"})
        self.assertEqual((rows["crash"]["ratio_least"], rows["crash"]["ratio_most"]), (4, 4))
        self.assertEqual(rows["crash"]["cpu_ratio"], 4)
        self.assertIn("over those of etcd;", "\n".join(table(report)))
        self.assertTrue(any("left out: ZooKeeper" in warning for warning in report["warnings"]))

    def test_without_a_peer_there_are_no_ratios(self):
        report = self.run_rounds(Fake("etcd", 0), Fake("crash", 400, 400, 400))
        self.assertIn("none of its writes", report["left_out"]["etcd"])
        self.assertIsNone(report["medians"][0]["ratio"])
        self.assertIn("nothing", "\n".join(table(report)))
        minidom.parseString(bench_peers_chart.draw(report))

    def test_the_picture_says_who_was_left_out(self):
        report = self.run_rounds(Fake("etcd", 100, 100, 100), Fake("zookeeper", Failed("<no\x1b> & network")), Fake("crash", 400, 400, 400))
        picture = bench_peers_chart.draw(report)
        minidom.parseString(picture)
        self.assertIn("left out: ZooKeeper", picture)
        self.assertIn("against etcd,", picture)
        self.assertIn("(64 over 64)", picture)

    def test_ratios_do_not_divide_by_zero(self):
        result = {"round": 1, "callers": 64, "system": "etcd", "writes_s": 0, "server_cpu_us": 0}
        self.assertEqual([(r["ratio"], r["cpu_ratio"]) for r in with_ratios([result], ["etcd"])], [(None, None)])

    def test_a_connection_for_each_caller_is_measured_beside_the_best(self):
        class Two(Fake):
            def measure(self, load):
                self.script = [200 if load.choice.connections == 8 else 100]
                return super().measure(load)

        options = Options()
        options.connections = ["8", "callers"]
        with tempfile.TemporaryDirectory() as data:
            bench = bench_peers.Bench(options, Processes(), Path(data), [Two("etcd")], {})
            bench.calibrate()
            report = bench_peers.report_of(FIXED, bench, bench.round(1))
        self.assertEqual([row["connections"] for row in report["medians"]], [8])
        self.assertEqual([row["connections"] for row in report["medians_equal"]], [64])

    def test_the_calibration_tries_each_way_twice(self):
        options = Options()
        options.connections = ["1", "8"]
        with tempfile.TemporaryDirectory() as data:
            bench = bench_peers.Bench(options, Processes(), Path(data), [Fake("zookeeper", 50, 100, 200, 150)], {})
            measured = bench.calibrate()
        self.assertEqual([(r["connections"], r["writes_s"]) for r in measured], [(1, 200), (8, 150)])
        self.assertEqual(bench.best["zookeeper", 64].connections, 1)

    def test_the_basis_names_who_is_there(self):
        self.assertEqual(basis(["etcd", "zookeeper"]), "the better of etcd and ZooKeeper")
        self.assertEqual(basis(["zookeeper"]), "ZooKeeper")


class WorkDirectory(unittest.TestCase):
    def test_what_is_not_ours_stays(self):
        with tempfile.TemporaryDirectory() as home:
            kept = Path(home) / "run" / "thesis.txt"
            kept.parent.mkdir()
            kept.write_text("mine")
            with self.assertRaisesRegex(Failed, "not made by bench-peers"):
                bench_peers.hold(Path(home))
            self.assertEqual(kept.read_text(), "mine")
            self.assertEqual(sorted(os.listdir(home)), ["run"])

    def test_what_a_killed_run_left_goes_and_two_runs_do_not_share(self):
        with tempfile.TemporaryDirectory() as home:
            work = Path(home) / "new" / "work"
            bench_peers.hold(work).close()
            (work / "run" / "etcd").mkdir(parents=True)
            with bench_peers.hold(work):
                self.assertFalse((work / "run").exists())
                with self.assertRaisesRegex(Failed, "another run"):
                    bench_peers.hold(work)


class Started(unittest.TestCase):
    def test_errors_are_no_part_of_the_output(self):
        self.assertEqual(Processes().output(["sh", "-c", "echo out; echo err >&2"]), "out")

    def test_a_failure_shows_what_was_said(self):
        with self.assertRaisesRegex(Failed, "(?s)failed.*why"):
            Processes().output(["sh", "-c", "echo why >&2; exit 3"])
        with self.assertRaisesRegex(Failed, "No such file"):
            Processes().output(["/nowhere/at/all"])

    def test_what_takes_too_long_ends_with_what_it_started(self):
        processes = Processes()
        began = time.monotonic()
        with self.assertRaisesRegex(Failed, "has not ended"):
            processes.output(["sh", "-c", "sleep 100 & sleep 100; :"], 0.2)
        self.assertLess(time.monotonic() - began, 50)
        self.assertEqual(processes.running, [])

    def test_a_killed_driver_leaves_nothing(self):
        code = ("import sys; sys.path.insert(0, sys.argv[1])\n"
                "from bench_peers_processes import Processes\n"
                "print(Processes().start(['sleep', '100']).pid, flush=True)\n"
                "import time; time.sleep(100)\n")
        with subprocess.Popen([sys.executable, "-B", "-c", code, str(Path(__file__).resolve().parent)],
                              stdout=subprocess.PIPE, text=True) as driver:
            child = int(driver.stdout.readline())
            driver.kill()
        while Path(f"/proc/{child}").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
            time.sleep(0.01)

    def test_a_limit_ends_what_it_encloses_alone(self):
        with self.assertRaisesRegex(Failed, "it has not ended"), within(0.05, "it"):
            time.sleep(100)
        self.assertEqual(signal.getitimer(signal.ITIMER_REAL)[0], 0)

    def test_a_process_that_is_gone_has_failed(self):
        with self.assertRaises(Failed):
            cpu_s([1 << 30])

    def test_filling_has_its_time(self):
        load = Load(64, Choice(1, ""), 10000, 512, 4, 8, True)
        self.assertGreater(load.limit_s(), 4 + 8 + 500)


class RedisVersions(unittest.TestCase):
    """With scripts that print what Redis does."""

    def redis(self, home, version, benchmark="exit 1"):
        for name, body in (("redis-server", f"echo 'Redis server v={version} sha=0'"), ("redis-benchmark", benchmark)):
            script = Path(home) / name
            script.write_text(f"#!/bin/sh\n{body}\n")
            script.chmod(0o755)
        path, os.environ["PATH"] = os.environ["PATH"], f"{home}:{os.environ['PATH']}"
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        return Redis(Path(home), Processes())

    def test_an_old_one_is_left_out_with_a_reason(self):
        with tempfile.TemporaryDirectory() as home:
            with self.assertRaisesRegex(Failed, "6.2 or later"):
                self.redis(home, "6.0.16").install()

    def test_lines_on_standard_error_are_not_read_and_others_fail(self):
        header = '"test","rps","p50_latency_ms","p99_latency_ms"'
        with tempfile.TemporaryDirectory() as home:
            for last, fails in (('"SET","2000.0","0.5","1.5"', False), ("SET: what?", True)):
                redis = self.redis(home, "7.0.15", f"echo '{header}'; echo '{last}'; echo WARNING >&2")
                self.assertEqual(redis.install(), "Redis 7.0.15")
                redis.servers, redis.port = [], 1
                load = Load(1, Choice(1, ""), 10, 16, 1, 1, True)
                if fails:
                    with self.assertRaisesRegex(Failed, "no result"):
                        redis.writes(load, 10)
                else:
                    self.assertEqual(redis.writes(load, 10)["p99_us"], 1500)


if __name__ == "__main__":
    unittest.main()
