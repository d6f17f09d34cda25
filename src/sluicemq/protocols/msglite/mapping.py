"""msglite messages <-> the broker's message.

| msglite          | message                                                                      |
|------------------|------------------------------------------------------------------------------|
| to               | name of a queue; bytes that are not UTF-8 survive (`decode_name`)            |
| body, coming in  | body, kind BYTES: it is opaque                                               |
| body, going out  | body as it is, whatever its kind; Java objects in base64                     |
| timeout          | expiration. Delivered is the sender's number, not the time that is left      |
| reply            | reply-to, a queue. Going out only if msglite can say it: a queue whose name  |
|                  | has no white space                                                           |

Priority, properties and correlation id of a message from another protocol stay in the message and
are not shown: msglite has no place for them.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from sluicemq.model.destination import Address, Kind, decode_name, encode_name
from sluicemq.model.message import BodyKind, Durability, Message, Origin

FOR_EVER: Final = (1 << 31) - 1
"""Seconds shown for a message that never expires, which msglite cannot say: 68 years. It fits
everywhere; the original server takes numbers above 7.4e9 for a time in the past."""

LAST_EXPIRATION: Final = 1 << 53
"""Wall ms, 287 thousand years from now: a later end is stored as this one, so that it fits all
that stores milliseconds in 64 bits, and microseconds too."""

_SECOND: Final = 1000
_BLANKS: Final = b" \t\r\n"


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
        message.reply_to = Address(Kind.QUEUE, decode_name(reply))
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
    """The reply address as msglite can say it; b"" if there is none, or it cannot."""
    address = message.reply_to
    if address is None or address.kind is not Kind.QUEUE:
        return b""
    raw = encode_name(address.name)
    return raw if raw.translate(None, _BLANKS) == raw else b""


def shown_body(message: Message) -> bytes:
    """What a msglite client sees of the body."""
    return b64encode(message.body) if message.kind is BodyKind.OBJECT else message.body
