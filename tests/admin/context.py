"""Stubs for the endpoints in tests that start no process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sluicemq.admin.caller import BrowserSessions
from sluicemq.admin.collectors import ScrapeState
from sluicemq.admin.endpoints import ApiContext, ApiLimits
from sluicemq.admin.history import History
from sluicemq.broker import Broker, Consumer
from sluicemq.management.broker import AuditEntry, BrokerState, InputItem, ListenerItem, SettingView
from sluicemq.management.clients import ConnectionItem
from sluicemq.management.settings import HttpSettings
from sluicemq.model.destination import Address
from sluicemq.model.histogram import Histogram
from sluicemq.model.url import Url
from sluicemq.protocols.transport import SessionInfo
from sluicemq.security.records import Change, Database
from sluicemq.security.user_service import UserService


class AttachedConsumer(NamedTuple):
    """A consumer and the id of its connection."""

    connection: int
    consumer: Consumer


class StubConnection:
    """A connection with the state of `view`."""

    def __init__(self, registry: StubConnectionRegistry, view: ConnectionItem) -> None:
        self._registry = registry
        self._view = view
        self.number = view.id
        self.peer = view.peer
        self.connected_at = view.started
        self.received_bytes = view.received_bytes
        self.sent_bytes = view.sent_bytes
        self.listener_url = Url.parse(view.listener)
        self.state = view.state

    def session_info(self) -> SessionInfo:
        view = self._view
        return SessionInfo(view.protocol, view.user, view.client_id)

    def consumers(self) -> list[Any]:
        self._registry.counted.append(self.number)
        attached = [
            attached.consumer
            for attached in self._registry.attached
            if attached.connection == self.number
        ]
        return attached or list(range(self._view.consumers))

    def disconnect(self, reason: str) -> None:
        self._registry.closed.append((self.number, reason))


@dataclass
class StubConnectionRegistry:
    """A connection registry of `views`.

    attached  consumers of connections, which may have no view
    closed    numbers and reasons of closed connections
    counted   numbers of connections whose consumers were read
    """

    views: list[ConnectionItem] = field(default_factory=list)
    attached: list[AttachedConsumer] = field(default_factory=list)
    closed: list[tuple[int, str]] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.views)

    def __iter__(self) -> Iterator[StubConnection]:
        known = {view.id for view in self.views}
        others = {entry.connection for entry in self.attached} - known
        for view in (*self.views, *map(connection_item, sorted(others))):
            yield StubConnection(self, view)

    def listeners(self) -> list[ListenerItem]:
        return []

    def input(self) -> InputItem:
        return InputItem(0, 1, 0, 0)


def connection_item(number: int) -> ConnectionItem:
    """Return a connection without consumers."""
    return ConnectionItem(
        id=number,
        protocol="jmq",
        peer=f"10.0.0.{number}:1",
        user="anna",
        client_id="",
        listener="jmq://x:1",
        started=1000 - number,
        state="open",
        consumers=0,
        received_bytes=number,
        sent_bytes=0,
        tls=False,
    )


class StubConfiguration:
    directory = None
    users_file = Path("users.json")
    configuration = ""

    def settings(self) -> list[SettingView]:
        return []

    def declares(self, address: Address) -> bool:
        return False

    def sources(self) -> dict[str, bytes]:
        return {}


class StubProcess:
    """A process whose uptime and memory are zero."""

    def __init__(self) -> None:
        self.lag = Histogram()
        self.now: BrokerState = "serving"

    def uptime(self) -> float:
        return 0.0

    def memory(self) -> int:
        return 0

    def state(self) -> BrokerState:
        return self.now


class MemoryAuditLog:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.lines: list[AuditEntry] = []
        self.counts: dict[str, int] = {}

    def log_change(self, peer: str, user: str, action: str, operation: str, result: str) -> None:
        line = AuditEntry(
            time=0,
            event="change",
            peer=peer,
            user=user,
            operation=operation,
            action=action,
            result=result,
        )
        self.lines.append(line)

    def recent(self) -> list[AuditEntry]:
        return self.lines[::-1]


class EmptyUserDirectory:
    """A user directory without users."""

    database = Database()

    def hash(self, password: str) -> str:
        raise NotImplementedError

    def now(self) -> int:
        raise NotImplementedError

    async def apply(self, change: Change, by: str) -> None:
        raise NotImplementedError


def context(broker: Broker, **changes: Any) -> ApiContext:
    """Return the context of an application for that broker; `changes` are its fields."""
    process = StubProcess()
    defaults: dict[str, Any] = {
        "broker": broker,
        "connections": StubConnectionRegistry(),
        "configuration": StubConfiguration(),
        "process": process,
        "users": UserService(EmptyUserDirectory()),
        "sessions": BrowserSessions(broker.clock, HttpSettings()),
        "audit": MemoryAuditLog(),
        "scrape_state": ScrapeState(broker),
        "history": History(broker, process.lag),
        "limits": ApiLimits(),
    }
    return ApiContext(**{**defaults, **changes})
