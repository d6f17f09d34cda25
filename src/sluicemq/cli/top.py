"""`sluicemq top`: live view of the broker's destinations, connections and consumers.

The broker sorts and counts, and each request asks only for the visible rows, so the cost does not
grow with the number of destinations.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sluicemq.cli import connections, consumers, destinations
from sluicemq.cli.api import Api
from sluicemq.cli.command_helpers import broker_command
from sluicemq.cli.console import no_such, out, printable
from sluicemq.cli.destination_names import address_in
from sluicemq.cli.keyboard import Keyboard
from sluicemq.cli.tables import Column, Item, age, number, rate, show, size, sparkline, table
from sluicemq.model.errors import ConnectionLost

app = typer.Typer(add_completion=False)

AROUND: Final = 6
"""Number of screen lines that are not rows of the table."""
MOST_ROWS: Final = 500
_BARS: Final = 24
_HELP: Final = (
    "q quit  1 destinations  2 connections  3 consumers  s sort  r reverse  / filter  ↑↓ page  "
    "space freeze  + - interval"
)
_FASTEST: Final = 0.25
_SLOWEST: Final = 60.0


class TopView(NamedTuple):
    """A list that the view can show.

    path   path in the API
    sorts  columns by which the broker sorts; the first is the default
    """

    title: str
    path: str
    columns: tuple[Column, ...]
    sorts: tuple[str, ...]


VIEWS: Final = {
    "1": TopView(
        "destinations",
        "/destinations",
        (
            Column("Name", lambda item: destinations.marked(item, address_in(item))),
            *destinations.COLUMNS,
        ),
        ("publish_rate", "name", "ready", "unacked", "bytes", "consumers", "deliver_rate"),
    ),
    "2": TopView("connections", "/connections", connections.COLUMNS, ()),
    "3": TopView("consumers", "/consumers", consumers.COLUMNS, ()),
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
    over: bool = False

    def press(self, key: str) -> bool:
        """Apply a key. Return whether the view needs new data."""
        if self.typing:
            return self._type(key)
        if key in VIEWS:
            self.view, self.page, self.ascending = VIEWS[key], 1, False
            self.sort = self.view.sorts[0] if self.view.sorts else ""
        elif key in ("s", "S", "left", "right") and self.view.sorts:
            step = 1 if key in ("s", "right") else -1
            at = self.view.sorts.index(self.sort) + step
            self.sort = self.view.sorts[at % len(self.view.sorts)]
            self.ascending, self.page = self.sort == "name", 1
        elif key == "r" and self.view.sorts:
            self.ascending, self.page = not self.ascending, 1
        elif key == "/":
            self.typing, self.filter, self.page = True, "", 1
        elif key == "escape":
            self.filter, self.page = "", 1
        elif key in ("down", "page down"):
            self.page += 1
        elif key in ("up", "page up"):
            self.page = max(1, self.page - 1)
        elif key == "home":
            self.page = 1
        elif key == " ":
            self.frozen = not self.frozen
        elif key in ("+", "="):
            self.interval = max(_FASTEST, self.interval / 2)
        elif key == "-":
            self.interval = min(_SLOWEST, self.interval * 2)
        elif key in ("q", "Q", "\x04"):
            self.over = True
        else:
            return False
        return True

    def _type(self, key: str) -> bool:
        if key in ("enter", "escape"):
            self.typing = False
            if key == "escape":
                self.filter = ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key
        else:
            return False
        return True


class TopData(NamedTuple):
    """Data from the broker: the overview and a page of the selected list."""

    overview: Item
    items: list[Item]
    total: int
    page: int


def fetch_top_data(api: Api, choice: ViewState, rows: int) -> TopData:
    """Request the data."""
    overview = api.get("/overview")
    query: dict[str, Any] = {"limit": rows, "filter": choice.filter or None}
    if choice.view.path == "/consumers":
        # it filters by pattern only
        query.pop("filter")
    if choice.sort:
        query |= {"sort": choice.sort, "order": "asc" if choice.ascending else "desc"}
    found = api.get(choice.view.path, offset=(choice.page - 1) * rows, **query)
    last = max(1, -(-found["total"] // rows))
    if choice.page > last:
        choice.page = last
        found = api.get(choice.view.path, offset=(choice.page - 1) * rows, **query)
    return TopData(overview, found["items"], found["total"], choice.page)


@broker_command(app, "top")
def top(
    api: Api,
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="[PATTERN]", help="Only names that match orders.*, or contain this text."
        ),
    ] = "",
    sort: Annotated[
        str, typer.Option("--sort", metavar="COLUMN", help="Column to sort by, largest first.")
    ] = "publish_rate",
    interval: Annotated[
        float, typer.Option("--interval", "-n", min=0.1, help="Refresh interval in seconds.")
    ] = 1.0,
    count: Annotated[
        int, typer.Option("--count", min=0, help="Stop after this many refreshes; 0 = never.")
    ] = 0,
) -> None:
    """Watch the broker's queues and topics, connections and consumers. `q` or Ctrl-C ends it."""
    view = VIEWS["1"]
    if sort not in view.sorts:
        raise no_such("--sort", "column", sort, view.sorts)
    choice = ViewState(view, sort, sort == "name", "" if pattern == "*" else pattern, 1, interval)
    console = out()
    if not console.is_terminal:
        for done in _times(count):
            if done:
                time.sleep(interval)
            look = fetch_top_data(api, choice, MOST_ROWS)
            show(Group(_head(look.overview), _list(look, choice)))
            sys.stdout.flush()
        return
    with (
        suppress(KeyboardInterrupt),
        Keyboard() as keyboard,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        _run(api, choice, count, keyboard, live)


def _run(api: Api, choice: ViewState, count: int, keyboard: Keyboard, live: Live) -> None:
    console = live.console
    look = fetch_top_data(api, choice, _rows(console))
    for done in _times(count):
        trouble = ""
        if done and not choice.frozen:
            try:
                look = fetch_top_data(api, choice, _rows(console))
            except ConnectionLost as lost:
                # the broker may be restarting
                trouble = str(lost)
        live.update(_screen(look, choice, trouble), refresh=True)
        until = time.monotonic() + choice.interval
        while (left := until - time.monotonic()) > 0 or choice.frozen:
            pressed = [choice.press(key) for key in keyboard.keys(max(0.05, left))]
            if choice.over:
                return
            if any(pressed):
                break


def _times(count: int) -> Iterator[int]:
    done = 0
    while not count or done < count:
        yield done
        done += 1


def _rows(console: Console) -> int:
    return min(MOST_ROWS, max(1, console.height - AROUND))


def _screen(look: TopData, choice: ViewState, trouble: str) -> RenderableType:
    last = Text(_HELP, style="dim", no_wrap=True, overflow="ellipsis")
    if choice.typing:
        last = Text(f"filter: {choice.filter}▏  Enter keeps it, Escape drops it", style="bold")
    elif trouble:
        last = Text(printable(trouble), style="bold red")
    return Group(_head(look.overview), _about(look, choice), _list(look, choice, cut=True), last)


def _head(overview: Item) -> RenderableType:
    totals = overview["totals"]
    history = overview.get("history") or {}
    first = Text(
        f"sluicemq {printable(overview['version'])}  up {age(overview['uptime_ms'])}  "
        f"{size(overview['resident_memory_bytes'])} memory  "
        f"{number(totals['connections'])} connections  "
        f"{number(totals['ready'])} ready"
    )
    second = Text(
        f"publish {rate(totals['publish_rate'])} "
        f"{sparkline(history.get('publish_rate', []), _BARS)}  "
        f"deliver {rate(totals['deliver_rate'])} "
        f"{sparkline(history.get('deliver_rate', []), _BARS)}",
        no_wrap=True,
    )
    alarms = [
        Text(f"! {each['message']}", style="bold red") for each in overview.get("alarms") or []
    ]
    return Group(first, second, *alarms)


def _about(look: TopData, choice: ViewState) -> Text:
    parts = [f"{number(look.total)} {choice.view.title}"]
    if choice.sort:
        parts.append(f"by {choice.sort}{' ↑' if choice.ascending else ' ↓'}")
    if choice.filter:
        parts.append(f"like {printable(choice.filter)}")
    if look.page > 1 or look.total > len(look.items):
        parts.append(f"page {look.page}")
    parts.append(f"every {choice.interval:g} s{', frozen' if choice.frozen else ''}")
    return Text("  ".join(parts), style="dim")


def _list(look: TopData, choice: ViewState, *, cut: bool = False) -> RenderableType:
    if not look.items:
        return Text(f"no {choice.view.title}{' like that' if choice.filter else ' yet'}")
    return table(choice.view.columns, look.items, cut=cut)
