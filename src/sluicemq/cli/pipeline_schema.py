"""`sluicemq pipeline schema ...`: schemas of typed tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from sluicemq.cli.pipeline_helpers import require_pipeline, spark_session
from sluicemq.cli.pipeline_replay import PasswordOption, TokenOption, source_of
from sluicemq.model.errors import ConfigurationError

_SAMPLE: Final = 10_000

app = typer.Typer(
    help="Schemas of typed tables.", no_args_is_help=True, pretty_exceptions_enable=False
)


@app.callback()
def schemas() -> None:
    """Schemas of typed tables (pipeline.toml)."""


@app.command()
def infer(
    destination: Annotated[
        str,
        typer.Argument(metavar="DESTINATION", help="Pattern, such as 'orders*', or topic:NAME."),
    ],
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            metavar="DIR",
            help="Data directory of a broker; default: the configured one.",
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Read from a broker instead: http://user@host:7680")
    ] = None,
    password_file: PasswordOption = None,
    token_file: TokenOption = None,
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
    """Print a [[table]] for pipeline.toml with the schema of a destination's messages.

    Review the types before you use it: a sample does not show every value.
    """
    source = source_of(journal, url, password_file, token_file)
    with require_pipeline():
        from sluicemq.pipeline.typed.definition import Format
        from sluicemq.pipeline.typed.infer import block, infer_schema, read_published, table_name

    if format and format not in list(Format):
        raise ConfigurationError(f"--format: {format!r} is none of {', '.join(Format)}")
    with spark_session("sluicemq schema") as spark:
        events = read_published(spark, source, destination)
        inferred = infer_schema(events, destination, Format(format) if format else None, messages)
    print(block(inferred, destination, name or table_name(destination)), end="")
