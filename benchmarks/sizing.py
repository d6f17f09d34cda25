"""Measurements for docs/sizing.md: memory, disk space and start time per message, destination and
connection.

    python -m benchmarks.sizing [--messages 500000] [--destinations 20000] [--connections 500]

Each is the difference between two states of a separate broker, so that other load on the machine
changes only the times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.jmq import JmqClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.clients.vibemq import VibeMQClient

LISTEN = (
    "phpmq://127.0.0.1:0?max_connections=20000",
    "msglite://127.0.0.1:0",
    "vibemq://127.0.0.1:0",
    "jmq://127.0.0.1:0",
)
SMALL_BUDGET = {"SLUICEMQ_BROKER__MEMORY_BUDGET": "16MiB"}
"""Small memory budget for bodies, so that the index dominates the measurement."""
SETTLE_SECONDS = 2.0


def resident(broker: LocalBroker) -> int:
    """Return the resident memory in bytes."""
    pages = Path(f"/proc/{broker.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def journal_bytes(broker: LocalBroker) -> int:
    """Return the bytes stored, without preallocated space."""
    return int(broker.status()["journal"]["bytes"])


def fill(broker: LocalBroker, count: int, size: int, ttl: int = 0, queues: int = 1) -> None:
    """Send messages and wait until all of them are on disk."""
    body = bytes(size)

    async def send() -> None:
        async with await PhpmqClient.connect(port=broker.port("phpmq")) as client:
            for number in range(count):
                await client.send(f"queue.{number % queues}", body, ttl)
            await client.send("fence", b"")
            await client.subscribe("fence", 1)
            await (await client.receive(120)).ack()

    asyncio.run(send())


def messages(count: int, size: int, ttl: int = 0) -> dict[str, Any]:
    """Measure a backlog of `count` messages of `size` bytes."""
    directory = Path(tempfile.mkdtemp())
    broker = LocalBroker(directory, LISTEN, environment=SMALL_BUDGET)
    try:
        broker.start()
        empty, stored_bytes = resident(broker), journal_bytes(broker)
        fill(broker, count, size, ttl)
        time.sleep(SETTLE_SECONDS)
        result = {
            "size": size,
            "ttl": ttl,
            "disk_per_message": round((journal_bytes(broker) - stored_bytes) / count, 1),
            "memory_full": resident(broker) - empty,
        }
        broker.stop()
        broker.start()
        result["start_seconds"] = round(broker.start_seconds, 2)
        result["memory_after_start"] = resident(broker) - empty
        return result
    finally:
        broker.stop()
        shutil.rmtree(directory)


def destinations(count: int) -> dict[str, Any]:
    """Measure queues with one message each."""
    directory = Path(tempfile.mkdtemp())
    broker = LocalBroker(directory, LISTEN, environment=SMALL_BUDGET)
    try:
        broker.start()
        empty = resident(broker)
        fill(broker, count, 10, queues=count)
        time.sleep(SETTLE_SECONDS)
        return {"destinations": count, "memory_each": round((resident(broker) - empty) / count)}
    finally:
        broker.stop()
        shutil.rmtree(directory)


def connections(count: int) -> dict[str, Any]:
    """Measure idle connections that consume from a queue."""
    result: dict[str, Any] = {"connections": count}

    def phpmq(port: int) -> Any:
        client = BlockingClient(PhpmqClient.connect, port=port)
        client.subscribe("idle", 1)
        return client

    def vibemq(port: int) -> Any:
        client = BlockingClient(VibeMQClient.connect, port=port)
        client.subscribe("idle")
        return client

    kinds: dict[str, Callable[[int], Any]] = {
        "phpmq": phpmq,
        "msglite": lambda port: BlockingClient(MsgliteClient.connect, port=port),
        "vibemq": vibemq,
        "jmq": lambda port: BlockingClient(JmqClient.connect, port=port),
    }
    for scheme, connect in kinds.items():
        directory = Path(tempfile.mkdtemp())
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, directory)
            broker = LocalBroker(directory, LISTEN)
            stack.callback(broker.stop)
            broker.start()
            stack.enter_context(connect(broker.port(scheme)))
            before = resident(broker)
            for _ in range(count):
                stack.enter_context(connect(broker.port(scheme)))
            time.sleep(SETTLE_SECONDS)
            result[scheme] = round((resident(broker) - before) / count)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--destinations", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=500)
    options = parser.parse_args()
    for size, ttl in ((100, 0), (1000, 0), (1000, 86_400)):
        print(json.dumps(messages(options.messages, size, ttl)), flush=True)
    print(json.dumps(destinations(options.destinations)), flush=True)
    print(json.dumps(connections(options.connections)), flush=True)


if __name__ == "__main__":
    main()
