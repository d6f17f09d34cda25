"""Mapping of msglite messages to broker messages and back.

| msglite          | message                                                                      |
|------------------|------------------------------------------------------------------------------|
| to               | name of a queue; bytes that are not UTF-8 survive (`decode_name`)            |
| body, coming in  | body, kind BYTES: it is opaque                                               |
| body, going out  | body as it is; of JMS a map as a JSON object, a stream as a JSON array, an   |
|                  | object in base64 (protocols/transcoding.py)                                  |
| timeout          | expiration. Delivered is the publisher's number, not the remaining time      |
| reply            | reply-to, and the correlation id that a response needs; see below            |

A reply address is a queue name. If that is not enough it is written

    reply:queue:NAME:CORRELATION        reply:topic:NAME:CORRELATION

because the response needs a correlation id, or goes to a topic, or the name has white space. NAME
and CORRELATION, which may be empty, are percent-encoded. A message to such an address goes to NAME
with that correlation id. A worker that sends its response to the given address need not know this.

Priority and properties of a message from another protocol stay in the message but are not
delivered: msglite has no fields for them.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from sluicemq.model.destination import Address, Kind, decode_name, encode_name
from sluicemq.model.message import LAST_TIME, BodyKind, Durability, Message, Origin
from sluicemq.protocols.transcoding import answer_correlation

# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_BYTES: Final = BodyKind.BYTES
_MSGLITE: Final = Origin.MSGLITE

NO_EXPIRY: Final = (1 << 31) - 1
"""Timeout in seconds of a delivered message that never expires: 68 years. msglite has no value for
"never"; the original server takes numbers above 7.4e9 for a time in the past."""

_SECOND: Final = 1000
_BLANKS: Final = b" \t\r\n"
REPLY_PREFIX: Final = b"reply:"
"""Prefix of a reply address that is more than a queue name."""
MAX_REPLY_ADDRESS: Final = 60_000
"""Maximum length of such an address, in bytes; a command line may have 65,536."""
_MAX_NESTED: Final = 1024
"""Maximum length in bytes of a queue's name that itself is read as such an address: each of its
levels takes time."""
_REPLY_ADDRESS: Final = re.compile(rb"reply:(queue|topic):([^:]+):([^:]*)\Z")
_KINDS: Final = {b"queue": Kind.QUEUE, b"topic": Kind.TOPIC}


def to_message(
    address: Address,
    body: bytes,
    timeout: int,
    reply: bytes,
    durability: Durability,
    now: int,
) -> Message:
    """Return the message of a `>` or `?` command. `now` is wall ms, `timeout` seconds >= 0.

    With timeout 0 it lives for one millisecond: long enough for a waiting consumer. The caller
    checks that there is one.
    """
    expiration = now + timeout * _SECOND if timeout else now + 1
    message = Message(address, body, _BYTES, _MSGLITE, durability, now, expiration)
    if expiration > LAST_TIME:
        message.expiration = LAST_TIME
        message.native = b"%d" % timeout
    if reply:
        message.reply_to, message.correlation_id = read_address(reply)
    return message


def wire_timeout(message: Message) -> int:
    """Return the timeout that the publisher gave, in seconds.

    For a message from another protocol it is the time to live, rounded up; NO_EXPIRY if none.
    """
    expiration = message.expiration
    if message.origin is _MSGLITE:
        if expiration == LAST_TIME and message.native:
            return int(message.native)
        return (expiration - message.timestamp) // _SECOND if expiration else NO_EXPIRY
    if not expiration:
        return NO_EXPIRY
    return max(0, -((message.timestamp - expiration) // _SECOND))


def wire_reply(message: Message) -> bytes:
    """Return the reply address for msglite clients; b"" if there is none or it is too long."""
    address = message.reply_to
    if address is None or not address.name:
        return b""
    raw = _write_address(address, answer_correlation(message))
    return raw if len(raw) <= MAX_REPLY_ADDRESS else b""


def read_address(to: bytes) -> tuple[Address, str]:
    """Return destination and correlation id of a message that is sent to this address."""
    answer = _read_answer(to) if to.startswith(REPLY_PREFIX) else None
    return answer or (Address(Kind.QUEUE, decode_name(to)), "")


def _write_address(address: Address, correlation: str) -> bytes:
    """Return the only text that `read_address` reads as this destination and correlation id."""
    name = encode_name(address.name)
    if (
        not correlation
        and address.kind is Kind.QUEUE
        and name.translate(None, _BLANKS) == name
        and (len(name) > _MAX_NESTED or _read_answer(name) is None)
    ):
        return name
    quoted = quote_from_bytes(name, safe="/")
    text = quote_from_bytes(correlation.encode("utf-8", "surrogatepass"), safe="/")
    return f"reply:{address.kind.name.lower()}:{quoted}:{text}".encode()


def _read_answer(raw: bytes) -> tuple[Address, str] | None:
    """Parse a `reply:` address; None unless `_write_address` restores it exactly."""
    match = _REPLY_ADDRESS.match(raw)
    if match is None:
        return None
    address = Address(_KINDS[match[1]], decode_name(unquote_to_bytes(match[2])))
    try:
        correlation = unquote_to_bytes(match[3]).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    return (address, correlation) if _write_address(address, correlation) == raw else None
