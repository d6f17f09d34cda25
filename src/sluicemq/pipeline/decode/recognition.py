"""Detection of a connection's protocol and of its server side.

    1. a TLS record (RFC 8446, section 5.1) at the beginning of a side: TLS
    2. the port of one side, if it is known; unless its codec reports an error at once and another
       codec finds frames
    3. the codecs: the one that finds frames without an error before in the first bytes

Without a SYN and a known port, the side with the lower port is the server, unless the codec
decides.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final, NamedTuple

from sluicemq.pipeline.decode.codec import Codec
from sluicemq.pipeline.decode.codecs import JmqCodec, MsgliteCodec, PhpmqCodec, VibemqCodec
from sluicemq.pipeline.decode.exchanges import HttpCodec, PortMapperCodec
from sluicemq.pipeline.decode.options import REPORTED, DecodeOptions

HEAD: Final = 64 << 10
"""Maximum number of bytes of a side that are examined."""

CODECS: Final[dict[str, type[Codec]]] = {
    kind.name: kind
    for kind in (JmqCodec, PortMapperCodec, PhpmqCodec, VibemqCodec, MsgliteCodec, HttpCodec)
}

_FOUND: Final = (JmqCodec, PhpmqCodec, VibemqCodec, MsgliteCodec, PortMapperCodec)
"""Codecs in the order of trial, without HTTP, which other servers use, too."""
_BEHIND: Final = {"jmq": ("jmq", "jmq-portmapper")}
"""Protocols served on the port of a protocol, where there are several."""
_TLS: Final = re.compile(rb"[\x14-\x17]\x03[\0-\x04]")
_MOST_TRIALS: Final = 256
_FRAMES, _NOTHING, _FAULT = 2, 1, 0


class Head(NamedTuple):
    """First bytes of a side; `begins`: they are the first of the connection."""

    data: bytes
    begins: bool


class Recognised(NamedTuple):
    """Detected protocol, or None, and the server side, 0 or 1."""

    protocol: str | None
    server: int


def recognise(
    heads: tuple[Head, Head], ports: tuple[int, int], client: int | None, options: DecodeOptions
) -> Recognised:
    """Return the protocol and the server side of a connection.

    `ports` has both sides' ports; `client` is the side that opened the connection, if known. At
    least one side has sent bytes."""
    servers = [1 - client] if client is not None else likely_servers(ports, options)
    if any(_TLS.match(head.data) for head in heads):
        return Recognised("tls", servers[0])
    named = [(options.ports.get(ports[server]), server) for server in servers]
    by_port = Recognised(*next((pair for pair in named if pair[0] is not None), (None, servers[0])))
    expected = by_port.protocol
    if expected in REPORTED:
        return by_port
    names = () if expected is None else _BEHIND.get(expected, (expected,))
    for kinds in ([CODECS[name] for name in names], _FOUND):
        trials = [
            (_judge(kind, heads, server, options), Recognised(kind.name, server))
            for kind in kinds
            for server in servers
        ]
        points, best = max(trials, key=lambda trial: trial[0], default=(0, by_port))
        if points > 0:
            return best
    return by_port


def likely_servers(ports: tuple[int, int], options: DecodeOptions) -> list[int]:
    """Return the sides that may be the server, the more likely one first."""
    known = [side for side in (0, 1) if ports[side] in options.ports]
    if len(known) == 1:
        return known
    return [0, 1] if ports[0] < ports[1] else [1, 0]


def _judge(kind: type[Codec], heads: tuple[Head, Head], server: int, options: DecodeOptions) -> int:
    """Return a score: more than 0 if the protocol is possible; higher is more likely."""
    sides = [
        _try(kind, side != server, heads[side], options) for side in (0, 1) if heads[side].data
    ]
    if _FRAMES in sides:
        return 4 + sides.count(_FRAMES) - 2 * sides.count(_FAULT)
    return 0 if _FAULT in sides else 1


def _try(kind: type[Codec], to_server: bool, head: Head, options: DecodeOptions) -> int:
    """Return the score of one side: what its codec finds first."""
    data = head.data[:HEAD]
    matches = kind.signature.finditer(data) if kind.signature and not head.begins else ()
    found = [match.start() for match in islice(matches, _MOST_TRIALS)]
    for place in [0] if head.begins else found:
        codec = kind(to_server, options.max_frame_bytes, options.secrets)
        if codec.feed(data[place:]):
            return _FRAMES
        if codec.error is None:
            return _NOTHING
    return _FAULT
