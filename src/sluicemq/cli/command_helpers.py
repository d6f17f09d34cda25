"""Decorators for commands that use the API: the command receives an `Api` and returns its result;
the decorators handle broker location, output format and --watch.

    @query_command(app, "list")
    def list_queues(api: Api, pattern: PatternArgument = "") -> QueryResult: ...

    @action_command(app, "purge")
    def purge(api: Api, name: NameArgument, yes: YesFlag = False) -> ActionResult: ...
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text
from typer.core import TyperCommand

from sluicemq.cli.api import (
    Api,
    BrokerLocation,
    PasswordFileOption,
    location_of,
    location_options,
)
from sluicemq.cli.console import (
    Column,
    Exit,
    JsonFlag,
    UsageError,
    err,
    out,
    print_json,
    printable,
    show,
    table,
)
from sluicemq.model.errors import ConnectionLost

ItemT = TypeVar("ItemT")

USUAL_SECONDS: Final = 2.0
"""Default refresh interval of --watch, in seconds."""


class QueryResult(NamedTuple):
    """Result of a query command.

    document  output of --json
    table     table for the terminal
    empty     message if there is nothing to list
    code      exit code
    """

    document: Any
    table: RenderableType | None
    empty: str = ""
    code: Exit = Exit.OK


def listing(
    items: Iterable[ItemT], columns: Sequence[Column[ItemT]], empty: str = ""
) -> QueryResult:
    """Return the items of a list with their table; `empty` is shown if there are none."""
    found = list(items)
    return QueryResult(found, table(columns, found) if found else None, empty)


class ActionResult(NamedTuple):
    """Result of an action command.

    document  output of --json
    text      one sentence for the terminal
    code      exit code
    output    text on standard output for pipes, besides the sentence
    """

    document: Any
    text: str
    code: Exit = Exit.OK
    output: str = ""


WatchOption = Annotated[
    float | None,
    typer.Option(
        "--watch",
        metavar="[SECONDS]",
        min=0.1,
        help=f"Refresh at this interval ({USUAL_SECONDS:g} s), until Ctrl-C.",
    ),
]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


class WatchableCommand(TyperCommand):
    """Command class whose --watch option has an optional value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default interval if --watch has no value."""
        complete: list[str] = []
        for at, argument in enumerate(args):
            complete.append(argument)
            if argument == "--":
                complete += args[at + 1 :]
                break
            if argument == "--watch" and not _is_number(args[at + 1 : at + 2]):
                complete.append(str(USUAL_SECONDS))
        return super().parse_args(ctx, complete)


@contextmanager
def open_api(place: BrokerLocation) -> Iterator[Api]:
    """Open the API of the broker at `place`."""
    with Api(place.target()) as api:
        yield api


def query_command(
    app: typer.Typer,
    name: str,
    *known: object,
    opening: Callable[[BrokerLocation], AbstractContextManager[Any]] = open_api,
    about: str = "",
) -> Callable[[Callable[..., QueryResult]], Callable[..., None]]:
    """Register a function that returns a QueryResult as a command. The function receives the object
    that `opening` opens, the `known` arguments, and the arguments and options that its other
    parameters declare. The help text is `about`, else the function's docstring."""

    def made(command: Callable[..., QueryResult]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            as_json, interval = given.pop("as_json"), given.pop("watch")
            with opening(location_of(given)) as opened:
                if interval is None:
                    _print_query_result(command(opened, *known, **given), as_json)
                else:
                    _watch(lambda: command(opened, *known, **given), interval, as_json)

        more = {"watch": WatchOption, "as_json": JsonFlag, **location_options()}
        signed = _signed(run, command, 1 + len(known), more)
        app.command(name, cls=WatchableCommand, help=about or None)(signed)
        return run

    return made


def action_command(
    app: typer.Typer,
    name: str,
    *known: object,
    opening: Callable[[BrokerLocation], AbstractContextManager[Any]] = open_api,
    login: Any = PasswordFileOption,
    about: str = "",
) -> Callable[[Callable[..., ActionResult]], Callable[..., None]]:
    """Register a function that performs an action and returns an ActionResult as a command.

    Works like `query_command`. `login` is the option for the password of the user that runs the
    command, for commands whose --password-file means another password.
    """

    def made(command: Callable[..., ActionResult]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            as_json = given.pop("as_json")
            with opening(location_of(given)) as opened:
                _print_action_result(command(opened, *known, **given), as_json)

        more = {"as_json": JsonFlag, **location_options(login)}
        app.command(name, help=about or None)(_signed(run, command, 1 + len(known), more))
        return run

    return made


def broker_command(
    app: typer.Typer,
    name: str,
    opening: Callable[[BrokerLocation], AbstractContextManager[Any]] = open_api,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function that prints its own output as a command; see `query_command`."""

    def made(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            with opening(location_of(given)) as opened:
                command(opened, **given)

        app.command(name)(_signed(run, command, 1, location_options()))
        return run

    return made


def _print_action_result(result: ActionResult, as_json: bool) -> None:
    if as_json:
        print_json(result.document)
    else:
        if result.output:
            sys.stdout.write(result.output + "\n")
        if result.text:
            err().print(printable(result.text), markup=False)
    if result.code:
        raise typer.Exit(result.code)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation before an irreversible action. Raises UsageError without a terminal,
    typer.Exit if the answer is no."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} There is no terminal to answer that; say --yes to do it")
    err().print(f"{printable(question)} [y/N] ", end="", markup=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        err().print("Nothing has been changed.")
        raise typer.Exit(Exit.REFUSED)


def _signed(
    run: Callable[..., None], command: Callable[..., object], first: int, more: Mapping[str, Any]
) -> Callable[..., None]:
    """Return `run` with the signature of `command`: `first`, its own parameters, and `more`."""
    hints = get_type_hints(command, include_extras=True)
    own = list(inspect.signature(command).parameters.values())[first:]
    parameters = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in own
    ]
    parameters += [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if annotation is JsonFlag else None,
            annotation=annotation,
        )
        for name, annotation in more.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__ = command.__doc__
    run.__name__ = getattr(command, "__name__", "command")
    return run


def _print_query_result(result: QueryResult, as_json: bool) -> None:
    if as_json:
        print_json(result.document)
    elif result.table is not None:
        show(result.table)
    if result.table is None and result.empty and not as_json:
        err().print(printable(result.empty), markup=False)
    if result.code:
        raise typer.Exit(result.code)


def _watch(look: Callable[[], QueryResult], interval: float, as_json: bool) -> None:
    console = out()
    if as_json or not console.is_terminal:
        with suppress(KeyboardInterrupt):
            while True:
                result = look()
                _print_query_result(result._replace(code=Exit.OK), as_json)
                sys.stdout.flush()
                time.sleep(interval)
        return
    first = look()
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        live.update(_screen(first.table or first.empty, interval), refresh=True)
        while True:
            time.sleep(interval)
            try:
                result = look()
                live.update(_screen(result.table or result.empty, interval), refresh=True)
            except ConnectionLost as lost:
                # the broker may be restarting
                live.update(_screen(printable(str(lost)), interval), refresh=True)


def _screen(what: RenderableType, interval: float) -> Group:
    now = time.strftime("%H:%M:%S%z")
    return Group(Text(f"{now}, every {interval:g} s; Ctrl-C ends", style="dim"), what)


def _is_number(arguments: Iterable[str]) -> bool:
    return any(argument.replace(".", "", 1).isdecimal() for argument in arguments)
