"""Speed of Spark reading the journal, compared with Spark's own Parquet reader over the same rows.

    python -m benchmarks.pipeline_source [--rows 1048576] [--runs 5] [--json FILE]

A journal of messages of 1 KB (JSON, 100 queues, spread over 24 hours) is written to a temporary
directory, and the same rows by Spark to Parquet (zstd). Both are read alternately, `--runs` times
each, into Spark's `noop` sink. Prints the medians and their ratios; only the ratios are comparable
between machines.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.pipeline.session import session

DAY_MS: Final = 24 * 3_600_000
T0: Final = 1_767_225_600_000
QUEUES: Final = [Address(Kind.QUEUE, f"orders.{number}") for number in range(100)]
BODIES: Final = 4096
NARROW: Final = ("sequence", "time", "destination", "priority", "size")
BATCH_ROWS: Final = 262_144
SINGLE_ROWS: Final = 40
"""Number of micro-batches of one row; the first ten are not counted."""


def bodies() -> list[bytes]:
    """JSON bodies of 1,024 bytes each."""
    generator = random.Random(6)
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(generator.choices(alphabet, k=generator.randint(3, 9))) for _ in range(2000)]
    texts = []
    for number in range(BODIES):
        order: dict[str, Any] = {"order": number, "customer": generator.choice(words), "lines": []}
        while len(text := json.dumps(order).encode()) < 950:
            line = {"article": generator.choice(words), "amount": generator.randint(1, 99)}
            order["lines"].append(line)
        texts.append(text + b" " * (1024 - len(text)))
    return texts


def write_journal(directory: Path, rows: int) -> None:
    """Write one message after the other, all sealed."""
    journal = FileJournal.open(directory, JournalOptions())
    journal.recovery.close()
    numbers = [journal.destination_number(address) for address in QUEUES]
    contents = bodies()
    for row in range(rows):
        queue = row % len(QUEUES)
        message = Message(
            QUEUES[queue],
            contents[row % BODIES],
            BodyKind.JSON,
            Origin.VIBEMQ,
            Durability.SYNC,
            T0 + row * DAY_MS // rows,
        )
        journal.append_message(message, numbers[queue])
        if row % 1000 == 999:
            journal.sync()
    journal.seal()
    journal.sync()
    journal.close()


def timed(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def drain(frame: DataFrame) -> None:
    """Read everything into the noop sink."""
    frame.write.format("noop").mode("overwrite").save()


def in_turn(works: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Return the median seconds of each; the runs alternate so that disturbances affect all."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(runs):
        for name, work in works.items():
            times[name].append(timed(work))
    return {name: statistics.median(seconds) for name, seconds in times.items()}


class Reads:
    """The same rows as a journal and as Parquet."""

    def __init__(self, spark: SparkSession, directory: Path, rows: int) -> None:
        self.spark = spark
        self.directory = directory
        self.journal = directory / "journal"
        self.parquet = str(directory / "parquet")
        write_journal(self.journal, rows)
        self.ours().write.option("compression", "zstd").parquet(self.parquet)

    def ours(self, **options: str) -> DataFrame:
        return self.spark.read.format("sluicemq").options(**options).load(str(self.journal))

    def native(self) -> DataFrame:
        return self.spark.read.parquet(self.parquet)

    def works(self) -> dict[str, Callable[[], object]]:
        last_hour = str(T0 + DAY_MS - 3_600_000)
        return {
            "all columns, native": lambda: drain(self.native()),
            "all columns": lambda: drain(self.ours()),
            "5 columns, native": lambda: drain(self.native().select(*NARROW)),
            "5 columns": lambda: drain(self.ours(columns=",".join(NARROW))),
            "1 of 100 queues": lambda: drain(self.ours(subscribe="orders.7")),
            "last hour of 24": lambda: drain(self.ours(startingTimestamp=last_hour)),
            "stream": self.stream,
        }

    def stream(self) -> None:
        """Read everything in micro-batches."""
        with tempfile.TemporaryDirectory(dir=self.directory) as checkpoint:
            frame = (
                self.spark.readStream.format("sluicemq")
                .options(startingOffsets="earliest", maxOffsetsPerTrigger=str(BATCH_ROWS))
                .load(str(self.journal))
            )
            query = (
                frame.writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()


def batch_times(query: StreamingQuery, enough: int) -> list[float]:
    """Return the ms of the micro-batches of one row, without the first ten."""
    times: dict[int, float] = {}
    while len(times) < enough and query.isActive:
        for progress in query.recentProgress:
            if progress.numInputRows == 1:
                times[progress.batchId] = progress.durationMs["triggerExecution"]
        time.sleep(0.2)
    return [times[number] for number in sorted(times)][10:]


def one_row(spark: SparkSession, directory: Path) -> dict[str, float]:
    """Return the median ms of a micro-batch of one row: ours, and Spark's own rate source."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
    journal = FileJournal.open(directory / "live", JournalOptions())
    journal.recovery.close()
    number = journal.destination_number(QUEUES[0])
    journal.sync()
    sluicemq_stream = spark.readStream.format("sluicemq").load(str(directory / "live"))
    medians = {}
    for name, frame in (("one row, rate-micro-batch", rate), ("one row", sluicemq_stream)):
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(directory / f"checkpoint {name}"))
            .start()
        )
        stop_event = threading.Event()

        def feed(until: threading.Event = stop_event) -> None:
            while not until.wait(0.3):
                journal.append_message(Message(QUEUES[0], b"x" * 1024), number)
                journal.sync()

        feeder = threading.Thread(target=feed)
        if frame is sluicemq_stream:
            feeder.start()
        medians[name] = statistics.median(batch_times(query, SINGLE_ROWS))
        stop_event.set()
        if frame is sluicemq_stream:
            feeder.join()
        query.stop()
    journal.close()
    return medians


