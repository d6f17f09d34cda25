"""Responses of the broker on one connection, except deliveries."""

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
"""Bytes of responses to a client that does not read from which on reading from it pauses."""
_LONGEST_REASON: Final = 1000
"""Maximum length of an error's message, in bytes."""


def error_code(error: BrokerError) -> str:
    """Return the protocol's error code."""
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
    """Writes responses. After `closed` is set it writes nothing.

    unread   bytes of responses since the client stopped reading
    pressed  called when `unread` has grown
    """

    __slots__ = ("_context", "closed", "pressed", "unread")

    def __init__(self, context: ConnectionContext, pressed: Callable[[], None]) -> None:
        self._context = context
        self.pressed = pressed
        self.unread = 0
        self.closed = False

    def send(self, frame: Frame) -> None:
        """Send one frame, with the negotiated compression."""
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
        """Answer the request of that id with an Error. Clients show users only `why`."""
        text = why.encode(errors="replace")[:_LONGEST_REASON].decode(errors="replace")
        self.send(Frame(ERROR, identity, error_code=code, error_message=text))

    def release(self) -> None:
        """Drop the references to the session, after its end."""
        self.pressed = _nothing

    def write(self, responses: list[bytes]) -> None:
        """Send encoded frames."""
        if self.closed:
            return
        self._context.transport.write(responses)
        if self._context.congested:
            self.unread += sum(map(len, responses))
            self.pressed()


def _nothing() -> None:
    """Do nothing: the callback of a closed session."""
