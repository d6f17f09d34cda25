"""Worker threads of VibeMQ connections whose jobs a test runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sluicemq.protocols.offload import Offload
from sluicemq.protocols.transport import Transport
from sluicemq.protocols.vibemq.large import LargeDeliveries


class ManualBackground:
    """Background threads whose work a test runs."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, work: Callable[[], Any], callback: Callable[[Any], None]) -> Any:
        self.jobs.append((work, callback))

    def run(self) -> int:
        """Run all submitted work; return the number of jobs."""
        jobs, self.jobs = self.jobs, []
        for work, callback in jobs:
            callback(work())
        return len(jobs)


class LoopBackground:
    """Background threads whose work is done at once, and reported by the next timers."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def submit(self, work: Callable[[], Any], callback: Callable[[Any], None]) -> Any:
        self.transport.call_later(0, partial(callback, work()))


class Budget:
    """Fake of `InputBudget` with reservations only."""

    def __init__(self) -> None:
        self.limit = 1 << 30
        self.reserved = 0

    def reserve(self, size: int) -> bool:
        if self.reserved and self.reserved + size > self.limit:
            return False
        self.reserved += size
        return True

    def unreserve(self, size: int) -> None:
        self.reserved -= size


def idle_offload() -> Offload:
    """Return worker threads that do nothing, for sessions without large frames."""
    return Offload(ManualBackground(), Budget())


def idle_large_deliveries() -> LargeDeliveries:
    """Return large deliveries that are never encoded, for sessions without them."""
    return LargeDeliveries(idle_offload())
