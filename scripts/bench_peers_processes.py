"""Processes of `make bench-peers`: how they are started, bounded in time, and ended, and what they cost.

Whatever the driver starts, builds included, is known to `Processes`, leads a process group of its own, and ends
with the driver: with its group when the driver ends it, by itself when the driver is killed (of what it started in
turn, a compiler may still end its file then).
"""

import ctypes
import os
import random
import resource
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

PR_SET_PDEATHSIG = 1
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TICKS_S = os.sysconf("SC_CLK_TCK")
SHORT_S = 60  # for a command that has next to nothing to do


class Failed(Exception):
    """Says what went wrong, and what to do where that is known."""


class Processes:
    """All processes that run."""

    def __init__(self):
        self.running = []
        self.libc = ctypes.CDLL(None)
        self.driver = os.getpid()

    def start(self, argv, **options):
        argv = [str(word) for word in argv]
        # A signal waits until the process is in the list.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=self.in_child, start_new_session=True, **options)
            self.running.append(process)
        except OSError as error:
            raise Failed(f"{argv[0]}: {error.strerror}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        return process

    def in_child(self):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.driver:  # it ended before that was asked for
            os._exit(1)

    def output(self, argv, limit_s=SHORT_S, hint="", **options):
        """What a command prints on its standard output, or why it failed."""
        process = self.start(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace", **options)
        command = " ".join(str(word) for word in argv)
        try:
            printed, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"`{command}` has not ended after {limit_s:.0f} s{hint}") from None
        finally:
            self.end(process)
        if process.returncode != 0:
            raise Failed(f"`{command}` failed{hint}:\n" + "\n".join((printed + said).splitlines()[-12:]))
        return printed.strip()

    def end(self, process):
        """Ends a process with its group, unless it ended already."""
        kill_group(process)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
        if process in self.running:
            self.running.remove(process)

    def stop(self):
        for process in self.running:
            kill_group(process)
        for process in list(self.running):
            self.end(process)


def kill_group(process):
    # A process that nobody waited for keeps its number, so the group is its own.
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def within(limit_s, what):
    """Raises `Failed` in what it encloses when that takes longer. Not to be nested."""
    def late(*_):
        raise Failed(f"{what} has not ended after {limit_s:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def cpu_s(pids):
    """Processor time of processes so far, user and system, with that of their children that ended."""
    ticks = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError as error:
            raise Failed(f"process {pid} ended by itself") from error
        ticks += sum(int(field) for field in stat[stat.rindex(")") + 2:].split()[11:15])
    return ticks / TICKS_S


def children_s():
    """Processor time of all children that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
