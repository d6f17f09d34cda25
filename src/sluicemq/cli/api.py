"""Commands that use the broker's management API over TCP, TLS or a Unix socket.

with Api(location.target()) as api:
    for queue in api.items(LIST_DESTINATIONS, DestinationQuery(kind="queue")):
        ...

Decorators define the commands: a command receives an `Api` and returns its result; the decorators
handle broker location, output format and --watch.

    @query_command(app, "list")
    def list_queues(api: Api, pattern: PatternArgument = "") -> CommandResult: ...

    @action_command(app, "purge")
    def purge(api: Api, name: NameArgument, yes: YesFlag = False) -> CommandResult: ...
"""

from __future__ import annotations

import inspect
import ssl
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec
import typer
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text
from typer.core import TyperCommand

from sluicemq.cli.console import (
    MAX_INTERVAL,
    Column,
    Exit,
    ItemTable,
    JsonFlag,
    UsageError,
    advising,
    check_number,
    err,
    out,
    print_error,
    print_json,
    printable,
    show,
)
from sluicemq.cli.location import BrokerLocation, PasswordFileOption, location_of, location_options
from sluicemq.clients.http import (
    HttpClient,
    HttpRefusal,
    HttpTarget,
    invalid_response_error,
    request_of,
)
from sluicemq.management.operation import AnswerT, ApiOperation, Page, PageQuery, ParametersT
from sluicemq.model.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationMissing,
    ConnectionLost,
    SluiceError,
)

LOGIN_ADVICE: Final = (
    "Log in with --user NAME (and --password-file FILE), or with --token-file FILE."
)
GRANT_ADVICE: Final = (
    "A superuser can permit it: sluicemq permissions grant USER PATTERN OPERATION..."
)

PAGE_SIZE: Final = 500
"""Number of items requested per page."""

QueryT = TypeVar("QueryT", bound=PageQuery)
ItemT = TypeVar("ItemT")


class OperationCaller(ABC):
    """Caller of operations: the API of a running broker, or the files of a stopped one."""

    @abstractmethod
    def call(
        self, operation: ApiOperation[ParametersT, AnswerT], parameters: ParametersT
    ) -> AnswerT:
        """Carry out an operation and return its response."""

    def items(
        self, operation: ApiOperation[QueryT, Page[ItemT]], query: QueryT, maximum: int = 0
    ) -> Iterator[ItemT]:
        """Yield the items of a list from all of its pages; at most `maximum`, 0 = all."""
        count, cursor = 0, ""
        while True:
            limit = min(maximum - count, PAGE_SIZE) if maximum else PAGE_SIZE
            page = self.call(operation, replace(query, limit=limit, cursor=cursor))
            yield from page.items
            count += len(page.items)
            if page.next_cursor is None or count == maximum:
                return
            cursor = page.next_cursor


class Api(HttpClient, OperationCaller):
    """Client of the API whose errors have advice. Closed by `close` or `with`.

    All requests raise the errors of `HttpClient.call`. The notes of an error state how to resolve
    it.
    """

    def call(
        self, operation: ApiOperation[ParametersT, AnswerT], parameters: ParametersT
    ) -> AnswerT:
        """Carry out an operation and return its response."""
        with self._advice():
            return super().call(operation, parameters)

    def lines(
        self, operation: ApiOperation[ParametersT, bytes], parameters: ParametersT
    ) -> Iterator[dict[str, Any]]:
        """Carry out an operation with a streamed response; yield the JSON document of each line as
        it arrives. Until the last one, the connection serves no other request."""
        with self._advice(), closing(self):
            self.send(*request_of(operation, parameters))
            try:
                for line in self.receive_lines():
                    yield msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise invalid_response_error(self.target) from None

    @contextmanager
    def _advice(self) -> Iterator[None]:
        """Add advice to errors; a text in a request that is not UTF-8 becomes a UsageError."""
        try:
            with advising(partial(_advice_for, target=self.target)):
                yield
        except UnicodeEncodeError as error:
            raise utf8_error(error) from None


