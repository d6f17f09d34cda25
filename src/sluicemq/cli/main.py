"""The program `sluicemq`: its commands, and the one place where errors become exit codes.

A command's module is imported when it is called: the broker, the pipeline and the benchmark take
longer to load than most commands take.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

import sluicemq
from sluicemq.cli.console import Exit, report
from sluicemq.model.errors import SluiceError


class Place(NamedTuple):
    """Where a command is: a function or a Typer application in a module; `panel` of the help. An
    application whose only command is called as it is itself is that command."""

    module: str
    name: str
    panel: str


_RUN: Final = "Run a broker"
_MESSAGES: Final = "Messages"
_DESTINATIONS: Final = "Queues and topics"
_CLIENTS: Final = "Who is connected"
_ACCESS: Final = "Users"
_BROKER: Final = "The broker"
_DATA: Final = "The data"

COMMANDS: Final = {
    "serve": Place("sluicemq.cli.serve", "serve", _RUN),
    "demo": Place("sluicemq.cli.demo", "demo", _RUN),
    "bench": Place("sluicemq.cli.bench.command", "app", _RUN),
    "send": Place("sluicemq.cli.exchange", "send", _MESSAGES),
    "receive": Place("sluicemq.cli.exchange", "receive", _MESSAGES),
    "messages": Place("sluicemq.cli.messages", "app", _MESSAGES),
    "dlq": Place("sluicemq.cli.dead_letters", "app", _MESSAGES),
    "queues": Place("sluicemq.cli.destinations", "queues", _DESTINATIONS),
    "topics": Place("sluicemq.cli.destinations", "topics", _DESTINATIONS),
    "subscriptions": Place("sluicemq.cli.subscriptions", "app", _DESTINATIONS),
    "top": Place("sluicemq.cli.top", "app", _DESTINATIONS),
    "connections": Place("sluicemq.cli.connections", "app", _CLIENTS),
    "consumers": Place("sluicemq.cli.consumers", "app", _CLIENTS),
    "transactions": Place("sluicemq.cli.transactions", "app", _CLIENTS),
    "users": Place("sluicemq.cli.users", "app", _ACCESS),
    "permissions": Place("sluicemq.cli.permissions", "app", _ACCESS),
    "audit": Place("sluicemq.cli.audit", "app", _ACCESS),
    "status": Place("sluicemq.cli.status", "status_app", _BROKER),
    "health": Place("sluicemq.cli.status", "health_app", _BROKER),
    "config": Place("sluicemq.cli.configuration", "app", _BROKER),
    "backup": Place("sluicemq.cli.backup", "app", _DATA),
    "restore": Place("sluicemq.cli.backup", "restore_app", _DATA),
    "journal": Place("sluicemq.cli.journal", "app", _DATA),
    "slots": Place("sluicemq.cli.slots", "app", _DATA),
    "pipeline": Place("sluicemq.cli.pipeline", "app", _DATA),
    "migrate": Place("sluicemq.cli.migrate.command", "app", _DATA),
}


class Commands(TyperGroup):
    """The commands of COMMANDS, beside those that are always loaded."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All of them, as the help shows them."""
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Loads it."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name, COMMANDS[cmd_name])
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=Commands,
    name="sluicemq",
    help="One message broker for PHPMQ, VibeMQ, Open MQ's JMS protocol and msglite.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        from sluicemq.broker.build import COMPILED

        print(f"sluicemq {sluicemq.__version__}{' (compiled)' if COMPILED else ''}")
        raise typer.Exit


@app.callback()
def _group(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version, and whether it is the compiled build.",
        ),
    ] = False,
) -> None:
    """Take the options that precede a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` None = those of the process. Returns the exit code."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="sluicemq")
    except SystemExit as finished:
        return finished.code if isinstance(finished.code, int) else Exit.OK
    except BrokenPipeError:
        # The reader of our output has gone (| head). What is buffered has nowhere to go either.
        sys.stderr.close()
        return Exit.REFUSED
    except (SluiceError, OSError) as error:
        return report(error)
    except KeyboardInterrupt:
        return 130
    return Exit.OK


def run() -> None:
    """Entry point of the installed program."""
    sys.exit(main())


def _load(name: str, place: Place) -> Any:
    found = getattr(import_module(place.module), place.name)
    if isinstance(found, typer.Typer):
        only = [command.name for command in found.registered_commands] == [name]
        command: Any = get_command(found) if only else get_group(found)
    else:
        single = typer.Typer(add_completion=False)
        single.command(name)(found)
        command = get_command(single)
    command.name = name
    command.rich_help_panel = place.panel
    return command
