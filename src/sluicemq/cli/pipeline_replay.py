"""`sluicemq pipeline replay` and `sluicemq pipeline decode`: publish past traffic again, and decode
captured traffic."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sluicemq.broker import compile_selector
from sluicemq.cli.console import Exit, JsonFlag, complain, err, out, print_json
from sluicemq.cli.journal import locate
from sluicemq.cli.pipeline_helpers import require_pipeline, spark_session
from sluicemq.model.errors import ConfigurationError, SelectorError
from sluicemq.security.passwords import read_secret_file

PASSWORD: Final = "PIPELINE_PASSWORD"
TOKEN: Final = "PIPELINE_TOKEN"
"""Environment variables for secrets, which must not appear in the process list."""

PasswordOption = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help=f"For --url; or the variable {PASSWORD}."),
]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help=f"For --url; or the variable {TOKEN}."),
]


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
            raise ConfigurationError(f"--conf: {entry!r} is no setting such as spark.name=value")
        settings[name] = value
    return settings


def credentials(password_file: Path | None, token_file: Path | None) -> dict[str, str]:
    """Return password and token from files, else from the environment."""
    found = {}
    for name, file, variable in (
        ("password", password_file, PASSWORD),
        ("token", token_file, TOKEN),
    ):
        secret = read_secret_file(file) if file is not None else os.environ.get(variable)
        if secret:
            found[name] = secret
    return found


def source_of(
    journal: Path | None, url: str | None, password_file: Path | None, token_file: Path | None
) -> dict[str, str]:
    """Return the source's options that locate the journal. Raises ConfigurationError."""
    if url is None:
        if password_file or token_file:
            raise ConfigurationError("--password-file and --token-file go with --url")
        return {"path": str(locate(journal).absolute())}
    if journal is not None:
        raise ConfigurationError("give either --journal or --url")
    return {"url": url, **credentials(password_file, token_file)}


def replay(
    lake: LakeOption,
    url: Annotated[str, typer.Option("--url", help="The broker: http://user@host:7680")],
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
    password_file: PasswordOption = None,
    token_file: TokenOption = None,
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
    secrets = credentials(password_file, token_file)
    with require_pipeline():
        from pyspark.errors import AnalysisException, ParseException

        from sluicemq.pipeline.jobs.lake import Lake
        from sluicemq.pipeline.replay import replay as send

        place = Lake(lake, catalog=catalog)
        place.expect("silver.messages")
    settings = spark_settings(master, conf)
    with spark_session("sluicemq replay", settings, place) as spark:
        frame = place.silver.read(spark)
        if where is not None:
            try:
                frame = frame.where(where)
            except (AnalysisException, ParseException) as error:
                raise ConfigurationError(f"--where: {_first_line(error)}") from None
        columns = (
            TextColumn("messages"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=err(), transient=True, disable=as_json) as bar:
            task = bar.add_task("messages", total=None)
            done = send(
                frame,
                url,
                to,
                rate=rate,
                speed=speed,
                selects=None if selector is None else partial(compile_selector, selector),
                write_id=write_id,
                progress=lambda sent, all: bar.update(task, completed=sent, total=all),
                **secrets,
            )
    if as_json:
        print_json(done._asdict())
        return
    out().print(f"{done.written:,} messages sent", markup=False)
    if done.already:
        err().print(f"{done.already:,} had been sent before.")
    if done.bad:
        err().print(f"{done.bad:,} rows were invalid messages and went to the dead-letter queue.")


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
        typer.Option("--output", "-o", metavar="DIR", help="Write the frames to Parquet files."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each frame as JSON.")] = False,
) -> None:
    """Decode captured traffic: one row per protocol frame, errors with their position."""
    for path in captures:
        if not path.is_file():
            raise ConfigurationError(f"there is no file {path}")
    with require_pipeline():
        from sluicemq.pipeline.decode import DecodeOptions, Raw, parse_ports
        from sluicemq.pipeline.decode import run as decode_all

        given: dict[str, Any] = {"ports": parse_ports(ports), "secrets": secrets}
        if raw:
            given["raw"] = Raw(protocol, role)
        if max_frame_bytes is not None:
            given["max_frame_bytes"] = max_frame_bytes
        options = DecodeOptions(**given)
    with spark_session("sluicemq decode") as spark, err().status("decoding"):
        lines = sys.stdout if as_json else None
        summary = decode_all(spark, captures, options, output=output, lines=lines)
    console = err() if as_json else out()
    for line in summary.lines():
        console.print(line, markup=False)
    if output is not None:
        err().print(f"The frames are in {output}.", markup=False)
    if summary.errors:
        complain(f"{summary.errors:,} errors")
        raise typer.Exit(Exit.REFUSED)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
