"""Publish to a VibeMQ fan-out queue: every subscriber receives every message."""

import asyncio
import sys

from sluicemq.clients.vibemq import Mode, QueueOptions, VibeMQClient
from sluicemq.clients.vibemq.connection import DEFAULT_PORT

QUEUE = "example-news"


async def subscribe(name: str, port: int, subscribed: asyncio.Event) -> None:
    """Print and acknowledge three messages."""
    async with (
        await VibeMQClient.connect("127.0.0.1", port) as client,
        await client.subscribe(QUEUE) as messages,
    ):
        subscribed.set()
        async for message in messages:
            print(name, "received", message.json())
            await message.ack()
            if message.json() == {"number": 3}:
                break


async def main(port: int) -> None:
    async with await VibeMQClient.connect("127.0.0.1", port) as publisher:
        await publisher.create_queue(QUEUE, QueueOptions(mode=Mode.FAN_OUT_WITH_ACK))
        subscribers = []
        for name in ("first", "second"):
            subscribed = asyncio.Event()
            subscribers.append(asyncio.create_task(subscribe(name, port, subscribed)))
            await asyncio.wait_for(subscribed.wait(), timeout=30)
        for number in range(1, 4):
            await publisher.publish(QUEUE, {"number": number}, {"priority": "High"})
        await asyncio.gather(*subscribers)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_PORT))
