"""`sluicemq status`, `health`, `audit` and `top`: overview, health, audit log and live view of a
running broker.

In the live view the broker sorts and counts, and each request asks only for the visible rows, so
the cost does not grow with the number of destinations.
"""

from __future__ import annotations

import itertools
import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple, TextIO

import msgspec
import typer
from msgspec import UNSET
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sluicemq.cli import client_commands, destinations
from sluicemq.cli.api import Api, CommandResult, action_command, list_result, query_command
from sluicemq.cli.console import (
    MAX_INTERVAL,
    Column,
    Exit,
    ItemTable,
    age,
    check_number,
    choice_of,
    moment,
    number,
    out,
    pairs,
    printable,
    rate,
    show,
    size,
    sparkline,
)
from sluicemq.cli.destinations import address_in
from sluicemq.clients.http import HttpRefusal
from sluicemq.management.broker import (
    GET_OVERVIEW,
    GET_READINESS,
    LIST_AUDIT_ENTRIES,
    AuditEntry,
    JournalStatsView,
    ListenerItem,
    OverviewQuery,
    OverviewView,
    ProtocolView,
    QuantilesView,
)
from sluicemq.management.clients import (
    LIST_CONNECTIONS,
    LIST_CONSUMERS,
    ConnectionQuery,
    ConsumerQuery,
)
from sluicemq.management.destinations import LIST_DESTINATIONS, DestinationQuery
from sluicemq.management.operation import (
    ApiOperation,
    NoParameters,
    Page,
    PageQuery,
    SortedPageQuery,
)
from sluicemq.model.errors import ConnectionLost

# --- `sluicemq status`, `health` and `audit` ------------------------------------------------------

app = typer.Typer()

_PROTOCOLS: Final[tuple[Column[tuple[str, ProtocolView]], ...]] = (
    Column("Protocol", lambda item: item[0]),
    Column("Connections", lambda item: number(item[1].connections), align_right=True),
    Column("Publish rate", lambda item: rate(item[1].publish_rate), align_right=True),
    Column("Deliver rate", lambda item: rate(item[1].deliver_rate), align_right=True),
)
_LISTENERS: Final[tuple[Column[ListenerItem], ...]] = (
    Column("Listener", lambda item: item.url),
    Column("Connections", lambda item: number(item.connections), align_right=True),
)


@query_command(app, "status")
def status(api: Api) -> CommandResult:
    """Show load, memory, protocols, listeners, journal and alarms of the broker."""
    overview = api.call(GET_OVERVIEW, OverviewQuery())
    return CommandResult(overview, output=details(overview))


@query_command(app, "health")
def health(api: Api) -> CommandResult:
    """Check the broker's health: exit code 0 if it serves clients, else 1. Needs no login."""
    try:
        document = api.call(GET_READINESS, NoParameters())
    except HttpRefusal as error:
        if error.status != 503:
            raise
        problem = msgspec.json.decode(error.answer, type=dict[str, Any])
        rows = [(name, str(value)) for name, value in problem.items()]
        return CommandResult(problem, output=pairs(rows), code=Exit.REFUSED)
    return CommandResult(document, output=pairs([("state", document.state)]))


def recent_rates(overview: OverviewView) -> tuple[list[float], list[float]]:
    """Return the publish and deliver rates of the last minutes."""
    history = overview.history
    return ([], []) if history is UNSET else (history.publish_rate, history.deliver_rate)


