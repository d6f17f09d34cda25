"""The driver program that the kill loop of the sink starts, kills and starts again.

    python pipeline_driver.py run    DATA URL WORK ROWS   until it is killed or a query fails
    python pipeline_driver.py finish DATA URL WORK ROWS   everything that is there, and what should
                                                          have come of it, to WORK; then ends

Two queries read the messages of the queue IN, and write them to a queue:

    STREAMED   by the stream's own sink, from the broker's URL
    BATCHED    batch by batch with foreachBatch, from the broker's files in DATA

ROWS is the most that a micro-batch takes: another number at each start, which must not matter.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from sluicemq.pipeline.session import session

IN = "kill.in"
STREAMED = "kill.streamed"
BATCHED = "kill.batched"
CHECKPOINTS = "checkpoints"
EXPECTED = "expected"
"""Directories in WORK."""
SETTINGS = {"spark.driver.memory": "1g"}


def copied(rows: DataFrame) -> DataFrame:
    """Convert rows of the source for the sink."""
    return rows.selectExpr(
        "string(sequence) as message_id",
        "body",
        "body_kind",
        "priority",
        "map('time', string(unix_micros(time)), 'protocol', protocol) as properties",
        "map('time', 'integer') as property_types",
    )


def stream(spark: SparkSession, rows: int, options: dict[str, str]) -> DataFrame:
    """Return a stream of the source with at most so many rows per micro-batch."""
    reader = spark.readStream.format("sluicemq").options(**options)
    return reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows).load()


def run(spark: SparkSession, data: str, url: str, work: Path, rows: int, *, all_: bool) -> None:
    """Run both queries concurrently."""
    common = {"destinations": IN, "includeHeaders": "true"}

    def write(batch: DataFrame, number: int) -> None:
        writer = copied(batch).write.format("sluicemq").mode("append").option("url", url)
        writer = writer.option("destination", BATCHED).option("writeId", BATCHED)
        writer.option("batchId", number).save()

    by_url = stream(spark, rows, {**common, "url": url})
    by_file = stream(spark, rows, {**common, "path": data})
    writers: dict[str, DataStreamWriter] = {
        STREAMED: copied(by_url)
        .writeStream.format("sluicemq")
        .options(url=url, destination=STREAMED, transactionRows="100"),
        BATCHED: by_file.writeStream.foreachBatch(write),
    }
    queries = [
        (writer.trigger(availableNow=True) if all_ else writer)
        .option("checkpointLocation", str(work / CHECKPOINTS / name))
        .start()
        for name, writer in writers.items()
    ]
    if all_:
        for query in queries:
            query.awaitTermination()
    else:
        spark.streams.awaitAnyTermination()


def batch(spark: SparkSession, data: str, work: Path) -> None:
    """Convert all rows as one batch; replaces the result of an earlier run."""
    reader = spark.read.format("sluicemq").option("destinations", IN)
    rows = reader.option("includeHeaders", "true").load(data)
    copied(rows).write.mode("overwrite").parquet(str(work / EXPECTED))


def main(mode: str, data: str, url: str, work: str, rows: str) -> None:
    spark = session("kill loop", SETTINGS)
    spark.sparkContext.setLogLevel("WARN")
    finish = mode == "finish"
    run(spark, data, url, Path(work), int(rows), all_=finish)
    if finish:
        batch(spark, data, Path(work))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
