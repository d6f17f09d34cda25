"""Deadlines of scans that depend on no clock."""

from __future__ import annotations

from sluicemq.broker.scheduler import Deadline


class ScanTime:
    """Deadlines that come after a number of checks instead of a time.

    limit  questions of an iteration that are answered with no; 0 = all
    asked  how many there were in each iteration
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.asked: list[int] = []

    def start(self) -> Deadline:
        self.asked.append(0)
        return self._over

    def _over(self) -> bool:
        self.asked[-1] += 1
        return 0 < self.limit < self.asked[-1]