def details(overview: OverviewView) -> RenderableType:
    """Return the overview as text."""
    totals = overview.totals
    published, delivered = recent_rates(overview)
    rows: list[tuple[str, RenderableType]] = [
        (
            "broker",
            f"sluicemq {overview.version}{' (compiled)' if overview.compiled else ''}, "
            f"up {age(overview.uptime_ms)}, broker ID {overview.broker_id}",
        ),
        (
            "memory",
            f"{size(overview.resident_memory_bytes)}, of which messages "
            f"{size(overview.message_memory_bytes)}",
        ),
        (
            "messages",
            f"{number(totals.ready)} ready, {number(totals.unacked)} unacked, in "
            f"{number(totals.queues)} queues and {number(totals.topics)} topics",
        ),
        ("publish rate", f"{rate(totals.publish_rate)}  {sparkline(published, destinations.BARS)}"),
        ("deliver rate", f"{rate(totals.deliver_rate)}  {sparkline(delivered, destinations.BARS)}"),
        (
            "clients",
            f"{number(totals.connections)} connections, {number(totals.consumers)} consumers",
        ),
        ("event loop lag", _quantiles(overview.loop_lag_ms)),
        ("journal", _journal(overview.journal)),
    ]
    parts: list[RenderableType] = [pairs(rows)]
    if overview.alarms:
        parts += [
            Text(),
            *(Text(f"! {alarm.message}", style="bold red") for alarm in overview.alarms),
        ]
    if overview.protocols:
        parts += [Text(), ItemTable(_PROTOCOLS, overview.protocols.items())]
    if overview.listeners:
        parts += [Text(), ItemTable(_LISTENERS, overview.listeners)]
    return Group(*parts)


def _quantiles(durations: QuantilesView) -> str:
    return f"p50 {durations.p50:.1f} ms, p99 {durations.p99:.1f} ms, max {durations.max:.1f} ms"


def _journal(journal: JournalStatsView) -> str:
    if not journal.enabled:
        return "none: messages are in memory only"
    return (
        f"{size(journal.bytes)} in {number(journal.segments)} segments, fdatasync "
        f"{_quantiles(journal.fdatasync_ms)}"
    )


AUDIT_COLUMNS: Final[tuple[Column[AuditEntry], ...]] = (
    Column("Time", lambda item: moment(item.time), no_fold=True),
    Column("Event", lambda item: item.event),
    Column("User", lambda item: item.user),
    Column("Peer", lambda item: item.peer),
    Column("Details", lambda item: _detail_text(item)),
)


@query_command(app, "audit")
def audit(
    api: Api,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="Number of lines.")
    ] = 50,
) -> CommandResult:
    """Show the last lines of the audit log: logins, refusals, changes; the latest is the last."""
    entries = list(api.items(LIST_AUDIT_ENTRIES, PageQuery(), limit))
    empty = "The audit log is empty since the broker started."
    return list_result(reversed(entries), AUDIT_COLUMNS, empty)._replace(document=entries)


def _detail_text(item: AuditEntry) -> str:
    return ", ".join(
        f"{name}: {value}"
        for name, value in msgspec.to_builtins(item).items()
        if name not in ("time", "event", "user", "peer")
    )


# --- `sluicemq top`: key presses ------------------------------------------------------------------

_KEYS: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
}
"""Names of keys by what they write; a longer text is before its beginning."""
_KEY: Final = re.compile("|".join([*map(re.escape, _KEYS), "."]))
_READ_BYTES: Final = 64
"""Number of bytes read at a time."""


@contextmanager
def keyboard() -> Iterator[list[TextIO]]:
    """Yield the terminal, whose keys arrive one by one without echo; nothing without a terminal."""
    terminals = [sys.stdin] if sys.stdin.isatty() else []
    before = [termios.tcgetattr(terminal) for terminal in terminals]
    for terminal in terminals:
        tty.setcbreak(terminal)
    try:
        yield terminals
    finally:
        for terminal, attributes in zip(terminals, before, strict=True):
            termios.tcsetattr(terminal, termios.TCSADRAIN, attributes)


def pressed_keys(terminals: list[TextIO], seconds: float) -> list[str]:
    """Return the keys pressed so far as soon as there are any; none after the timeout."""
    ready, _, _ = select.select(terminals, [], [], seconds)
    if not ready:
        return []
    data = os.read(ready[0].fileno(), _READ_BYTES)
    if not data:
        # the terminal has been closed
        raise KeyboardInterrupt
    return key_names(data.decode(errors="ignore"))


def key_names(text: str) -> list[str]:
    """Return keys by their names; keys without a name by the characters they write."""
    return [_KEYS.get(key, key) for key in _KEY.findall(text)]


# --- `sluicemq top`: views ------------------------------------------------------------------------

OTHER_LINES: Final = 6
"""Number of screen lines that are not rows of the table."""
MAX_ROWS: Final = 500
_BARS: Final = 24
_HELP: Final = (
    "q quit  1 destinations  2 connections  3 consumers  s sort  r reverse  / filter  ↑↓ page  "
    "space freeze  + - interval"
)
_MIN_INTERVAL: Final = 0.25
_MAX_INTERVAL: Final = 60.0


