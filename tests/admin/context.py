"""Stubs for the endpoints in tests that start no process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluicemq.admin.api_context import ApiContext, ApiLimits, AttachedConsumer
from sluicemq.admin.caller import BrowserSessions
from sluicemq.admin.history import History
from sluicemq.admin.scrape_state import ScrapeState
from sluicemq.broker import Broker
from sluicemq.management.broker import AuditEntry, BrokerState, InputItem, ListenerItem, SettingView
from sluicemq.management.clients import ConnectionItem
from sluicemq.management.settings import HttpSettings
from sluicemq.model.destination import Address
from sluicemq.model.histogram import Histogram
from sluicemq.security.records import Change, Database
from sluicemq.security.user_service import UserService


class NoConnections:
    """A registry of given connections; `closed` has the numbers of those to close."""

    def __init__(self, *views: ConnectionItem) -> None:
        self.views = list(views)
        self.attached: list[AttachedConsumer] = []
        self.closed: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.views)

    def __iter__(self) -> Iterator[ConnectionItem]:
        return iter(self.views)

    def consumers(self) -> Iterator[AttachedConsumer]:
        return iter(self.attached)

    def by_protocol(self) -> dict[str, int]:
        return dict(Counter(view.protocol for view in self.views))

    def listeners(self) -> list[ListenerItem]:
        return []

    def input(self) -> InputItem:
        return InputItem(0, 1, 0, 0)

    def get(self, number: int) -> ConnectionItem | None:
        return next((view for view in self.views if view.id == number), None)

    def close(self, number: int, reason: str) -> bool:
        self.closed.append((number, reason))
        return self.get(number) is not None


class NoSettings:
    directory = None
    users_file = Path("users.json")
    configuration = ""

    def settings(self) -> list[SettingView]:
        return []

    def declares(self, address: Address) -> bool:
        return False

    def sources(self) -> dict[str, bytes]:
        return {}


class Process:
    """A process without uptime and memory."""

    def __init__(self) -> None:
        self.lag = Histogram()
        self.now: BrokerState = "serving"

    def uptime(self) -> float:
        return 0.0

    def memory(self) -> int:
        return 0

    def state(self) -> BrokerState:
        return self.now


class Lines:
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


class NoUsers:
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
    process = Process()
    defaults: dict[str, Any] = {
        "broker": broker,
        "connections": NoConnections(),
        "configuration": NoSettings(),
        "process": process,
        "users": UserService(NoUsers()),
        "sessions": BrowserSessions(broker.clock, HttpSettings()),
        "audit": Lines(),
        "scrape_state": ScrapeState(broker),
        "history": History(broker, process.lag),
        "limits": ApiLimits(),
    }
    return ApiContext(**{**defaults, **changes})
