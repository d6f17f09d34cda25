"""Interfaces to the server process that the endpoints use. The server implements them; tests
supply their own implementations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from sluicemq.model.destination import Address
from sluicemq.model.histogram import Histogram

if TYPE_CHECKING:
    from sluicemq.broker import Consumer


class ConnectionView(NamedTuple):
    """A connection as lists show it.

    id         unique while the process lives
    protocol   protocol of its client
    user       name of its user; "" if anonymous
    listener   URL of its listener
    started    ms since the epoch
    state      connecting | open | blocked (nothing is read from it for now) | slow (it does not
               read) | closing
    """

    id: int
    protocol: str
    peer: str
    user: str
    client_id: str
    listener: str
    started: int
    state: str
    consumers: int
    received_bytes: int
    sent_bytes: int
    tls: bool


class AttachedConsumer(NamedTuple):
    """A consumer of the engine and the id of its connection."""

    connection: int
    protocol: str
    user: str
    consumer: Consumer


class ListenerView(NamedTuple):
    """An open listener: present connections, those accepted and refused since the start, and the
    bytes of all.

    closed  connections closed because of a limit or time-out, by its name
    """

    url: str
    protocol: str
    tls: bool
    connections: int
    max_connections: int
    accepted: int
    refused: int
    received_bytes: int
    sent_bytes: int
    closed: Mapping[str, int] = {}


class InputView(NamedTuple):
    """Unfinished input of all connections: its size and limit in bytes, the number of connections
    that have any, and the number of those whose reading is paused."""

    buffered_bytes: int
    limit_bytes: int
    connections: int
    paused: int


class Connections(Protocol):
    """Connections of all listeners."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ConnectionView]:
        """Iterate over the present connections. The caller may yield to the event loop during
        the iteration; connections that open or close meanwhile may be missing or repeated."""

    def consumers(self) -> Iterator[AttachedConsumer]:
        """Iterate over the consumers of all connections, with the guarantees of `__iter__`."""

    def by_protocol(self) -> dict[str, int]:
        """Return the number of connections by protocol."""

    def listeners(self) -> list[ListenerView]:
        """Return the open listeners in the order of the configuration."""

    def input(self) -> InputView:
        """Return the memory used by unfinished input."""

    def get(self, number: int) -> ConnectionView | None:
        """Return the connection with that id; None if there is none."""

    def close(self, number: int, reason: str) -> bool:
        """Send the client the reason in the terms of its protocol, and close the connection after
        a few seconds at most. Return False if there is no such connection."""


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """An effective setting. `value` is null for a secret.

    name     dotted, as in the configuration file; those of a listener as `listeners[0].url`
    unit     of numbers: bytes, ms, s; "" for others
    source   `default`, a file, an environment variable, or the command line
    description  in a sentence
    """

    name: str
    value: bool | int | float | str | None
    default: bool | int | float | str | None
    unit: str
    source: str
    description: str


State = Literal["starting", "serving", "stopping", "failed"]


class Configuration(Protocol):
    """Effective settings."""

    def settings(self) -> list[SettingView]:
        """Return the settings in the order of the documentation, without those of destinations,
        which may be many."""

    def declares(self, address: Address) -> bool:
        """Return whether the configuration file declares the destination."""


class Vitals(Protocol):
    """State and resource usage of the server process."""

    version: str
    compiled: bool
    lag: Histogram
    """Event loop lag: delay of timers."""

    def uptime(self) -> float:
        """Return the seconds since the start."""

    def memory(self) -> int:
        """Return the resident memory in bytes."""

    def state(self) -> State:
        """Return the state of the broker."""


class Backups(Protocol):
    """Files of a backup besides the journal, and the directory of backups.

    directory      directory of backups requested over HTTP; None = disabled
    users_file     user database; may not exist
    configuration  settings in force, as the text of a TOML file
    """

    @property
    def directory(self) -> Path | None: ...

    @property
    def users_file(self) -> Path: ...

    @property
    def configuration(self) -> str: ...

    def sources(self) -> dict[str, bytes]:
        """Return the contents of the files by name. Raises OSError."""