class TopView(NamedTuple):
    """A list that the view can show.

    list   the operation; `query` has its parameters, besides those of `ViewState`
    sorts  columns by which the broker sorts; the first is the default
    """

    title: str
    list: ApiOperation[Any, Any]
    query: type[SortedPageQuery]
    columns: tuple[Column[Any], ...]
    sorts: tuple[str, ...]


VIEWS: Final = {
    "1": TopView(
        "destinations",
        LIST_DESTINATIONS,
        DestinationQuery,
        (
            Column("Name", lambda item: destinations.name_with_state(item, address_in(item))),
            *destinations.COLUMNS,
        ),
        ("publish_rate", "name", "ready", "unacked", "bytes", "consumers", "deliver_rate"),
    ),
    "2": TopView(
        "connections", LIST_CONNECTIONS, ConnectionQuery, client_commands.CONNECTION_COLUMNS, ()
    ),
    "3": TopView("consumers", LIST_CONSUMERS, ConsumerQuery, client_commands.CONSUMER_COLUMNS, ()),
}


@dataclass
class ViewState:
    """State of the view, changed by keys."""

    view: TopView = VIEWS["1"]
    sort: str = "publish_rate"
    ascending: bool = False
    filter: str = ""
    page: int = 1
    interval: float = 1.0
    frozen: bool = False
    typing: bool = False
    """Edit the filter with the pressed keys."""
    is_done: bool = False

    def press(self, key: str) -> None:
        """Apply a key; keys without a meaning are ignored."""
        sorts = self.view.sorts
        match key:
            case _ if self.typing:
                self._type(key)
            case _ if key in VIEWS:
                self.view, self.page, self.ascending = VIEWS[key], 1, False
                self.sort = self.view.sorts[0] if self.view.sorts else ""
            case "s" | "S" | "left" | "right" if sorts:
                step = 1 if key in ("s", "right") else -1
                self.sort = sorts[(sorts.index(self.sort) + step) % len(sorts)]
                self.ascending, self.page = self.sort == "name", 1
            case "r" if sorts:
                self.ascending, self.page = not self.ascending, 1
            case "/":
                self.typing, self.filter, self.page = True, "", 1
            case "escape":
                self.filter, self.page = "", 1
            case "down" | "page down":
                self.page += 1
            case "up" | "page up":
                self.page = max(1, self.page - 1)
            case "home":
                self.page = 1
            case " ":
                self.frozen = not self.frozen
            case "+" | "=":
                self.interval = max(_MIN_INTERVAL, self.interval / 2)
            case "-":
                self.interval = min(_MAX_INTERVAL, self.interval * 2)
            case "q" | "Q" | "\x04":
                self.is_done = True

    def _type(self, key: str) -> None:
        match key:
            case "enter":
                self.typing = False
            case "escape":
                self.typing, self.filter = False, ""
            case "backspace":
                self.filter = self.filter[:-1]
            case _ if len(key) == 1 and key.isprintable():
                self.filter += key


class TopData(NamedTuple):
    """Data from the broker: the overview and a page of the selected list."""

    overview: OverviewView
    items: list[Any]
    total: int
    page: int


