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
from typing import Final

from sluicemq.pipeline.decode.codecs import (
    CODECS,
    Codec,
    JmqCodec,
    MsgliteCodec,
    PhpmqCodec,
    PortMapperCodec,
    VibemqCodec,
)
from sluicemq.pipeline.decode.options import REPORTED, DecodeOptions

HEAD: Final = 16 << 10
"""Number of bytes of a connection that are examined."""

_FOUND: Final = (JmqCodec, PhpmqCodec, VibemqCodec, MsgliteCodec, PortMapperCodec)
"""Codecs in the order of trial, without HTTP, which other servers use, too."""
_TLS: Final = re.compile(rb"[\x14-\x17]\x03[\0-\x04]")
_MOST_TRIALS: Final = 256
_FRAMES, _NOTHING, _FAULT = 2, 1, 0

Heads = tuple[tuple[bytes, bool], tuple[bytes, bool]]


def recognise(
    heads: Heads, ports: tuple[int, int], client: int | None, options: DecodeOptions
) -> tuple[str | None, int]:
    """Return the protocol, None if it was not recognised, and the server side, 0 or 1.

    `heads` has each side's first bytes, and whether the connection begins with them;
    `ports` has both sides' ports; `client` is the side that opened the connection, if known."""
    # the more likely server first
    known = [side for side in (0, 1) if ports[side] in options.ports]
    servers = known if len(known) == 1 else [0, 1] if ports[0] < ports[1] else [1, 0]
    if client is not None:
        servers = [1 - client]
    raw = None if options.raw is None else options.raw.protocol
    if raw is not None or any(_TLS.match(data) for data, _ in heads):
        return raw or "tls", servers[0]
    named = [(options.ports[ports[side]], side) for side in servers if side in known]
    expected, server = named[0] if named else (None, servers[0])
    if expected in REPORTED or not any(data for data, _ in heads):
        return expected, server
    # the port of JMQ has both
    likely = ("jmq", "jmq-portmapper") if expected == "jmq" else (expected,)
    for kinds in ([kind for name, kind in CODECS.items() if name in likely], _FOUND):
        trials = [
            (_judge(kind, heads, side, options), kind.name, side)
            for kind in kinds
            for side in servers
        ]
        points, best, side = max(trials, key=lambda trial: trial[0], default=(0, "", 0))
        if points > 0:
            return best, side
    return expected, server


def _judge(kind: type[Codec], heads: Heads, server: int, options: DecodeOptions) -> int:
    """Return a score: more than 0 if the protocol is possible; higher is more likely."""
    sides = [
        _try(kind, side != server, data, begins, options)
        for side, (data, begins) in enumerate(heads)
        if data
    ]
    if _FRAMES in sides:
        return 4 + sides.count(_FRAMES) - 2 * sides.count(_FAULT)
    return 0 if _FAULT in sides else 1


def _try(
    kind: type[Codec], to_server: bool, data: bytes, begins: bool, options: DecodeOptions
) -> int:
    """Return the score of one side: what its codec finds first."""
    matches = kind.signature.finditer(data) if kind.signature else ()
    places = [0] if begins else [match.start() for match in islice(matches, _MOST_TRIALS)]
    for place in places:
        codec = kind(to_server, options.max_frame_bytes, options.secrets)
        if codec.feed(data[place:]) or codec.end():
            return _FRAMES
        if codec.error is None:
            return _NOTHING
    return _FAULT
