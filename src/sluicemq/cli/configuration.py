"""`sluicemq serve`: run a broker until it is stopped. `sluicemq config …`: show and check the
configuration."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer

from sluicemq.cli.api import Api, list_result, print_result
from sluicemq.cli.console import (
    Column,
    Exit,
    JsonFlag,
    UsageError,
    err,
    print_error,
    print_json,
    report,
)
from sluicemq.cli.location import (
    AuthorityOption,
    BrokerLocation,
    ConfigOption,
    DataDirOption,
    EphemeralOption,
    InsecureOption,
    ListenOption,
    LogLevelOption,
    PasswordFileOption,
    TokenFileOption,
    UrlOption,
    UserOption,
    configuration_advice,
    configuration_sources,
    load_flags,
)
from sluicemq.management.broker import LIST_SETTINGS, ConfigurationQuery, SettingView
from sluicemq.model.errors import JournalDamaged, JournalFailed
from sluicemq.server.configuration_reference import render, to_builtins
from sluicemq.server.loading import examine
from sluicemq.server.settings import Unit, format_quantity

serve_app = typer.Typer()


@serve_app.command()
def serve(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    listen: ListenOption = None,
    ephemeral: EphemeralOption = None,
    log_level: LogLevelOption = None,
    insecure_public: InsecureOption = None,
) -> None:
    """Run the broker. Without options: every protocol on its traditional loopback port."""
    # Imported here so that other commands start without the event loop and the protocols.
    from sluicemq.server.run import EXIT_JOURNAL
    from sluicemq.server.run import serve as run_broker

    loaded_config = load_flags(config, data_dir, listen, ephemeral, log_level, insecure_public)
    try:
        with configuration_advice():
            raise typer.Exit(run_broker(loaded_config))
    except (JournalDamaged, JournalFailed) as error:
        # same exit code as for a later failure: a supervisor must not retry it
        report(error)
        raise typer.Exit(EXIT_JOURNAL) from None


app = typer.Typer(
    help="Show, check and explain the configuration.",
    no_args_is_help=True,
)


@app.command("show")
def show_configuration(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    listen: ListenOption = None,
    ephemeral: EphemeralOption = None,
    log_level: LogLevelOption = None,
    insecure_public: InsecureOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add each setting's meaning and source.")
    ] = False,
    live: Annotated[
        bool,
        typer.Option("--live", help="Show a running broker's effective settings, without secrets."),
    ] = False,
    url: UrlOption = None,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
    ca: AuthorityOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the configuration that results from file, environment and options, as a file."""
    location = BrokerLocation(url, user, password_file, token_file, ca, config, data_dir)
    if live:
        meaning: Column[SettingView] = Column("Meaning", lambda item: item.description)
        with Api(location.target()) as api:
            items = api.items(LIST_SETTINGS, ConfigurationQuery())
            print_result(list_result(items, (*_LIVE, meaning) if explain else _LIVE), as_json)
        return
    if any((url, user, password_file, token_file, ca)):
        raise UsageError(
            "options of a running broker require --live; without it, the command reads a file"
        )
    loaded_config = load_flags(config, data_dir, listen, ephemeral, log_level, insecure_public)
    if as_json:
        print_json(to_builtins(loaded_config.config))
    else:
        print(render(loaded_config.config, loaded_config.origins if explain else None), end="")


@app.command()
def check(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    listen: ListenOption = None,
    ephemeral: EphemeralOption = None,
    log_level: LogLevelOption = None,
    insecure_public: InsecureOption = None,
) -> None:
    """Report all errors that would keep the broker from starting with this configuration.

    Reports each error with file and line. Then performs the checks of serve: the data directory,
    the user database, certificates with their keys, and the addresses, unless a broker uses them
    already.
    """
    from sluicemq.server.startup_checks import check_startup

    loaded_config, problems = examine(
        *configuration_sources(config, data_dir, listen, ephemeral, log_level, insecure_public)
    )
    if loaded_config.config.listeners or not problems:  # without listeners they are the problem
        problems += loaded_config.problems()
    for startup_check in check_startup(loaded_config.config):
        if startup_check.problem:
            problems.append(loaded_config.locate(startup_check.problem, startup_check.subject))
        elif not any(startup_check.subject in problem for problem in problems):
            err().print(f"tried: {startup_check.description}", style="dim", markup=False)
    for problem in problems:
        print_error(problem)
    if problems:
        raise typer.Exit(Exit.USAGE)
    for warning in loaded_config.config.warnings():
        err().print(f"warning: {warning}", style="yellow", markup=False)
    sources = sorted(set(loaded_config.origins.values()))
    err().print(f"The configuration is valid (from {', '.join(sources) or 'defaults'}).")


def _value(value: object, unit: str) -> str:
    if isinstance(value, str):
        return value
    if unit and isinstance(value, int | float):
        return format_quantity(value, Unit(unit))
    return "-" if value is None else msgspec.json.encode(value).decode()


_LIVE: Final[tuple[Column[SettingView], ...]] = (
    Column("Setting", lambda item: item.name),
    Column("Value", lambda item: _value(item.value, item.unit)),
    Column("Default", lambda item: _value(item.default, item.unit)),
    Column("From", lambda item: item.source),
)