def utf8_error(error: UnicodeEncodeError) -> UsageError:
    """Return the error for an argument that is not UTF-8."""
    return UsageError(f"{error.object!a} is not UTF-8 text")


def _advice_for(error: SluiceError, target: HttpTarget) -> str:
    """Return advice for an error of a request; "" if there is none."""
    fault = error.__cause__
    match error:
        case HttpRefusal():
            return _ADVICE.get(error.code, "")
        case AuthenticationMissing() | AuthenticationFailed():
            return LOGIN_ADVICE
        case AccessDenied() if str(error).endswith(": this requires a superuser"):
            return "Log in as one with --user NAME."  # no permission grants it
        case AccessDenied() if " may not " in str(error):
            return GRANT_ADVICE
        case ConnectionLost() if isinstance(fault, ssl.SSLCertVerificationError):
            return "Trust its authority with --ca FILE; the host must be one of its names."
        case ConnectionLost() if isinstance(fault, PermissionError):
            return (
                "Only the owner of the broker's data may open this socket: run the command as that "
                "user, or log in with --url http://… and --user."
            )
        case ConnectionLost() if fault is None or isinstance(fault, TimeoutError):
            return ""
        case ConnectionLost() if target.path:
            return (
                "Is it running? sluicemq serve starts one; --data-dir DIR or --url "
                "http://HOST:7680 selects another one."
            )
        case ConnectionLost():
            listener = "http+tls" if target.tls else "http"
            return f"Is it running with a listener {listener}://...?"
    return ""


_ADVICE: Final = {
    "destination-exists": "alter changes its settings.",
    "destination-in-use": "--force removes it all the same.",
    "subscription-in-use": "--force removes it all the same.",
    "destination-not-found": "sluicemq queues and sluicemq topics list the existing ones.",
    "message-not-found": "sluicemq messages list NAME lists the existing ones.",
    "subscription-not-found": "sluicemq subscriptions lists the existing ones.",
    "connection-not-found": "sluicemq connections lists the existing ones.",
    "transaction-not-found": "sluicemq transactions lists the existing ones.",
    "user-not-found": "sluicemq users lists the existing ones.",
    "role-not-found": "sluicemq permissions role lists the existing ones.",
    "token-not-found": "sluicemq users token lists the existing ones.",
    "slot-not-found": "sluicemq slots lists the existing ones.",
    "not-found": "Is the broker older than this program? sluicemq status shows its version.",
    "stopping": "The broker is stopping; try again when it is running.",
}


# --- Commands -------------------------------------------------------------------------------------

DEFAULT_SECONDS: Final = 2.0
"""Default refresh interval of --watch, in seconds."""


class CommandResult(NamedTuple):
    """Result of a command.

    document  output of --json; None if the command has written its output itself
    text      message for the terminal, on standard error
    code      exit code
    output    table, or text for pipes, on standard output
    errors    error messages for the terminal; with any, the exit code is REFUSED at least
    """

    document: Any
    text: str = ""
    code: Exit = Exit.OK
    output: RenderableType | None = None
    errors: Sequence[str] = ()


def list_result(
    items: Iterable[ItemT], columns: Sequence[Column[ItemT]], empty: str = ""
) -> CommandResult:
    """Return the items of a list with their table; `empty` is shown if there are none."""
    rows = list(items)
    if not rows:
        return CommandResult(rows, empty)
    return CommandResult(rows, output=ItemTable(columns, rows))


WatchOption = Annotated[
    float | None,
    typer.Option(
        "--watch",
        metavar="[SECONDS]",
        min=0.1,
        max=MAX_INTERVAL,
        callback=check_number,
        help=f"Refresh at this interval ({DEFAULT_SECONDS:g} s), until Ctrl-C.",
    ),
]
ACTION_OPTIONS: Final = {"as_json": JsonFlag}
QUERY_OPTIONS: Final = {"watch": WatchOption, "as_json": JsonFlag}
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


class WatchableCommand(TyperCommand):
    """Command class whose --watch option has an optional value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default interval if --watch has no value."""
        end = args.index("--") if "--" in args else len(args)
        for index in reversed(range(end)):
            if args[index] == "--watch" and not _is_number(args[index + 1 : index + 2]):
                args.insert(index + 1, str(DEFAULT_SECONDS))
        return super().parse_args(ctx, args)


