"""The program `sluicemq`: its commands, and the one place where errors become exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import sluicemq
from sluicemq.broker.build import COMPILED
from sluicemq.cli import (
    configuration,
    demo,
    journal,
    messages,
    permissions,
    pipeline,
    serve,
    status,
    users,
)
from sluicemq.cli.bench import command as bench
from sluicemq.cli.console import Exit, print_json, report
from sluicemq.model.errors import SluiceError

app = typer.Typer(
    name="sluicemq",
    help="One message broker for PHPMQ, VibeMQ, Open MQ's JMS protocol and msglite.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("send")(messages.send)
app.command("receive")(messages.receive)
app.command("queues")(status.queues)
app.command("top")(status.top)
app.command("demo")(demo.demo)
app.add_typer(bench.app, name="bench")
app.add_typer(configuration.app, name="config")
app.add_typer(journal.app, name="journal")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(users.app, name="users")
app.add_typer(permissions.app, name="permissions")


@app.command()
def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Print the version, and whether it is the compiled build."""
    if as_json:
        python = sys.version.split()[0]
        print_json({"version": sluicemq.__version__, "python": python, "compiled": COMPILED})
    else:
        print(f"sluicemq {sluicemq.__version__}{' (compiled)' if COMPILED else ''}")


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
