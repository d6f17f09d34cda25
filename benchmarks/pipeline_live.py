"""Slowdown of a broker at half its maximum rate while Spark reads the end of its journal.

    python -m benchmarks.pipeline_live [--seconds 20] [--runs 3]

First measures the maximum rate, then half of it, alternately with and without a streaming query
(`format("sluicemq")`, noop sink, all columns) in separate processes. Prints the medians of the
achieved rates, of the broker's processor time per message and of the latencies, and their ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.load.load import Load
from benchmarks.load.phpmq import Phpmq
from benchmarks.load.result import TransferResult
from benchmarks.load.sockets import BrokerAddress
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluicemq.cli.local import LocalBroker
from sluicemq.pipeline.session import session

MAXIMUM_SECONDS = 5.0


def stream(spark: SparkSession, data: Path, checkpoint: Path) -> StreamingQuery:
    """Reads everything that is journaled from now on."""
    source = spark.readStream.format("sluicemq").option("startingOffsets", "latest")
    frame = source.option("slot", checkpoint.name).load(str(data))
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="1 second").start()


def measure(seconds: float, runs: int, size: int) -> dict[str, object]:
    """Results by the load beside the broker."""
    spark = session("live")
    spark.sparkContext.setLogLevel("ERROR")
    results: dict[str, list[TransferResult]] = {"alone": [], "read": []}
    rows = 0
    with tempfile.TemporaryDirectory(prefix="sluicemq-live-") as name:
        data = Path(name) / "data"
        listen = ["phpmq://127.0.0.1:0?durability=sync"]
        with LocalBroker(data, listen, ["--log-level", "warning"]) as broker:
            target = BrokerAddress(broker.port("phpmq"))
            with Load(target, Phpmq(size), pid=broker.pid) as load:
                load.flood(seconds=MAXIMUM_SECONDS)
                rate = load.flood(seconds=MAXIMUM_SECONDS).rate // 2
                for run in range(runs):
                    results["alone"].append(load.steady(rate, seconds))
                    query = stream(spark, data, Path(name) / f"checkpoint-{run}")
                    while query.lastProgress is None:
                        load.steady(rate, 1.0)  # wait until Spark has started
                    results["read"].append(load.steady(rate, seconds))
                    query.processAllAvailable()
                    rows += sum(progress["numInputRows"] for progress in query.recentProgress)
                    query.stop()
    spark.stop()
    figures: dict[str, object] = {"target_rate": rate, "read_rows": rows}
    for name, transfers in results.items():
        figures[name] = {
            "rate": statistics.median(run.rate for run in transfers),
            "broker_us": statistics.median(run.broker_us for run in transfers),
            "p50_ms": statistics.median(run.latency.p50 for run in transfers if run.latency),
            "p99_ms": statistics.median(run.latency.p99 for run in transfers if run.latency),
        }
    pairs = zip(results["alone"], results["read"], strict=True)
    figures["ratio"] = round(statistics.median(b.rate / a.rate for a, b in pairs), 3)
    figures["bar"] = 0.95
    return figures


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of one run")
    parser.add_argument("--runs", type=int, default=3, help="of each kind")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.seconds, arguments.runs, arguments.size), indent=2))


if __name__ == "__main__":
    main()
