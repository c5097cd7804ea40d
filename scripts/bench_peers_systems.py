"""What `make bench-peers` measures: how each system is installed, started, and loaded, with its settings.

Every process that is started here ends with the driver, even if that is killed, and is known to `Processes`.
"""

import csv
import ctypes
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READY_S = 60
HEAP = "1g"  # of each ZooKeeper server; its own start script gives it 1000 MB
CLIENT_HEAP = "1g"
PR_SET_PDEATHSIG = 1
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TICKS_S = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """Says what went wrong, and what to do where that is known."""


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


class Processes:
    """All servers and clients that run."""

    def __init__(self):
        self.running = []
        self.libc = ctypes.CDLL(None)

    def start(self, argv, log, **options):
        # A signal waits until the process is in the list.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        try:
            process = subprocess.Popen(
                [str(word) for word in argv], stdin=subprocess.DEVNULL, stderr=log,
                preexec_fn=self.in_child, start_new_session=True, **options)
            self.running.append(process)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        return process

    def in_child(self):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def stop(self):
        for process in self.running:
            if process.poll() is None:
                process.kill()
        for process in self.running:
            process.wait()
        self.running = []


def cpu_s(pids):
    """Processor time of processes so far, user and system, with that of their children that ended."""
    ticks = 0
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat").read_text()
        ticks += sum(int(field) for field in stat[stat.rindex(")") + 2:].split()[11:15])
    return ticks / TICKS_S


def free_ports(count):
    """Ports below those that the kernel gives to outgoing connections."""
    held = []
    while len(held) < count:
        listener = socket.socket()
        try:
            listener.bind(("127.0.0.1", random.randint(20000, 32000)))
            held.append(listener)
        except OSError:
            listener.close()
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


def output(argv, **options):
    """What a command prints, or why it failed."""
    try:
        done = subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    except OSError as error:
        raise Failed(f"{argv[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{argv[0]} has not ended after {error.timeout:.0f} s") from error
    if done.returncode != 0:
        raise Failed(f"`{' '.join(str(word) for word in argv)}` failed:\n" + "\n".join(done.stdout.splitlines()[-12:]))
    return done.stdout.strip()


def needs(tool, how):
    if not shutil.which(tool):
        raise Failed(f"there is no `{tool}` here: {how}")


class System:
    """One of the systems. `start` and `measure` come in turn; `Processes.stop` ends what runs."""

    placements = [""]
    most_connections = 1 << 16
    first_warm_up_s = 0.0  # more warm-up of the first run after a start

    def __init__(self, work):
        self.work = work

    def install(self):
        """Makes it ready to start, and returns its version. Raises `Failed` if that cannot be."""
        raise NotImplementedError

    def start(self, data, processes):
        self.data, self.processes = data, processes
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
        self.servers.append(self.processes.start(argv, self.log, stdout=self.log, **options))

    def pids(self):
        return [server.pid for server in self.servers]

    def check(self):
        if any(server.poll() is not None for server in self.servers):
            raise Failed(f"a server of {self.label} ended by itself:\n{self.log_end()}")

    def log_end(self):
        return "\n".join((self.data / "log.txt").read_text(errors="replace").splitlines()[-12:])

    def run_client(self, argv, load, **options):
        """Runs a load client of ours, which prints `begin` and `end` around the time that counts."""
        client = self.processes.start(argv, self.log, stdout=subprocess.PIPE, text=True, **options)
        signal.alarm(int(load.warm_up + load.seconds) + 120)
        moments, last = {}, ""
        for line in client.stdout:
            last = line.strip()
            if last in ("begin", "end"):
                moments[last] = (cpu_s(self.pids()), cpu_s([client.pid]))
        code = client.wait()
        signal.alarm(0)
        self.check()
        if code != 0 or len(moments) != 2:
            raise Failed(f"the load client of {self.label} failed:\n{self.log_end()}")
        found = json.loads(last)
        servers, clients = (after - before for before, after in zip(moments["begin"], moments["end"]))
        return figures(found["writes"], found["seconds"], found["p50_us"], found["p99_us"], found["errors"], servers, clients)


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
        output(["nice", "go", "build", "-trimpath", "-mod=readonly", "-o", self.binary, "."], cwd=ROOT / "peers/etcd")
        return f"etcd {output([self.binary, 'version'])}, {output(['go', 'env', 'GOVERSION'])}"

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
                with urllib.request.urlopen(f"{url}/metrics", timeout=2) as answer:
                    if b"\netcd_server_is_leader 1" in answer.read():
                        return url
            except OSError:
                pass
        return None

    def is_ready(self):
        return self.leader() is not None

    def measure(self, load):
        endpoints = self.leader() if load.choice.placement == "leader" else ",".join(self.clients)
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
        project = ROOT / "peers/zookeeper"
        output(["nice", "mvn", "-q", "-B", "compile"], cwd=project)
        self.classes = f"{project}/target/classes:{project}/target/lib/*"
        java = output(["java", "-version"]).splitlines()[0].replace('"', "")
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
        return self.run_client(self.java(
            CLIENT_HEAP, "Load", "--servers", ",".join(f"127.0.0.1:{port}" for port in ports), "--callers", load.callers,
            "--connections", load.choice.connections, "--keys", load.keys, "--value-size", load.value_size,
            "--warm-up", load.warm_up, "--seconds", load.seconds, "--fill", str(load.fill).lower()), load)


