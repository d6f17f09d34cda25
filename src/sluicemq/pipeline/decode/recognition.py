"""Which protocol a connection speaks, and which side is the server.

    1. a record of TLS (RFC 8446, section 5.1) at the beginning of a side: TLS
    2. the port of one side, if it is known; unless the codec finds a fault at once where another
       one finds frames
    3. the codecs themselves: that one which finds frames, and no fault before, in the first bytes

Without a SYN and without a known port the side with the lower port is taken for the server where
the codec does not care.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final, NamedTuple

from sluicemq.pipeline.decode.codec import Codec
from sluicemq.pipeline.decode.codecs import JmqCodec, MsgliteCodec, PhpmqCodec, VibemqCodec
from sluicemq.pipeline.decode.exchanges import HttpCodec, PortMapperCodec
from sluicemq.pipeline.decode.options import REPORTED, Options

HEAD: Final = 64 << 10
"""Bytes of a side that are looked at."""

CODECS: Final[dict[str, type[Codec]]] = {
    kind.name: kind
    for kind in (JmqCodec, PortMapperCodec, PhpmqCodec, VibemqCodec, MsgliteCodec, HttpCodec)
}

_FOUND: Final = (JmqCodec, PhpmqCodec, VibemqCodec, MsgliteCodec, PortMapperCodec)
"""In the order in which they are tried. Not HTTP: others speak it, too."""
_BEHIND: Final = {"jmq": ("jmq", "jmq-portmapper")}
"""What is served on the port of a protocol, if it is not that protocol alone."""
_TLS: Final = re.compile(rb"[\x14-\x17]\x03[\0-\x04]")
_MOST_TRIALS: Final = 256
_FRAMES, _NOTHING, _FAULT = 2, 1, 0


class Head(NamedTuple):
    """The first bytes of a side; `begins`: they are the first of the connection."""

    data: bytes
    begins: bool


class Recognised(NamedTuple):
    """protocol, or None; and the side, 0 or 1, that is the server."""

    protocol: str | None
    server: int


def recognise(
    heads: tuple[Head, Head], ports: tuple[int, int], client: int | None, options: Options
) -> Recognised:
    """`ports` of both sides; `client` is the side that began the connection, if that is known. At
    least one side has said something."""
    servers = [1 - client] if client is not None else _likely_servers(ports, options)
    if any(_TLS.match(head.data) for head in heads):
        return Recognised("tls", servers[0])
    named = [options.ports.get(ports[server]) for server in servers]
    told = next((name for name in named if name is not None), None)
    if told in REPORTED:
        return Recognised(told, servers[named.index(told)])
    expected = _BEHIND.get(told, (told,)) if told is not None else ()
    for kinds in ([CODECS[name] for name in expected], _FOUND):
        best = 0
        found = None
        for kind in kinds:
            for server in servers:
                points = _judge(kind, heads, server, options)
                if points > best:
                    best = points
                    found = Recognised(kind.name, server)
        if found is not None:
            return found
    if told is not None:
        return Recognised(told, servers[named.index(told)])
    return Recognised(None, servers[0])


def _likely_servers(ports: tuple[int, int], options: Options) -> list[int]:
    known = [side for side in (0, 1) if ports[side] in options.ports]
    if len(known) == 1:
        return known
    return [0, 1] if ports[0] < ports[1] else [1, 0]


def _judge(kind: type[Codec], heads: tuple[Head, Head], server: int, options: Options) -> int:
    """More than 0 if that may be it, and the more the better."""
    sides = [
        _try(kind, side != server, heads[side], options) for side in (0, 1) if heads[side].data
    ]
    if _FRAMES in sides:
        return 4 + sides.count(_FRAMES) - 2 * sides.count(_FAULT)
    return 0 if _FAULT in sides else 1


def _try(kind: type[Codec], to_server: bool, head: Head, options: Options) -> int:
    """What the codec finds first."""
    data = head.data[:HEAD]
    if head.begins:
        places = [0]
    elif kind.signature is not None:
        matches = islice(kind.signature.finditer(data), _MOST_TRIALS)
        places = [match.start() for match in matches]
    else:
        places = []
    for place in places:
        codec = kind(to_server, options.max_frame_bytes, options.secrets)
        if codec.feed(data[place:]):
            return _FRAMES
        if codec.error is None:
            return _NOTHING
    return _FAULT
