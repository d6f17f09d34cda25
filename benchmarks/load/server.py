"""The broker under load: a new process in a temporary directory, or a running one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sluicemq.cli.local import LocalBroker
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.url import Url

from .jmq import Jmq
from .load import Dialect
from .msglite import Msglite
from .phpmq import Phpmq
from .sockets import BrokerAddress
from .vibemq import Vibemq

PROTOCOLS: Final = ("phpmq", "msglite", "vibemq", "jmq")
TRANSPORTS: Final = ("tcp", "unix")
DURABILITIES: Final = ("sync", "lazy", "none")
DEFAULT_WINDOW: Final = {"phpmq": 1000, "msglite": 1, "vibemq": 256, "jmq": 1000}
DEFAULT_DURABILITY: Final = {"phpmq": "sync", "msglite": "none", "vibemq": "sync", "jmq": "sync"}


def dialect(protocol: str, size: int, *, queue: bytes, window: int = 0) -> Dialect:
    """Return the load generator of one of PROTOCOLS; `window` 0 = the protocol's default."""
    effective_window = window or DEFAULT_WINDOW[protocol]
    if protocol == "phpmq":
        return Phpmq(size, queue=queue, window=effective_window)
    if protocol == "vibemq":
        return Vibemq(size, queue=queue, window=effective_window)
    if protocol == "jmq":
        return Jmq(size, queue=queue, window=effective_window)
    return Msglite(size, queue=queue, window=effective_window)


class BenchmarkBroker:
    """The broker of a scenario."""

    def __init__(self, target: BrokerAddress, local: LocalBroker | None, queue: bytes) -> None:
        self.target = target
        self.local = local
        self.queue = queue
        """Queue of the scenario's messages; has a unique name on a running broker."""

    @property
    def pid(self) -> int | None:
        """Return the id of the broker's process; None if it was not started here."""
        return self.local.pid if self.local is not None else None

    def destination(self, name: bytes) -> dict[str, Any]:
        """Return a queue's state on a broker started here; empty if there is no such queue."""
        assert self.local is not None
        for state in self.local.status()["destinations"]:
            if state["name"] == name.decode():
                return dict(state)
        return {}

    def connections(self) -> int:
        """Return the number of connections of a broker started here."""
        assert self.local is not None
        return sum(int(listener["connections"]) for listener in self.local.status()["listeners"])


@contextmanager
def start_broker(
    protocol: str, transport: str, durability: str, *, connections: int = 0
) -> Iterator[BenchmarkBroker]:
    """Start a broker; `connections` are added to its limit. Raises ConnectionLost if it does not
    start."""
    with tempfile.TemporaryDirectory(prefix="sluicemq-bench-") as directory:
        options = f"?durability={durability}"
        if connections:
            options += f"&max_connections={connections + 1000}"
        path = f"{directory}/load.sock" if transport == "unix" else ""
        address = f"+unix://{path}" if path else "://127.0.0.1:0"
        listen = f"{protocol}{address}{options}"
        with LocalBroker(Path(directory) / "data", [listen], ["--log-level", "warning"]) as local:
            yield BenchmarkBroker(_target(local, protocol, path), local, b"bench")


def restart(server: BenchmarkBroker, protocol: str) -> BenchmarkBroker:
    """Return the location after a kill and restart, which change the ports. TCP only."""
    assert server.local is not None
    return BenchmarkBroker(_target(server.local.start(), protocol, ""), server.local, server.queue)


def _target(local: LocalBroker, protocol: str, path: str) -> BrokerAddress:
    return BrokerAddress(0, path=path) if path else BrokerAddress(local.port(protocol))


def broker_at(url: Url) -> BenchmarkBroker:
    """Return a running broker. Raises ConfigurationError for a URL that cannot be used."""
    if url.tls or url.protocol not in PROTOCOLS:
        raise ConfigurationError(f"{url}: bench speaks {', '.join(PROTOCOLS)}, no TLS")
    if url.queue or url.options or url.user:
        raise ConfigurationError(f"{url}: bench uses a queue of its own, and listeners as they are")
    queue = b"bench-" + os.urandom(4).hex().encode()
    return BenchmarkBroker(BrokerAddress(url.port, url.host, url.path), None, queue)
