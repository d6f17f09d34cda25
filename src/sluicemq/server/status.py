"""What the running broker says about itself: one JSON document per connection, on a Unix socket
in the data directory that only its owner may open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from pathlib import Path
from typing import Any

import msgspec

from sluicemq import __version__
from sluicemq.broker import Broker, Destination
from sluicemq.broker.build import COMPILED
from sluicemq.server.listener import OpenListener


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    return 0


class Status:
    """Collects and serves the document; see `document` for its shape."""

    def __init__(self, broker: Broker, listeners: list[OpenListener]) -> None:
        self._broker = broker
        self._listeners = listeners
        self._started = time.monotonic()
        self._server: asyncio.Server | None = None

    def document(self) -> dict[str, Any]:
        """Everything, as JSON values. Sizes in bytes, rates per second, ages in ms."""
        broker = self._broker
        return {
            "version": __version__,
            "compiled": COMPILED,
            "pid": os.getpid(),
            "uptime": time.monotonic() - self._started,
            "memory": resident_bytes(),
            "bodies_in_memory": broker.core.memory,
            "listeners": [
                {"url": str(listener.url), "connections": len(listener.connections)}
                for listener in self._listeners
            ],
            "journal": broker.journal.stats(),
            "destinations": [
                self._destination(destination) for destination in broker.destinations.values()
            ],
        }

    def _destination(self, destination: Destination) -> dict[str, Any]:
        statistics = destination.statistics
        oldest = destination.queue.oldest()
        return {
            "name": destination.name.encode("utf-8", "backslashreplace").decode()
            if destination.name.isprintable()
            else ascii(destination.name)[1:-1],
            "kind": destination.address.kind.name.lower(),
            "temporary": destination.temporary,
            "paused": destination.paused,
            "waiting": destination.waiting,
            "unacked": destination.unacked,
            "bytes": destination.bytes,
            "consumers": destination.consumers,
            "subscriptions": len(destination.subscriptions),
            "oldest_ms": max(0, self._broker.clock.wall - oldest) if oldest else 0,
            "published": statistics.published,
            "delivered": statistics.delivered,
            "redelivered": statistics.redelivered,
            "settled": statistics.settled,
            "expired": statistics.expired,
            "dropped": statistics.dropped,
            "rejected": statistics.rejected,
            "dead_lettered": statistics.dead_lettered,
            "rate_in": round(statistics.rate_in, 3),
            "rate_out": round(statistics.rate_out, 3),
        }

    async def open(self, path: Path) -> None:
        """Serve at `path`."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._server = await asyncio.start_unix_server(self._answer, path)
        path.chmod(0o600)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(msgspec.json.encode(self.document()))
            await writer.drain()
            writer.close()

    def close(self, path: Path) -> None:
        """Serve no more."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
