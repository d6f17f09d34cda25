"""The broker's side of one HTTP connection: a request becomes messages, messages the response.

    to the request address     JSON: method, url, protocol, headers, bodyAddr; reply address R
    to bodyAddr                the body of the request, maybe empty
    from R                     JSON: ["200", ["Name", "value", …]], written at once
    from R, again and again    the body of the response, piece by piece; an empty message ends it

Whoever sends to R answers; it need not be who took the request. R lives until the response has
ended, bodyAddr too; if the client goes away before, bodyAddr is kept until its message expires.
No step may take longer than 180 s.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sluicemq.broker import Broker, Consumer, Delivery, Destination, Window
from sluicemq.model.errors import BrokerError, ProtocolError
from sluicemq.model.message import BodyKind, Durability
from sluicemq.protocols.link import Link, Timer
from sluicemq.protocols.msglite.http import (
    HttpLimits,
    Request,
    RequestReader,
    encode_failure,
    encode_head,
)
from sluicemq.protocols.msglite.mapping import shown_body, to_message
from sluicemq.protocols.msglite.replies import ReplyAddresses

REQUEST_ADDRESS: Final = "msglite.httpRequests"
TIMEOUT: Final = 180
"""Seconds, of messages and of each wait."""

_BODYLESS: Final = frozenset({"204", "304"})


class _RequestMessage(msgspec.Struct, rename="camel"):
    """What a worker gets."""

    method: str
    url: str
    protocol: str
    headers: dict[str, str]
    body_addr: str


class GatewaySession:
    """See the module, and `sluicemq.protocols.link.Session` for the contract."""

    __slots__ = (
        "_alarm",
        "_body",
        "_broker",
        "_closed",
        "_consumer",
        "_link",
        "_reader",
        "_replies",
        "_reply",
        "_request_address",
        "_silent",
        "_started",
        "_unsettled",
        "_window",
    )

    def __init__(
        self,
        link: Link,
        broker: Broker,
        replies: ReplyAddresses,
        *,
        request_address: str = REQUEST_ADDRESS,
        limits: HttpLimits | None = None,
    ) -> None:
        """`replies` is shared with the msglite sessions of the broker."""
        self._link = link
        self._broker = broker
        self._replies = replies
        self._request_address = request_address
        self._reader = RequestReader(limits or HttpLimits())
        self._reply: Destination | None = None
        self._body: Destination | None = None
        self._window = Window(0, False)
        self._consumer: Consumer | None = None
        self._unsettled: Delivery | None = None
        self._started = False
        """The head of the response has been written."""
        self._silent = False
        """The response to this request has no body (RFC 2616 section 4.4)."""
        self._closed = False
        self._alarm: Timer = link.call_later(TIMEOUT, self._too_late)

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """The request; what comes after it is ignored."""
        if self._closed or self._reply is not None:
            return
        self._reader.feed(data)
        self._look()

    def end_of_input(self) -> None:
        """The request is complete, or never will be. The client still reads."""
        if self._closed or self._reply is not None:
            return
        if not self._reader.begun:
            self._close()
            return
        self._reader.end()
        self._look()

    def flushed(self) -> None:
        """The piece that was delivered has been sent; the next may come."""
        delivery, self._unsettled = self._unsettled, None
        if delivery is None or self._consumer is None:
            return
        self._broker.settle(self._consumer, delivery.sequence)
        if not self._closed:
            self._broker.grant(self._window, 1)

    def congest(self) -> None:
        """Nothing to do: one piece at a time is written."""

    def relieve(self) -> None:
        """Nothing to do; `flushed` follows."""

    def closed(self) -> None:
        """Nobody reads the response any more."""
        finished = self._closed
        self._closed = True
        self._alarm.cancel()
        if self._reply is not None:
            self._broker.remove(self._reply, force=True)
        body = self._body
        if body is not None:
            if finished:
                self._remove(body)
            else:  # a worker that has taken the request will ask for its body
                self._link.call_later(TIMEOUT, lambda: self._remove(body))

    def shutdown(self) -> None:
        """A response that has begun is cut off; else a client that has asked is told."""
        if self._closed:
            return
        if self._reader.begun:
            self._fail("the broker stops")
        else:
            self._close("the broker stops")

    # --- the request -------------------------------------------------------------------------

    def _look(self) -> None:
        if self._reader.error is not None:
            self._fail(f"bad request: {self._reader.error}")
        elif self._reader.request is not None:
            try:
                self._pass_on(self._reader.request)
            except BrokerError as error:
                self._fail(str(error))

    def _pass_on(self, request: Request) -> None:
        """Raises BrokerError."""
        broker = self._broker
        self._silent = request.method == "HEAD"
        worker = broker.queue(self._request_address)
        self._reply = self._replies.create(broker)
        self._body = self._replies.create(broker)
        self._consumer = broker.attach(self._reply.queue, self, self._window)
        content = msgspec.json.encode(
            _RequestMessage(
                request.method, request.url, request.protocol, request.headers, self._body.name
            )
        )
        now = broker.clock.wall
        none = Durability.NONE  # the connection would not survive a restart
        reply = self._reply.name.encode()
        message = to_message(worker.address, content, TIMEOUT, reply, none, now)
        message.kind = BodyKind.JSON
        broker.publish(worker, message, _accepted)
        body = to_message(self._body.address, request.body, TIMEOUT, b"", none, now)
        broker.publish(self._body, body, _accepted)
        broker.grant(self._window, 1)
        self._wait()

    # --- the response ------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """The head of the response, or a piece of its body; one at a time."""
        for delivery in deliveries:
            assert delivery.message is not None  # in flight
            self._unsettled = delivery
            content = shown_body(delivery.message)
            if not self._started:
                self._begin(content)
            elif not content:
                self._close()
            else:
                self._wait()
                # an empty write: `flushed` has to come even if there is nothing to show
                self._link.write((b"" if self._silent else content,))

    def detached(self, consumer: Consumer) -> None:
        """Somebody has removed R: no answer can come any more."""
        self._consumer = None
        if not self._closed:
            self._fail("the reply address was removed")

    def _begin(self, content: bytes) -> None:
        try:
            status, headers = msgspec.json.decode(content, type=tuple[str, list[str]])
            head = encode_head(status, headers)
        except (msgspec.DecodeError, ProtocolError) as error:
            self._fail(f"bad reply: {error}")
            return
        self._started = True
        self._silent = self._silent or status in _BODYLESS
        self._link.write((head,))
        self._wait()

    # --- time, and the end -------------------------------------------------------------------

    def _wait(self) -> None:
        self._alarm.cancel()
        self._alarm = self._link.call_later(TIMEOUT, self._too_late)

    def _too_late(self) -> None:
        if self._closed:
            return
        what = "request" if self._reply is None else "reply"
        self._fail(f"no {what} in {TIMEOUT} seconds")

    def _fail(self, reason: str) -> None:
        """Say so, if nothing has been said yet."""
        if not self._started:
            self._link.write((encode_failure(reason),))
        self._close(reason)

    def _close(self, reason: str = "") -> None:
        self._closed = True
        self._alarm.cancel()
        self._broker.revoke(self._window)
        self._link.close(reason)

    def _remove(self, destination: Destination) -> None:
        if not destination.removed:
            self._broker.remove(destination, force=True)


def _accepted() -> None:
    """A full queue that blocks its producers has taken the request: the reply is awaited anyway."""