class Redis(System):
    name, label, nodes = "redis", "Redis, one server", 1
    settings = ("1 server, not replicated, appendonly yes, appendfsync always, save \"\"; "
                "client: redis-benchmark -P 1, a connection for each caller, as many writes as take about the time")
    packages = ["redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1"]

    def install(self):
        self.environment = dict(os.environ)
        self.server, self.benchmark = shutil.which("redis-server"), shutil.which("redis-benchmark")
        if not (self.server and self.benchmark):
            self.unpack()
        version = output([self.server, "--version"], env=self.environment)
        return "Redis " + version.split("v=")[1].split()[0]

    def unpack(self):
        """Debian's packages, unpacked into the work directory, which needs no root."""
        for tool in ("apt-get", "dpkg"):
            needs(tool, "install Redis so that redis-server and redis-benchmark are on the PATH")
        target = self.work / "redis"
        if not (target / "complete").exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            try:
                output(["apt-get", "download", *self.packages], cwd=target)
            except Failed as failed:
                raise Failed(f"{failed}\nrun `apt-get update`, or `apt-get install redis-server`, as root") from None
            for package in target.glob("*.deb"):
                output(["dpkg", "-x", package, target])
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
        printed = output([self.benchmark, "-h", "127.0.0.1", "-p", self.port, "-c", load.callers, "-n", count, "-P", 1, "-t", "set",
                          "-d", load.value_size, "-r", load.keys, "--csv"], env=self.environment, timeout=600)
        servers, clients = cpu_s(self.pids()) - servers, children_s() - clients
        self.check()
        row = list(csv.DictReader(printed.splitlines()))[-1]
        return figures(count, count / float(row["rps"]), float(row["p50_latency_ms"]) * 1000, float(row["p99_latency_ms"]) * 1000,
                       0, servers, clients)


def children_s():
    """Processor time of all children that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Perdura(System):
    """A kind of group is a class below."""

    most_connections = 64  # of one `perdura bench`

    def install(self):
        self.binary = Path(os.environ.get("PERDURA", ROOT / "target/release/perdura")).resolve()
        if self.binary.name != "perdura":
            raise Failed(f"{self.binary}: it has to be named `perdura`, for its benchmark finds replicas by that name")
        if not self.binary.exists():
            raise Failed(f"{self.binary} is not there: run `make build`, or set PERDURA to a binary")
        return f"Perdura {output([self.binary, '--version']).split()[-1]}"

    def start_servers(self):
        self.cluster = self.data / "cluster"
        output([self.binary, "init", self.cluster, *self.flags])
        for i in range(self.nodes):
            self.start_server([self.binary, "replica", "--config", self.cluster / f"replica-{i}/replica.toml", "--log-level", "warn"])

    def is_ready(self):
        try:
            output([self.binary, "kv", "put", "--cluster", self.cluster, "ready", "yes", "--timeout", "1"])
            return True
        except Failed:
            return False

    def measure(self, load):
        self.bench(load, load.warm_up)
        found = self.bench(load, load.seconds)
        return {"writes_s": found["throughput_ops_s"], "p50_us": found["p50_us"], "p99_us": found["p99_us"], "errors": found["errors"],
                "server_cpu_us": found["server_cpu_us_per_op"], "client_cpu_us": found["client_cpu_us_per_op"]}

    def bench(self, load, seconds):
        result = self.data / "result.json"
        client = self.processes.start(
            [self.binary, "bench", "put", "--cluster", self.cluster, "--clients", load.callers, "--connections", load.choice.connections,
             "--keys", load.keys, "--value-size", load.value_size, "--seconds", f"{seconds:g}", "--json", result],
            self.log, stdout=self.log)
        signal.alarm(int(seconds) + 120)
        code = client.wait()
        signal.alarm(0)
        self.check()
        if code != 0:
            raise Failed(f"perdura bench put failed:\n{self.log_end()}")
        return json.loads(result.read_text())


class Crash(Perdura):
    name, label, nodes, flags = "crash", "Perdura, crash 1", 3, ["--crash", "1"]
    settings = "3 replicas, default durability (sync); client: perdura bench put"


class Byzantine(Perdura):
    name, label, nodes, flags = "byzantine", "Perdura, Byzantine 1", 4, ["--byzantine", "1"]
    settings = "4 replicas, signed, default durability (sync); client: perdura bench put"


ALL = [Etcd, ZooKeeper, Redis, Crash, Byzantine]
