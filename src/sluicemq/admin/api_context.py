"""Context of the endpoints, one per HTTP listener. Listeners share everything but `limits`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from sluicemq.admin.caller import BrowserSessions
from sluicemq.admin.history import History
from sluicemq.admin.scrape_state import ScrapeState
from sluicemq.broker import Broker, Consumer
from sluicemq.management.broker import BrokerState, InputItem, ListenerItem, SettingView
from sluicemq.management.operation import MAX_EXACT
from sluicemq.management.settings import HttpSettings
from sluicemq.model.destination import Address
from sluicemq.model.histogram import Histogram
from sluicemq.model.url import Url
from sluicemq.protocols.transport import Process, SessionInfo
from sluicemq.security.audit import Audit
from sluicemq.security.user_service import UserService

# --- Interfaces to the server process -------------------------------------------------------------
#
# Interfaces to the server process that the endpoints use. The server implements them; tests supply
# their own implementations.


class ListedConnection(Protocol):
    """Connection of a client.

    number        id of the connection
    peer          address of the client
    connected_at  time of the connect, ms since the epoch
    """

    number: int
    peer: str
    connected_at: int
    received_bytes: int
    sent_bytes: int

    @property
    def listener_url(self) -> Url:
        """URL of its listener, with the actual port."""

    @property
    def state(self) -> str:
        """State of the connection (`ConnectionItem`)."""

    def session_info(self) -> SessionInfo:
        """Return protocol, user and client id of the connection."""

    def consumers(self) -> Iterable[Consumer]:
        """Return the current consumers of the client, in a new collection."""

    def disconnect(self, reason: str) -> None:
        """Send the client the reason in the terms of its protocol, and close the connection after
        a few seconds at most."""


class Connections(Protocol):
    """Connections of all listeners."""

    def __len__(self) -> int:
        """Return the number of connections."""

    def __iter__(self) -> Iterator[ListedConnection]:
        """Iterate over the present connections. The caller may yield to the event loop during
        the iteration; connections that open or close meanwhile may be missing or repeated."""

    def listeners(self) -> list[ListenerItem]:
        """Return the open listeners in the order of the configuration."""

    def input(self) -> InputItem:
        """Return the memory used by unfinished input."""


def count_by_protocol(connections: Connections) -> Counter[str]:
    """Return the number of connections by protocol."""
    return Counter(connection.session_info().protocol for connection in connections)


class Configuration(Protocol):
    """Effective settings, the directory of backups, and the files of a backup besides the
    journal."""

    def settings(self) -> list[SettingView]:
        """Return the settings in the order of the documentation, without those of destinations,
        which may be many."""

    def declares(self, address: Address) -> bool:
        """Return whether the configuration file declares the destination."""

    @property
    def directory(self) -> Path | None:
        """Directory of backups requested over HTTP; None = disabled."""

    @property
    def users_file(self) -> Path:
        """User database; may not exist."""

    @property
    def configuration(self) -> str:
        """Settings in force, as the text of a TOML file."""

    def sources(self) -> dict[str, bytes]:
        """Return the contents of the files by name. Raises OSError."""


class ServerProcess(Process, Protocol):
    """Server process, as the management API sees it."""

    lag: Histogram
    """Event loop lag: delay of timers."""

    def state(self) -> BrokerState:
        """Return the state of the broker."""


BODY_BYTES: Final = 64 * 1024 * 1024
PART_OVERHEAD_BYTES: Final = 16 * 1024 * 1024
"""Size of a part of a batch, in addition to one message of the listener's maximum size."""
_REQUEST_BYTES: Final = 256 * 1024
"""Size of a request besides the body of its message."""


class ApiLimits(NamedTuple):
    """Limits of a listener.

    Sizes in bytes: of a part of a batch, a destination's name, and a message published over the
    API."""

    part: int = BODY_BYTES + PART_OVERHEAD_BYTES
    name: int = 1024
    publish: int = 4 * 1024 * 1024

    @property
    def publish_request(self) -> int:
        """Size of a request that publishes a message, whose body may be in base64."""
        return 2 * min(self.publish, MAX_EXACT) + _REQUEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """Interfaces to the broker and the server process.

    broker         the engine; call `broker.schedule_flush()` before anything that depends on
                   the time
    connections    connections of all listeners
    configuration  effective settings, and the files of a backup
    process        state and resource usage of the server process
    users          service for users, roles and tokens
    sessions       browser sessions
    audit          audit log
    history        samples of the last hour
    scrape_state   state that /metrics keeps between scrapes
    http           settings of all listeners
    """

    broker: Broker
    connections: Connections
    configuration: Configuration
    process: ServerProcess
    users: UserService
    sessions: BrowserSessions
    audit: Audit
    history: History
    scrape_state: ScrapeState
    http: HttpSettings = field(default_factory=HttpSettings)
    limits: ApiLimits = field(default_factory=ApiLimits)


class Service:
    """Base class of services, which are created once per listener."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._broker = context.broker
