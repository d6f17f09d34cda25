"""Processor time of `sluicemq pipeline backfill` per event, without the start of Spark.

    python -m benchmarks.pipeline_backfill --events 1000000 5000000

Each number of events has a separate journal of messages that are published, delivered and
acknowledged over PHPMQ, which are three events per message. A separate process reads it into the
bronze, silver and gold tables of a new lake. The difference between two numbers of events is the
marginal cost, in which the start of the JVM and of the workers cancels out.

Processor time is user and system time of all processes of the command.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.load.load import Load
from benchmarks.load.phpmq import Phpmq
from benchmarks.load.sockets import BrokerAddress

from sluicemq.cli.local import LocalBroker

EVENTS_PER_MESSAGE: Final = 3
_PR_SET_CHILD_SUBREAPER: Final = 36


class Cost(NamedTuple):
    """Cost of one backfill."""

    events: int
    cpu_seconds: float
    seconds: float


def write_journal(data: Path, events: int, size: int) -> None:
    """Let a broker write a journal with about that many events, all of which are retained."""
    listen = ["phpmq://127.0.0.1:0?durability=lazy"]
    broker = LocalBroker(data, listen, ["--log-level", "warning"])
    with broker:
        pass  # creates the journal
    command = [sys.executable, "-m", "sluicemq.cli", "journal", "slots", str(data)]
    subprocess.run([*command, "--create", "backfill", "--limit", "100GiB"], check=True)
    with (
        broker,
        Load(BrokerAddress(broker.port("phpmq")), Phpmq(size), pid=broker.pid) as load,
    ):
        load.flood(messages=events // EVENTS_PER_MESSAGE)


def children_seconds() -> float:
    """Return the processor time of all ended descendants."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def backfill(data: Path, lake: Path, events: int, options: list[str]) -> Cost:
    """Read a journal into a new lake."""
    command = [sys.executable, "-m", "sluicemq.cli", "pipeline", "backfill"]
    command += ["--journal", str(data), "--lake", str(lake), *options]
    cpu_before, start = children_seconds(), time.perf_counter()
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - start
    return Cost(events, children_seconds() - cpu_before, seconds)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--options", nargs="*", default=[], help="of `pipeline backfill`")
    arguments = parser.parse_args()
    # processes whose parent has ended become children of this one, so that their time is counted
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    costs: list[Cost] = []
    for events in arguments.events:
        with tempfile.TemporaryDirectory(prefix="sluicemq-backfill-") as directory:
            data = Path(directory) / "data"
            write_journal(data, events, arguments.size)
            costs.append(backfill(data, Path(directory) / "lake", events, arguments.options))
        cost = costs[-1]
        print(
            f"{cost.events:>10,} events  {cost.cpu_seconds:7.1f} s of processor time"
            f"  {cost.seconds:7.1f} s  {cost.events / cost.cpu_seconds:>8,.0f} events/CPU-s"
        )
    for smaller, larger in itertools.pairwise(costs):
        marginal = (larger.events - smaller.events) / (larger.cpu_seconds - smaller.cpu_seconds)
        print(f"marginal, {smaller.events:,} to {larger.events:,}: {marginal:,.0f} events/CPU-s")


if __name__ == "__main__":
    main()
