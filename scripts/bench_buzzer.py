"""Installs Redis as `make bench-peers` does, and hands it to the program that races."""

import os
import signal
import sys
from pathlib import Path

from bench_peers_processes import ENDS, Failed, Processes
from bench_peers_systems import ROOT, Redis

WORK = ROOT / "target/bench-buzzer/packages"
COMMANDS = ("run", "causality", "survival")


def install():
    """Where Redis' server is, and its libraries if they are not where the system has them."""
    processes = Processes()
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        redis = Redis(WORK, processes)
        print(f"bench-buzzer: {redis.install()}", file=sys.stderr, flush=True)
    finally:
        processes.stop()
    libraries = redis.environment.get("LD_LIBRARY_PATH")
    return ["--redis-server", redis.server] + (["--redis-libraries", libraries] if libraries else [])


def needs_redis(arguments):
    """Whether Redis takes part, and is to be brought."""
    if arguments[0] not in COMMANDS or {"-h", "--help"} & set(arguments):
        return False
    if any(word.split("=")[0] == "--redis-server" for word in arguments):
        return False
    words = " ".join(arguments).replace("--systems=", "--systems ").split()
    named = [after for word, after in zip(words, words[1:]) if word == "--systems"]
    return not named or any("redis" in systems for systems in named)


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    race = Path(os.environ.get("RACE", ROOT / "target/release/buzzer-race"))
    arguments = sys.argv[1:] or ["run"]
    if not race.exists():
        sys.exit(f"bench-buzzer: {race} is not there: run `make bench-buzzer`, which builds it, or set RACE to a binary")
    for number in ENDS:
        signal.signal(number, interrupted)
    try:
        redis = install() if needs_redis(arguments) else []
    except (Failed, OSError) as failed:
        sys.exit(f"bench-buzzer: {failed}")
    except KeyboardInterrupt:
        sys.exit(130)
    for number in ENDS:
        signal.signal(number, signal.SIG_DFL)
    # In the place of this process, so that Ctrl-C reaches it alone.
    os.execv(race, [str(word) for word in (race, arguments[0], *redis, *arguments[1:])])


if __name__ == "__main__":
    main()
