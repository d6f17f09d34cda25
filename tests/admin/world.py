"""What the endpoints are given in tests that start no process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sluicemq.admin.context import Context, Limits
from sluicemq.admin.history import History
from sluicemq.admin.ports import ConnectionView, ListenerView, SettingView, State
from sluicemq.broker import Broker


class NoConnections:
    """Nobody has connected; `closed` are the numbers that were to be."""

    def __init__(self, *views: ConnectionView) -> None:
        self.views = list(views)
        self.closed: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.views)

    def __iter__(self) -> Iterator[ConnectionView]:
        return iter(self.views)

    def listeners(self) -> list[ListenerView]:
        return []

    def get(self, number: int) -> ConnectionView | None:
        return next((view for view in self.views if view.id == number), None)

    def close(self, number: int, reason: str) -> bool:
        self.closed.append((number, reason))
        return self.get(number) is not None


class NoSettings:
    def settings(self) -> list[SettingView]:
        return []


class Process:
    """As young and small as nothing."""

    version = "0"
    compiled = False

    def __init__(self) -> None:
        self.now: State = "serving"

    def uptime(self) -> float:
        return 0.0

    def memory(self) -> int:
        return 0

    def state(self) -> State:
        return self.now


class Lines:
    """An audit log that can be looked at."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def acted(self, peer: str, user: str, what: str, result: str) -> None:
        self.lines.append(
            {"event": "change", "peer": peer, "user": user, "what": what, "result": result}
        )

    def recent(self, limit: int) -> list[dict[str, Any]]:
        return self.lines[::-1][:limit]


def context(broker: Broker, **changes: Any) -> Context:
    """For an application around that broker; `changes` are fields of Context."""
    usual: dict[str, Any] = {
        "broker": broker,
        "connections": NoConnections(),
        "configuration": NoSettings(),
        "vitals": Process(),
        "audit": Lines(),
        "history": History(broker),
        "limits": Limits(),
    }
    return Context(**{**usual, **changes})