PROBE: Final = """
import sys
from pathlib import Path
from pyspark.sql.types import StructType
from sluicemq.pipeline.source.readers import BatchReader
from sluicemq.pipeline.source.options import arrow_columns, requested_columns
from sluicemq.pipeline.source.options import parse_options

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

options = parse_options({"path": sys.argv[1]})
reader = BatchReader(options, arrow_columns(requested_columns(options)))
most = 0
for share in reader.partitions():
    for batch in reader.read(share):
        most = max(most, anonymous())
print(most)
"""


def task_memory(directory: Path) -> float:
    """Return the peak anonymous memory in MB of a process that reads a whole journal, task after
    task. Mapped files belong to the page cache and are not counted."""
    command = [sys.executable, "-c", PROBE, str(directory)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(process.stdout) / 1024


def main() -> None:
    """Run all measurements and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1 << 20)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="sluicemq-bench-"))
    try:
        spark = session("benchmark")
        spark.sparkContext.setLogLevel("ERROR")
        reads = Reads(spark, directory, arguments.rows)
        seconds = in_turn(reads.works(), arguments.runs)
        row_times = one_row(spark, directory)
        spark.stop()
        task_mb = task_memory(reads.journal)
        write_journal(directory / "large", 4 * arguments.rows)
        large_task_mb = task_memory(directory / "large")
    finally:
        shutil.rmtree(directory)
    ratios = {
        "all columns, of native (>= 0.5)": seconds["all columns, native"] / seconds["all columns"],
        "5 columns, of native (>= 0.77)": seconds["5 columns, native"] / seconds["5 columns"],
        "stream, of our batch (>= 0.5)": seconds["all columns"] / seconds["stream"],
        "1 of 100 queues, faster by (>= 5)": seconds["all columns"] / seconds["1 of 100 queues"],
        "last hour of 24, faster by (>= 5)": seconds["all columns"] / seconds["last hour of 24"],
        "one row, of rate-micro-batch (<= 2)": row_times["one row"]
        / row_times["one row, rate-micro-batch"],
        "memory, four times the journal (~1)": large_task_mb / task_mb,
    }
    for name, value in seconds.items():
        print(f"{name:40} {value:8.2f} s {arguments.rows / value / 1000:10,.0f} krows/s")
    for name, value in row_times.items():
        print(f"{name:40} {value:8.0f} ms")
    print(
        f"{'memory of a task':40} {task_mb:8.0f} MB, "
        f"{large_task_mb:.0f} MB of four times the journal"
    )
    print()
    for name, value in ratios.items():
        print(f"{name:40} {value:8.2f}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"seconds": seconds, "ms": row_times, "ratios": ratios})
        )


if __name__ == "__main__":
    main()