def open_api(location: BrokerLocation) -> Api:
    """Return a client of the broker at `location`, to be closed by `with`."""
    return Api(location.target())


def action_command(
    app: typer.Typer,
    name: str,
    *preset: object,
    open_resource: Callable[[BrokerLocation], AbstractContextManager[Any]] = open_api,
    login: Any = PasswordFileOption,
    about: str = "",
    options: Mapping[str, Any] = ACTION_OPTIONS,
) -> Callable[[Callable[..., CommandResult]], Callable[..., None]]:
    """Register a function that returns a CommandResult as a command.

    The function receives the object that `open_resource` opens, the `preset` arguments, and the
    arguments and options that its other parameters declare. The help text is `about`, else the
    function's docstring.

    `login` is the option for the password of the user that runs the command, for commands whose
    --password-file means another password. `options` are those for the output.
    """

    def register(command: Callable[..., CommandResult]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            as_json, interval = arguments.pop("as_json", False), arguments.pop("watch", None)
            with open_resource(location_of(arguments)) as resource:
                call = partial(command, resource, *preset, **arguments)
                if interval is None:
                    print_result(call(), as_json)
                else:
                    _watch(call, interval, as_json)

        signed = _with_signature_of(
            run, command, 1 + len(preset), {**options, **location_options(login)}
        )
        kind = WatchableCommand if "watch" in options else None
        app.command(name, cls=kind, help=about or None)(signed)
        return run

    return register


query_command = partial(action_command, options=QUERY_OPTIONS)
"""As `action_command`, for commands that change nothing: they have the option --watch."""


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation before an irreversible action. Raises UsageError without a terminal,
    typer.Exit if the answer is no."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} There is no terminal for the answer; confirm with --yes")
    err().print(f"{printable(question)} [y/N] ", end="", markup=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        err().print("Nothing has been changed.")
        raise typer.Exit(Exit.REFUSED)


def _with_signature_of(
    run: Callable[..., None],
    command: Callable[..., object],
    skipped: int,
    extra_options: Mapping[str, Any],
) -> Callable[..., None]:
    """Return `run` with the signature of `command`, without its first `skipped` parameters and with
    `extra_options`."""
    hints = get_type_hints(command, include_extras=True)
    own_parameters = list(inspect.signature(command).parameters.values())[skipped:]
    parameters = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in own_parameters
    ]
    parameters += [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if annotation is JsonFlag else None,
            annotation=annotation,
        )
        for name, annotation in extra_options.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = command.__doc__
    return run


def print_result(result: CommandResult, as_json: bool) -> None:
    """Print the result of a command and end the command if its exit code is not 0."""
    if as_json:
        if result.document is not None:
            print_json(result.document)
    else:
        if isinstance(result.output, str):
            print(result.output)
        elif result.output is not None:
            show(result.output)
        for error in result.errors:
            print_error(error)
        if result.text:
            err().print(printable(result.text), markup=False)
    if result.code or result.errors:
        raise typer.Exit(result.code or Exit.REFUSED)


def _watch(run_command: Callable[[], CommandResult], interval: float, as_json: bool) -> None:
    console = out()
    if as_json or not console.is_terminal:
        with suppress(KeyboardInterrupt):
            while True:
                print_result(run_command()._replace(code=Exit.OK), as_json)
                sys.stdout.flush()
                time.sleep(interval)
        return
    result = run_command()
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(_screen(result.output or result.text, interval), refresh=True)
            time.sleep(interval)
            try:
                result = run_command()
            except ConnectionLost as error:
                # the broker may be restarting
                result = CommandResult(None, printable(str(error)))


def _screen(content: RenderableType, interval: float) -> Group:
    now = time.strftime("%H:%M:%S%z")
    return Group(Text(f"{now}, every {interval:g} s; Ctrl-C ends", style="dim"), content)


def _is_number(arguments: Iterable[str]) -> bool:
    return any(argument.replace(".", "", 1).isdecimal() for argument in arguments)
