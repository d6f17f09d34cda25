"""What becomes of JMS messages that cannot be delivered (protocol specification, section 9.6).

Two properties of a message have their say, whatever its destination is set to:

    JMS_SUN_PRESERVE_UNDELIVERED   true: it is kept in the dead message queue; false: it is not
    JMS_SUN_TRUNCATE_MSG_BODY      true: if it is kept, then without its body

What the dead message queue shows besides is made when it is delivered (mapping.py).
"""

from __future__ import annotations

from typing import Final

from sluicemq.broker import Destination
from sluicemq.model.dead_letters import DMQ_PREFIX, dead_letter_of
from sluicemq.model.message import BodyKind, Message
from sluicemq.protocols.java import dumps, dumps_map, dumps_stream
from sluicemq.protocols.jmq.packets import Z

PRESERVE: Final = "JMS_SUN_PRESERVE_UNDELIVERED"
TRUNCATE: Final = "JMS_SUN_TRUNCATE_MSG_BODY"
TRUNCATED: Final = f"{DMQ_PREFIX}BODY_TRUNCATED"

_FLAGS_AT: Final = 62


class JmqDeadLetterPolicy:
    """See the module, and `sluicemq.broker.DeadLetterPolicy`."""

    __slots__ = ()

    def keep(self, message: Message, destination: Destination) -> bool | None:
        """None: the message has no opinion."""
        wish = (message.properties or {}).get(PRESERVE)
        return wish if isinstance(wish, bool) else None

    def dead_letter(
        self, message: Message, origin: str, reason: str, attempts: int, wall: int
    ) -> Message:
        """Return the broker's dead letter, without its body if a property requests that."""
        dead_letter = dead_letter_of(message, origin, reason, attempts, wall)
        if dead_letter.properties is None or dead_letter.properties.get(TRUNCATE) is not True:
            return dead_letter
        dead_letter.body = _empty(dead_letter.kind)
        dead_letter.properties[TRUNCATED] = True
        native = dead_letter.native
        if native:
            flags = int.from_bytes(native[_FLAGS_AT : _FLAGS_AT + 2], "big") & ~Z
            dead_letter.native = b"".join(
                (native[:_FLAGS_AT], flags.to_bytes(2, "big"), native[_FLAGS_AT + 2 :])
            )
        return dead_letter


def _empty(kind: BodyKind) -> bytes:
    """A body that clients read as nothing: they do not take none at all for these kinds."""
    if kind is BodyKind.MAP:
        return dumps_map({})
    if kind is BodyKind.STREAM:
        return dumps_stream([])
    return dumps(None) if kind is BodyKind.OBJECT else b""
