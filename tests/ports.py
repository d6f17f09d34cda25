"""Port numbers for brokers that have to be found again after a restart."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

LOWEST = 10_000
"""Below are the ports that services have by default, also those of this broker."""
TRIES = 100


def free_port() -> int:
    """Return a port that nobody uses on loopback. It is below those that the system gives to
    clients and to listeners without a number, so it stays free while the broker is stopped."""
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(LOWEST, highest), TRIES):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
