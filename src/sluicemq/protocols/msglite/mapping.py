"""msglite messages <-> the broker's message.

| msglite          | message                                                                      |
|------------------|------------------------------------------------------------------------------|
| to               | name of a queue; bytes that are not UTF-8 survive (`decode_name`)            |
| body, coming in  | body, kind BYTES: it is opaque                                               |
| body, going out  | body as it is; of JMS a map as a JSON object, a stream as a JSON array, an   |
|                  | object in base64 (protocols/transcoding.py)                                  |
| timeout          | expiration. Delivered is the sender's number, not the time that is left      |
| reply            | reply-to, and the correlation id that an answer has to have; see below       |

A reply address is the name of a queue. Where that is not enough it is written

    reply:queue:NAME:CORRELATION        reply:topic:NAME:CORRELATION

because the answer needs a correlation id, it goes to a topic, or the name has white space. NAME and
CORRELATION, which may be empty, are percent-encoded. What is sent to such an address goes to NAME
with that correlation id. A worker that sends its answer where it was told to need not know of this.

Priority and properties of a message from another protocol stay in the message and are not shown:
msglite has no place for them.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from sluicemq.model.destination import Address, Kind, decode_name, encode_name
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.protocols.transcoding import answer_correlation, content

FOR_EVER: Final = (1 << 31) - 1
"""Seconds shown for a message that never expires, which msglite cannot say: 68 years. It fits
everywhere; the original server takes numbers above 7.4e9 for a time in the past."""

LAST_EXPIRATION: Final = 1 << 53
"""Wall ms, 287 thousand years from now: a later end is stored as this one, so that it fits all
that stores milliseconds in 64 bits, and microseconds too."""

_SECOND: Final = 1000
_BLANKS: Final = b" \t\r\n"
ANSWER: Final = b"reply:"
"""How an address begins that says more than the name of a queue."""
MAX_ANSWER: Final = 60_000
"""Bytes of such an address: in a command line there is room for 65,536."""
_ANSWER: Final = re.compile(rb"reply:(queue|topic):([^:]+):([^:]*)\Z")
_KINDS: Final = {b"queue": Kind.QUEUE, b"topic": Kind.TOPIC}


def to_message(
    address: Address,
    body: bytes,
    timeout: int,
    reply: bytes,
    durability: Durability,
    now: int,
) -> Message:
    """The message a `>` or `?` command stands for. `now` is wall ms, `timeout` seconds >= 0.

    With timeout 0 it lives for a millisecond: long enough for one who waits already, which the
    caller has to make sure of.
    """
    expiration = now + timeout * _SECOND if timeout else now + 1
    message = Message(address, body, BodyKind.BYTES, Origin.MSGLITE, durability, now, expiration)
    if expiration > LAST_EXPIRATION:
        message.expiration = LAST_EXPIRATION
        message.native = b"%d" % timeout
    if reply:
        message.reply_to, message.correlation_id = read_address(reply)
    return message


def shown_timeout(message: Message) -> int:
    """The number its sender gave, in seconds.

    Of a message from another protocol the life it was given, rounded up, FOR_EVER if without end.
    """
    expiration = message.expiration
    if message.origin is Origin.MSGLITE:
        if expiration == LAST_EXPIRATION and message.native:
            return int(message.native)
        return (expiration - message.timestamp) // _SECOND if expiration else FOR_EVER
    if not expiration:
        return FOR_EVER
    return max(0, -((message.timestamp - expiration) // _SECOND))


def shown_reply(message: Message) -> bytes:
    """The reply address as msglite can say it; b"" if there is none, or it is too long."""
    address = message.reply_to
    if address is None or not address.name:
        return b""
    correlation = answer_correlation(message)
    raw = encode_name(address.name)
    if (
        correlation
        or address.kind is not Kind.QUEUE
        or raw.translate(None, _BLANKS) != raw
        or _read_answer(raw) is not None
    ):
        raw = _encode_answer(address, correlation)
        return raw if len(raw) <= MAX_ANSWER else b""
    return raw


def read_address(to: bytes) -> tuple[Address, str]:
    """Where something sent to this address goes, and the correlation id it is given."""
    answer = _read_answer(to) if to.startswith(ANSWER) else None
    return answer or (Address(Kind.QUEUE, decode_name(to)), "")


def _encode_answer(address: Address, correlation: str) -> bytes:
    name = quote_from_bytes(encode_name(address.name), safe="/")
    text = quote_from_bytes(correlation.encode("utf-8", "surrogatepass"), safe="/")
    return f"reply:{address.kind.name.lower()}:{name}:{text}".encode()


def _read_answer(raw: bytes) -> tuple[Address, str] | None:
    """None unless `_encode_answer` writes it exactly so: what comes in has to go out the same."""
    match = _ANSWER.match(raw)
    if match is None:
        return None
    address = Address(_KINDS[match[1]], decode_name(unquote_to_bytes(match[2])))
    try:
        correlation = unquote_to_bytes(match[3]).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    return (address, correlation) if _encode_answer(address, correlation) == raw else None


def shown_body(message: Message) -> bytes:
    """What a msglite client sees of the body."""
    return message.body if message.origin is Origin.MSGLITE else content(message)
