"""Slices of large transactions: work that is spread over event loop iterations.

Each slice waits until the records of the previous one are on disk, so a transaction delays other
work by no more than one slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sluicemq.broker.group_commit import GroupCommit
    from sluicemq.broker.state import Core

SLICE_SECONDS: Final = 0.005
"""Time after which a slice ends, with the part that is being written or applied, in seconds."""
SLICE_DELIVERIES: Final = 1000
"""Deliveries after which a slice ends: making durable messages visible takes time.

A transaction with no more deliveries and no more bytes than a slice is not large.
"""
PART_DELIVERIES: Final = 64


class Commits:
    """Runner of the slices, one in each event loop iteration.

    slice_seconds, slice_deliveries, part_deliveries  default to the constants
    """

    def __init__(self, core: Core, group_commit: GroupCommit) -> None:
        self._core = core
        self._group_commit = group_commit
        self._ready: deque[Iterator[int]] = deque()
        self.slice_seconds = SLICE_SECONDS
        self.slice_deliveries = SLICE_DELIVERIES
        self.part_deliveries = PART_DELIVERIES

    def start(self, steps: Iterator[int]) -> None:
        """Schedule the next slice for a later iteration: this one may have no time left.

        Each slice yields the sequence to wait for before the next one.
        """
        self._ready.append(steps)
        self._core.wake()

    def advance(self) -> None:
        """Run one slice of the work that is ready. Called once per event loop iteration."""
        if not self._ready:
            return
        steps = self._ready.popleft()
        sequence = next(steps, None)
        if sequence is not None:
            self._group_commit.when_durable(sequence, partial(self.start, steps))
        if self._ready:
            self._core.wake()
