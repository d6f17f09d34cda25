"""The responses of the broker on one connection, except deliveries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sluicemq.model.errors import (
    BrokerError,
    DestinationConflict,
    DestinationNotFound,
    DestinationPrivate,
    FrameTooLarge,
    MessageTooLarge,
)
from sluicemq.protocols.vibemq.wire import ERROR, Frame, compressed, encode

if TYPE_CHECKING:
    from sluicemq.protocols.vibemq.subscriber import ConnectionContext

MOST_UNREAD: Final = 1 << 20
"""Bytes of answers to a client that does not read, at which nothing more is read from it."""
_LONGEST_REASON: Final = 1000
"""Bytes of an error's message."""


def error_code(error: BrokerError) -> str:
    """How the protocol calls it."""
    if isinstance(error, DestinationNotFound):
        return "QUEUE_NOT_FOUND"
    if isinstance(error, DestinationConflict):
        return "QUEUE_EXISTS"
    if isinstance(error, DestinationPrivate):
        return "NOT_AUTHORIZED"
    if isinstance(error, MessageTooLarge):
        return "INVALID_MESSAGE"
    return "SERVER_ERROR"


class ResponseWriter:
    """See the module. After `closed` has been set nothing is said any more.

    unread   bytes of answers since the client stopped reading
    pressed  called when they have become more
    """

    __slots__ = ("_context", "closed", "pressed", "unread")

    def __init__(self, context: ConnectionContext, pressed: Callable[[], None]) -> None:
        self._context = context
        self.pressed = pressed
        self.unread = 0
        self.closed = False

    def say(self, frame: Frame) -> None:
        """One frame, compressed as agreed upon."""
        try:
            data = encode(frame)
        except FrameTooLarge as error:
            self.refuse(frame.id, "SERVER_ERROR", str(error))
            return
        context = self._context
        if context.compression:
            data = compressed(data, context.compression, context.terms.threshold)
        self.write([data])

    def refuse(self, identity: str, code: str, why: str) -> None:
        """Answer the request of that id with an Error. `why` is all that the user sees of it."""
        text = why.encode(errors="replace")[:_LONGEST_REASON].decode(errors="replace")
        self.say(Frame(ERROR, identity, error_code=code, error_message=text))

    def release(self) -> None:
        """Let go of the session, after its end."""
        self.pressed = _nothing

    def write(self, responses: list[bytes]) -> None:
        """Frames as they are."""
        if self.closed:
            return
        self._context.transport.write(responses)
        if self._context.congested:
            self.unread += sum(map(len, responses))
            self.pressed()


def _nothing() -> None:
    """Stands for the callback of a session that has gone."""
