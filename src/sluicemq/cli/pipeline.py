"""`sluicemq pipeline …`: run the journal pipeline, replay and decode traffic, and write reports.

Each command imports the modules that need Spark when it runs: Spark is optional.
"""

from __future__ import annotations

import os
import threading
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from sluicemq.cli import pipeline_replay
from sluicemq.cli.console import JsonFlag, err, out, print_json
from sluicemq.cli.journal import locate
from sluicemq.cli.pipeline_helpers import (
    PeriodicAction,
    ProgressDisplay,
    require_pipeline,
    seconds,
    spark_session,
    stop_on_signals,
)
from sluicemq.cli.pipeline_replay import (
    FormatOption,
    LakeOption,
    PasswordOption,
    TokenOption,
    credentials,
)
from sluicemq.model.errors import ConfigurationError
from sluicemq.server.units import Unit, parse_quantity

if TYPE_CHECKING:
    from sluicemq.pipeline.jobs.lake import Lake
    from sluicemq.pipeline.jobs.run import BatchProgress, PipelineJob

ANOMALIES_SECONDS: Final = 60.0

app = typer.Typer(
    help="Write the journal's traffic to tables; replay, report and decode it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

JournalOption = Annotated[
    Path | None,
    typer.Option(
        "--journal", metavar="DIR", help="Data directory of a broker; default: the configured one."
    ),
]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Read from a broker instead: http://user@host:7680")
]
BrokerOption = Annotated[
    str, typer.Option("--broker", metavar="NAME", help="This broker's name in the lake.")
]
TablesOption = Annotated[str, typer.Option("--tables", help="Tables to write, comma-separated.")]
RowsOption = Annotated[int, typer.Option("--max-rows", min=1, help="Maximum events per batch.")]
BytesOption = Annotated[
    str, typer.Option("--max-bytes", help="Maximum bytes per batch, such as 256MiB.")
]
LateOption = Annotated[
    str, typer.Option("--watermark", help="Events older than this are counted as late.")
]

_ALL: Final = "bronze,silver,gold"


@app.command()
def run(
    lake: LakeOption,
    journal: JournalOption = None,
    url: UrlOption = None,
    password_file: PasswordOption = None,
    token_file: TokenOption = None,
    format: FormatOption = "delta",
    broker: BrokerOption = "main",
    slot: Annotated[
        str, typer.Option("--slot", help="Retention slot for unread events; '' = none.")
    ] = "pipeline",
    tables: TablesOption = _ALL,
    interval: Annotated[str, typer.Option("--interval", help="Time between two batches.")] = "1s",
    max_rows: RowsOption = 262_144,
    max_bytes: BytesOption = "256MiB",
    watermark: LateOption = "1h",
    as_json: JsonFlag = False,
) -> None:
    """Keep the tables up to date with the journal until stopped (Ctrl-C, SIGTERM).

    May be killed and restarted at any time: each event is written to each table once. A new lake
    starts with the oldest event that the journal retains.
    """
    job = _job(
        journal,
        url,
        password_file,
        token_file,
        _lake(lake, format, broker),
        slot,
        tables,
        max_rows,
        max_bytes,
        watermark,
    )
    _supervise(job, seconds("--interval", interval), as_json)


@app.command()
def backfill(
    lake: LakeOption,
    journal: JournalOption = None,
    url: UrlOption = None,
    password_file: PasswordOption = None,
    token_file: TokenOption = None,
    format: FormatOption = "delta",
    broker: BrokerOption = "main",
    slot: Annotated[
        str, typer.Option("--slot", help="Retention slot to create or move; '' = none.")
    ] = "",
    tables: TablesOption = _ALL,
    from_bronze: Annotated[
        bool, typer.Option("--from-bronze", help="Rebuild silver and gold from bronze.")
    ] = False,
    max_rows: RowsOption = 262_144,
    max_bytes: BytesOption = "256MiB",
    watermark: LateOption = "1h",
    as_json: JsonFlag = False,
) -> None:
    """Write everything that the journal holds now to the tables, then exit. Continues from their
    checkpoint."""
    place = _lake(lake, format, broker)
    if from_bronze:
        if journal is not None or url is not None:
            raise ConfigurationError("--from-bronze reads no journal: leave out --journal, --url")
        _rebuild(place, max_rows, as_json)
        return
    job = _job(
        journal, url, password_file, token_file, place, slot, tables, max_rows, max_bytes, watermark
    )
    _supervise(job, None, as_json)


@app.command()
def compact(
    lake: LakeOption,
    format: FormatOption = "delta",
    retention: Annotated[
        str,
        typer.Option(
            "--retention", help="Age of table versions to keep; older ones become unreadable."
        ),
    ] = "7d",
    as_json: JsonFlag = False,
) -> None:
    """Compact the tables' small files and delete files that only old versions use."""
    place = _lake(lake, format, "main")
    older_than = timedelta(seconds=seconds("--retention", retention))
    with require_pipeline():
        from sluicemq.pipeline.jobs.upkeep import compact as compact_lake

        def tell(name: str, before: int, after: int) -> None:
            if as_json:
                print_json({"table": name, "files_before": before, "files": after})
            else:
                out().print(f"{name:<10}{before:>8} files before, {after} now", markup=False)

        with err().status("joining files"):
            compact_lake(place, tell, older_than)


