"""`sluicemq pipeline …`: run the journal pipeline, replay and decode traffic, and write reports.

Each command imports the modules that need Spark when it runs: Spark is optional.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sluicemq.broker import compile_selector
from sluicemq.cli.api import CommandResult, print_result
from sluicemq.cli.console import (
    JsonFlag,
    UsageError,
    err,
    out,
    print_json,
    quantity,
    stop_on_signals,
)
from sluicemq.cli.location import (
    AuthorityOption,
    BrokerLocation,
    PasswordFileOption,
    TokenFileOption,
    UrlOption,
    UserOption,
)
from sluicemq.cli.spark import (
    CatalogOption,
    ConfOption,
    LakeOption,
    MasterOption,
    PipelineCommands,
    ProgressDisplay,
    duration,
    seconds,
    source_of,
    spark_session,
    spark_settings,
)
from sluicemq.model.errors import ConfigurationError, SelectorError, SluiceError
from sluicemq.server.settings import Unit

if TYPE_CHECKING:
    from sluicemq.pipeline.jobs.lake import Lake
    from sluicemq.pipeline.jobs.run import BatchProgress, PipelineJob

ANOMALIES_SECONDS: Final = 60.0
MIN_RETENTION: Final = timedelta(hours=1)
"""Longer than any batch takes: VACUUM takes files without a commit for those of a failed write."""

app = typer.Typer(
    cls=PipelineCommands,
    help="Write the journal's traffic to tables; replay, report and decode it.",
    no_args_is_help=True,
)

JournalOption = Annotated[
    Path | None,
    typer.Option(
        "--journal", metavar="DIR", help="Data directory of a broker; default: the configured one."
    ),
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

DefinitionOption = Annotated[
    Path | None,
    typer.Option(
        "--definition", metavar="FILE", help="Typed tables; default: pipeline.toml, if it exists."
    ),
]

LossOption = Annotated[
    bool,
    typer.Option(
        "--fail-on-data-loss/--no-fail-on-data-loss",
        help="End with an error if unread records were removed or are damaged; otherwise log a "
        "warning and continue after them.",
    ),
]
_ALL: Final = "bronze,silver,gold"


@app.command()
def run(
    lake: LakeOption,
    catalog: CatalogOption = "",
    journal: JournalOption = None,
    url: UrlOption = None,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
    ca: AuthorityOption = None,
    definition: DefinitionOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    broker: BrokerOption = "main",
    slot: Annotated[
        str, typer.Option("--slot", help="Retention slot for unread events; '' = none.")
    ] = "pipeline",
    tables: TablesOption = _ALL,
    interval: Annotated[
        str, typer.Option("--interval", help="Time between two batches of gold.")
    ] = "1s",
    tables_interval: Annotated[
        str | None,
        typer.Option(
            "--tables-interval",
            help="Time between two batches of the other tables, unless one reaches --max-rows or "
            "--max-bytes earlier; 10 times --interval by default.",
        ),
    ] = None,
    max_rows: RowsOption = 1_048_576,
    max_bytes: BytesOption = "256MiB",
    watermark: LateOption = "1h",
    fail_on_data_loss: LossOption = True,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", min=1, max=65535, help="Serve Prometheus metrics on this port."
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Address for --metrics-port; 0.0.0.0 = all.")
    ] = "127.0.0.1",
    as_json: JsonFlag = False,
) -> None:
    """Keep the tables up to date with the journal until stopped (Ctrl-C, SIGTERM).

    May be killed and restarted at any time: each event is written to each table once. A new lake
    starts with the oldest event that the journal retains.
    """
    delta_lake, settings = _lake(lake, broker, catalog), spark_settings(master, conf)
    location = BrokerLocation(url, user, password_file, token_file, ca, data_dir=journal)
    source = source_of(location, fail_on_data_loss)
    gold_seconds = seconds("--interval", interval)
    tables_seconds = 10 * gold_seconds
    if tables_interval is not None:
        tables_seconds = seconds("--tables-interval", tables_interval)
    job = _job(
        source, delta_lake, slot, tables, max_rows, max_bytes, watermark, definition, tables_seconds
    )
    metrics = None if metrics_port is None else (metrics_host, metrics_port)
    _supervise(job, settings, gold_seconds, as_json, metrics)


@app.command()
def backfill(
    lake: LakeOption,
    catalog: CatalogOption = "",
    journal: JournalOption = None,
    url: UrlOption = None,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
    ca: AuthorityOption = None,
    definition: DefinitionOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    broker: BrokerOption = "main",
    slot: Annotated[
        str, typer.Option("--slot", help="Retention slot to create or move; '' = none.")
    ] = "",
    tables: TablesOption = _ALL,
    from_bronze: Annotated[
        bool, typer.Option("--from-bronze", help="Rebuild silver and gold from bronze.")
    ] = False,
    max_rows: RowsOption = 4_194_304,
    max_bytes: BytesOption = "1GiB",
    watermark: LateOption = "1h",
    fail_on_data_loss: LossOption = True,
    as_json: JsonFlag = False,
) -> None:
    """Write everything that the journal holds now to the tables, then exit. Continues from their
    checkpoint."""
    delta_lake, settings = _lake(lake, broker, catalog), spark_settings(master, conf)
    if from_bronze:
        if journal is not None or url is not None:
            raise ConfigurationError("--from-bronze reads no journal: leave out --journal, --url")
        limit = int(quantity("--max-bytes", max_bytes, Unit.BYTES))
        _rebuild(delta_lake, settings, max_rows, limit, as_json)
        return
    location = BrokerLocation(url, user, password_file, token_file, ca, data_dir=journal)
    source = source_of(location, fail_on_data_loss)
    job = _job(source, delta_lake, slot, tables, max_rows, max_bytes, watermark, definition)
    _supervise(job, settings, None, as_json)


@app.command()
def maintain(
    lake: LakeOption,
    catalog: CatalogOption = "",
    master: MasterOption = None,
    conf: ConfOption = None,
    retention: Annotated[
        str,
        typer.Option(
            "--retention",
            help="Age of table versions to keep, at least 1h; older ones become unreadable.",
        ),
    ] = "7d",
    as_json: JsonFlag = False,
) -> None:
    """Compact the tables' small files (OPTIMIZE) and delete those that only old versions use
    (VACUUM)."""
    delta_lake = _lake(lake, "main", catalog)
    older_than = duration("--retention", retention)
    if older_than < MIN_RETENTION:
        raise ConfigurationError(
            f"--retention: {retention} is less than 1h: it would delete files of a batch that is "
            "being written"
        )
    settings = spark_settings(master, conf)
    delta_lake.check_exists()
    with spark_session("sluicemq maintain", settings, delta_lake) as spark:
        from sluicemq.pipeline.jobs.maintain import maintain as maintain_lake

        def report_table(name: str, before: int, after: int) -> None:
            if as_json:
                print_json({"table": name, "files_before": before, "files": after})
            else:
                out().print(f"{name:<18}{before:>8} files before, {after} now", markup=False)

        with err().status("joining files"):
            maintain_lake(spark, delta_lake, report_table, older_than)


@app.command()
def jars(
    connectors: Annotated[
        str,
        typer.Option("--for", help="Connectors to fetch too, by scheme: s3a, abfss, abfs, gs."),
    ] = "",
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Directory; default: the Python environment's."),
    ] = None,
) -> None:
    """Fetch the Java libraries of Delta Lake, once, and print their paths for spark-submit --jars.

    Without --to, also prepare a faster start of Spark in this environment, which takes 190 MB. On
    a host without a network, copy DIR to share/sluicemq/jars of the Python environment.
    """
    from sluicemq.pipeline.class_archive import prepare
    from sluicemq.pipeline.jars import DELTA, fetch

    names = [name.strip() for name in connectors.split(",") if name.strip()]
    with err().status("fetching the libraries"):
        paths = fetch([DELTA, *names], to)
    if to is None:
        with err().status("preparing the start of Spark"):
            prepare()
    print(",".join(map(str, paths)))


@app.command()
def report(
    lake: LakeOption,
    catalog: CatalogOption = "",
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
    master: MasterOption = None,
    conf: ConfOption = None,
) -> None:
    """Write an HTML report of the traffic: rates, latencies, backlogs, dead letters, anomalies."""
    delta_lake, settings = _lake(lake, "main", catalog), spark_settings(master, conf)
    period = _moment("--since", since), _moment("--until", until)
    delta_lake.check_exists()
    with spark_session("sluicemq report", settings, delta_lake) as spark:
        from sluicemq.pipeline.report import report_lake

        with err().status("reading the tables") as status:
            report_lake(
                spark,
                delta_lake,
                output,
                since=period[0],
                until=period[1],
                png=png,
                top=top,
                progress=lambda text: status.update(escape(text)),
            )
    out().print(f"{output}", markup=False)


# --- `sluicemq pipeline replay` and `decode` ------------------------------------------------------


@app.command()
def replay(
    lake: LakeOption,
    catalog: CatalogOption = "",
    to: Annotated[
        str, typer.Option("--to", help="Queue, or topic:NAME; default: the original destination.")
    ] = "",
    where: Annotated[
        str | None, typer.Option("--where", help="SQL condition on the columns of silver.")
    ] = None,
    selector: Annotated[
        str | None, typer.Option("--selector", help="A JMS message selector.")
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Messages per second.")] = None,
    speed: Annotated[
        float | None, typer.Option("--speed", help="1 = original pauses, 2 = twice as fast.")
    ] = None,
    write_id: Annotated[str, typer.Option("--write-id", help="Id of a replay to continue.")] = "",
    master: MasterOption = None,
    conf: ConfOption = None,
    url: UrlOption = None,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
    ca: AuthorityOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Publish past messages again in their original order; each is stored once.

    --where (state = 'dead-lettered' AND destination = 'orders') or --selector chooses the messages.
    """
    if selector is not None:
        try:
            compile_selector(selector)  # a syntax error is reported here instead of by a task
        except SelectorError as error:
            raise ConfigurationError(f"--selector: {error}") from None
    broker = BrokerLocation(url, user, password_file, token_file, ca).http_options()
    if not broker:
        raise UsageError("give --url, the HTTP listener of the broker that gets the messages")
    from pyspark.errors import AnalysisException, ParseException

    from sluicemq.pipeline.replay import replay as send

    delta_lake, settings = _lake(lake, "main", catalog), spark_settings(master, conf)
    delta_lake.check_exists("silver.messages")
    with spark_session("sluicemq replay", settings, delta_lake) as spark:
        frame = delta_lake.silver.read(spark)
        if where is not None:
            try:
                frame = frame.where(where)
            except (AnalysisException, ParseException) as error:
                reason = str(error).strip().split("\n")[0]
                raise ConfigurationError(f"--where: {reason}") from None
        columns = (
            TextColumn("messages"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=err(), transient=True, disable=as_json) as bar:
            task = bar.add_task("messages", total=None)
            result = send(
                frame,
                broker.pop("url"),
                to,
                rate=rate,
                speed=speed,
                make_predicate=None if selector is None else partial(compile_selector, selector),
                write_id=write_id,
                progress=lambda sent, all: bar.update(task, completed=sent, total=all),
                **broker,
            )
    hints = []
    if result.already:
        hints.append(f"{result.already:,} had been sent before.")
    if result.bad:
        hints.append(
            f"{result.bad:,} rows were invalid messages and went to the dead-letter queue."
        )
    sent = f"{result.written:,} messages sent"
    print_result(CommandResult(result._asdict(), "\n".join(hints), output=sent), as_json)


@app.command()
def decode(
    captures: Annotated[
        list[Path], typer.Argument(metavar="CAPTURE...", help="Capture files: pcap, pcapng.")
    ],
    ports: Annotated[
        str, typer.Option("--ports", help="Protocols by port, such as 9200=phpmq,9300=jmq.")
    ] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="The files hold the raw bytes of one direction.")
    ] = False,
    protocol: Annotated[
        str | None, typer.Option("--protocol", help="With --raw; default: detected.")
    ] = None,
    role: Annotated[
        str, typer.Option("--role", help="With --raw: the sender, client or server.")
    ] = "client",
    max_frame_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-frame-bytes", min=1, help="Maximum frame size; longer frames are errors."
        ),
    ] = None,
    secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Show passwords and tokens.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Add the frames to the Parquet files in DIR."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each frame as JSON.")] = False,
) -> None:
    """Decode captured traffic: one row per protocol frame, errors with their position."""
    for path in captures:
        if not path.is_file():
            raise ConfigurationError(f"there is no file {path}")
    from sluicemq.pipeline.decode import DecodeOptions, Raw, parse_ports
    from sluicemq.pipeline.decode import run as decode_all

    arguments: dict[str, Any] = {"ports": parse_ports(ports), "secrets": secrets}
    if raw:
        arguments["raw"] = Raw(protocol, role)
    if max_frame_bytes is not None:
        arguments["max_frame_bytes"] = max_frame_bytes
    options = DecodeOptions(**arguments)
    with spark_session("sluicemq decode") as spark, err().status("decoding"):
        lines = sys.stdout if as_json else None
        summary = decode_all(spark, captures, options, output=output, lines=lines)
    console = err() if as_json else out()
    for line in summary.lines():
        console.print(line, markup=False)
    if output is not None:
        err().print(f"The frames are in {output}.", markup=False)
    if summary.errors:
        raise SluiceError(f"{summary.errors:,} errors")


