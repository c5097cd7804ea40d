"""What `make bench-peers` measures: how each system is installed, started, and loaded, with its settings."""

import csv
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench_peers_processes import Failed, children_s, cpu_s, free_ports, within

ROOT = Path(__file__).resolve().parent.parent
READY_S = 60
FETCH_S, BUILD_S = 300, 1200  # limits of what is fetched from a network, and of what is compiled
NO_NETWORK = " (is there a network?)"
HEAP = "1g"  # of each ZooKeeper server; its own start script gives it 1000 MB
CLIENT_HEAP = "1g"
# A client that ends so long after it should have hangs. Filling the keys may take 20 writes a second, which one
# caller does on a slow disk.
HANGS_S, FILL_KEY_S = 120, 0.05
# Loopback is not behind a proxy, whatever the environment says.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Choice:
    """How a client is connected: over how many connections, to all members or to the leader alone."""

    connections: int
    placement: str

    def __str__(self):
        return f"{self.connections} to {self.placement}" if self.placement else str(self.connections)


@dataclass(frozen=True)
class Load:
    callers: int
    choice: Choice
    keys: int
    value_size: int
    warm_up: float
    seconds: float
    fill: bool

    def limit_s(self):
        return self.warm_up + self.seconds + HANGS_S + (self.keys * FILL_KEY_S if self.fill else 0)


def needs(tool, how):
    if not shutil.which(tool):
        raise Failed(f"there is no `{tool}` here: {how}")


class System:
    """One of the systems. `start` and `measure` come in turn; `Processes.stop` ends what runs."""

    placements = [""]
    most_connections = 1 << 16
    first_warm_up_s = 0.0  # more warm-up of the first run after a start

    def __init__(self, work, processes):
        self.work, self.processes = work, processes

    def install(self):
        """Makes it ready to start, and returns its version. Raises `Failed` if that cannot be."""
        raise NotImplementedError

    def start(self, data):
        self.data = data
        data.mkdir(parents=True)
        self.log = open(data / "log.txt", "w", encoding="utf-8")
        self.servers = []
        self.start_servers()
        ends = time.monotonic() + READY_S
        while not self.is_ready():
            self.check()
            if time.monotonic() > ends:
                raise Failed(f"{self.label} is not ready after {READY_S} s:\n{self.log_end()}")
            time.sleep(0.1)

    def start_server(self, argv, **options):
        self.servers.append(self.processes.start(argv, stdout=self.log, stderr=self.log, **options))

    def pids(self):
        return [server.pid for server in self.servers]

    def check(self):
        if any(server.poll() is not None for server in self.servers):
            raise Failed(f"a server of {self.label} ended by itself:\n{self.log_end()}")

    def log_end(self):
        return "\n".join((self.data / "log.txt").read_text(errors="replace").splitlines()[-12:])

    def run_client(self, argv, load, **options):
        """Runs a load client of ours, which prints `begin` and `end` around the time that counts."""
        client = self.processes.start(argv, stdout=subprocess.PIPE, stderr=self.log, text=True, **options)
        moments, last = {}, ""
        try:
            with within(load.limit_s(), f"the load client of {self.label}"):
                for line in client.stdout:
                    last = line.strip()
                    if last in ("begin", "end"):
                        moments[last] = (cpu_s(self.pids()), cpu_s([client.pid]))
                code = client.wait()
        finally:
            self.processes.end(client)
        self.check()
        if code != 0 or len(moments) != 2:
            raise Failed(f"the load client of {self.label} failed:\n{self.log_end()}")
        servers, clients = (after - before for before, after in zip(moments["begin"], moments["end"]))
        with self.reading(last):
            found = json.loads(last)
            return figures(found["writes"], found["seconds"], found["p50_us"], found["p99_us"], found["errors"], servers, clients)

    @contextmanager
    def reading(self, text):
        """What a client printed is read: if that is not what it should be, the client failed."""
        try:
            yield
        except (ValueError, LookupError, TypeError) as error:
            raise Failed(f"the load client of {self.label} printed what is no result ({error!r}): {text[:500]!r}") from error


