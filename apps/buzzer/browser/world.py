"""A Byzantine cluster of two partitions, and Buzzer on it, as processes that end with the test."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 120


def wait_for(what, ask):
    """Asks until there is an answer."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


class Process:
    """A process that is told to stop at the end, with all that it said in a file."""

    def __init__(self, command, out):
        self.out = Path(out)
        with self.out.open("w") as file:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def said(self):
        return self.out.read_text()

    def wait_to_say(self, words):
        def ask():
            line = next((line for line in self.said().splitlines() if words in line), None)
            if line is None and self.process.poll() is not None:
                raise AssertionError(f"ended without {words!r}: {self.said()}")
            return line

        return wait_for(words, ask)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=PATIENCE_S)


class World:
    def __init__(self, dir):
        self.dir = Path(dir)
        self.processes = []
        perdura = os.environ.get("PERDURA", ROOT / "target/fast/perdura")
        buzzer = os.environ.get("BUZZER", ROOT / "target/fast/buzzer")
        self.perdura, cluster = perdura, self.dir / "cluster"
        shape = subprocess.run([buzzer, "bounds", "--partitions", "2"], capture_output=True, text=True, check=True)
        dev = self.start([perdura, "dev", cluster, *shape.stdout.split()], "cluster")
        dev.wait_to_say("Ctrl-C stops")
        self.servers = [int(pid) for pid in re.findall(r"server \d+  pid (\d+)", dev.said())]
        serve = [buzzer, "serve", "--cluster", cluster, "--listen", "127.0.0.1:0", "--insecure-cookies", "--writes-per-hour", "1000000"]
        app = self.start(serve, "app")
        self.url = app.wait_to_say("Buzzer is at ").split()[-1]

    def start(self, command, name):
        process = Process(command, self.dir / f"{name}.txt")
        self.processes.append(process)
        return process

    def kill(self, server):
        os.kill(self.servers[server], signal.SIGKILL)

    def restart(self, server):
        config = self.dir / f"cluster/server-{server}/server.toml"
        process = self.start([self.perdura, "server", "--config", config], f"again-{server}")
        self.servers[server] = process.process.pid

    def signal(self, servers, which):
        for server in servers:
            os.kill(self.servers[server], which)

    def stop(self):
        for process in reversed(self.processes):
            process.stop()
