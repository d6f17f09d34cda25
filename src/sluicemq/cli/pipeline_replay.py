"""`sluicemq pipeline replay` and `sluicemq pipeline decode`: publish past traffic again, and decode
captured traffic."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sluicemq.broker import compile_selector
from sluicemq.cli.console import Exit, JsonFlag, complain, err, out, print_json
from sluicemq.cli.pipeline_helpers import require_pipeline, spark_session
from sluicemq.model.errors import ConfigurationError, SelectorError
from sluicemq.security.passwords import read_secret_file

PASSWORD: Final = "PIPELINE_PASSWORD"
TOKEN: Final = "PIPELINE_TOKEN"
"""Environment variables for secrets, which must not appear in the process list."""

_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")

PasswordOption = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help=f"For --url; or the variable {PASSWORD}."),
]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help=f"For --url; or the variable {TOKEN}."),
]


def lake_directory(text: str) -> Path:
    """Parse `--lake`: a path, or a `file:` URL of an absolute path. Raises BadParameter."""
    if _SCHEME.match(text) is None:
        return Path(text)
    url = urlsplit(text)
    if url.scheme != "file" or url.netloc or not url.path.startswith("/"):
        raise typer.BadParameter(
            f"{text}: the tables are in a local directory; write its path, or file:///path"
        )
    return Path(unquote(url.path))


LakeOption = Annotated[
    Path,
    typer.Option("--lake", metavar="DIR", help="Directory of the tables.", parser=lake_directory),
]
FormatOption = Annotated[
    str, typer.Option("--format", help="Format of the tables: delta, iceberg or parquet.")
]


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


def replay(
    lake: LakeOption,
    url: Annotated[str, typer.Option("--url", help="The broker: http://user@host:7680")],
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
    format: FormatOption = "delta",
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

        place = Lake(lake, format)
        table = place.table("silver")
    if not table.exists():
        raise ConfigurationError(
            f"there is no table silver of the format {format} in {lake}: sluicemq pipeline run or "
            "backfill makes one"
        )
    with spark_session("sluicemq replay", place.log) as spark:
        frame = table.frame(spark)
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
        typer.Option("--output", "-o", metavar="DIR", help="Write the frames to this table."),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="Format of that table.")] = "parquet",
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
        summary = decode_all(spark, captures, options, output=output, kind=format, lines=lines)
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