@app.command()
def report(
    lake: LakeOption,
    output: Annotated[
        Path, typer.Option("--output", "--out", "-o", metavar="FILE", help="Output file.")
    ] = Path("report.html"),
    since: Annotated[
        str | None, typer.Option("--since", help="Start, such as 2026-01-31T12:00, UTC.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="End, exclusive.")] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="DIR", help="Also write the charts as images.")
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, help="Number of destinations shown individually.")
    ] = 25,
) -> None:
    """Write an HTML report of the traffic: rates, latencies, backlogs, dead letters, anomalies."""
    with require_pipeline():
        from sluicemq.pipeline.report import report_lake

        with err().status("reading the tables") as status:
            report_lake(
                lake,
                output,
                since=_moment("--since", since),
                until=_moment("--until", until),
                png=png,
                top=top,
                progress=lambda text: status.update(escape(text)),
            )
    out().print(f"{output}", markup=False)


app.command("replay")(pipeline_replay.replay)
app.command("decode")(pipeline_replay.decode)


# --- what run and backfill have in common --------------------------------------------------------


def _lake(directory: Path, format: str, broker: str) -> Lake:
    with require_pipeline():
        from sluicemq.pipeline.jobs.lake import Lake

        return Lake(directory, format, broker)


def _source(
    journal: Path | None, url: str | None, password_file: Path | None, token_file: Path | None
) -> dict[str, str]:
    """Check the options that locate the journal."""
    if url is None:
        if password_file or token_file:
            raise ConfigurationError("--password-file and --token-file go with --url")
        return {"path": str(locate(journal).absolute())}
    if journal is not None:
        raise ConfigurationError("give either --journal or --url")
    return {"url": url, **credentials(password_file, token_file)}


def _job(
    journal: Path | None,
    url: str | None,
    password_file: Path | None,
    token_file: Path | None,
    lake: Lake,
    slot: str,
    tables: str,
    max_rows: int,
    max_bytes: str,
    watermark: str,
) -> PipelineJob:
    source = _source(journal, url, password_file, token_file)
    with require_pipeline():
        from sluicemq.pipeline.jobs.lake import NAMES
        from sluicemq.pipeline.jobs.run import PipelineJob

        names = [name.strip() for name in tables.split(",") if name.strip()]
        for name in names:
            if name not in NAMES:
                raise ConfigurationError(f"--tables: {name!r} is none of {', '.join(NAMES)}")
        if not names:
            raise ConfigurationError(f"--tables: name one of {', '.join(NAMES)} at least")
        return PipelineJob(
            source=source,
            lake=lake,
            slot=slot,
            tables=names,
            max_rows=max_rows,
            max_bytes=_bytes("--max-bytes", max_bytes),
            watermark=timedelta(seconds=seconds("--watermark", watermark)),
        )


def _supervise(job: PipelineJob, interval: float | None, as_json: bool) -> None:
    from sluicemq.pipeline.jobs.run import Supervisor
    from sluicemq.pipeline.jobs.upkeep import find_anomalies

    stop = threading.Event()
    find = {"gold", "silver"} <= set(job.tables)
    # two queries at a time: the short tasks of gold must not queue behind those of silver
    tasks = {"spark.master": f"local[{2 * len(os.sched_getaffinity(0))},4]"}
    with spark_session("sluicemq pipeline", job.lake.log, tasks) as spark:
        findings = PeriodicAction(partial(find_anomalies, spark, job.lake), ANOMALIES_SECONDS)
        with (
            ProgressDisplay(as_json, unending=interval is not None) as progress,
            stop_on_signals(stop),
        ):

            def tell(step: BatchProgress) -> None:
                progress.step(step, findings.latest)
                if find and interval is not None and step.batch is not None:
                    findings.run_if_due()

            rows = Supervisor(spark, job, tell, stop).run(interval)
            if find and not stop.is_set():
                findings.now()
    _tell_end(as_json, rows, job.lake, findings.latest)


def _rebuild(lake: Lake, max_rows: int, as_json: bool) -> None:
    with require_pipeline():
        from sluicemq.pipeline.jobs.rebuild import expect_bronze, rebuild
        from sluicemq.pipeline.jobs.upkeep import find_anomalies
    expect_bronze(lake)  # checked before the slow start of Spark
    with (
        spark_session("sluicemq backfill", lake.log) as spark,
        ProgressDisplay(as_json, unending=False) as progress,
    ):
        rows = rebuild(spark, lake, lambda step, total: progress.step(step, None, total), max_rows)
        found = find_anomalies(spark, lake)
    _tell_end(as_json, rows, lake, found)


def _tell_end(as_json: bool, rows: int, lake: Lake, anomalies: int | None) -> None:
    if as_json:
        print_json({"rows": rows, "lake": str(lake.directory), "anomalies": anomalies})
        return
    told = f"; {anomalies} anomalies" if anomalies else ""
    out().print(f"{rows:,} events written to {lake.directory}{told}", markup=False)
    if anomalies:
        err().print(f"sluicemq pipeline report --lake {lake.directory} shows them.", markup=False)


def _bytes(option: str, text: str) -> int:
    try:
        return int(parse_quantity(text, Unit.BYTES))
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{option}: {text!r} is no time such as 2026-01-31T12:00"
        ) from None
