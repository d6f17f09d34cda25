"""`sluicemq config …`: what is configured, whether it makes sense, what there is to configure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sluicemq.cli.console import Exit, JsonFlag, complain, err, print_json
from sluicemq.cli.serve import (
    ConfigOption,
    DataDirOption,
    EphemeralOption,
    InsecureOption,
    ListenOption,
    LogLevelOption,
    load_flags,
)
from sluicemq.server.reference import describe, render, to_builtins

app = typer.Typer(
    help="Show, check and explain the configuration.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def show(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    listen: ListenOption = None,
    ephemeral: EphemeralOption = None,
    log_level: LogLevelOption = None,
    insecure_public: InsecureOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add each setting's meaning and where it is from.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the configuration that results from file, environment and options, as a file."""
    loaded = load_flags(config, data_dir, listen, ephemeral, log_level, insecure_public)
    if as_json:
        print_json(to_builtins(loaded.config))
    else:
        sys.stdout.write(render(loaded.config, loaded.origins if explain else None))


@app.command()
def check(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    listen: ListenOption = None,
    ephemeral: EphemeralOption = None,
    log_level: LogLevelOption = None,
    insecure_public: InsecureOption = None,
) -> None:
    """Find everything that would keep the broker from starting with this configuration."""
    loaded = load_flags(config, data_dir, listen, ephemeral, log_level, insecure_public)
    problems = list(loaded.config.problems())
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(Exit.USAGE)
    for warning in loaded.config.warnings():
        err().print(f"warning: {warning}", style="yellow", markup=False)
    sources = sorted(set(loaded.origins.values()))
    err().print(f"The configuration is sound (from {', '.join(sources) or 'defaults'}).")


@app.command()
def docs(
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the page to a file.")
    ] = None,
) -> None:
    """Print the reference of all settings (Markdown)."""
    if write is None:
        sys.stdout.write(describe())
    else:
        write.write_text(describe(), encoding="utf-8")
