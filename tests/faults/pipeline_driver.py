"""The driver program that the kill loop of the pipeline starts, kills and starts again.

    python pipeline_driver.py run    DATA URL WORK ROWS   until it is killed or a query fails
    python pipeline_driver.py finish DATA URL WORK ROWS   everything that is there, and what should
                                                          have come of it, to WORK; then ends

Two queries read the messages of the queue IN, one from the broker's files in DATA and one from its
URL, and write

    COPIED   a queue: each row once, by the stream's own sink
    SILVER   a queue and a table: rows of the silver job, batch by batch

ROWS is the most that a micro-batch takes: another number at each start, which must not matter.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from sluicemq.pipeline.jobs.silver import silver
from sluicemq.pipeline.session import session

IN = "kill.in"
COPIED = "kill.copied"
SILVER = "kill.silver"
TABLE = "table"
CHECKPOINTS = ("copied-checkpoint", "silver-checkpoint")
BATCH_COPIED = "batch-copied"
BATCH_SILVER = "batch-silver"
"""Directories in WORK."""
SETTINGS = {
    "spark.driver.memory": "1g",
    # otherwise times come back without their zone
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


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


def json_rows(rows: DataFrame) -> DataFrame:
    """Convert rows of silver for the sink: JSON bodies, identified by the message's number."""
    return rows.selectExpr("string(message_sequence) as message_id", "to_json(struct(*)) as body")


def refine(url: str, table: Path, rows: DataFrame, batch: int) -> None:
    """Write one micro-batch to the queue and to the table."""
    refined = silver(rows, "broker").coalesce(1).persist()
    writer = json_rows(refined).write.format("sluicemq").mode("append").option("url", url)
    writer.option("destination", SILVER).option("writeId", TABLE).option("batchId", batch).save()
    tagged = refined.write.format("delta").mode("append").option("txnAppId", TABLE)
    tagged.option("txnVersion", batch).save(str(table))
    refined.unpersist()


def stream(spark: SparkSession, rows: int, options: dict[str, str]) -> DataFrame:
    """Return a stream of the source with at most so many rows per micro-batch."""
    reader = spark.readStream.format("sluicemq").options(**options)
    return reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows).load()


def run(spark: SparkSession, data: str, url: str, work: Path, rows: int, *, all_: bool) -> None:
    """Run both queries concurrently."""
    common = {"destinations": IN, "includeHeaders": "true"}
    by_url = stream(spark, rows, {**common, "url": url})
    by_file = stream(spark, rows, {**common, "path": data})
    writers: list[DataStreamWriter] = [
        copied(by_url)
        .writeStream.format("sluicemq")
        .options(url=url, destination=COPIED, transactionRows="100"),
        by_file.writeStream.foreachBatch(partial(refine, url, work / TABLE)),
    ]
    queries = [
        (writer.trigger(availableNow=True) if all_ else writer)
        .option("checkpointLocation", str(work / checkpoint))
        .start()
        for writer, checkpoint in zip(writers, CHECKPOINTS, strict=True)
    ]
    if all_:
        for query in queries:
            query.awaitTermination()
    else:
        spark.streams.awaitAnyTermination()


def batch(spark: SparkSession, data: str, work: Path) -> None:
    """Run the same functions on all rows as one batch; replaces the result of an earlier run."""
    reader = spark.read.format("sluicemq").option("destinations", IN)
    rows = reader.option("includeHeaders", "true").load(data)
    copied(rows).write.mode("overwrite").parquet(str(work / BATCH_COPIED))
    silver(rows, "broker").write.mode("overwrite").parquet(str(work / BATCH_SILVER))


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
