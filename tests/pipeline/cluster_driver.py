"""Program that test_cluster.py submits to a cluster.

    cluster_driver.py URL WORK

Reads the queue IN of the broker at URL, with the token in SLUICEMQ_TOKEN. Writes it by two tasks to
the queue BATCH, and as a stream of many micro-batches to the queue STREAM. Writes the executors
of the tasks to WORK/executors.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sluicemq.pipeline.session import session

IN = "cluster.in"
BATCH = "cluster.batch"
STREAM = "cluster.stream"
CHECKPOINT = "checkpoint"
RESULT_FILE = "executors.json"
ROWS_PER_BATCH = 200
EXECUTORS = 2


def report_process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the executor of a task: the parent of the process that starts Python workers."""
    for _ in batches:
        pass
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    executor = int(stat.rpartition(")")[2].split()[1])
    yield pa.RecordBatch.from_arrays([pa.array([executor])], ["executor"])


def main(url: str, work: Path) -> None:
    spark: SparkSession = session("cluster")
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    while len(tracker.getExecutorInfos()) < 1 + EXECUTORS:  # the driver is one of them
        time.sleep(0.1)
    broker = {"url": url, "token": os.environ["SLUICEMQ_TOKEN"]}
    source = {**broker, "destinations": IN, "startingOffsets": "earliest"}
    rows = spark.read.format("sluicemq").options(**source).load().repartition(EXECUTORS)
    selected = rows.selectExpr("string(sequence) as message_id", "body", "body_kind")
    sink = {**broker, "destination": BATCH, "transactionRows": "50"}
    selected.write.format("sluicemq").mode("append").options(**sink).save()
    processes = rows.mapInArrow(report_process, "executor bigint").collect()
    (work / RESULT_FILE).write_text(json.dumps(sorted({row.executor for row in processes})))
    stream = spark.readStream.format("sluicemq").options(**source)
    growing = stream.option("maxOffsetsPerTrigger", ROWS_PER_BATCH).load().repartition(EXECUTORS)
    query = (
        growing.selectExpr("string(sequence) as message_id", "body", "body_kind")
        .writeStream.format("sluicemq")
        .options(**broker, destination=STREAM, checkpointLocation=str(work / CHECKPOINT))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
