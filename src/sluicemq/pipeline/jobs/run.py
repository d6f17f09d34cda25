"""The query from a journal into a lake, and who keeps it going.

    journal ── source ── micro-batch ── gold, bronze, silver ── slot

One streaming query reads all events; each of its batches is written to the tables one after the
other (batch.py). A supervisor starts the query again after what passes by itself: a broker that
restarts, a Python worker that was killed. Nothing is lost or written twice by that, nor by the loss
of the checkpoint: each table says itself what it has (lake.py).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluicemq.model.errors import ConfigurationError, SluiceError
from sluicemq.pipeline.jobs.batch import Done, Writer
from sluicemq.pipeline.jobs.gold import WATERMARK
from sluicemq.pipeline.jobs.lake import NAMES, Lake
from sluicemq.pipeline.source.connect import connect
from sluicemq.pipeline.source.options import parse_options
from sluicemq.pipeline.source.slots import follow

MAX_ROWS: Final = 262_144
MAX_BYTES: Final = 256 << 20
TRIES: Final = 10
"""Starts in a row without a batch between them, until what was to pass is told as an error."""
LONGEST_PAUSE: Final = 60.0

_LOOK_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 60.0
"""A batch may go on so long after the query was asked to stop."""
_RAISED: Final = re.compile(r"sluicemq\.(?:\w+\.)+(\w+): (.*)")
"""How an error of ours looks in the text of an error that came through the JVM."""
_PREFACE: Final = "terminated with exception: "
_PASSING: Final = frozenset({"", "ConnectionLost", "RequestTimeout", "TableConflict"})
"""Errors that may pass: what Spark says of its workers, and these of ours. All others tell what
somebody has to do."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be read and written.

    source     options of the source that say where the journal is, and credentials
    lake       where the tables are, and the broker's name in them
    slot       retention slot that holds what has not been read; "" = none
    tables     those of NAMES that are written
    max_rows, max_bytes   of one batch
    watermark  what comes later than this after the newest event counts as late
    """

    source: dict[str, str]
    lake: Lake
    slot: str = ""
    tables: Collection[str] = NAMES
    max_rows: int = MAX_ROWS
    max_bytes: int = MAX_BYTES
    watermark: timedelta = WATERMARK


@dataclass
class Step:
    """How things stand after a batch.

    rows     events written since the start
    lag      records of the journal that wait to be read; None = not known yet
    batch    the batch, None for a restart
    trouble  why the query was started again, or ""
    """

    rows: int = 0
    lag: int | None = None
    batch: Done | None = None
    trouble: str = ""


class Supervisor:
    """Runs the query of one job until it is told to stop, or there is nothing more to read."""

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        tell: Callable[[Step], None] = lambda step: None,
        stop: threading.Event | None = None,
    ) -> None:
        """`tell` is called after each batch and each restart, in the thread of `run`; `stop` may be
        set by any thread, and by signal handlers."""
        self._spark = spark
        self._job = job
        self._tell = tell
        self._stop = stop or threading.Event()
        self._done: deque[tuple[int, Done]] = deque()
        self._fault: Exception | None = None
        self._rows = 0

    def run(self, interval: float | None = 1.0) -> int:
        """Read until told to stop, with a batch every `interval` seconds if there is something new;
        None: read what there is now, and end. Returns how many events were written.

        Raises ConfigurationError, JournalError and whatever else does not pass by itself.
        """
        names = [name for name in NAMES if name in self._job.tables]
        tries = 0
        while not self._stop.is_set():
            before = self._rows
            mover = None
            try:
                mover = self._follow()
                query = self._start(names, interval)
                self._watch(query)
                return self._rows
            except (PySparkException, Py4JError, SluiceError, OSError) as error:
                self._drain(None)
                fault = self._explained(error)
                tries = tries + 1 if self._rows == before else 1
                if not _passes(fault) or tries > TRIES:
                    raise fault from error
                pause = min(LONGEST_PAUSE, 2.0 ** (tries - 1))
                self._tell(Step(self._rows, trouble=f"{fault}; again in {pause:g} s"))
                self._stop.wait(pause)
            finally:
                if mover is not None:
                    self._spark.streams.removeListener(mover)
        return self._rows

    def _options(self) -> dict[str, str]:
        job = self._job
        options = {
            **job.source,
            "events": "*",
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(job.max_rows),
            "maxBytesPerTrigger": str(job.max_bytes),
        }
        return {**options, "slot": job.slot} if job.slot else options

    def _follow(self) -> Any:
        return follow(self._spark, self._options()) if self._job.slot else None

    def _start(self, names: list[str], interval: float | None) -> StreamingQuery:
        lake = self._job.lake
        journal = identity(self._job.source)
        lake.claim(journal)
        _check(lake, journal, names)
        writer = Writer(lake, journal, names, self._job.watermark)
        reached = lake.reached(journal, names)
        start = "earliest" if reached is None else str(reached + 1)
        self._fault = None

        def write(events: DataFrame, batch: int) -> None:
            try:
                self._done.append((batch, writer.write(events)))
            except Exception as error:
                self._fault = error  # what comes back through the JVM is its text only
                raise

        source = self._spark.readStream.format("sluicemq").options(**self._options())
        stream = source.option("startingOffsets", start).load().writeStream.foreachBatch(write)
        stream = stream.option("checkpointLocation", str(lake.checkpoint))
        if interval is None:
            return stream.trigger(availableNow=True).start()
        return stream.trigger(processingTime=f"{round(interval * 1000)} milliseconds").start()

    def _watch(self, query: StreamingQuery) -> None:
        """Until the query ends. Raises what it ended with."""
        try:
            while not query.awaitTermination(_LOOK_SECONDS):  # type: ignore[arg-type]
                self._drain(query)
                if self._stop.is_set():
                    _end(query)
                    break
            self._drain(query)
            self._drain(None)
        except BaseException:
            query.stop()
            raise

    def _drain(self, query: StreamingQuery | None) -> None:
        """Tell of the batches that the query has committed; without a query of all that were
        written."""
        progress = query.lastProgress if query is not None else None
        while self._done:
            batch, done = self._done[0]
            if query is not None and (progress is None or progress["batchId"] < batch):
                return
            self._done.popleft()
            self._rows += done.rows
            self._tell(Step(self._rows, _lag(progress), done))

    def _explained(self, error: Exception) -> SluiceError:
        """What lies behind the error of a query."""
        if self._fault is not None and isinstance(error, StreamingQueryException):
            fault, self._fault = self._fault, None
            return self._explained(fault)
        if isinstance(error, SluiceError):
            return error
        found = _RAISED.search(str(error))
        if found:
            return Failed(found[1], found[2])
        first = str(error).strip().partition("\n")[0]
        kind = "" if isinstance(error, PySparkException | Py4JError) else type(error).__name__
        return Failed(kind, first.rpartition(_PREFACE)[2])


class Failed(SluiceError):
    """An error that came through the JVM as text.

    kind  the name of its class, "" if it is none of ours
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def identity(source: dict[str, str]) -> str:
    """Which journal that is. Raises ConfigurationError if there is none, and ClientError."""
    found = connect(parse_options(source)).state().identity
    if not found:
        place = source.get("path") or source.get("url")
        raise ConfigurationError(
            f"there is no journal at {place} yet: start the broker, or name its data directory"
        )
    return found


