"""What may be said about captures that their bytes do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from sluicemq.model.errors import ConfigurationError

DECODED: Final = ("jmq", "jmq-portmapper", "phpmq", "vibemq", "msglite", "msglite-http")
"""Protocols that there is a codec for."""
REPORTED: Final = ("tls", "phpmq-maintenance", "http")
"""Protocols of which only the presence is told."""

PORTS: Final[Mapping[int, str]] = MappingProxyType(
    {
        2925: "vibemq",
        7676: "jmq",
        7680: "http",
        9100: "phpmq",
        9101: "phpmq-maintenance",
        9813: "msglite",
        9814: "msglite-http",
    }
)
"""The traditional ports."""

MAX_FRAME_BYTES: Final = 73_400_320
"""What a JMS broker takes by default (Open MQ's imq.message.max_size)."""


class Raw(NamedTuple):
    """Files are no captures but the bytes of one direction, from its beginning.

    protocol  one of DECODED, or None to find out
    role      who wrote the bytes: "client" or "server"
    """

    protocol: str | None = None
    role: str = "client"


@dataclass(frozen=True)
class Options:
    """How captures are decoded.

    ports            protocol of a server's port
    raw              see Raw; None for captures
    max_frame_bytes  a frame that announces more is an error, and no memory is set aside for it
    max_waiting      packets of one direction that wait for one before them; with one more, that
                     which is missing counts as lost
    max_connections  of one file, in memory at a time; beyond, the one longest silent is forgotten,
                     and what it still says becomes a connection of its own
    secrets          show passwords and tokens, too; else "***" stands in their place
    partitions       tasks that decode; None = four for each core
    """

    ports: Mapping[int, str] = field(default_factory=lambda: PORTS)
    raw: Raw | None = None
    max_frame_bytes: int = MAX_FRAME_BYTES
    max_waiting: int = 65_536
    max_connections: int = 100_000
    secrets: bool = False
    partitions: int | None = None

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        object.__setattr__(self, "ports", dict(self.ports))  # what tasks are sent can be pickled
        for port, protocol in self.ports.items():
            if not 0 < port < 65_536:
                raise ConfigurationError(f"ports: {port} is no port; they go from 1 to 65535")
            _check_protocol("ports", protocol, (*DECODED, *REPORTED))
        if self.raw is not None:
            if self.raw.protocol is not None:
                _check_protocol("protocol", self.raw.protocol, DECODED)
            if self.raw.role not in ("client", "server"):
                raise ConfigurationError(
                    f"role: {self.raw.role!r} is neither client nor server; say who wrote the bytes"
                )
        for name in ("max_frame_bytes", "max_waiting", "max_connections"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}: must be at least 1")
        if self.partitions is not None and self.partitions < 1:
            raise ConfigurationError("partitions: must be at least 1")


def _check_protocol(name: str, protocol: str, known: tuple[str, ...]) -> None:
    if protocol not in known:
        raise ConfigurationError(
            f"{name}: there is no protocol {protocol!r}; there are {', '.join(known)}"
        )


def parse_ports(text: str) -> dict[int, str]:
    """ "9200=phpmq,9300=jmq", added to PORTS. Raises ConfigurationError."""
    ports = dict(PORTS)
    for pair in filter(None, (part.strip() for part in text.split(","))):
        port, equals, protocol = pair.partition("=")
        if not equals or not port.strip().isdecimal() or not port.isascii():
            raise ConfigurationError(f"ports: {pair!r} is not PORT=PROTOCOL, as in 9200=phpmq")
        ports[int(port)] = protocol.strip()
    return ports
