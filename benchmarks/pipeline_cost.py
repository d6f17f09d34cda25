"""Processor time of Spark reading the journal, relative to Spark's Parquet reader.

    python -m benchmarks.pipeline_cost [--rows 1048576] [--runs 5] [--directory DIR] [--json FILE]

Reads the same messages of 1 KB (those of pipeline_source.py) as a journal, as Parquet (zstd) and
as Arrow files. A Python data source that only yields batches from the mapped file reads the Arrow
files. It measures the connection between Python and the JVM, the minimum cost of any Python data
source.

Processor time is user and system time of the JVM and all Python workers, from /proc, without the
start of the session. Each read runs twice before the measured runs, and the reads alternate. Each
read of the journal checks the CRC of every segment, as a first read does.
`--directory` keeps the data for the next run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from benchmarks.pipeline_source import NARROW, drain, write_journal
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sluicemq.pipeline.schema import PLAIN
from sluicemq.pipeline.session import session
from sluicemq.pipeline.source.options import parse_options
from sluicemq.pipeline.source.readers import BatchReader

WARM_UPS: Final = 2
TICKS: Final = os.sysconf("SC_CLK_TCK")
BARS: Final = {"all columns": 2.0, "5 columns": 1.3, "count": 2.0}
"""Highest ratio to Parquet that is acceptable."""


def cpu_seconds() -> float:
    """Return the processor time of all descendants of this process, including ended ones."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended: its parent has its time
        parents[int(entry)] = int(fields[1])
        ticks[int(entry)] = sum(map(int, fields[11:15]))
    total = 0
    for pid in ticks:
        ancestor = parents[pid]
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        total += ticks[pid] if ancestor == os.getpid() else 0
    return total / TICKS


class ArrowFiles(DataSource):
    """Batches of the Arrow files in the directory `path`, one task for each file."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "arrowfiles"

    def schema(self) -> StructType:
        """Return the columns of the files."""
        first = sorted(Path(self.options["path"]).glob("*.arrow"))[0]
        return from_arrow_schema(pa.ipc.open_file(pa.memory_map(str(first))).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return ArrowFilesReader(self.options["path"])


class ArrowFilesReader(DataSourceReader):
    """Reader of ArrowFiles."""

    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        """Return a task for each file."""
        return [InputPartition(str(path)) for path in sorted(Path(self._path).glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a file."""
        file = pa.ipc.open_file(pa.memory_map(partition.value))
        for index in range(file.num_record_batches):
            yield file.get_batch(index)


def write_arrow(journal: Path, directory: Path, columns: tuple[str, ...]) -> None:
    """Write what our reader yields as Arrow files."""
    options = parse_options({"path": str(journal), "columns": ",".join(columns)})
    schema = pa.schema([field for field in PLAIN if field.name in columns])
    reader = BatchReader(options, schema)
    directory.mkdir()
    for index, task in enumerate(reader.partitions()):
        with pa.ipc.new_file(directory / f"{index:04}.arrow", schema) as file:
            for batch in reader.read(task):
                file.write(batch)


class Reads:
    """The same rows in three forms."""

    def __init__(self, spark: SparkSession, directory: Path, rows: int) -> None:
        self._spark = spark
        self._directory = directory
        journal = directory / "journal"
        if not journal.exists():
            write_journal(journal, rows)
        if not (directory / "parquet").exists():
            self._ours().write.option("compression", "zstd").parquet(str(directory / "parquet"))
        for name, columns in (("all", tuple(PLAIN.names)), ("narrow", NARROW)):
            if not (directory / name).exists():
                write_arrow(journal, directory / name, columns)
        spark.dataSource.register(ArrowFiles)

    def _ours(self, **options: str) -> DataFrame:
        # workers remember which files are intact
        for path in (self._directory / "journal").glob("*.segment"):
            path.touch()
        reader = self._spark.read.format("sluicemq").options(**options)
        return reader.load(str(self._directory / "journal"))

    def _parquet(self) -> DataFrame:
        return self._spark.read.parquet(str(self._directory / "parquet"))

    def _arrow(self, name: str) -> DataFrame:
        return self._spark.read.format("arrowfiles").load(str(self._directory / name))

    def works(self) -> dict[tuple[str, str], Callable[[], object]]:
        """Return each read by its name and its form."""
        names = ",".join(NARROW)
        return {
            ("all columns", "parquet"): lambda: drain(self._parquet()),
            ("all columns", "sluicemq"): lambda: drain(self._ours()),
            ("all columns", "arrow"): lambda: drain(self._arrow("all")),
            ("5 columns", "parquet"): lambda: drain(self._parquet().select(*NARROW)),
            ("5 columns", "sluicemq"): lambda: drain(self._ours(columns=names)),
            ("5 columns", "arrow"): lambda: drain(self._arrow("narrow")),
            ("count", "parquet"): lambda: self._parquet().count(),
            ("count", "sluicemq"): lambda: self._ours().count(),
            ("count", "sluicemq, 1 column"): lambda: self._ours(columns="sequence").count(),
        }


def in_turn(
    works: dict[tuple[str, str], Callable[[], object]], runs: int
) -> dict[tuple[str, str], float]:
    """Return the median processor time of each in seconds; the runs alternate."""
    times: dict[tuple[str, str], list[float]] = {name: [] for name in works}
    for run in range(WARM_UPS + runs):
        for name, work in works.items():
            before = cpu_seconds()
            work()
            if run >= WARM_UPS:
                times[name].append(cpu_seconds() - before)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1 << 20)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="reads whose name contains this")
    parser.add_argument("--directory", type=Path, help="data; written if it is not there")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="sluicemq-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        spark = session("benchmark")
        spark.sparkContext.setLogLevel("ERROR")
        works = Reads(spark, directory, arguments.rows).works()
        seconds = in_turn(
            {name: work for name, work in works.items() if arguments.only in name[0]},
            arguments.runs,
        )
        spark.stop()
    finally:
        if arguments.directory is None:
            shutil.rmtree(directory)
    results = []
    print(f"{'read':14} {'form':20} {'CPU s':>7} {'of Parquet':>11} {'bar':>5}")
    for (name, form), cpu_time in seconds.items():
        ratio = cpu_time / max(seconds[name, "parquet"], 1 / TICKS)
        bar = f"{BARS[name]:.1f}" if form == "sluicemq" else ""
        print(f"{name:14} {form:20} {cpu_time:7.2f} {ratio:11.2f} {bar:>5}")
        results.append({"read": name, "form": form, "cpu_seconds": cpu_time, "ratio": ratio})
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": arguments.rows, "results": results}))


if __name__ == "__main__":
    main()
