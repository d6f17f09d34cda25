"""HTTP gateway: publishes a request as two messages, and makes the response of those of the reply.

    request  ──> to ADDRESS, with reply address R:
                 {"method", "url", "protocol", "headers": {name: value}, "bodyAddr": B}
             ──> to B: the body, may be empty
    response <── on R: ["200", ["Name", "value", "Name", "value", ...]]
             <── on R: parts of the body, until an empty one

(As the original server's gateway.) One request per connection; the end of the connection ends the
response body. Errors - an invalid request, an invalid reply, a missing reply - are answered with
status 500 and a reason, or reset the connection of a response in progress. The only other status is
403: the user of the listener may not produce to ADDRESS.

    READING ──> WAITING ──> STREAMING ──> CLOSED
       └───────────┴────── 500 ──────────────┘
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Final

import msgspec

from sluicemq.broker import Broker, Consumer, Delivery, Destination, Window
from sluicemq.model.access import Operation
from sluicemq.model.destination import CreatedBy, encode_name
from sluicemq.model.errors import AccessDenied, BrokerError, ProtocolError
from sluicemq.model.message import BodyKind, Durability, Message
from sluicemq.protocols.channel import Channel, Publisher, SentDeliveries
from sluicemq.protocols.msglite.http import (
    MAX_BODY,
    GatewayRequest,
    RequestReader,
    encode_failure,
    encode_head,
)
from sluicemq.protocols.msglite.mapping import to_message
from sluicemq.protocols.msglite.session import ReplyAddresses
from sluicemq.protocols.offload import LARGE, BodyConversion, Offload
from sluicemq.protocols.transcoding import content, conversion_work
from sluicemq.protocols.transport import Alarm, Login, SessionInfo, Transport
from sluicemq.security.access import OPEN, Access

ADDRESS: Final = "msglite.httpRequests"
TIMEOUT: Final = 180
"""Seconds for the request to arrive, for its messages, for the reply and between its parts."""

_WINDOW: Final = 16
"""Unsent parts of a response body."""


class _State(Enum):
    READING = 1
    WAITING = 2
    STREAMING = 3
    CLOSED = 4


class GatewaySession:
    """HTTP gateway session. Implements `sluicemq.protocols.transport.Session`."""

    __slots__ = (
        "_address",
        "_alarm",
        "_broker",
        "_channel",
        "_conversion",
        "_converted",
        "_owned",
        "_publisher",
        "_reader",
        "_replies",
        "_sent",
        "_state",
        "_transport",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        replies: ReplyAddresses,
        offload: Offload,
        *,
        access: Access = OPEN,
        address: str = ADDRESS,
        max_body: int = MAX_BODY,
    ) -> None:
        """Requests are published to `address`; their bodies have up to `max_body` bytes. All
        sessions share `replies`."""
        self._transport = transport
        self._broker = broker
        self._channel: Channel[None] = Channel(
            transport, broker, access, "msglite-http", access.guest
        )
        self._replies = replies
        self._address = address
        self._reader = RequestReader(max_body)
        self._state = _State.READING
        self._owned: list[Destination] = []
        """Temporary queues R and B."""
        self._publisher = Publisher(self._channel, self._finish_parked)
        self._sent = SentDeliveries(broker, refill=True)
        self._conversion = BodyConversion(transport, offload)
        self._converted: tuple[Consumer, bytes] | None = None
        """Converted body that waits until the client has read the parts before it."""
        self._alarm = Alarm(transport)
        self._restart_timeout()

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process bytes of the request. Bytes after the request are ignored."""
        if self._state is _State.READING:
            self._reader.feed(data)
            self._advance()

    @property
    def buffered(self) -> int:
        """Bytes received of the unfinished request."""
        return self._reader.buffered

    @property
    def incomplete(self) -> bool:
        """True if a request has been received in part."""
        return self._reader.buffered > 0

    @property
    def login(self) -> Login:
        """DONE after the head of the request: the protocol has no logins."""
        return Login.DONE if self._reader.has_head else Login.NONE

    def discard_input(self) -> None:
        """Drop the unfinished request."""
        self._reader.discard()

    def end_of_input(self) -> None:
        """End a request body without a length. The client may still wait for its response."""
        if self._state is not _State.READING:
            return
        if not self._reader.buffered:
            self._close("")
            return
        self._reader.end()
        self._advance()

    def flushed(self) -> None:
        """Acknowledge the sent messages, which makes room for more deliveries."""
        if self._sent.acknowledge() and self._state is not _State.CLOSED:
            self._restart_timeout()
        if self._converted is not None:
            consumer, body = self._converted
            self._converted = None
            self._send(consumer, self._conversion.take_blocked(), body)

    def pause_delivery(self) -> None:
        """Do nothing: the window limits unsent output."""

    def closed(self) -> None:
        """Delete the temporary queues; later messages to them are dropped. Withdraw the request if
        it still waits for capacity."""
        self._state = _State.CLOSED
        self._channel.close()
        self._alarm.cancel()
        self._sent.unsent.clear()
        self._conversion.take_blocked()
        self._converted = None
        self._publisher.end()
        self._publisher.release()
        owned, self._owned = self._owned, []
        for destination in owned:
            if not destination.removed:
                self._broker.remove(destination, force=True)

    def disconnect(self, reason: str, *, stopping: bool = False) -> None:
        """Answer with `reason` as an error, or reset if the response has begun."""
        if self._state is _State.READING and not self._reader.buffered:
            self._close(reason)
        else:
            self._fail(reason)

    def session_info(self) -> SessionInfo:
        """Return the session info. HTTP clients have no client id."""
        return SessionInfo("msglite-http", self._channel.identity.name)

    def consumers(self) -> list[Consumer]:
        """Return the consumer of the response."""
        return [
            consumer
            for owned in self._owned
            for consumer in owned.queue.consumers
            if consumer.sink is self
        ]

    # --- the request -------------------------------------------------------------------------

    def _advance(self) -> None:
        reader = self._reader
        if reader.error is not None:
            self._fail(str(reader.error))
        elif reader.request is not None:
            try:
                self._forward(reader.request)
            except (AccessDenied, BrokerError) as error:
                self._fail(str(error), "403" if isinstance(error, AccessDenied) else "500")

    def _forward(self, request: GatewayRequest) -> None:
        """Publish the two messages and wait for the reply. Raises BrokerError, AccessDenied."""
        broker = self._broker
        self._channel.demand(Operation.PRODUCE, self._address)
        creator = self._channel.identity.creator
        target = broker.destinations.queue(self._address, creator, CreatedBy.MSGLITE)
        reply = self._create(self, creator)
        body_queue = self._create(self._replies, creator)
        announcement = {
            "method": request.method,
            "url": request.url,
            "protocol": request.protocol,
            "headers": request.headers,
            "bodyAddr": body_queue.name,
        }
        head = self._message(target, msgspec.json.encode(announcement), encode_name(reply.name))
        head.kind = BodyKind.JSON
        self._state = _State.WAITING
        self._restart_timeout()
        broker.attach(reply.queue, self, Window(_WINDOW, True), ack_timeout=0, owner=self)
        broker.publish(body_queue, self._message(body_queue, request.body))
        self._publisher.publish(target, head, None)
        self._channel.traffic.published += 2
        self._reader.discard()

    def _create(self, owner: object, creator: str | None) -> Destination:
        destination = self._replies.create(self._broker, owner, creator)
        self._owned.append(destination)
        return destination

    def _message(self, destination: Destination, body: bytes, reply: bytes = b"") -> Message:
        now = self._broker.clock.wall
        return to_message(destination.address, body, TIMEOUT, reply, Durability.NONE, now)

    def _finish_parked(self, request: None, error: BrokerError | None) -> None:
        """Fail if the request waited for capacity in its queue, which was then deleted."""
        if error is not None:
            self._fail(str(error))

    # --- the response ------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Send the reply, then the parts of the body, up to the empty one. Those after a message
        whose conversion takes long wait."""
        self._channel.traffic.delivered += len(deliveries)
        if self._conversion.blocked:
            self._conversion.blocked += deliveries
        else:
            self._send(consumer, deliveries)

    def _send_converted(self, consumer: Consumer, body: bytes) -> None:
        if self._sent.unsent:
            self._converted = consumer, body
        else:
            self._send(consumer, self._conversion.take_blocked(), body)

    def _send(
        self, consumer: Consumer, deliveries: list[Delivery], converted: bytes | None = None
    ) -> None:
        """Send messages. `converted` is the body of the first one, if another thread has converted
        it."""
        for index, delivery in enumerate(deliveries):
            if self._state is _State.CLOSED:
                return
            message = delivery.message
            assert message is not None  # unacked
            if converted is not None:
                body, converted = converted, None
            elif conversion_work(message) > LARGE:
                send = partial(self._send_converted, consumer)
                self._conversion.start(message, deliveries[index:], send)
                return
            else:
                body = content(message)
            self._sent.unsent.append((consumer, delivery))
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
        """Fail the request: its reply address was deleted."""
        self._fail("the reply address was removed")

    # --- time and the end --------------------------------------------------------------------

    def _restart_timeout(self) -> None:
        self._alarm.set(TIMEOUT, self._time_out)

    def _time_out(self) -> None:
        if self._state is _State.READING:
            self._fail(f"the request was not complete in {TIMEOUT} s")
        else:
            self._fail(f"no reply in {TIMEOUT} s")

    def _fail(self, reason: str, status: str = "500") -> None:
        if self._state is _State.STREAMING:
            # an orderly close would end a complete response
            self._transport.abort(reason)
        elif self._state is not _State.CLOSED:
            self._transport.write((encode_failure(reason, status),))
            self._close(reason)

    def _close(self, reason: str) -> None:
        self._state = _State.CLOSED
        self._alarm.cancel()
        self._transport.close(reason)