def figures(writes, seconds, p50_us, p99_us, errors, servers_s, client_s):
    each = 1e6 / max(writes, 1)
    return {"writes_s": writes / seconds, "p50_us": p50_us, "p99_us": p99_us, "errors": errors,
            "server_cpu_us": servers_s * each, "client_cpu_us": client_s * each}


class Etcd(System):
    name, label, nodes = "etcd", "etcd", 3
    placements = ["all", "leader"]
    settings = ("3 members, embedded server, all defaults (fsync on) but a backend quota of 8 GiB and logs of errors only; "
                "client: Go clientv3, a goroutine for each caller")

    def install(self):
        needs("go", "install Go 1.26 or later (https://go.dev/dl)")
        self.binary = self.work / "bin" / "etcd-peer"
        output, project = self.processes.output, ROOT / "peers/etcd"
        output(["go", "mod", "download"], FETCH_S, NO_NETWORK, cwd=project)
        output(["nice", "go", "build", "-trimpath", "-mod=readonly", "-o", self.binary, "."], BUILD_S, cwd=project)
        return f"etcd {output([self.binary, 'version'])}, {output(['go', 'env', 'GOVERSION'], cwd=project)}"

    def start_servers(self):
        ports = free_ports(6)
        self.clients = [f"http://127.0.0.1:{port}" for port in ports[:3]]
        peers = [f"http://127.0.0.1:{port}" for port in ports[3:]]
        cluster = ",".join(f"m{i}={url}" for i, url in enumerate(peers))
        for i in range(3):
            self.start_server([self.binary, "server", "-name", f"m{i}", "-dir", self.data / f"m{i}",
                               "-client", self.clients[i], "-peer", peers[i], "-cluster", cluster])

    def leader(self):
        for url in self.clients:
            try:
                with DIRECT.open(f"{url}/metrics", timeout=2) as answer:
                    if b"\netcd_server_is_leader 1" in answer.read():
                        return url
            except OSError:
                pass
        return None

    def is_ready(self):
        return self.leader() is not None

    def measure(self, load):
        endpoints = self.leader() if load.choice.placement == "leader" else ",".join(self.clients)
        if not endpoints:
            raise Failed(f"etcd has no leader:\n{self.log_end()}")
        return self.run_client([self.binary, "load", "-endpoints", endpoints, "-callers", load.callers,
                                "-connections", load.choice.connections, "-keys", load.keys, "-value-size", load.value_size,
                                "-warm-up", f"{load.warm_up}s", "-seconds", f"{load.seconds}s", f"-fill={str(load.fill).lower()}"], load)


