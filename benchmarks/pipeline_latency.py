"""Latency from an event in the journal to its row in gold, at a steady publish rate.

python -m benchmarks.pipeline_latency --rate 10000 --seconds 90

Runs a broker, PHPMQ producers and consumers, and `sluicemq pipeline run` in separate processes. The
latency of an event is the time from its timestamp to the commit of the gold tables. Prints for each
micro-batch the latency of its oldest event, and at the end the median of all events, assuming that
they are spread evenly over the time of their batch. Batches during the warm-up do not count:
Spark's JVM compiles its code for about five minutes. Bodies are random hexadecimal digits: equal
bodies would compress to almost nothing, and Delta would treat files with millions of them as small
files and compact them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.load.load import Load
from benchmarks.load.phpmq import Phpmq
from benchmarks.load.sockets import BrokerAddress

from sluicemq.cli.local import LocalBroker

_SAMPLED = 100
"""Events of a batch for each of which one latency is added to the summary."""


def follow(pipeline: subprocess.Popen[str], batches: list[dict[str, Any]]) -> None:
    """Collect the output of `pipeline run --json`."""
    assert pipeline.stdout is not None
    for line in pipeline.stdout:
        event = json.loads(line)
        if "trouble" in event:
            print(f"restarted: {event['trouble']}", file=sys.stderr)
        if "batch" in event:
            batches.append(event)


def measure(rate: int, seconds: float, warm_up: float, size: int, options: list[str]) -> None:
    """Run the pipeline, and print a line for each measured batch and a summary."""
    with tempfile.TemporaryDirectory(prefix="sluicemq-latency-") as directory:
        data, lake = Path(directory) / "data", Path(directory) / "lake"
        listen = ["phpmq://127.0.0.1:0?durability=sync"]
        with LocalBroker(data, listen, ["--log-level", "warning"]) as broker:
            command = [sys.executable, "-m", "sluicemq.cli", "pipeline", "run", "--json"]
            command += ["--journal", str(data), "--lake", str(lake), *options]
            batches: list[dict[str, Any]] = []
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pipeline:
                reader = threading.Thread(target=follow, args=(pipeline, batches))
                reader.start()
                try:
                    target = BrokerAddress(broker.port("phpmq"))
                    with Load(target, Phpmq(size, varied=True), pid=broker.pid) as load:
                        load.flood(messages=1000)  # initial data
                        while not batches and pipeline.poll() is None:
                            time.sleep(0.1)
                        start = datetime.now(UTC) + timedelta(seconds=warm_up)
                        run = load.steady(rate, warm_up + seconds)
                finally:
                    pipeline.terminate()
                    reader.join()
            end = start + timedelta(seconds=seconds)
            show(batches, start, end)
            print(f"messages/s: {run.rate:,}")


def show(batches: list[dict[str, Any]], since: datetime, until: datetime) -> None:
    """Print the batches of the measured period."""
    latencies: list[float] = []
    waits: list[float] = []
    print(f"{'events':>9}{'latency s':>11}{'lag':>10}  seconds")
    for record in batches:
        batch = record["batch"]
        if batch["gold_committed"] is None:
            continue
        commit_time = datetime.fromisoformat(batch["gold_committed"])
        if since <= commit_time <= until:
            oldest, newest = (datetime.fromisoformat(batch[key]) for key in ("oldest", "newest"))
            latency = (commit_time - oldest).total_seconds()
            latencies.append(latency)
            step = (newest - oldest).total_seconds() / batch["rows"] * _SAMPLED
            waits += [latency - step * (n + 0.5) for n in range(round(batch["rows"] / _SAMPLED))]
            durations = " ".join(
                f"{name} {duration:.2f}" for name, duration in record["seconds"].items()
            )
            print(f"{batch['rows']:>9,}{latency:>11.2f}{record['lag'] or 0:>10,}  {durations}")
    if latencies:
        print(f"all events, seconds: median {statistics.median(waits):.2f}")
        print(
            f"oldest event of a batch, seconds: median {statistics.median(latencies):.2f}, "
            f"worst {max(latencies):.2f}, {len(latencies)} batches"
        )


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=int, default=10_000, help="messages/s")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured")
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds before that")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("options", nargs="*", help="of `pipeline run`, after --")
    arguments = parser.parse_args()
    measure(arguments.rate, arguments.seconds, arguments.warm_up, arguments.size, arguments.options)


if __name__ == "__main__":
    main()