def _check(lake: Lake, journal: str, names: list[str]) -> None:
    """Raises ConfigurationError if a table lacks what the query will not read again."""
    if lake.rebuilding.exists():
        raise ConfigurationError(
            f"silver and gold in {lake.directory} are incomplete, because rebuilding them was "
            "broken off: sluicemq pipeline backfill --from-bronze does it again"
        )
    if not any((lake.checkpoint / "commits").glob("[0-9]*")):
        return  # nothing is behind the checkpoint: what one table lacks will be read
    ends = {name: lake.reached(journal, [name]) for name in names}
    empty = [name for name, end in ends.items() if end is None]
    if empty and len(empty) < len(ends):
        raise ConfigurationError(
            f"{' and '.join(empty)} in {lake.directory} lack what other tables have already: make "
            "silver and gold from bronze with sluicemq pipeline backfill --from-bronze, or remove "
            f"{lake.checkpoint} to read the journal from its start"
        )


def _passes(fault: SluiceError) -> bool:
    """Whether it may be gone when the query is started again."""
    return (fault.kind if isinstance(fault, Failed) else type(fault).__name__) in _PASSING


def _end(query: StreamingQuery) -> None:
    """Stop it between two batches."""
    end = time.monotonic() + _STOP_SECONDS
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    query.stop()


def _lag(progress: Any) -> int | None:
    """Records that the journal had beyond the end of a batch."""
    for source in progress["sources"] if progress is not None else ():
        ends = [source["endOffset"], source["latestOffset"]]
        end, latest = (json.loads(each) if isinstance(each, str) else each for each in ends)
        if isinstance(end, dict) and isinstance(latest, dict):
            return max(0, int(latest["sequence"]) - int(end["sequence"]))
    return None
