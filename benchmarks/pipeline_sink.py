"""Compare the Spark sink with direct publishing, alternately on the same broker, in one run.

    python -m benchmarks.pipeline_sink [--rows 400000] [--size 1024] [--runs 5] [--directory DIR]

Direct: one PHPMQ producer sends prebuilt blocks as fast as the broker accepts them, with durability
`sync` and without a consumer. A run ends when a message that was sent afterwards has been received,
so that all are on disk. Sink: two tasks publish the same number of rows from Parquet, whose bodies
do not compress. Prints one JSON document with the messages per second of each run, the medians and
their ratio, and the broker's processor time per message, which other load on the machine hardly
changes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.load.load import Load
from benchmarks.load.meter import cpu_seconds
from benchmarks.load.phpmq import Phpmq
from benchmarks.load.sockets import BrokerAddress

from sluicemq.cli.local import LocalBroker
from sluicemq.pipeline.session import session

LISTEN = ("phpmq://127.0.0.1:0?durability=sync", "http://127.0.0.1:0")
FILES = 2
BAR = 0.5


def load(broker: LocalBroker, queue: bytes, size: int, *, consumers: int) -> Load:
    dialect = Phpmq(size, queue=queue, window=1000)
    target = BrokerAddress(broker.port("phpmq"))
    return Load(target, dialect, producers=1, consumers=consumers, pid=broker.pid)


def waiting(broker: LocalBroker, queue: str) -> int:
    matches = (
        destination
        for destination in broker.status()["destinations"]
        if destination["name"] == queue
    )
    return int(next(matches, {"ready": 0})["ready"])


def direct(broker: LocalBroker, queue: str, rows: int, size: int) -> None:
    """Publish all messages and wait until they are on disk."""
    with load(broker, queue.encode(), size, consumers=0) as producer:
        producer.flood(messages=rows)
        while waiting(broker, queue) < rows:
            time.sleep(0.01)
        with load(broker, b"fence", size, consumers=1) as fence:
            fence.flood(messages=1)


def make_rows(directory: Path, rows: int, size: int) -> None:
    """Write Parquet files with distinct bodies."""
    for number in range(FILES):
        count = rows // FILES
        body = pa.array([os.urandom(size) for _ in range(count)], pa.binary())
        pq.write_table(pa.table({"body": body}), directory / f"{number}.parquet")


def measured(broker: LocalBroker, rows: int, work: Any) -> dict[str, float]:
    """Return the rate and the broker's processor time."""
    cpu = cpu_seconds(broker.pid)
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    cpu_time = cpu_seconds(broker.pid) - cpu
    return {"rate": round(rows / seconds), "broker_us": round(cpu_time / rows * 1e6, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None)
    arguments = parser.parse_args()
    spark = session("sink")
    results: dict[str, list[dict[str, float]]] = {"direct": [], "sink": []}
    with tempfile.TemporaryDirectory(prefix="sluicemq-sink-", dir=arguments.directory) as name:
        work = Path(name)
        (work / "rows").mkdir()
        make_rows(work / "rows", arguments.rows, arguments.size)
        for run in range(arguments.runs + 1):  # the first run warms Spark up and is not counted
            with LocalBroker(work / f"data-{run}", LISTEN, ["--log-level", "warning"]) as broker:
                frame = spark.read.parquet(str(work / "rows")).selectExpr(
                    "body", "'sink' as destination"
                )
                writer = frame.write.format("sluicemq").mode("append")
                writer.option("url", f"http://127.0.0.1:{broker.port('http')}")
                sink = measured(broker, arguments.rows, writer.save)
                plain = measured(
                    broker,
                    arguments.rows,
                    lambda b=broker: direct(b, "direct", arguments.rows, arguments.size),
                )
            if run:
                results["direct"].append(plain)
                results["sink"].append(sink)
    spark.stop()
    medians = {
        key: {name: statistics.median(run[name] for run in runs) for name in ("rate", "broker_us")}
        for key, runs in results.items()
    }
    ratio = medians["sink"]["rate"] / medians["direct"]["rate"]
    print(
        json.dumps(
            {
                "scenario": "pipeline sink",
                "rows": arguments.rows,
                "size": arguments.size,
                "runs": results,
                "medians": medians,
                "ratio": round(ratio, 3),
                "bar": BAR,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
