"""Streaming queries from a journal into a lake, and their supervisor.

                 ┌─ query "gold" ──── gold            few columns, small batches: seconds behind
    journal ─────┼─ query "tables" ── bronze, silver  all columns, bodies
                 └─ query "typed" ─── typed tables    published messages of their destinations

The first two read all events and write their batches to their tables one after the other
(batch.py). Gold has its own query, so that its latency does not depend on the writing of bodies.
The supervisor restarts a query after a transient failure: a broker restart, a killed Python worker.
Neither a restart nor a lost checkpoint loses or duplicates rows, because each table stores its own
progress (lake.py).

One process at a time may write a broker's events. In a directory, a lock ensures it
(Lake.write_lock). On other file systems, pipelines of one broker exclude each other by a slot of
its journal, writer-HASH, where HASH is that of the lake's location. The slot holds no segments; it
has the name of the process that claimed it, and a lease:

    claim ─▶ renew every LEASE_MS / 3 ─▶ end of the pipeline: the lease is ended
                 │ another process has the slot, or no renewal for 2/3 LEASE_MS
                 └▶ the pipeline stops with the error

After a process was killed, the next one can claim the slot when the lease has ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from sluicemq.model.errors import ConfigurationError, ConnectionLost, JournalError, SluiceError
from sluicemq.pipeline.delta import HadoopPath
from sluicemq.pipeline.jobs.batch import BatchResult, LakeWriter
from sluicemq.pipeline.jobs.gold import GOLD_INPUT, WATERMARK
from sluicemq.pipeline.jobs.lake import EVENT_LAYERS, Lake
from sluicemq.pipeline.session import cached, check_java, is_local
from sluicemq.pipeline.source.http_storage import connect
from sluicemq.pipeline.source.journal_storage import JournalStorage
from sluicemq.pipeline.source.lag import lag_of
from sluicemq.pipeline.source.options import parse_options
from sluicemq.pipeline.typed.definition import INFER, Definition
from sluicemq.pipeline.typed.gold import refresh_gold
from sluicemq.pipeline.typed.infer import read_published, write_inferred
from sluicemq.pipeline.typed.rows import TYPED_INPUT, subscription
from sluicemq.pipeline.typed.tables import evolved_table, process
from sluicemq.pipeline.typed.validation import check

MAX_ROWS: Final = 1_048_576
MAX_BYTES: Final = 256 << 20
MAX_ATTEMPTS: Final = 10
"""Consecutive starts without a batch before a transient failure is raised as an error."""
MAX_PAUSE: Final = 60.0

QUERIES: Final = {"gold": ("gold",), "tables": ("bronze", "silver")}
"""Layers of events that each query writes."""

LEASE_MS: Final = 60_000

_POLL_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 60.0
"""Time that a batch may take after the query was asked to stop."""
_WORKER_VARIABLES: Final = (
    "SPARK_LOCAL_DIRS",
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_PYTHON_RUNTIME",
)
"""Environment variables that Spark sets for a source's worker when a query starts."""
_RAISED: Final = re.compile(r"sluicemq\.(?:\w+\.)+(\w+): (.*)")
"""Pattern of the project's errors in the text of an error from the JVM."""
_CAUSE: Final = re.compile(r"^(?:Caused by)?: [\w.$]+: (.+)", re.MULTILINE)
"""Pattern of an exception in the text of an error from the JVM; the last one is the cause."""
_SPARK_PREFIX: Final = "terminated with exception: "
_TRANSIENT: Final = frozenset({"", "ConnectionLost", "RequestTimeout"})
"""Transient errors; "" = a failure of Spark's workers, or a conflict with another commit to a
table. All others need an operator's action."""


@dataclass(frozen=True, kw_only=True)
class PipelineJob:
    """Source, lake and limits of a pipeline.

    source     source options with the journal's location and credentials
    lake       lake to write to, and the broker's name in it
    slot       retention slot of the query for bronze and silver; "" = none. Gold uses SLOT.gold
    tables     tables of EVENT_LAYERS to write
    max_rows, max_bytes   limits of one batch
    tables_interval   seconds between two batches of other tables than gold, unless one reaches its
               limits earlier; 0 = as for gold
    watermark  events older than this, relative to the newest event, count as late
    definition   typed tables, and gold tables of the user's SQL
    """

    source: dict[str, str]
    lake: Lake
    slot: str = ""
    tables: Collection[str] = EVENT_LAYERS
    max_rows: int = MAX_ROWS
    max_bytes: int = MAX_BYTES
    tables_interval: float = 0.0
    watermark: timedelta = WATERMARK
    definition: Definition = field(default_factory=Definition)


