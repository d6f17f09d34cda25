"""Waiting until changes are on disk, before a response is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from sluicemq.broker import Broker


async def wait_until_durable(broker: Broker, sequence: int) -> None:
    """Wait until the record with that sequence number is on disk; 0 = return at once."""
    await wait_until_called_back(broker, partial(broker.when_durable, sequence))


async def wait_until_called_back(
    broker: Broker, begin: Callable[[Callable[[], None]], None]
) -> None:
    """Call `begin` and wait until it calls back. Raises the errors of `begin`."""
    broker.wake()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done() -> None:
        if not future.done():
            future.set_result(None)

    begin(done)
    await future
