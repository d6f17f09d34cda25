"""Mapping of PHPMQ messages to broker messages and back.

| PHPMQ               | message                                                                   |
|---------------------|---------------------------------------------------------------------------|
| queue name          | name of a queue; bytes that are not UTF-8 survive (`decode_name`)         |
| content, coming in  | body, kind BYTES: the protocol does not mark text, and checking for it    |
|                     | would cost a pass over every body                                         |
| content, going out  | body as it is; of JMS a map as a JSON object, a stream as a JSON array,   |
|                     | an object in base64 (protocols/transcoding.py)                            |
| time to live        | expiration; none when 0                                                   |
| message header      | native, if the message came without a TTL packet (dispatch version 1)     |
| message id          | not stored: 16 hex digits that identify the broker's data, then 16 of the |
|                     | sequence number; survives a restart and a requeue                         |
| reply-to            | not delivered; see below                                                  |

Priority, properties, correlation id and reply-to of a message from another protocol stay in the
message but are not delivered: PHPMQ has no fields for them. The client that holds a message can
answer it: a send to the queue `reply:<message id>` goes to that message's reply-to, with its
correlation id.
"""

from __future__ import annotations

from typing import Final

from sluicemq.model.destination import Address
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.protocols.transcoding import content

# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_BYTES: Final = BodyKind.BYTES
_PHPMQ: Final = Origin.PHPMQ

LAST_EXPIRATION: Final = 1 << 53
"""Latest expiration, in wall ms, 287 thousand years from now: later ones are stored as this one, so
that milliseconds and microseconds fit into 64 bits."""

ANSWER: Final = b"reply:"
"""Prefix of a message id in the name of the queue for the answer to that message."""

WITHOUT_TTL: Final = b"H0100102"
"""`Message.native` of a message that was sent without a TTL packet: its header. Messages with a TTL
packet, the form used at high rates, have none, so that nothing more is stored for them."""

PROBE: Final = b"sluicemq.probe."
"""Prefix of the queue names of probes, which confirm that sent messages are accepted."""

_SECOND: Final = 1000
_HEX_DIGITS: Final = b"0123456789abcdef"


class MessageIds:
    """Message ids of one broker. `prefix` is their first half."""

    __slots__ = ("prefix",)

    def __init__(self, identity: bytes) -> None:
        """`identity` is `Broker.identity`, 8 bytes."""
        self.prefix = identity.hex().encode()

    def encode(self, sequence: int) -> bytes:
        """Return 32 lower-case hex digits, as the original server's."""
        return b"%b%016x" % (self.prefix, sequence)

    def decode(self, message_id: bytes) -> int:
        """Return the sequence number; 0, which no message has, for an id of another broker.

        Only the exact format of `encode` is accepted, so that a message has one id.
        """
        digits = message_id[16:]
        # int() alone would accept signs, blanks, underscores and capitals
        if (
            len(digits) != 16
            or digits.translate(None, _HEX_DIGITS)
            or message_id[:16] != self.prefix
        ):
            return 0
        return int(digits, 16)


def expiration_after(ttl: int, now: int) -> int:
    """Return the wall ms at which a message with `ttl` seconds from `now` expires; 0 = never.

    A time to live of 0 means for ever (PHPMQ protocol document, example "Send a message").
    """
    return min(now + ttl * _SECOND, LAST_EXPIRATION) if ttl else 0


def seconds_left(expiration: int, now: int) -> int:
    """Return the TTL of a dispatch: whole seconds, 0 = for ever.

    Rounded up and at least 1, because 0 would mean that the message never expires.
    """
    return max(1, -((now - expiration) // _SECOND)) if expiration else 0


def to_message(
    address: Address, content: bytes, ttl: int, durability: Durability, now: int
) -> Message:
    """Return the message of a send frame.

    ttl  seconds; 0 = no expiry, -1 = the frame had no TTL packet
    now  wall ms
    """
    expiration = expiration_after(ttl, now) if ttl > 0 else 0
    message = Message(address, content, _BYTES, _PHPMQ, durability, now, expiration)
    if ttl < 0:
        message.native = WITHOUT_TTL
    return message


def came_with_ttl(message: Message) -> bool:
    """Return whether the publisher sent a TTL packet (dispatch version 2)."""
    return message.origin is _PHPMQ and not message.native


def to_content(message: Message) -> bytes:
    """Return the content for PHPMQ clients."""
    return message.body if message.origin is _PHPMQ else content(message)
