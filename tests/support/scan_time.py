"""Deadlines of scans that do not depend on a clock."""

from __future__ import annotations

from sluicemq.broker.scheduler import Deadline


class ScanTime:
    """Deadlines that expire after a number of checks instead of a time.

    limit   checks of an iteration before the deadline has expired; 0 = it never expires
    checks  number of checks in each iteration
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.checks: list[int] = []

    def start(self) -> Deadline:
        self.checks.append(0)
        return self._is_expired

    def _is_expired(self) -> bool:
        self.checks[-1] += 1
        return 0 < self.limit < self.checks[-1]