@dataclass
class BatchProgress:
    """Progress after a batch.

    rows     events written to all tables since the start
    lag      unread records of the journal; None = not known yet
    batch    batch of one of the queries, None for a restart
    problem  reason of a restart, or ""
    """

    rows: int = 0
    lag: int | None = None
    batch: BatchResult | None = None
    problem: str = ""


@dataclass
class RunningQuery:
    """Running query of QUERIES, or of the definition's tables.

    layers   of events that it writes; empty for the definition's tables
    rows     events written since the start
    written  batches that were written and are possibly not committed yet
    batch_error  error of its batch, because the JVM passes on only its text
    """

    name: str
    layers: list[str]
    rows: int = 0
    written: deque[tuple[int, BatchResult]] = field(default_factory=deque)
    batch_error: Exception | None = None
    handle: StreamingQuery | None = None

    def progress(self) -> StreamingQueryProgress | None:
        return self.handle.lastProgress if self.handle is not None else None

    def has_ended(self) -> bool:
        """Return True if the query has ended. Raises its error."""
        if self.handle is not None and self.handle.isActive:
            return False
        error = self.batch_error or (self.handle and self.handle.exception())
        if error:
            raise error
        return True

    def end(self, deadline: float = 0.0) -> None:
        """Stop the query; after its current batch if that ends before `deadline` (monotonic)."""
        handle = self.handle
        if handle is not None:
            while (
                handle.isActive and handle.status["isTriggerActive"] and time.monotonic() < deadline
            ):
                time.sleep(_POLL_SECONDS)
            handle.stop()

    def unread_records(self) -> int | None:
        """Return the number of records after the query's last batch; None if unknown."""
        progress = self.progress()
        report = lag_of(progress.sources[0].latestOffset) if progress is not None else None
        return report.lag.records if report is not None else None


