"""The HTTP gateway: a request becomes two messages, and messages become the response.

    request  ──> to ADDRESS, with reply address R:
                 {"method", "url", "protocol", "headers": {name: value}, "bodyAddr": B}
             ──> to B: the body, maybe empty
    response <── on R: ["200", ["Name", "value", "Name", "value", ...]]
             <── on R: pieces of the body, until an empty one

(The original server's gateway.) One request per connection; the end of the body is the end of the
connection. Whatever goes wrong - a bad request, a bad reply, none in time - is answered with
status 500 and a reason, or ends the response that has begun. The one exception is 403: the user
that the listener's clients act as may not produce to ADDRESS.

    READING ──> WAITING ──> STREAMING ──> CLOSED
       └───────────┴────── 500 ──────────────┘
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from sluicemq.broker import Broker, Consumer, Delivery, Destination, Window
from sluicemq.model.access import Operation
from sluicemq.model.destination import CreatedBy, encode_name
from sluicemq.model.errors import AccessDenied, BrokerError, ProtocolError
from sluicemq.model.message import BodyKind, Durability, Message
from sluicemq.protocols.access import OPEN, Access, demand
from sluicemq.protocols.msglite.http import (
    HttpLimits,
    Request,
    RequestReader,
    encode_failure,
    encode_head,
)
from sluicemq.protocols.msglite.mapping import shown_body, to_message
from sluicemq.protocols.msglite.replies import ReplyAddresses
from sluicemq.protocols.transport import Login, SessionInfo, State, Timer, Transport

ADDRESS: Final = "msglite.httpRequests"
TIMEOUT: Final = 180
"""Seconds: for the request to arrive, for its messages, for the reply and between its pieces."""

_WINDOW: Final = 16
"""Pieces of a body on their way to the client at a time."""


class _State(Enum):
    READING = 1
    WAITING = 2
    STREAMING = 3
    CLOSED = 4


class GatewaySession:
    """See the module, and `sluicemq.protocols.transport.Session` for the contract."""

    __slots__ = (
        "_access",
        "_address",
        "_alarm",
        "_broker",
        "_deadline",
        "_owned",
        "_reader",
        "_replies",
        "_state",
        "_traffic",
        "_transport",
        "_unsettled",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        replies: ReplyAddresses,
        *,
        access: Access = OPEN,
        address: str = ADDRESS,
        limits: HttpLimits | None = None,
    ) -> None:
        """Requests go to `address`. `replies` is shared by all sessions of the broker."""
        self._transport = transport
        self._broker = broker
        self._access = access
        self._traffic = broker.traffic_of("msglite-http")
        self._replies = replies
        self._address = address
        self._reader = RequestReader(limits or HttpLimits())
        self._state = _State.READING
        self._owned: list[Destination] = []
        """R and B."""
        self._unsettled: list[tuple[Consumer, Delivery]] = []
        self._alarm: Timer
        self._put_off()
        self._set_alarm()

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """The request; what comes behind it is ignored."""
        if self._state is _State.READING:
            self._reader.feed(data)
            self._advance()

    @property
    def buffered(self) -> int:
        """See Session."""
        return self._reader.buffered

    @property
    def incomplete(self) -> bool:
        """See Session."""
        return self._reader.buffered > 0

    @property
    def login(self) -> Login:
        """There are no logins."""
        reader = self._reader
        return Login.DONE if reader.has_head or self._state is not _State.READING else Login.NONE

    def discard_input(self) -> None:
        """See Session."""
        self._reader.discard()

    def end_of_input(self) -> None:
        """Ends a body without a length. The client may still wait for its response."""
        if self._state is not _State.READING:
            return
        if not self._reader.begun:
            self._close("")
            return
        self._reader.end()
        self._advance()

    def flushed(self) -> None:
        """What was delivered has been sent: it is settled, which makes room for more."""
        if self._unsettled:
            for consumer, delivery in self._unsettled:
                self._broker.settle(consumer, delivery.sequence)
            self._unsettled.clear()
            self._put_off()
            # this turn's flush is over, and there may be more to deliver
            self._broker.wake()

    def pause_delivery(self) -> None:
        """Nothing to do: the window bounds what is unsent."""

    def resume_delivery(self) -> None:
        """Nothing to do; `flushed` follows."""

    def closed(self) -> None:
        """What is sent to the reply address from now on is dropped."""
        self._state = _State.CLOSED
        self._alarm.cancel()
        self._unsettled.clear()
        owned, self._owned = self._owned, []
        for destination in owned:
            if not destination.removed:
                self._broker.remove(destination, force=True)

    def shutdown(self) -> None:
        """Say so to whoever has asked something, unless the response has begun."""
        self.disconnect("the broker stops")

    def disconnect(self, reason: str) -> None:
        """The same."""
        if self._state is _State.READING and not self._reader.begun:
            self._close(reason)
        else:
            self._fail(reason)

    def session_info(self) -> SessionInfo:
        """See Session."""
        guest = self._access.guest
        assert guest is not None
        state: State = "closing" if self._state is _State.CLOSED else "open"
        return SessionInfo("msglite-http", guest.name, state=state)

    def consumers(self) -> list[Consumer]:
        """It receives the response."""
        return [
            each for owned in self._owned for each in owned.queue.consumers if each.sink is self
        ]

    # --- the request -------------------------------------------------------------------------

    def _advance(self) -> None:
        reader = self._reader
        if reader.error is not None:
            self._fail(str(reader.error))
        elif reader.request is not None:
            try:
                self._forward(reader.request)
            except AccessDenied as error:
                self._fail(str(error), "403")
            except BrokerError as error:
                self._fail(str(error))

    def _forward(self, request: Request) -> None:
        """Send the two messages and wait for the reply. Raises BrokerError, AccessDenied."""
        broker = self._broker
        guest = self._access.guest
        assert guest is not None  # who cannot log in is somebody from the start
        demand(self._access, self._transport.peer, guest, Operation.PRODUCE, self._address)
        target = broker.queue(self._address, guest.creator, CreatedBy.MSGLITE)
        reply = self._create(self, guest.creator)
        content = self._create(self._replies, guest.creator)
        announcement = {
            "method": request.method,
            "url": request.url,
            "protocol": request.protocol,
            "headers": request.headers,
            "bodyAddr": content.name,
        }
        head = self._message(target, msgspec.json.encode(announcement), encode_name(reply.name))
        head.kind = BodyKind.JSON
        self._state = _State.WAITING
        self._put_off()
        broker.attach(reply.queue, self, Window(_WINDOW, True), owner=self)
        broker.publish(content, self._message(content, request.body))
        broker.publish(target, head, _nothing)
        self._traffic.published += 2
        self._reader.discard()

    def _create(self, owner: object, creator: str | None) -> Destination:
        destination = self._replies.create(self._broker, owner, creator)
        self._owned.append(destination)
        return destination

    def _message(self, to: Destination, body: bytes, reply: bytes = b"") -> Message:
        now = self._broker.clock.wall
        return to_message(to.address, body, TIMEOUT, reply, Durability.NONE, now)

    # --- the response ------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """The reply, then the pieces of the body. What follows the last goes with its queue."""
        self._traffic.delivered += len(deliveries)
        for delivery in deliveries:
            if self._state is _State.CLOSED:
                return
            assert delivery.message is not None  # in flight
            self._unsettled.append((consumer, delivery))
            body = shown_body(delivery.message)
            if self._state is _State.WAITING:
                self._begin(body)
            elif body:
                self._transport.write((body,))
            else:
                self._close("")

    def _begin(self, reply: bytes) -> None:
        try:
            status, headers = msgspec.json.decode(reply, type=tuple[str, list[str]])
            head = encode_head(status, headers)
        except ProtocolError as error:
            self._fail(f"bad reply: {error}")
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._fail("bad reply: it is not a JSON array of a status and a list of headers")
        else:
            self._transport.write((head,))
            self._state = _State.STREAMING

    def detached(self, consumer: Consumer) -> None:
        """Somebody has removed the reply address: the response cannot be completed."""
        self._fail("the reply address was removed")

    # --- time and the end --------------------------------------------------------------------

    def _put_off(self) -> None:
        self._deadline = self._broker.clock.steady + TIMEOUT * 1000

    def _set_alarm(self) -> None:
        left = self._deadline - self._broker.clock.steady
        self._alarm = self._transport.call_later(left / 1000, self._ring)

    def _ring(self) -> None:
        if self._state is _State.CLOSED:
            return
        if self._broker.clock.steady < self._deadline:
            self._set_alarm()
        elif self._state is _State.READING:
            self._fail(f"the request was not complete in {TIMEOUT} s")
        else:
            self._fail(f"no reply in {TIMEOUT} s")

    def _fail(self, reason: str, status: str = "500") -> None:
        if self._state is _State.CLOSED:
            return
        if self._state is not _State.STREAMING:
            self._transport.write((encode_failure(reason, status),))
        self._close(reason)

    def _close(self, reason: str) -> None:
        self._state = _State.CLOSED
        self._alarm.cancel()
        self._transport.close(reason)


def _nothing() -> None:
    """The request is accepted late; its reply is waited for anyway."""
