"""Long work in slices, so that nobody else waits for it."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

SLICE_SECONDS: Final = 0.003


class Pace:
    """`if pace.due: await pace.rest()`, now and then, each millisecond or more often."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = perf_counter() + SLICE_SECONDS

    @property
    def due(self) -> bool:
        """The slice is over."""
        return perf_counter() > self._until

    async def rest(self) -> None:
        """Let everyone else go first; then a new slice begins."""
        await asyncio.sleep(0)
        self._until = perf_counter() + SLICE_SECONDS