# --- `sluicemq pipeline schema …` -----------------------------------------------------------------

_SAMPLE: Final = 10_000

schema = typer.Typer(help="Schemas of typed tables (pipeline.toml).", no_args_is_help=True)
app.add_typer(schema, name="schema")


@schema.command()
def infer(
    destination: Annotated[
        str,
        typer.Argument(metavar="DESTINATION", help="Pattern, such as 'orders*', or topic:NAME."),
    ],
    journal: JournalOption = None,
    url: UrlOption = None,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
    ca: AuthorityOption = None,
    format: Annotated[
        str, typer.Option("--format", help="json, csv, xml or text; default: by the messages.")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", help="Name of the table; default: by the destination.")
    ] = "",
    messages: Annotated[
        int, typer.Option("--messages", min=1, help="Maximum number of messages to read.")
    ] = _SAMPLE,
) -> None:
    """Print a table's definition (pipeline.toml) with the schema of a destination's messages.

    Review the types before you use it: a sample does not show every value.
    """
    location = BrokerLocation(url, user, password_file, token_file, ca, data_dir=journal)
    source = source_of(location)
    from sluicemq.pipeline.typed.definition import Format
    from sluicemq.pipeline.typed.infer import (
        infer_schema,
        read_published,
        table_definition,
        table_name,
    )

    if format and format not in list(Format):
        raise ConfigurationError(f"--format: {format!r} is none of {', '.join(Format)}")
    with spark_session("sluicemq schema") as spark:
        events = read_published(spark, source, destination)
        inferred = infer_schema(events, destination, Format(format) if format else None, messages)
        print(table_definition(inferred, destination, name or table_name(destination)), end="")


