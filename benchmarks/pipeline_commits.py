"""Cost of the commits of many small micro-batches, which must not grow with their number.

    python -m benchmarks.pipeline_commits [--batches 500] [--rows 3000] [--destinations 30]

Writes batches of published messages to the bronze, silver and gold tables of one lake, as
`sluicemq pipeline run` does, and prints for each hundred batches the median time, the mean
processor time (the value to compare on a machine with other load) and the number of data files.
Compaction after commits limits the number of files, and so the cost of a commit: the last hundred
batches should cost at most 1.2 times as much as the first hundred.

A batch covers one second, so that later batches update rows of the gold tables that earlier batches
wrote.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.pipeline_cost import cpu_seconds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sluicemq.pipeline.jobs.batch import LakeWriter
from sluicemq.pipeline.jobs.lake import EVENT_LAYERS, Lake
from sluicemq.pipeline.schema import EVENTS
from sluicemq.pipeline.session import session

JOURNAL: Final = "0123456789abcdef"
START: Final = 1_700_000_000
GROUP: Final = 100
WARM_UPS: Final = 20
"""Batches before the first group: Spark compiles their plans."""


def events(spark: SparkSession, batch: int, rows: int, destinations: int) -> DataFrame:
    """Return the messages that were published in one second."""
    first = batch * rows + 1
    columns = {
        "sequence": "id",
        "record_index": "0",
        "time": f"timestamp_seconds({START + batch})",
        "event": "'published'",
        "destination": f"concat('queue-', id % {destinations})",
        "destination_kind": "'queue'",
        "message_sequence": "id",
        "published": f"timestamp_seconds({START + batch})",
        "protocol": "'phpmq'",
        "priority": "4",
        "durability": "'sync'",
        "size": "100L",
        "body_kind": "'text'",
        "body": "encode(repeat('x', 100), 'UTF-8')",
    }
    schema = from_arrow_schema(EVENTS)
    return spark.range(first, first + rows, numPartitions=2).selectExpr(
        *(
            f"CAST({columns.get(item.name, 'NULL')} AS {item.dataType.simpleString()}) "
            f"AS `{item.name}`"
            for item in schema
        )
    )


def main() -> None:
    """Write the batches and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--rows", type=int, default=3000, help="messages of a batch")
    parser.add_argument("--destinations", type=int, default=30)
    options = parser.parse_args()
    spark = session("pipeline_commits")
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        lake = Lake(Path(directory) / "lake")
        writer = LakeWriter(spark, lake, JOURNAL)
        seconds: list[float] = []
        groups: list[tuple[float, float]] = []
        cpu_before = 0.0
        print(f"{'batches':>12} {'median ms':>10} {'CPU ms':>8} {'files':>6}", flush=True)
        for batch in range(WARM_UPS + options.batches):
            frame = events(spark, batch, options.rows, options.destinations)
            before = time.perf_counter()
            writer.write(frame, batch * options.rows + 1, (batch + 1) * options.rows)
            seconds.append(time.perf_counter() - before)
            done = batch + 1 - WARM_UPS
            if done == 0:
                cpu_before = cpu_seconds()
            elif done > 0 and done % GROUP == 0:
                wall, cpu = (
                    statistics.median(seconds[-GROUP:]),
                    (cpu_seconds() - cpu_before) / GROUP,
                )
                groups.append((wall, cpu))
                files = sum(lake.layer(name).details(spark).numFiles for name in EVENT_LAYERS)
                print(f"{done:>12} {wall * 1000:>10.0f} {cpu * 1000:>8.0f} {files:>6}", flush=True)
                cpu_before = cpu_seconds()
        if len(groups) > 1:
            wall, cpu = (last / first for first, last in zip(groups[0], groups[-1], strict=True))
            print(f"last / first: {wall:.2f} by time, {cpu:.2f} by processor time")
    spark.stop()


if __name__ == "__main__":
    main()
