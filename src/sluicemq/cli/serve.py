"""`sluicemq serve`: run a broker until it is stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from sluicemq.cli.console import report
from sluicemq.model.errors import ConfigurationError, JournalDamaged
from sluicemq.server.loading import CONFIG_VARIABLE, LoadedConfig, examine

CLIENT_VARIABLES: Final = frozenset(
    f"SLUICEMQ_{name}"
    for name in ("URL", "USER", "PASSWORD", "PASSWORD_FILE", "TOKEN", "TOKEN_FILE", "CA")
)
"""Environment variables by which commands reach a broker; they are no broker settings."""

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar=CONFIG_VARIABLE,
        help="Configuration file (default: ./sluicemq.toml, /etc/sluicemq/sluicemq.toml).",
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", "-d", help="Directory of the journal and the admin socket."),
]
ListenOption = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        "-l",
        metavar="URL",
        help="Address to listen on, as phpmq://127.0.0.1:9100; repeat for several.",
    ),
]
EphemeralOption = Annotated[
    bool | None, typer.Option("--ephemeral", help="Keep everything in memory only.")
]
LogLevelOption = Annotated[
    str | None, typer.Option("--log-level", help="debug, info, warning or error.")
]
InsecureOption = Annotated[
    bool | None,
    typer.Option("--insecure-public", help="Permit addresses that other machines can reach."),
]


def serve(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    listen: ListenOption = None,
    ephemeral: EphemeralOption = None,
    log_level: LogLevelOption = None,
    insecure_public: InsecureOption = None,
) -> None:
    """Run the broker. Without options: every protocol on its traditional loopback port."""
    loaded = load_flags(config, data_dir, listen, ephemeral, log_level, insecure_public)
    loaded.check()
    raise typer.Exit(_serve(loaded))


def load_flags(
    config: Path | None,
    data_dir: Path | None,
    listen: list[str] | None = None,
    ephemeral: bool | None = None,
    log_level: str | None = None,
    insecure_public: bool | None = None,
) -> LoadedConfig:
    """Load the configuration from these options, the environment and the file. Raises
    ConfigurationError."""
    loaded, errors = examine_flags(config, data_dir, listen, ephemeral, log_level, insecure_public)
    if errors:
        raise ConfigurationError("\n".join(errors))
    return loaded


def examine_flags(
    config: Path | None,
    data_dir: Path | None,
    listen: list[str] | None = None,
    ephemeral: bool | None = None,
    log_level: str | None = None,
    insecure_public: bool | None = None,
) -> tuple[LoadedConfig, list[str]]:
    """Load the valid part of the configuration and return it with the errors in the rest. Raises
    ConfigurationError if the file cannot be read."""
    flags = {
        "broker.data_dir": None if data_dir is None else str(data_dir),
        "broker.ephemeral": ephemeral,
        "logging.level": log_level,
        "insecure_public": insecure_public,
    }
    settings = {k: v for k, v in os.environ.items() if k not in CLIENT_VARIABLES}
    return examine(config, settings, flags, listen or ())


def _serve(loaded: LoadedConfig) -> int:
    # Imported here so that other commands start without the event loop and the protocols.
    from sluicemq.server.run import EXIT_JOURNAL
    from sluicemq.server.run import serve as run_broker

    try:
        return run_broker(loaded.config, loaded.origins)
    except JournalDamaged as error:
        # same exit code as for a later failure: a supervisor must not retry it
        report(error)
        return EXIT_JOURNAL