# --- shared by run and backfill ------------------------------------------------------------------


def _lake(location: str, broker: str, catalog: str) -> Lake:
    from sluicemq.pipeline.jobs.lake import Lake

    return Lake(location, broker, catalog)


def _job(
    source: dict[str, str],
    lake: Lake,
    slot: str,
    tables: str,
    max_rows: int,
    max_bytes: str,
    watermark: str,
    definition: Path | None,
    tables_interval: float = 0.0,
) -> PipelineJob:
    from sluicemq.pipeline.jobs.lake import EVENT_LAYERS
    from sluicemq.pipeline.jobs.run import PipelineJob
    from sluicemq.pipeline.typed.definition import DEFAULT_FILE, Definition, load_definition

    if definition is None and Path(DEFAULT_FILE).is_file():
        definition = Path(DEFAULT_FILE)
    names = [name.strip() for name in tables.split(",") if name.strip()]
    for name in names:
        if name not in EVENT_LAYERS:
            raise ConfigurationError(f"--tables: {name!r} is none of {', '.join(EVENT_LAYERS)}")
    if not names:
        raise ConfigurationError(f"--tables: name one of {', '.join(EVENT_LAYERS)} at least")
    return PipelineJob(
        source=source,
        lake=lake,
        slot=slot,
        tables=names,
        max_rows=max_rows,
        max_bytes=int(quantity("--max-bytes", max_bytes, Unit.BYTES)),
        tables_interval=tables_interval,
        watermark=duration("--watermark", watermark),
        definition=Definition() if definition is None else load_definition(definition),
    )


