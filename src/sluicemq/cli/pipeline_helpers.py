"""Helpers of `sluicemq pipeline`: start Spark, show progress, and stop on signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from sluicemq.cli.console import err, print_json, quantity
from sluicemq.model.errors import ConfigurationError
from sluicemq.server.settings import Unit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluicemq.pipeline.jobs.lake import Lake
    from sluicemq.pipeline.jobs.run import BatchProgress


class PeriodicAction:
    """Function that runs at most once per interval, when called."""

    def __init__(self, action: Callable[[], int], seconds: float) -> None:
        self._action = action
        self._seconds = seconds
        self._due = datetime.now(UTC) + timedelta(seconds=seconds)
        self.latest: int | None = None

    def run_if_due(self) -> None:
        if datetime.now(UTC) >= self._due:
            self.now()

    def now(self) -> None:
        self.latest = self._action()
        self._due = datetime.now(UTC) + timedelta(seconds=self._seconds)


class ProgressDisplay:
    """Progress of a query: a bar, or a line of JSON per batch."""

    def __init__(self, as_json: bool, *, unending: bool) -> None:
        self._as_json = as_json
        self._unending = unending
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *(() if unending else (BarColumn(), MofNCompleteColumn())),
            TextColumn("{task.fields[rates]}"),
            TimeElapsedColumn(),
            console=err(),
            transient=True,
            disable=as_json,
        )
        self._task: TaskID | None = None
        self._started = datetime.now(UTC)

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        self._task = self._progress.add_task("starting", total=None, rates="")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, step: BatchProgress, anomalies: int | None, total: int | None = None) -> None:
        """Report a batch or a restart."""
        if self._as_json:
            print_json(_step_document(step, anomalies))
            return
        if step.trouble:
            self._progress.console.print(f"[yellow]{escape(step.trouble)}[/]")
            return
        seconds = (datetime.now(UTC) - self._started).total_seconds()
        rates = [f"{step.rows / seconds:,.0f} events/s"]
        if step.lag is not None:
            rates.append(f"{step.lag:,} behind")
        if anomalies:
            rates.append(f"{anomalies} anomalies")
        if total is None and not self._unending and step.lag is not None:
            total = step.rows + step.lag
        assert self._task is not None
        self._progress.update(
            self._task,
            description=f"{step.rows:,} events" if self._unending else "events",
            completed=step.rows,
            total=total,
            rates=", ".join(rates),
        )


def _step_document(step: BatchProgress, anomalies: int | None) -> dict[str, Any]:
    document: dict[str, Any] = {"rows": step.rows, "lag": step.lag}
    if step.trouble:
        document["trouble"] = step.trouble
    if step.batch is not None:
        batch = step.batch
        document["batch"] = {
            "rows": batch.rows,
            "last": batch.last,
            "oldest": batch.oldest,
            "newest": batch.newest,
            "shown": batch.gold_committed,
        }
        document["seconds"] = {name: round(taken, 3) for name, taken in batch.seconds.items()}
    if anomalies is not None:
        document["anomalies"] = anomalies
    return document


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Stop the query after its batch on SIGINT and SIGTERM; a second SIGINT interrupts at once."""

    def ask(number: int, _: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ask) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def require_pipeline() -> Iterator[None]:
    """Raise an explanation for a missing dependency."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sluicemq"):
            raise
        raise ConfigurationError(
            f"the pipeline needs {error.name}, which is not installed: "
            "pip install 'sluicemq[pipeline]'"
        ) from None


@contextmanager
def spark_session(
    name: str,
    settings: dict[str, str] | None = None,
    lake: Lake | None = None,
) -> Iterator[SparkSession]:
    """Open a Spark session for a lake's scheme and catalog; a session created here is stopped on
    exit. Spark's output is appended to the lake's log file, which errors name."""
    with require_pipeline():
        from pyspark.sql import SparkSession

        from sluicemq.pipeline.session import session
    there = SparkSession.getActiveSession() is not None
    log = None if lake is None else lake.log
    with err().status("starting Spark"):
        spark = session(name, settings, log, schemes=() if lake is None else (lake.scheme,))
    if not there:
        spark.sparkContext.setLogLevel("ERROR")
    try:
        if lake is not None:
            lake.register(spark)
        yield spark
    except Exception as error:
        if log is not None and not there and not isinstance(error, ConfigurationError):
            err().print(f"Spark's output is in {log}.", markup=False)
        raise
    finally:
        if not there:
            spark.stop()


def seconds(option: str, text: str) -> float:
    return quantity(option, text, Unit.MILLISECONDS) / 1000
