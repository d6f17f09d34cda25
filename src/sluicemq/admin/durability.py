"""Answers that wait until what they tell of is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from sluicemq.broker import Broker


async def wait_until_durable(broker: Broker, sequence: int) -> None:
    """Wait until a crash cannot take back what has that journal number; 0 = nothing."""
    await wait_until_called_back(broker, partial(broker.when_durable, sequence))


async def wait_until_called_back(
    broker: Broker, begin: Callable[[Callable[[], None]], None]
) -> None:
    """Begin something, and wait until it calls back. Raises what `begin` raises."""
    broker.wake()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done() -> None:
        if not future.done():
            future.set_result(None)

    begin(done)
    await future
