"""Valid conversations of each protocol, made by our own encoders, for the mutators to damage.

They touch only destinations of their own (NAMES): what happens to those of others is never excused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Final

from sluicemq.model.rows import RowValues, encode, row
from sluicemq.protocols.msglite import wire as msglite_wire
from sluicemq.protocols.phpmq import wire as phpmq_wire
from sluicemq.protocols.vibemq import wire as vibemq_wire
from sluicemq.protocols.vibemq.compression import Compression
from tests.fuzz import jmq
from tests.fuzz.mutations import Frames
from tests.protocols.phpmq.harness import encode_dispatch, in_line_form

Conversation = Callable[[Random], Frames]

NAMES: Final = (b"hostile.a", b"hostile.b", b"hostile.c", b"hostile.\xc3\xa9\xff", b"h" * 200)
_IDS: Final = (b"0" * 32, b"f" * 32, b"d7e7f68761d34838494b233148b5486c", b"", b"x" * 64)
_SECONDS: Final = (0, 0, 1, 2, 60, 1 << 40)
_LONGEST: Final = 8


def phpmq(chance: Random) -> Frames:
    """A client of PHPMQ, of either dispatch version and in either form."""
    dispatch_version = chance.choice((1, 2))
    newline = chance.choice((b"", b"", b"", b"\n", b"\r\n"))
    frames = []
    for _ in range(chance.randint(1, _LONGEST)):
        queue, seconds = chance.choice(NAMES), chance.choice(_SECONDS)
        match chance.randrange(6):
            case 0 | 1:
                body = _body(chance)
                frame = phpmq_wire.encode_send(
                    queue, body, seconds, dispatch_version=dispatch_version
                )
            case 2:
                count = chance.choice((0, 1, 3, 10**20 - 1))
                frame = phpmq_wire.encode_consume(queue, count)
            case 3:
                frame = phpmq_wire.encode_acknowledge(queue, chance.choice(_IDS))
            case 4:
                frame = phpmq_wire.encode_requeue(queue, chance.choice(_IDS), seconds)
            case _:
                frame = phpmq_wire.encode_dead_letter(queue, chance.choice(_IDS))
        frames.append(in_line_form(frame, newline))
    return frames


def phpmq_broker(chance: Random) -> Frames:
    """The other direction of PHPMQ."""
    dispatch_version = chance.choice((1, 2))
    newline = chance.choice((b"", b"", b"", b"\n", b"\r\n"))
    frames = [
        encode_dispatch(
            chance.choice(NAMES),
            _body(chance),
            chance.choice(_IDS),
            chance.choice(_SECONDS),
            dispatch_version=dispatch_version,
        )
        for _ in range(chance.randint(1, _LONGEST))
    ]
    return [in_line_form(frame, newline) for frame in frames]


def maintenance(chance: Random) -> Frames:
    """A person at the maintenance port, who empties no queue but those of the conversations."""
    commands = (
        *(
            b"help",
            b"help search",
            b"clear",
            b"search *",
            b"search ho*e",
            b"monitor",
            b"show",
            b"q",
        ),
        *(b"flush " + chance.choice(NAMES), b"show " + chance.choice(NAMES), b"", b"x" * 300),
    )
    return [
        chance.choice(commands) + chance.choice((b"\n", b"\r\n"))
        for _ in range(chance.randint(1, _LONGEST))
    ]


def msglite(chance: Random) -> Frames:
    """A client of msglite."""
    frames = []
    for _ in range(chance.randint(1, _LONGEST)):
        name, seconds = chance.choice(_ADDRESSES), chance.choice(_SECONDS)
        match chance.randrange(5):
            case 0 | 1:
                reply = chance.choice((b"", chance.choice(_ADDRESSES)))
                frame = msglite_wire.encode_message(seconds, name, _body(chance), reply)
            case 2 | 3:
                names = tuple(chance.choice(_ADDRESSES) for _ in range(chance.randint(1, 8)))
                frame = msglite_wire.encode_ready(min(seconds, 1), names)
            case _:
                frame = msglite_wire.encode_query(min(seconds, 1), name, _body(chance))
        frames.append(frame)
    if chance.random() < 0.2:
        frames.append(msglite_wire.QUIT_LINE)
    return frames


def msglite_broker(chance: Random) -> Frames:
    """The other direction of msglite."""
    frames = []
    for _ in range(chance.randint(1, _LONGEST)):
        name, seconds = chance.choice(_ADDRESSES), chance.choice(_SECONDS)
        frames.append(
            chance.choice(
                (
                    msglite_wire.encode_message(seconds, name, _body(chance)),
                    msglite_wire.encode_message(seconds, name, _body(chance), b"reply"),
                    msglite_wire.TIMEOUT_LINE,
                    msglite_wire.encode_error("no \udcff"),
                )
            )
        )
    return frames


def vibemq(chance: Random) -> Frames:
    """A client of VibeMQ, some of whose frames are compressed."""
    hello = {"supported-compression": "brotli,gzip"} if chance.random() < 0.5 else {}
    frames = [vibemq_wire.Frame(vibemq_wire.CONNECT, "hello", headers=hello)]
    for number in range(chance.randint(1, _LONGEST)):
        kind = chance.choice(_VIBEMQ_REQUESTS)
        queue = chance.choice(("hostile.a", "hostile.b", "h" * 200, "no name", ""))
        payload = b""
        headers = {}
        if kind == vibemq_wire.PUBLISH:
            payload = chance.choice(
                (b"", b"null", b'{"a":[1,2.50,"x"]}', b'"' + b"x" * 2000 + b'"')
            )
            headers = chance.choice(({}, {"priority": "High"}, {"correlationId": "c", "own": "h"}))
        elif kind == vibemq_wire.CREATE_QUEUE:
            payload = b'{"mode":%d,"maxQueueSize":9}' % chance.randrange(5)
        elif kind == vibemq_wire.ACK:
            headers = chance.choice(({}, {"messageId": "1"}))
        frames.append(vibemq_wire.Frame(kind, str(number), queue, payload, headers))
    compression = chance.choice((Compression.NONE, Compression.GZIP, Compression.BROTLI))
    return [vibemq_wire.compressed(vibemq_wire.encode(frame), compression, 0) for frame in frames]


def http(chance: Random) -> Frames:
    """A request to the gateway: request line, header lines, blank line, body."""
    body = _body(chance)
    end = chance.choice((b"\r\n", b"\n"))
    method = chance.choice((b"GET", b"HEAD", b"POST", b"PUT", b"DELETE"))
    lines = [b"%b /path?q=%%41 HTTP/1.%d" % (method, chance.randrange(2))]
    for _ in range(chance.randrange(5)):
        lines.append(
            chance.choice((b"Host: x", b"X-a: b", b"X-A:  c \t", b"F: d\n\te", b"E: \xe9"))
        )
    if chance.random() < 0.8:
        lines.insert(chance.randint(1, len(lines)), b"Content-Length: %d" % len(body))
    return [*(line + end for line in lines), end, body]


def api(chance: Random) -> Frames:
    """Requests to the HTTP listener, some on one connection: head lines, blank line, body."""
    frames = []
    for _ in range(chance.randint(1, 3)):
        body = b"".join(encode(_rows(chance)))
        method, path, body = chance.choice(
            (
                (b"GET", b"status", b""),
                (b"GET", b"journal", b""),
                (b"GET", b"journal/segments/1", b""),
                (b"PUT", b"journal/slots/hostile", b'{"position": 0, "limit_bytes": 1}'),
                (b"DELETE", b"journal/slots/hostile", b""),
                (b"POST", b"batches?writer=%d&batch=0&partition=0&part=0&final=1", body),
                (b"POST", b"batches?writer=%d&batch=0&partition=0&part=0&bad_rows=drop", body),
            )
        )
        if b"%d" in path:
            path %= chance.randrange(1 << 30)
        lines = [b"%b /api/v1/%b HTTP/1.1" % (method, path), b"Host: localhost"]
        for _ in range(chance.randrange(3)):
            lines.append(
                chance.choice(
                    (
                        b"Range: bytes=0-99",
                        b"Connection: close",
                        b"Expect: 100-continue",
                        b"Authorization: Basic YTpi",
                        b"Origin: http://localhost",
                        b"Upgrade: websocket",
                        b"Transfer-Encoding: chunked",
                    )
                )
            )
        lines.append(b"Content-Length: %d" % len(body))
        frames += [*(line + b"\r\n" for line in lines), b"\r\n", body]
    return frames


def _rows(chance: Random) -> list[RowValues]:
    return [
        row(chance.choice(NAMES), _body(chance), priority=chance.randrange(10))
        for _ in range(chance.randrange(4))
    ]


def http_reply(chance: Random) -> Frames:
    """Return the response of a worker to a request, and what it sends afterwards."""
    status = chance.choice(("200", "204", "302", "404", "500"))
    headers = chance.choice(([], ["Content-Type", "text/plain"], ["A", "b", "A", "é"]))
    return [json.dumps([status, headers]).encode(), _body(chance), b""]


def any_first_byte(chance: Random) -> Frames:
    """Return input of an `auto` listener: of protocols that are served, and of others."""
    foreign_conversations: tuple[Conversation, ...] = (
        lambda _: [b"\x1b\xff\xe3\xc2\0\0\0\x48", bytes(64)],
        lambda _: [b"\0\0\0\x10", b'{"type":"Connect"}'],
        lambda _: [b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", bytes(40)],
        http,
    )
    return chance.choice(
        (phpmq, msglite, vibemq, jmq.listener, chance.choice(foreign_conversations))
    )(chance)


_VIBEMQ_REQUESTS: Final = (
    vibemq_wire.PUBLISH,
    vibemq_wire.PUBLISH,
    vibemq_wire.SUBSCRIBE,
    vibemq_wire.UNSUBSCRIBE,
    vibemq_wire.ACK,
    vibemq_wire.PING,
    vibemq_wire.CREATE_QUEUE,
    vibemq_wire.DELETE_QUEUE,
    vibemq_wire.QUEUE_INFO,
    vibemq_wire.LIST_QUEUES,
    vibemq_wire.CONNECT,
)
_ADDRESSES: Final = tuple(name for name in NAMES if msglite_wire.is_address(name))


def _body(chance: Random) -> bytes:
    return chance.choice(
        (
            b"",
            b"x",
            b"H0100103P01",
            b"\r\n.\r\n",
            b"> 1 1 hostile.a\r\n",
            bytes(chance.randrange(500)),
        )
    )
