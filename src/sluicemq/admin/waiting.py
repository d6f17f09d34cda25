"""Answers that wait until what they tell of is on disk."""

from __future__ import annotations

import asyncio

from sluicemq.broker import Broker


async def durable(broker: Broker, sequence: int) -> None:
    """Wait until a crash cannot take back what has that journal number; 0 = nothing."""
    broker.wake()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done() -> None:
        if not future.done():
            future.set_result(None)

    broker.when_durable(sequence, done)
    await future
