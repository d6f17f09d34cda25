"""Options of decoding, for facts that captures do not contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sluicemq.model.errors import ConfigurationError

DECODED: Final = ("jmq", "jmq-portmapper", "phpmq", "vibemq", "msglite", "msglite-http")
"""Protocols with a codec."""
REPORTED: Final = ("tls", "phpmq-maintenance", "http")
"""Protocols that are reported and not decoded."""

PORTS: Final[Mapping[int, str]] = {
    2925: "vibemq",
    7676: "jmq",
    7680: "http",
    9100: "phpmq",
    9101: "phpmq-maintenance",
    9813: "msglite",
    9814: "msglite-http",
}
"""Default ports of the protocols."""


class Raw(NamedTuple):
    """Format of files that contain the bytes of one direction instead of a capture.

    protocol  one of DECODED, or None to detect it
    role      sender of the bytes: "client" or "server"
    """

    protocol: str | None = None
    role: str = "client"


@dataclass(frozen=True)
class DecodeOptions:
    """Options of decoding.

    ports            protocol of each server port
    raw              format of raw logs; None for captures
    max_frame_bytes  a frame with a greater length is an error, for which no memory is allocated;
                     by default, the maximum of a JMS broker (Open MQ's imq.message.max_size)
    secrets          include passwords and tokens instead of "***"
    """

    ports: Mapping[int, str] = field(default_factory=lambda: PORTS)
    raw: Raw | None = None
    max_frame_bytes: int = 73_400_320
    secrets: bool = False

    def __post_init__(self) -> None:
        """Validate the options. Raises ConfigurationError."""
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
        if self.max_frame_bytes < 1:
            raise ConfigurationError("max_frame_bytes: must be at least 1")


def _check_protocol(name: str, protocol: str, known: tuple[str, ...]) -> None:
    if protocol not in known:
        raise ConfigurationError(
            f"{name}: there is no protocol {protocol!r}; there are {', '.join(known)}"
        )


def parse_ports(text: str) -> dict[int, str]:
    """Parse ports such as "9200=phpmq,9300=jmq" and add PORTS. Raises ConfigurationError."""
    ports = dict(PORTS)
    for pair in filter(None, (part.strip() for part in text.split(","))):
        port, equals, protocol = pair.partition("=")
        if not equals or not port.strip().isdecimal() or not port.isascii():
            raise ConfigurationError(f"ports: {pair!r} is not PORT=PROTOCOL, as in 9200=phpmq")
        ports[int(port)] = protocol.strip()
    return ports
