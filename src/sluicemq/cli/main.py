"""The program `sluicemq`: its commands, and the one place that converts errors to exit codes.

Each command's module is imported on first use: the broker, the pipeline and the benchmark take
longer to load than most commands take to run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

import sluicemq
from sluicemq.cli.console import Exit, naming_file, report
from sluicemq.model.errors import SluiceError

_PANELS: Final = {
    "Run a broker": {
        "serve": ("configuration", "serve_app"),
        "demo": ("bench", "app"),
        "bench": ("bench", "app"),
    },
    "Messages": {
        "send": ("send_receive", "app"),
        "receive": ("send_receive", "app"),
        "messages": ("messages", "app"),
        "dlq": ("messages", "dlq"),
    },
    "Queues and topics": {
        "queues": ("destinations", "queues"),
        "topics": ("destinations", "topics"),
        "subscriptions": ("client_commands", "subscriptions"),
        "top": ("status", "app"),
    },
    "Connections": {
        "connections": ("client_commands", "connections"),
        "consumers": ("client_commands", "consumers"),
        "transactions": ("client_commands", "transactions"),
    },
    "Users": {
        "users": ("users", "app"),
        "permissions": ("users", "permissions_app"),
        "audit": ("status", "app"),
    },
    "The broker": {
        "status": ("status", "app"),
        "health": ("status", "app"),
        "config": ("configuration", "app"),
    },
    "The data": {
        "backup": ("journal", "backup"),
        "restore": ("journal", "restore_app"),
        "journal": ("journal", "app"),
        "slots": ("client_commands", "slots"),
        "pipeline": ("pipeline", "app"),
        "migrate": ("migrate", "app"),
    },
}
"""Commands by their section of the help: a module and in it a Typer application, which has a
command of that name or is the group of that name."""

COMMANDS: Final = {
    name: (f"sluicemq.cli.{module}", object_name, panel)
    for panel, commands in _PANELS.items()
    for name, (module, object_name) in commands.items()
}


class Commands(TyperGroup):
    """Command group that loads the commands of COMMANDS on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands in the order of the help."""
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load a command."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name)
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
        from sluicemq.broker import COMPILED

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
            help="Print the version and whether the build is compiled.",
        ),
    ] = False,
) -> None:
    """Process the options that precede a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` None = those of the process. Returns the exit code."""
    return run_app(app, "sluicemq", arguments)


def run_app(app: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command of a program called `name`, report its errors, and return the exit code."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name=name)
    except SystemExit as finished:
        return finished.code if isinstance(finished.code, int) else Exit.OK
    except BrokenPipeError:
        # The reader of standard output has closed the pipe (| head); discard buffered output.
        sys.stderr.close()
        return Exit.REFUSED
    except (SluiceError, OSError) as error:
        return report(error)
    except KeyboardInterrupt:
        return 130
    return Exit.OK


def run() -> None:
    """Entry point of the installed program."""
    _open_closed_streams()
    # names, bodies and bars may have characters that the encoding of the locale lacks
    sys.stdout = TextIOWrapper(
        _StandardOutput(FileIO(sys.stdout.fileno(), "wb", closefd=False)),
        sys.stdout.encoding,
        errors="backslashreplace",
        # with PYTHONUNBUFFERED=1, there is no buffer
        line_buffering=sys.stdout.isatty() or isinstance(sys.stdout.buffer, FileIO),
    )
    code = main()
    try:
        sys.stdout.flush()
    except OSError as error:
        # at exit, the interpreter writes the buffer again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or (Exit.REFUSED if isinstance(error, BrokenPipeError) else report(error))
    sys.exit(code)


class _StandardOutput(BufferedWriter):
    """Standard output, which the errors of writing name.

    The raw stream has no methods in Python: a signal handler that raises in `FileIO.write` would
    hide how many bytes are written, and they would be written again.
    """

    def write(self, data: Any) -> int:
        with naming_file("standard output"):
            return super().write(data)

    def flush(self) -> None:
        with naming_file("standard output"):
            super().flush()


def _open_closed_streams() -> None:
    """Open the null device for standard streams that were closed when the process started.

    Otherwise the next files and sockets would get their descriptors. Writing to standard output
    still fails, so that `receive` does not acknowledge a message that was not written.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _load(name: str) -> Any:
    module, object_name, panel = COMMANDS[name]
    group = get_group(getattr(import_module(module), object_name))
    command: Any = group.commands.get(name, group)
    command.name = name
    command.rich_help_panel = panel
    return command