def _supervise(
    job: PipelineJob,
    settings: dict[str, str],
    interval: float | None,
    as_json: bool,
    metrics_address: tuple[str, int] | None = None,
) -> None:
    from sluicemq.pipeline.jobs.maintain import find_anomalies
    from sluicemq.pipeline.jobs.metrics import serve_metrics
    from sluicemq.pipeline.jobs.run import Supervisor

    find = {"gold", "silver"} <= set(job.tables)
    lake = job.lake
    anomalies: int | None = None
    with ExitStack() as stack:
        spark = stack.enter_context(spark_session("sluicemq pipeline", settings, lake))
        due_time = time.monotonic() + ANOMALIES_SECONDS
        metrics = None
        if metrics_address is not None:
            metrics = stack.enter_context(serve_metrics(spark, job.definition, metrics_address))
        progress = stack.enter_context(ProgressDisplay(as_json, unending=interval is not None))
        stop = stack.enter_context(stop_on_signals(signal.SIGINT, signal.SIGTERM))

        def report_step(step: BatchProgress) -> None:
            nonlocal anomalies, due_time
            progress.step(step, anomalies)
            if step.batch is not None:
                if metrics is not None:
                    metrics.add(step.batch.typed)
                if find and interval is not None and time.monotonic() >= due_time:
                    anomalies = find_anomalies(spark, lake)
                    due_time = time.monotonic() + ANOMALIES_SECONDS

        rows = Supervisor(spark, job, report_step, stop).run(interval)
        if find and not stop.is_set():
            anomalies = find_anomalies(spark, lake)
    _report_end(as_json, rows, lake, anomalies)


def _rebuild(
    lake: Lake, settings: dict[str, str], max_rows: int, max_bytes: int, as_json: bool
) -> None:
    from sluicemq.pipeline.jobs.maintain import find_anomalies, rebuild

    lake.check_exists("bronze.events")
    with (
        spark_session("sluicemq backfill", settings, lake) as spark,
        ProgressDisplay(as_json, unending=False) as progress,
    ):
        rows = rebuild(
            spark,
            lake,
            lambda step, total: progress.step(step, None, total),
            max_rows,
            max_bytes,
        )
        anomalies = find_anomalies(spark, lake)
    _report_end(as_json, rows, lake, anomalies)


def _report_end(as_json: bool, rows: int, lake: Lake, anomalies: int | None) -> None:
    suffix = f"; {anomalies} anomalies" if anomalies else ""
    result = CommandResult(
        {"rows": rows, "lake": str(lake), "anomalies": anomalies},
        f"sluicemq pipeline report --lake {lake} shows them." if anomalies else "",
        output=f"{rows:,} events written to {lake}{suffix}",
    )
    print_result(result, as_json)


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{option}: {text!r} is not a time such as 2026-01-31T12:00"
        ) from None
