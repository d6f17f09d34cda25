"""The driver program of the sink, which the kill loop starts and kills repeatedly.

    python pipeline_driver.py run    DATA URL WORK ROWS   until it is killed or a query fails
    python pipeline_driver.py finish DATA URL WORK ROWS   until all messages are processed; writes
                                                          the expected rows to WORK

Two queries read the messages of the queue IN, and write them to a queue:

    STREAMED   with the streaming sink, from the URL of the broker
    BATCHED    with foreachBatch, from the files of the broker in DATA

ROWS is the maximum size of a micro-batch, which differs at each start and must not matter.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from sluicemq.pipeline.session import SHORT_JOB, session

IN = "kill.in"
STREAMED = "kill.streamed"
BATCHED = "kill.batched"
CHECKPOINTS = "checkpoints"
EXPECTED = "expected"
"""Directories in WORK."""
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"{SHORT_JOB} -XX:+UseSerialGC",
}


def to_sink_rows(rows: DataFrame) -> DataFrame:
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
    """Return a stream of the source with at most `rows` rows per micro-batch."""
    reader = spark.readStream.format("sluicemq").options(**options)
    return reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows).load()


def run(
    spark: SparkSession, data: str, url: str, work: Path, rows: int, *, until_end: bool
) -> None:
    """Run both queries concurrently."""
    common = {"destinations": IN, "includeHeaders": "true"}

    def write(write_expected: DataFrame, number: int) -> None:
        writer = (
            to_sink_rows(write_expected).write.format("sluicemq").mode("append").option("url", url)
        )
        writer = writer.option("destination", BATCHED).option("writeId", BATCHED)
        writer.option("batchId", number).save()

    by_url = stream(spark, rows, {**common, "url": url})
    by_file = stream(spark, rows, {**common, "path": data})
    writers: dict[str, DataStreamWriter] = {
        STREAMED: to_sink_rows(by_url)
        .writeStream.format("sluicemq")
        .options(url=url, destination=STREAMED, transactionRows="100"),
        BATCHED: by_file.writeStream.foreachBatch(write),
    }
    queries = [
        (writer.trigger(availableNow=True) if until_end else writer)
        .option("checkpointLocation", str(work / CHECKPOINTS / name))
        .start()
        for name, writer in writers.items()
    ]
    if until_end:
        for query in queries:
            query.awaitTermination()
    else:
        spark.streams.awaitAnyTermination()


def write_expected(spark: SparkSession, data: str, work: Path) -> None:
    """Convert all rows as one batch; replaces the result of an earlier run."""
    reader = spark.read.format("sluicemq").option("destinations", IN)
    rows = reader.option("includeHeaders", "true").load(data)
    to_sink_rows(rows).write.mode("overwrite").parquet(str(work / EXPECTED))


def main(mode: str, data: str, url: str, work: str, rows: str) -> None:
    spark = session("kill loop", SETTINGS)
    spark.sparkContext.setLogLevel("WARN")
    finish = mode == "finish"
    run(spark, data, url, Path(work), int(rows), until_end=finish)
    if finish:
        write_expected(spark, data, Path(work))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
