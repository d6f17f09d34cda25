"""The broker under load: a fresh process in a temporary directory, or one that runs already."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sluicemq.cli.bench.jmq import Jmq
from sluicemq.cli.bench.load import Dialect
from sluicemq.cli.bench.msglite import Msglite
from sluicemq.cli.bench.phpmq import Phpmq
from sluicemq.cli.bench.sockets import Target
from sluicemq.cli.bench.vibemq import Vibemq
from sluicemq.cli.local import LocalBroker
from sluicemq.model.errors import ConfigurationError
from sluicemq.server.address import Url

PROTOCOLS: Final = ("phpmq", "msglite", "vibemq", "jmq")
TRANSPORTS: Final = ("tcp", "unix")
DURABILITIES: Final = ("sync", "lazy", "none")
DEFAULT_WINDOW: Final = {"phpmq": 1000, "msglite": 1, "vibemq": 256, "jmq": 1000}
DEFAULT_DURABILITY: Final = {"phpmq": "sync", "msglite": "none", "vibemq": "sync", "jmq": "sync"}


def dialect(protocol: str, size: int, *, queue: bytes, window: int = 0) -> Dialect:
    """The load generator's side of a protocol out of PROTOCOLS; `window` 0 = as usual there."""
    usual = window or DEFAULT_WINDOW[protocol]
    if protocol == "phpmq":
        return Phpmq(size, queue=queue, window=usual)
    if protocol == "vibemq":
        return Vibemq(size, queue=queue, window=usual)
    if protocol == "jmq":
        return Jmq(size, queue=queue, window=usual)
    return Msglite(size, queue=queue, window=usual)


class Server:
    """A broker as a scenario sees it."""

    def __init__(self, target: Target, local: LocalBroker | None, queue: bytes) -> None:
        self.target = target
        self.local = local
        self.queue = queue
        """For the scenario's messages; on a broker that runs already it has a name of its own."""

    @property
    def pid(self) -> int | None:
        """Of the broker's process; None if it was not started here."""
        return self.local.pid if self.local is not None else None

    def destination(self, name: bytes) -> dict[str, Any]:
        """What a broker started here says about a queue; empty if it has none of that name."""
        assert self.local is not None
        for each in self.local.status()["destinations"]:
            if each["name"] == name.decode():
                return dict(each)
        return {}

    def connections(self) -> int:
        """How many a broker started here has."""
        assert self.local is not None
        return sum(int(each["connections"]) for each in self.local.status()["listeners"])


@contextmanager
def fresh(
    protocol: str, transport: str, durability: str, *, connections: int = 0
) -> Iterator[Server]:
    """A new broker; `connections` more than usual. Raises ConnectionLost if it does not start."""
    with tempfile.TemporaryDirectory(prefix="sluicemq-bench-") as directory:
        options = f"?durability={durability}"
        if connections:
            options += f"&max_connections={connections + 1000}"
        path = f"{directory}/load.sock" if transport == "unix" else ""
        address = f"+unix://{path}" if path else "://127.0.0.1:0"
        listen = f"{protocol}{address}{options}"
        with LocalBroker(Path(directory) / "data", [listen], ["--log-level", "warning"]) as local:
            yield Server(_target(local, protocol, path), local, b"bench")


def again(server: Server, protocol: str) -> Server:
    """The same after its process was killed and started again: ports change. TCP only."""
    assert server.local is not None
    return Server(_target(server.local.start(), protocol, ""), server.local, server.queue)


def _target(local: LocalBroker, protocol: str, path: str) -> Target:
    return Target(0, path=path) if path else Target(local.port(protocol))


def running(url: Url) -> Server:
    """A broker that runs already. Raises ConfigurationError for what cannot be loaded."""
    if url.tls or url.protocol not in PROTOCOLS:
        raise ConfigurationError(f"{url}: bench speaks {', '.join(PROTOCOLS)}, no TLS")
    if url.queue or url.options or url.user:
        raise ConfigurationError(f"{url}: bench uses a queue of its own, and listeners as they are")
    queue = b"bench-" + os.urandom(4).hex().encode()
    return Server(Target(url.port, url.host, url.path), None, queue)
