"""`sluicemq queues` and `sluicemq top`: what a running broker says about itself.

The broker answers each connection to the Unix socket `status.sock` in its data directory with one
JSON document.
"""

from __future__ import annotations

import fnmatch
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluicemq.cli.console import Exit, JsonFlag, err, out, print_json, printable
from sluicemq.cli.serve import ConfigOption, DataDirOption, load_flags
from sluicemq.model.errors import ConfigurationError, ConnectionLost
from sluicemq.server.settings import unknown

TIMEOUT: Final = 5.0
"""Seconds for the broker to answer."""
MAX_DOCUMENT: Final = 256 * 1024**2

SocketOption = Annotated[
    Path | None,
    typer.Option("--status-socket", help="The broker's status socket, if not in its data dir."),
]
PatternArgument = Annotated[
    str, typer.Argument(metavar="[PATTERN]", help="Only names like this: orders.*")
]
SortOption = Annotated[str, typer.Option("--sort", help="Column to sort by, largest first.")]


class Destination(msgspec.Struct, frozen=True):
    """A queue or topic as the broker shows it. Sizes in bytes, rates per second, ages in ms."""

    name: str
    kind: str = "queue"
    waiting: int = 0
    unacked: int = 0
    bytes: int = 0
    consumers: int = 0
    rate_in: float = 0.0
    rate_out: float = 0.0
    published: int = 0
    settled: int = 0
    expired: int = 0
    dead_lettered: int = 0
    oldest_ms: int = 0


class Listening(msgspec.Struct, frozen=True):
    """An open listener."""

    url: str
    connections: int = 0


class Report(msgspec.Struct, frozen=True):
    """The part of the document that the tables show."""

    version: str = ""
    uptime: float = 0.0
    memory: int = 0
    listeners: list[Listening] = []
    destinations: list[Destination] = []


_COLUMNS: Final = ("waiting", "unacked", "bytes", "consumers", "rate_in", "rate_out", "oldest_ms")
_TITLES: Final = ("waiting", "in flight", "size", "consumers", "in/s", "out/s", "oldest")
_SORTABLE: Final = ("name", *_COLUMNS, "published", "settled", "expired", "dead_lettered")


def queues(
    pattern: PatternArgument = "*",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    status_socket: SocketOption = None,
    sort: SortOption = "name",
    as_json: JsonFlag = False,
) -> None:
    """List the queues and topics of the broker that runs on this machine."""
    path = _socket_path(config, data_dir, status_socket)
    _check_sort(sort)
    document = fetch(path)
    if as_json:
        found = document.get("destinations", [])
        print_json([each for each in found if fnmatch.fnmatchcase(each.get("name", ""), pattern)])
        return
    report = _decode(document, path)
    chosen = _choose(report, pattern, sort)
    if not chosen:
        err().print(
            "There are no queues." if pattern == "*" else f"No queue is like {pattern}.",
            markup=False,
        )
        raise typer.Exit(Exit.REFUSED if pattern != "*" else Exit.OK)
    out().print(_table(chosen))


def top(
    pattern: PatternArgument = "*",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    status_socket: SocketOption = None,
    sort: SortOption = "rate_in",
    interval: Annotated[
        float, typer.Option("--interval", "-n", min=0.1, help="Seconds between two looks.")
    ] = 1.0,
    count: Annotated[
        int, typer.Option("--count", min=0, help="Stop after so many looks; 0 = never.")
    ] = 0,
) -> None:
    """Watch the queues and topics of the broker that runs on this machine. Ctrl-C ends it."""
    path = _socket_path(config, data_dir, status_socket)
    _check_sort(sort)
    console = out()
    if not console.is_terminal:
        for look in _looks(path, interval, count):
            console.print(_screen(look, pattern, sort, None))
        return
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        for look in _looks(path, interval, count):
            live.update(_screen(look, pattern, sort, console), refresh=True)


def fetch(path: Path) -> dict[str, Any]:
    """The document of the broker behind a status socket. Raises ConnectionLost."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(str(path))
            content = bytearray()
            while data := connection.recv(1 << 16):
                content += data
                if len(content) > MAX_DOCUMENT:
                    raise ConnectionLost(f"what answers at {path} is not a broker")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConnectionLost(f"no broker answers at {path}: {reason}") from None
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ConnectionLost(f"what answers at {path} is not a broker") from None


def _looks(path: Path, interval: float, count: int) -> Iterator[Report]:
    done = 0
    while True:
        yield _decode(fetch(path), path)
        done += 1
        if done == count:
            return
        sys.stdout.flush()
        time.sleep(interval)


def _decode(document: dict[str, Any], path: Path) -> Report:
    try:
        return msgspec.convert(document, Report)
    except msgspec.ValidationError as error:
        raise ConnectionLost(
            f"the broker at {path} answers in a way this version does not know: {error}"
        ) from None


def _socket_path(config: Path | None, data_dir: Path | None, given: Path | None) -> Path:
    return given if given is not None else load_flags(config, data_dir).config.status_socket


def _check_sort(sort: str) -> None:
    if sort not in _SORTABLE:
        raise ConfigurationError(str(unknown("--sort", sort, list(_SORTABLE))))


def _choose(report: Report, pattern: str, sort: str) -> list[Destination]:
    chosen = [d for d in report.destinations if fnmatch.fnmatchcase(d.name, pattern)]
    chosen.sort(key=lambda destination: destination.name)
    if sort != "name":
        chosen.sort(key=lambda destination: getattr(destination, sort), reverse=True)
    return chosen


def _screen(report: Report, pattern: str, sort: str, console: Console | None) -> Group:
    chosen = _choose(report, pattern, sort)
    connections = sum(listener.connections for listener in report.listeners)
    waiting = sum(destination.waiting for destination in report.destinations)
    head = Text(
        f"sluicemq {printable(report.version)}  up {age(report.uptime * 1000)}  "
        f"{size(report.memory)} memory  {connections} connections  {waiting} waiting"
    )
    if console is not None:
        room = max(1, console.height - 5)
        hidden = len(chosen) - room
        chosen = chosen[:room]
        if hidden > 0:
            head.append(f"  ({hidden} more below)")
    return Group(head, _table(chosen))


def _table(destinations: Sequence[Destination]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", overflow="fold")
    for title in _TITLES:
        table.add_column(title, justify="right", no_wrap=True)
    for each in destinations:
        name = printable(each.name) if each.kind == "queue" else f"topic:{printable(each.name)}"
        table.add_row(
            escape(name),
            str(each.waiting),
            str(each.unacked),
            size(each.bytes),
            str(each.consumers),
            f"{each.rate_in:.1f}",
            f"{each.rate_out:.1f}",
            age(each.oldest_ms) if each.waiting else "-",
        )
    return table


def size(count: float) -> str:
    """Bytes, for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def age(milliseconds: float) -> str:
    """A duration in its largest unit, for people."""
    seconds = milliseconds / 1000
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
