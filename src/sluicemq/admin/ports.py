"""What the endpoints ask of the process around the broker. The server gives it; tests have their
own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Protocol


class ConnectionView(NamedTuple):
    """A connection as lists show it.

    id         unique while the process lives
    listener   URL of the listener it came by
    since      ms since the epoch
    state      open | closing | not read (back-pressure) | …
    """

    id: int
    protocol: str
    peer: str
    user: str
    client_id: str
    listener: str
    since: int
    state: str
    consumers: int
    bytes_in: int
    bytes_out: int
    tls: bool


class ListenerView(NamedTuple):
    """An open listener."""

    url: str
    protocol: str
    tls: bool
    connections: int


class Connections(Protocol):
    """Connections of all listeners."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ConnectionView]:
        """All of them as they are now; whoever iterates gives the loop back in between, and may
        see some twice or not that come and go meanwhile."""

    def listeners(self) -> list[ListenerView]:
        """Open listeners, in the order of the configuration."""

    def get(self, number: int) -> ConnectionView | None:
        """The connection with that id."""

    def close(self, number: int, reason: str) -> bool:
        """End it, sending what waits for it; False if there is none (any more)."""


class SettingView(NamedTuple):
    """A setting in force. `value` and `default` are JSON values; secrets have neither.

    name    dotted, as in the configuration file
    source  `default`, the file, the environment variable, or the command line
    """

    name: str
    value: Any
    default: Any
    source: str
    meaning: str


State = Literal["starting", "serving", "stopping", "failed"]


class Configuration(Protocol):
    """The settings in force."""

    def settings(self) -> list[SettingView]:
        """All that have one value; those of listeners as `listeners[0].…`."""


class Vitals(Protocol):
    """Of the process."""

    version: str
    compiled: bool

    def uptime(self) -> float:
        """Seconds since the start."""

    def memory(self) -> int:
        """Resident bytes."""

    def state(self) -> State:
        """What the broker is doing."""


class AuditLog(Protocol):
    """What has been done, and by whom."""

    def acted(self, peer: str, user: str, what: str, result: str) -> None:
        """Somebody has asked for a change: one line. `result` is `done` or why not."""

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """The last lines, the latest first: `at` (ms since the epoch), `event` and its fields."""