class ZooKeeper(System):
    name, label, nodes = "zookeeper", "ZooKeeper", 3
    placements = ["all", "leader"]
    first_warm_up_s = 8.0  # its compiler has to find what is hot
    settings = (f"3 servers, defaults (forceSync yes, snapCount 100000, log and snapshots in one directory), heap {HEAP} each, "
                f"no limit of connections, logs of warnings only, {first_warm_up_s:g} s more of warm-up after a start; "
                f"client: Java, asynchronous setData, heap {CLIENT_HEAP}")

    def install(self):
        needs("java", "apt-get install openjdk-17-jdk-headless")
        needs("mvn", "apt-get install maven")
        # Into the work directory, which is held by one run; the tree may be shared.
        output, target = self.processes.output, self.work / "zookeeper"
        output(["nice", "mvn", "-q", "-B", f"-Dbuild.target={target}", "compile"], FETCH_S, NO_NETWORK, cwd=ROOT / "peers/zookeeper")
        self.classes = f"{target}/classes:{target}/lib/*"
        java = output(["java", "--version"]).splitlines()[0]
        return f"ZooKeeper {output(self.java('256m', 'Server'))}, {java}"

    def java(self, heap, name, *arguments):
        return ["java", f"-Xms{heap}", f"-Xmx{heap}", "-cp", self.classes, f"dev.perdura.peers.{name}", *arguments]

    def start_servers(self):
        ports = free_ports(9)
        self.clients = ports[:3]
        members = "".join(f"server.{i + 1}=127.0.0.1:{ports[3 + 2 * i]}:{ports[4 + 2 * i]}\n" for i in range(3))
        for i, port in enumerate(self.clients):
            directory = self.data / f"server-{i + 1}"
            directory.mkdir()
            (directory / "myid").write_text(f"{i + 1}\n")
            (directory / "zoo.cfg").write_text(
                f"tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={directory}\nclientPort={port}\n"
                f"clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n{members}")
            self.start_server(self.java(HEAP, "Server", directory / "zoo.cfg"))

    def modes(self):
        """The port of each server that serves, with its mode."""
        found = {}
        for port in self.clients:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=2) as server:
                    server.sendall(b"srvr")
                    for line in server.makefile():
                        if line.startswith("Mode: "):
                            found[port] = line[6:].strip()
            except OSError:
                pass
        return found

    def is_ready(self):
        return sorted(self.modes().values()) == ["follower", "follower", "leader"]

    def measure(self, load):
        ports = [port for port, mode in self.modes().items() if mode == "leader" or load.choice.placement == "all"]
        if not ports:
            raise Failed(f"ZooKeeper has no leader:\n{self.log_end()}")
        return self.run_client(self.java(
            CLIENT_HEAP, "Load", "--servers", ",".join(f"127.0.0.1:{port}" for port in ports), "--callers", load.callers,
            "--connections", load.choice.connections, "--keys", load.keys, "--value-size", load.value_size,
            "--warm-up", load.warm_up, "--seconds", load.seconds, "--fill", str(load.fill).lower()), load)


OLDEST_REDIS = (6, 2)  # whose redis-benchmark names the columns of its CSV