class Supervisor:
    """Runs the queries of one job until it is stopped or has read the whole journal."""

    def __init__(
        self,
        spark: SparkSession,
        job: PipelineJob,
        on_progress: Callable[[BatchProgress], None] = lambda step: None,
        stop: threading.Event | None = None,
    ) -> None:
        """Create the queries of a job; `run` starts them.

        `on_progress` is called after each batch and each restart, in the thread of `run`; any
        thread or signal handler may set `stop`."""
        self._spark = spark
        self._job = job
        self._on_progress = on_progress
        self._stop = stop or threading.Event()
        requested = {
            name: [layer for layer in layers if layer in job.tables]
            for name, layers in QUERIES.items()
        }
        self._queries = [RunningQuery(name, layers) for name, layers in requested.items() if layers]
        if job.definition.tables or job.definition.gold:
            self._queries.append(RunningQuery(_typed_name(job.definition), []))

    def run(self, interval: float | None = 1.0) -> int:
        """Run until stopped, with a batch every `interval` seconds if there are new records.

        Queries other than gold's also wait for the job's `tables_interval`. With None, read the
        records that are there now, and return.

        Returns the number of events written. Raises ConfigurationError, JournalError and other
        errors that are not transient.
        """
        lake = self._job.lake
        with lake.write_lock():
            self._check_definition()
            if lake.directory is not None:
                return self._run(interval)
            with writer_lease(lake, connect(parse_options(self._job.source)), self._stop):
                return self._run(interval)

    def _run(self, interval: float | None) -> int:
        attempts = 0
        while not self._stop.is_set():
            before = sum(query.rows for query in self._queries)
            try:
                self._run_queries(interval)
                if interval is None and not self._stop.is_set():
                    # the other queries may have ended after the last batch of the typed tables
                    refresh_gold(self._spark, self._job.definition, self._job.lake)
                return self._rows
            except (PySparkException, Py4JError, SluiceError, OSError) as error:
                if isinstance(error, Py4JError | OSError):
                    check_java()
                kind, cause = cause_of(error)
                after = sum(query.rows for query in self._queries)
                attempts = attempts + 1 if after == before else 1
                if kind not in _TRANSIENT or attempts > MAX_ATTEMPTS:
                    raise cause from error
                pause = min(MAX_PAUSE, 2.0 ** (attempts - 1))
                self._on_progress(
                    BatchProgress(self._rows, problem=f"{cause}; again in {pause:g} s")
                )
                self._stop.wait(pause)
        return self._rows

    @property
    def _rows(self) -> int:
        return min((query.rows for query in self._queries if query.layers), default=0)

    def _options(self, query: RunningQuery) -> dict[str, str]:
        job = self._job
        options = {
            **job.source,
            "events": "*",
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(job.max_rows),
            "maxBytesPerTrigger": str(job.max_bytes),
        }
        if not is_local(self._spark):
            options["minPartitions"] = str(self._spark.sparkContext.defaultParallelism)
        if query.name != "gold" and job.tables_interval:
            options["minOffsetsPerTrigger"] = str(job.max_rows)
            options["maxTriggerDelay"] = f"{round(job.tables_interval * 1000)}ms"
        if query.layers == ["gold"]:
            options["columns"] = ",".join(GOLD_INPUT)
        elif not query.layers:
            patterns = dict.fromkeys(table.destination for table in job.definition.tables)
            options["subscribePattern"] = subscription(patterns)
            options["events"] = "published,relocated"
            options["columns"] = ",".join(TYPED_INPUT)
        if job.slot:
            options["slot"] = job.slot + {"gold": ".gold", "tables": ""}.get(query.name, ".typed")
        return options

    def _start_query(self, query: RunningQuery, writer: LakeWriter, interval: float | None) -> None:
        lake = self._job.lake
        end = min(writer.ends.values(), default=-1)
        start = "earliest" if end < 0 else str(end + 1)
        query.batch_error = None
        checkpoint = Checkpoint(self._spark, lake.checkpoint(query.name))
        write_batch = writer.write if query.layers else self._write_typed

        def write(events: DataFrame, batch: int) -> None:
            try:
                first, last = checkpoint.records(batch)
                query.written.append((batch, write_batch(events, first, last)))
            except Exception as error:
                query.batch_error = error
                raise

        stream = (
            self._spark.readStream.format("sluicemq")
            .options(**self._options(query))
            .option("startingOffsets", start)
            .load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", checkpoint.location)
            .queryName(f"{lake.broker}.{query.name.partition('-')[0]}")
        )
        if interval is None:
            query.handle = stream.trigger(availableNow=True).start()
        else:
            query.handle = stream.trigger(
                processingTime=f"{round(interval * 1000)} milliseconds"
            ).start()

    def _check_definition(self) -> None:
        """Check the typed tables. Raises ConfigurationError, also if a schema was inferred."""
        definition = self._job.definition
        undeclared = [table for table in definition.tables if table.schema == INFER]
        if undeclared:
            events = read_published(self._spark, self._job.source, "*")
            path = write_inferred(events, undeclared, Path(definition.path))
            raise ConfigurationError(
                f"schemas of {definition.path} were inferred from messages: review {path}, and "
                "replace the tables in the definition by those"
            )
        check(self._spark, definition)

    def _write_typed(self, events: DataFrame, first: int, last: int) -> BatchResult:
        """Write a batch to the typed tables; they read it several times."""
        result = BatchResult(last)
        before = time.perf_counter()
        with cached(events):
            result.typed = process(events, self._job.definition, self._job.lake)
        result.rows = sum(counts.messages for counts in result.typed.values())
        result.seconds["typed"] = time.perf_counter() - before
        return result

    def _prepare_writer(self, query: RunningQuery, journal: str) -> LakeWriter:
        """Return the writer of a query's tables; remove the checkpoint if it is ahead of them.

        Raises ConfigurationError if the query would leave one of the tables incomplete."""
        lake = self._job.lake
        # long tasks must leave processors to the short ones of gold
        parallel = self._spark.sparkContext.defaultParallelism
        tasks = max(1, parallel // 2) if is_local(self._spark) else 0
        writer = LakeWriter(self._spark, lake, journal, query.layers, self._job.watermark, tasks)
        ends = writer.ends
        checkpoint = Checkpoint(self._spark, lake.checkpoint(query.name))
        end = checkpoint.end()
        empty = [name for name, table_end in ends.items() if table_end < 0]
        if end is not None and 0 < len(empty) < len(ends):
            raise ConfigurationError(
                f"{' and '.join(empty)} in {lake} lack events that other tables have: rebuild "
                "silver and gold with sluicemq pipeline backfill --from-bronze, or remove "
                f"{checkpoint.location} to read the journal from its start"
            )
        # Spark refuses one without a batch; tables may have been removed or restored
        if end is None or any(table_end + 1 < end for table_end in ends.values()):
            checkpoint.remove()
        return writer

    def _run_queries(self, interval: float | None) -> None:
        """Start all queries, and wait until they have ended.

        Raises the error of the first that failed or could not be started, which stops all of them.
        """
        try:
            journal = identity(self._job.source)
            self._job.lake.check_journal(self._spark, journal)
            for table in self._job.definition.tables:
                # gold tables may refer to new columns before the next message
                evolved_table(self._spark, self._job.definition, table, self._job.lake)
            _prepare_source(self._spark)
            writers = [self._prepare_writer(query, journal) for query in self._queries]
            for query, writer in zip(self._queries, writers, strict=True):
                self._start_query(query, writer, interval)
            while [q for q in self._queries if not q.has_ended()] and not self._stop.is_set():
                self._report_batches()
                time.sleep(_POLL_SECONDS)
            deadline = time.monotonic() + _STOP_SECONDS
            for query in self._queries:
                query.end(deadline)
        finally:
            for query in self._queries:
                query.end()
            self._report_batches(ended=True)

    def _report_batches(self, ended: bool = False) -> None:
        """Report the committed batches; if the queries have `ended`, all written ones."""
        for query in self._queries:
            progress = query.progress()
            while query.written:
                batch, result = query.written[0]
                if not ended and (progress is None or progress["batchId"] < batch):
                    break
                query.written.popleft()
                query.rows += result.rows
                self._on_progress(BatchProgress(self._rows, self._lag(), result))

    def _lag(self) -> int | None:
        """Return the number of unread records of the slowest query; None if unknown."""
        unread = [query.unread_records() for query in self._queries]
        counts = [records for records in unread if records is not None]
        return max(counts) if len(counts) == len(unread) else None


class Checkpoint:
    """Checkpoint of a streaming query, on the lake's file system.

    Spark writes the end of a batch into `offsets` before it runs the batch, and an entry into
    `commits` after it: a line with the version, one with settings, and one for each source.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self.location = location

    def records(self, batch: int) -> tuple[int, int]:
        """Return the first and the last record of a batch that is running."""
        first = self._end(batch - 1) if batch else 0
        return first, self._end(batch) - 1

    def end(self) -> int | None:
        """Return the record at which the query continues; None if there is no batch, or one of the
        newest files is damaged."""
        commits = self._batches("commits")
        if not commits:
            return None
        try:
            # Spark reads the newest file of both logs, and fails if one of them is damaged
            self._last_line("commits", max(commits))
            self._end(max(self._batches("offsets")))
            return self._end(max(commits))
        except (LookupError, ValueError):  # for example, an empty file after a power failure
            return None

    def remove(self) -> None:
        HadoopPath(self._spark, self.location).remove()

    def _end(self, batch: int) -> int:
        """Return the record after the last one of a batch."""
        return int(json.loads(self._last_line("offsets", batch))["sequence"])

    def _last_line(self, log: str, batch: int) -> str:
        return (
            HadoopPath(self._spark, f"{self.location}/{log}/{batch}").read_text().splitlines()[-1]
        )

    def _batches(self, log: str) -> list[int]:
        return [
            int(name)
            for name in HadoopPath(self._spark, f"{self.location}/{log}").names()
            if name.isdigit()
        ]


def _prepare_source(spark: SparkSession) -> None:
    """Make the data source safe for queries that start at the same time.

    Spark 4.2 sets _WORKER_VARIABLES in a map that all queries of the source share, without a lock
    (PythonStreamingSourceRunner.init). If two queries add one of them at the same moment, the size
    of the map may be wrong, and then no task of any query can be serialized until the process ends:
    "Illegal size 5 of collection, expected 6". Variables that exist are only replaced.
    """
    java: Any = spark
    sources = java._jsparkSession.sessionState().dataSourceManager()
    environment = sources.lookupDataSource("sluicemq").dataSourceCls().envVars()
    for name in _WORKER_VARIABLES:
        environment.putIfAbsent(name, "")


def identity(source: dict[str, str]) -> str:
    """Return the identity of a source's journal.

    Raises ConfigurationError if there is no journal, and ClientError."""
    journal_id = connect(parse_options(source)).state().identity
    if not journal_id:
        location = source.get("path") or source.get("url")
        raise ConfigurationError(
            f"there is no journal at {location} yet: start the broker, or name its data directory"
        )
    return journal_id


def _typed_name(definition: Definition) -> str:
    """Return the name of the query for typed tables.

    Another choice of tables or destinations is another query, which reads the journal from its
    start; the tables skip what they have."""
    tables = sorted((table.name, table.destination) for table in definition.tables)
    return f"typed-{hashlib.sha256(repr(tables).encode()).hexdigest()[:12]}"


def cause_of(error: Exception) -> tuple[str, SluiceError]:
    """Return the cause of an error, after the name of its class.

    The name is "" for errors of Spark, except those of the analysis of a query, which recur."""
    if isinstance(error, SluiceError):
        return type(error).__name__, error
    match = _RAISED.search(str(error))
    if match:
        return match[1], SluiceError(match[2])
    text = str(error).strip()
    if isinstance(error, Py4JJavaError) and (causes := _CAUSE.findall(text)):
        text = causes[-1]
    first = text.partition("\n")[0]
    is_run_error = isinstance(error, PySparkException | Py4JError)
    condition = error.getCondition() if isinstance(error, AnalysisException) else None
    # Spark reports an outage of a Hive metastore as an analysis error, but without a condition
    is_transient = is_run_error and (condition is None or condition.startswith("_LEGACY"))
    kind = "" if is_transient else type(error).__name__
    return kind, SluiceError(first.rpartition(_SPARK_PREFIX)[2])


# --- lease ---------------------------------------------------------------------------------------


@contextmanager
def writer_lease(lake: Lake, storage: JournalStorage, stop: threading.Event) -> Iterator[None]:
    """Hold the lease within this context; set `stop` if it is lost.

    Raises JournalError with the name of its holder if another process has it, and the error if it
    was lost.
    """
    slot = f"writer-{hashlib.sha256(lake.location.encode()).hexdigest()[:12]}"
    # Process numbers and host names of containers may be the same.
    holder = f"process {os.getpid()} on {socket.gethostname()} ({token_hex(4)})"
    _claim(storage, lake, slot, holder)
    ended, extended = threading.Event(), threading.Event()
    errors: list[SluiceError | OSError] = []
    failures: list[SluiceError | OSError] = []

    def lose(error: SluiceError | OSError) -> None:
        errors.append(error)
        stop.set()

    def renew() -> None:
        while not ended.wait(LEASE_MS / 3000):
            try:
                _claim(storage, lake, slot, holder)
            except JournalError as error:
                lose(error)
                return
            # the broker may be out of reach for a moment, or the disk of its journal full
            except (SluiceError, OSError) as error:
                failures.append(error)
            else:
                failures.clear()
                extended.set()
        with suppress(SluiceError, OSError):
            storage.claim_slot(slot, holder, 0)

    def watch() -> None:
        # not in `renew`: a claim may take longer than the lease while the broker does not answer
        while extended.wait(LEASE_MS / 1500):
            extended.clear()
            if ended.is_set():
                return
        text = f"the lease of the lake {lake} was not extended for {LEASE_MS / 1500:g} s"
        lose([*failures[-1:], ConnectionLost(text)][0])

    threads = [threading.Thread(target=step, name="lease", daemon=True) for step in (renew, watch)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        extended.set()
        for thread in threads:
            thread.join(LEASE_MS / 6000)  # a request takes minutes if the broker does not answer
    if errors:
        raise errors[0]


def _claim(storage: JournalStorage, lake: Lake, slot: str, holder: str) -> None:
    try:
        storage.claim_slot(slot, holder, LEASE_MS)
    except JournalError as error:
        raise JournalError(
            f"another process writes the events of the broker {lake.broker} to the lake {lake}, "
            f"and one at a time may: {error}"
        ) from error
