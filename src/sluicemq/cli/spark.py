"""Parts of the commands that run on Spark: their options, the session and the progress."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from typer.core import TyperGroup

from sluicemq.cli.console import err, print_json, quantity
from sluicemq.cli.journal import locate
from sluicemq.cli.location import BrokerLocation
from sluicemq.model.errors import ConfigurationError
from sluicemq.server.settings import Unit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluicemq.pipeline.jobs.lake import Lake
    from sluicemq.pipeline.jobs.run import BatchProgress

LakeOption = Annotated[
    str,
    typer.Option("--lake", metavar="PLACE", help="Directory or URI of the tables: s3a://bucket/x"),
]
CatalogOption = Annotated[
    str,
    typer.Option(
        "--catalog",
        metavar="NAME",
        help="Spark catalog that has the tables as NAME.LAYER.TABLE, such as spark_catalog.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Spark's master: spark://host:7077; default: this process."),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Setting of Spark; may be repeated."),
]


def spark_settings(master: str | None, conf: list[str] | None) -> dict[str, str]:
    """Return the settings of Spark in `--master` and `--conf`. Raises ConfigurationError."""
    settings = {} if master is None else {"spark.master": master}
    for entry in conf or ():
        name, equals, value = entry.partition("=")
        if not equals or not name.startswith("spark."):
            raise ConfigurationError(f"--conf: {entry!r} is not a setting such as spark.name=value")
        settings[name] = value
    return settings


def source_of(location: BrokerLocation, fail_on_data_loss: bool = True) -> dict[str, str]:
    """Return the source's options that locate the journal, and `failOnDataLoss` if it is off.

    Prompts for a missing password. Raises ConfigurationError, JournalError.
    """
    options = location.http_options() or {"path": str(locate(location.data_dir).absolute())}
    return options if fail_on_data_loss else {**options, "failOnDataLoss": "false"}


class ProgressDisplay(Progress):
    """Progress of a query: a bar, or a line of JSON per batch."""

    def __init__(self, as_json: bool, *, unending: bool) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *(() if unending else (BarColumn(), MofNCompleteColumn())),
            TextColumn("{task.fields[rates]}"),
            TimeElapsedColumn(),
            console=err(),
            transient=True,
            disable=as_json,
        )
        self._as_json = as_json
        self._unending = unending
        self._task = self.add_task("starting", total=None, rates="")
        self._started = datetime.now(UTC)

    def step(self, step: BatchProgress, anomalies: int | None, total: int | None = None) -> None:
        """Report a batch or a restart."""
        if self._as_json:
            print_json(_step_document(step, anomalies))
            return
        if step.problem:
            self.console.print(f"[yellow]{escape(step.problem)}[/]")
            return
        seconds = (datetime.now(UTC) - self._started).total_seconds()
        rates = [f"{step.rows / seconds:,.0f} events/s"]
        if step.lag is not None:
            rates.append(f"{step.lag:,} behind")
        if anomalies:
            rates.append(f"{anomalies} anomalies")
        if total is None and not self._unending and step.lag is not None:
            total = step.rows + step.lag
        self.update(
            self._task,
            description=f"{step.rows:,} events" if self._unending else "events",
            completed=step.rows,
            total=total,
            rates=", ".join(rates),
        )


def _step_document(step: BatchProgress, anomalies: int | None) -> dict[str, Any]:
    document: dict[str, Any] = {"rows": step.rows, "lag": step.lag}
    if step.problem:
        document["problem"] = step.problem
    if step.batch is not None:
        batch = step.batch
        document["batch"] = {
            "rows": batch.rows,
            "last": batch.last,
            "oldest": batch.oldest,
            "newest": batch.newest,
            "gold_committed": batch.gold_committed,
        }
        document["seconds"] = {name: round(duration, 3) for name, duration in batch.seconds.items()}
    if anomalies is not None:
        document["anomalies"] = anomalies
    return document


class PipelineCommands(TyperGroup):
    """Command group that explains a missing dependency of its commands."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Raises ConfigurationError if a module is not installed."""
        try:
            return super().invoke(ctx)
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
    exit. Spark's output is appended to the lake's log file, which errors name.

    Errors of Spark become a SluiceError with their cause, also that its Java process has ended."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from sluicemq.pipeline.session import check_java, session

    has_session = SparkSession.getActiveSession() is not None
    log = None if lake is None else lake.log
    spark: SparkSession | None = None
    try:
        with err().status("starting Spark"):
            spark = session(name, settings, log, schemes=() if lake is None else (lake.scheme,))
        if not has_session:
            spark.sparkContext.setLogLevel("ERROR")
            if log is not None:
                # tracebacks of PySpark, which errors explain; the pipeline's warnings are for users
                logging.basicConfig(filename=log)
                logging.getLogger("sluicemq.pipeline").addHandler(logging.StreamHandler())
        if lake is not None:
            lake.register(spark)
        yield spark
    except Exception as error:
        if log is not None and not has_session and not isinstance(error, ConfigurationError):
            err().print(f"Spark's output is in {log}.", markup=False)
        if isinstance(error.__cause__ or error, OSError | Py4JError):
            check_java()
        if isinstance(error, PySparkException | Py4JError):
            from sluicemq.pipeline.jobs.run import cause_of

            raise cause_of(error)[1] from error
        raise
    finally:
        if spark is not None and not has_session:
            with suppress(OSError, Py4JError):  # its Java process has ended
                spark.stop()


def seconds(option: str, text: str) -> float:
    return quantity(option, text, Unit.MILLISECONDS) / 1000


def duration(option: str, text: str) -> timedelta:
    """Return a duration. Raises ConfigurationError, also for one that is too long."""
    try:
        return timedelta(seconds=seconds(option, text))
    except OverflowError:
        raise ConfigurationError(f"{option}: {text} is too long") from None