class Redis(System):
    name, label, nodes = "redis", "Redis, one server", 1
    settings = ("1 server, not replicated, appendonly yes, appendfsync always, save \"\"; "
                "client: redis-benchmark -P 1, a connection for each caller, as many writes as take about the time, of one value; "
                "keys are first written by the warm-up, at random")
    packages = ["redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1"]

    def install(self):
        self.environment = dict(os.environ)
        self.server, self.benchmark = shutil.which("redis-server"), shutil.which("redis-benchmark")
        if not (self.server and self.benchmark):
            self.unpack()
        printed = self.processes.output([self.server, "--version"], env=self.environment)
        version = re.search(r"v=((\d+)\.(\d+)\S*)", printed)
        if not version:
            raise Failed(f"{self.server} prints no version of Redis: {printed[:200]!r}")
        if (int(version[2]), int(version[3])) < OLDEST_REDIS:
            raise Failed(f"{self.server} is Redis {version[1]}, whose benchmark prints no latencies; Redis 6.2 or later is needed")
        return f"Redis {version[1]}"

    def unpack(self):
        """Debian's packages, unpacked into the work directory, which needs no root."""
        for tool in ("apt-get", "dpkg"):
            needs(tool, "install Redis so that redis-server and redis-benchmark are on the PATH")
        target = self.work / "redis"
        if not (target / "complete").exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            output = self.processes.output
            try:
                output(["apt-get", "download", *self.packages], FETCH_S, NO_NETWORK, cwd=target)
            except Failed as failed:
                raise Failed(f"{failed}\nrun `apt-get update`, or `apt-get install redis-server`, as root") from None
            for package in target.glob("*.deb"):
                output(["dpkg", "-x", package, target], FETCH_S)
            (target / "complete").touch()
        self.server, self.benchmark = target / "usr/bin/redis-server", target / "usr/bin/redis-benchmark"
        self.environment["LD_LIBRARY_PATH"] = ":".join(str(library) for library in (target / "usr/lib").glob("*-linux-*"))

    def start_servers(self):
        self.port, = free_ports(1)
        self.start_server([self.server, "--bind", "127.0.0.1", "--port", self.port, "--dir", self.data, "--appendonly", "yes",
                           "--appendfsync", "always", "--save", "", "--loglevel", "warning"], env=self.environment)

    def is_ready(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
            return True
        except OSError:
            return False

    def measure(self, load):
        found = self.writes(load, 2000)  # only to learn how many writes a second there are
        found = self.writes(load, max(2000, int(found["writes_s"] * load.warm_up)))
        return self.writes(load, max(2000, int(found["writes_s"] * load.seconds)))

    def writes(self, load, count):
        servers, clients = cpu_s(self.pids()), children_s()
        printed = self.processes.output(
            [self.benchmark, "-h", "127.0.0.1", "-p", self.port, "-c", load.callers, "-n", count, "-P", 1, "-t", "set",
             "-d", load.value_size, "-r", load.keys, "--csv"], load.limit_s(), env=self.environment)
        servers, clients = cpu_s(self.pids()) - servers, children_s() - clients
        self.check()
        with self.reading(printed):
            row = list(csv.DictReader(printed.splitlines()))[-1]
            return figures(count, count / float(row["rps"]), float(row["p50_latency_ms"]) * 1000,
                           float(row["p99_latency_ms"]) * 1000, 0, servers, clients)


class Perdura(System):
    """A kind of group is a class below."""

    most_connections = 64  # of one `perdura bench`

    def install(self):
        self.binary = Path(os.environ.get("PERDURA", ROOT / "target/release/perdura")).resolve()
        if self.binary.name != "perdura":
            raise Failed(f"{self.binary}: it has to be named `perdura`, for its benchmark finds replicas by that name")
        if not self.binary.exists():
            raise Failed(f"{self.binary} is not there: run `make build`, or set PERDURA to a binary")
        return f"Perdura {self.processes.output([self.binary, '--version']).split()[-1]}"

    def start_servers(self):
        self.cluster = self.data / "cluster"
        self.processes.output([self.binary, "init", self.cluster, *self.flags])
        for i in range(self.nodes):
            self.start_server([self.binary, "replica", "--config", self.cluster / f"replica-{i}/replica.toml", "--log-level", "warn"])

    def is_ready(self):
        try:
            self.processes.output([self.binary, "kv", "put", "--cluster", self.cluster, "ready", "yes", "--timeout", "1"])
            return True
        except Failed:
            return False

    def measure(self, load):
        self.bench(load, load.warm_up)
        return self.bench(load, load.seconds)

    def bench(self, load, seconds):
        """A run of so many seconds. Each writes all keys first."""
        result = self.data / "result.json"
        client = self.processes.start(
            [self.binary, "bench", "put", "--cluster", self.cluster, "--clients", load.callers, "--connections", load.choice.connections,
             "--keys", load.keys, "--value-size", load.value_size, "--seconds", f"{seconds:g}", "--keep",
             "--json", result],
            stdout=self.log, stderr=self.log)
        try:
            with within(replace(load, warm_up=0, seconds=seconds, fill=True).limit_s(), "perdura bench put"):
                code = client.wait()
        finally:
            self.processes.end(client)
        self.check()
        if code != 0:
            raise Failed(f"perdura bench put failed:\n{self.log_end()}")
        text = result.read_text()
        with self.reading(text):
            found = json.loads(text)
            return {"writes_s": found["throughput_ops_s"], "p50_us": found["p50_us"], "p99_us": found["p99_us"],
                    "errors": found["errors"], "server_cpu_us": found["server_cpu_us_per_op"],
                    "client_cpu_us": found["client_cpu_us_per_op"]}


class Crash(Perdura):
    name, label, nodes, flags = "crash", "Perdura, crash 1", 3, ["--crash", "1"]
    settings = "3 replicas, default durability (sync); client: perdura bench put"


class Byzantine(Perdura):
    name, label, nodes, flags = "byzantine", "Perdura, Byzantine 1", 4, ["--byzantine", "1"]
    settings = "4 replicas, signed, default durability (sync); client: perdura bench put"


ALL = [Etcd, ZooKeeper, Redis, Crash, Byzantine]