def fetch_top_data(api: Api, state: ViewState, rows: int) -> TopData:
    """Request the data."""
    overview = api.call(GET_OVERVIEW, OverviewQuery())
    parameters: dict[str, Any] = {"limit": rows}
    if state.view.query is not ConsumerQuery:  # consumers have no filter
        parameters["filter"] = state.filter
    if state.sort:
        parameters |= {"sort": state.sort, "order": "asc" if state.ascending else "desc"}

    while True:
        query = state.view.query(**parameters, offset=(state.page - 1) * rows)
        page: Page[Any] = api.call(state.view.list, query)
        last = max(1, -(-(page.total or 0) // rows))
        if state.page <= last:
            return TopData(overview, page.items, page.total or 0, state.page)
        state.page = last


@action_command(app, "top", options={})
def top(
    api: Api,
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="[PATTERN]", help="Only names that match orders.*, or contain this text."
        ),
    ] = "",
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            parser=choice_of("--sort", "column", VIEWS["1"].sorts),
            help="Column to sort by, largest first.",
        ),
    ] = "publish_rate",
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            "-n",
            min=0.1,
            max=MAX_INTERVAL,
            callback=check_number,
            help="Refresh interval in seconds.",
        ),
    ] = 1.0,
    count: Annotated[
        int, typer.Option("--count", min=0, help="Stop after this many refreshes; 0 = never.")
    ] = 0,
) -> CommandResult:
    """Watch the broker's queues and topics, connections and consumers. `q` or Ctrl-C ends it."""
    name_filter = "" if pattern == "*" else pattern
    state = ViewState(VIEWS["1"], sort, sort == "name", name_filter, 1, interval)
    console = out()
    if not console.is_terminal:
        for done in _times(count):
            if done:
                time.sleep(interval)
            top_data = fetch_top_data(api, state, MAX_ROWS)
            show(Group(_overview_lines(top_data.overview), _list(top_data, state)))
            sys.stdout.flush()
        return CommandResult(None)
    with (
        suppress(KeyboardInterrupt),
        keyboard() as terminals,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        _run(api, state, count, terminals, live)
    return CommandResult(None)


def _run(api: Api, state: ViewState, count: int, terminals: list[TextIO], live: Live) -> None:
    console = live.console
    top_data = fetch_top_data(api, state, _rows(console))
    for done in _times(count):
        connection_error = ""
        if done and not state.frozen:
            try:
                top_data = fetch_top_data(api, state, _rows(console))
            except ConnectionLost as error:
                # the broker may be restarting
                connection_error = str(error)
        live.update(_screen(top_data, state, connection_error), refresh=True)
        deadline = time.monotonic() + state.interval
        while (remaining := deadline - time.monotonic()) > 0 or state.frozen:
            keys = pressed_keys(terminals, max(0.05, remaining))
            for key in keys:
                state.press(key)
            if state.is_done:
                return
            if keys:
                break


def _times(count: int) -> Iterable[int]:
    return range(count) if count else itertools.count()


def _rows(console: Console) -> int:
    return min(MAX_ROWS, max(1, console.height - OTHER_LINES))


def _screen(data: TopData, state: ViewState, connection_error: str) -> RenderableType:
    last = Text(_HELP, style="dim", no_wrap=True, overflow="ellipsis")
    if state.typing:
        last = Text(f"filter: {state.filter}▏  Enter keeps it, Escape drops it", style="bold")
    elif connection_error:
        last = Text(printable(connection_error), style="bold red")
    return Group(
        _overview_lines(data.overview),
        _list_summary(data, state),
        _list(data, state, cut=True),
        last,
    )


def _overview_lines(overview: OverviewView) -> RenderableType:
    totals = overview.totals
    published, delivered = recent_rates(overview)
    first_line = Text(
        f"sluicemq {printable(overview.version)}  up {age(overview.uptime_ms)}  "
        f"{size(overview.resident_memory_bytes)} memory  "
        f"{number(totals.connections)} connections  "
        f"{number(totals.ready)} ready"
    )
    second_line = Text(
        f"publish {rate(totals.publish_rate)} "
        f"{sparkline(published, _BARS)}  "
        f"deliver {rate(totals.deliver_rate)} "
        f"{sparkline(delivered, _BARS)}",
        no_wrap=True,
    )
    alarms = [Text(f"! {alarm.message}", style="bold red") for alarm in overview.alarms]
    return Group(first_line, second_line, *alarms)


def _list_summary(data: TopData, state: ViewState) -> Text:
    parts = [f"{number(data.total)} {state.view.title}"]
    if state.sort:
        parts.append(f"by {state.sort}{' ↑' if state.ascending else ' ↓'}")
    if state.filter:
        parts.append(f"like {printable(state.filter)}")
    if data.page > 1 or data.total > len(data.items):
        parts.append(f"page {data.page}")
    parts.append(f"every {state.interval:g} s{', frozen' if state.frozen else ''}")
    return Text("  ".join(parts), style="dim")


def _list(data: TopData, state: ViewState, *, cut: bool = False) -> RenderableType:
    if not data.items:
        return Text(f"no {state.view.title}{' like that' if state.filter else ' yet'}")
    return ItemTable(state.view.columns, data.items, cut=cut)
