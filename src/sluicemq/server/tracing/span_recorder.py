"""Record spans of messages from the events of the engine (`sluicemq.broker.Observer`).

    publish orders   accepted ──────> ready for consumers; SYNC messages: durable
      journal orders   accepted ────> durable
    deliver orders   ready ─────────> delivered to a consumer: time in the queue
      ack orders       delivered ───> acknowledged: processing time of the consumer
                       (requeue: requeued or redelivered; discard: removed from the subscription)

`publish` and `deliver` are children of the span in the message's `traceparent`. The recorder does
not change that property, so that the consumer's own spans refer to the publisher's span. A message
without `traceparent` may start a trace (`ratio`): its first span is the broker's `publish`, which
the recorder writes to the message's `traceparent`. The trace context is stored only in the message,
so a trace continues after a restart of the broker.

The recorder runs for each message. For speed, a span is a tuple here; `export` converts it to an
OpenTelemetry span on the exporter's thread.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import getrandbits, random
from time import time_ns
from typing import Final, NamedTuple

from sluicemq.broker import (
    ACKNOWLEDGED,
    REDELIVERED,
    RELEASED,
    Delivery,
    Destination,
    Subscription,
)
from sluicemq.model.message import Message, Origin
from sluicemq.protocols.jmq.mapping import with_properties
from sluicemq.protocols.vibemq.mapping import with_headers

TRACEPARENT: Final = "traceparent"
"""Property with the trace context (W3C Trace Context):

00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
version  trace                      span              flags: 01 = sampled
"""
TRACESTATE: Final = "tracestate"
"""Property with the data of tracing systems; the broker forwards it unchanged."""
SAMPLED: Final = 1

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")

MAX_REMEMBERED: Final = 10_000
"""Maximum number of remembered ready times, and of deliveries with a pending end event. Above it,
`deliver` spans start at the arrival time and deliveries have no `ack` span."""
MAX_TEXT: Final = 512
"""Maximum characters of a message's ids and of `tracestate` in a span. Longer ids are cut, and a
longer `tracestate` is left out. Spans that are remembered or wait for export keep these texts in
memory, which no other limit counts."""
_SECOND: Final = 1_000_000_000

NATIVES: Final[dict[Origin, Callable[[Message, Mapping[str, str]], bytes]]] = {
    Origin.JMQ: with_properties,
    Origin.VIBEMQ: with_headers,
    # has no place for properties: consumers of other protocols read those of the message
    Origin.PHPMQ: lambda message, added: message.native,
}
"""Functions that add properties to the native encoding of a message, by origin."""
Attributes = dict[str, str | int | bool]
"""Attributes of a message by name, the same in each of its spans."""


class SpanRecord(NamedTuple):
    """Span of a message.

    operation  publish, journal, deliver, ack, requeue, discard
    parent     id of the parent span, or 0
    remote     True if the parent span comes from the message's `traceparent`
    state      tracestate
    begun      start, ns since the epoch
    ended      end, ns since the epoch
    sequence   sequence number of the message; 0 until it has one
    of_message attributes of the message
    """

    operation: str
    trace: int
    span: int
    parent: int
    remote: bool
    state: str
    begun: int
    ended: int
    sequence: int
    of_message: Attributes
    attempts: int = 0
    subscription: str = ""
    outcome: str = ""


class SpanRecorder:
    """Observer (`sluicemq.broker.Observer`) that records spans."""

    def __init__(
        self,
        export: Callable[[SpanRecord], None],
        ratio: float,
        limit: int,
    ) -> None:
        """Record spans and pass each to `export`.

        `ratio` (0 to 1) is the share of messages without a trace that start one. `limit` is the
        maximum number of traced publishes and deliveries per second, 0 = no limit.
        """
        self._export = export
        self._ratio = ratio
        self._limit = limit
        self._accepted: list[tuple[Message, SpanRecord]] = []
        """Stack of accepted messages, which have no sequence number yet, and their publish spans:
        accepting one may publish another (a dead letter)."""
        self._written: deque[SpanRecord] = deque()
        """Publish spans of messages that are not durable yet; `ended` is 0 if it ends then."""
        self._ready_times: dict[int, int] = {}
        """Time at which a message became ready, ns since the epoch, by sequence number."""
        self._unacked: dict[tuple[Subscription, int], SpanRecord] = {}
        """Deliver spans of unacked messages."""
        self._second = 0
        self._recorded_in_second = 0

    def accepted(self, destination: Destination, message: Message) -> bool:
        """Start the publish span of a message; return False if it is not traced."""
        properties = message.properties
        traceparent = None if properties is None else properties.get(TRACEPARENT)
        if traceparent is None:
            if random() >= self._ratio:
                return False
            trace, parent, state = getrandbits(128) or 1, 0, ""
        else:
            context = parse_traceparent(traceparent)
            if context is None:
                return False
            trace, parent, state = context.trace, context.span, _state_of(message)
        now = time_ns()
        if not self._is_within_limit(now):
            return False
        span = getrandbits(64) or 1
        if not parent:
            self._add_properties(message, {TRACEPARENT: format_traceparent(trace, span)})
        attributes = _attributes_of(message, destination)
        publish = SpanRecord("publish", trace, span, parent, True, state, now, 0, 0, attributes)
        self._accepted.append((message, publish))
        return True

    def _is_within_limit(self, now: int) -> bool:
        """Count an operation and return whether the limit per second allows to record it."""
        if not self._limit:
            return True
        second = now // _SECOND
        if second != self._second:
            self._second = second
            self._recorded_in_second = 0
        self._recorded_in_second += 1
        return self._recorded_in_second <= self._limit

    def _add_properties(self, message: Message, properties: Mapping[str, str]) -> None:
        """Add the properties to the message, unless its native encoding cannot be extended."""
        if message.native:
            native = NATIVES.get(message.origin)
            if native is None:
                return
            message.native = native(message, properties)
        message.properties = {**(message.properties or {}), **properties}

    def visible(self, message: Message) -> None:
        """Record the publish span of a message that is ready for consumers."""
        publish = self._publish_span(time_ns())
        self._published(publish)
        if message.durability:
            self._written.append(publish)

    def staged(self, message: Message) -> None:
        """Keep a SYNC message, whose publish span ends when it is durable."""
        self._written.append(self._publish_span(0))

    def _publish_span(self, ended: int) -> SpanRecord:
        message, publish = self._accepted.pop()
        return publish._replace(ended=ended, sequence=message.sequence)

    def durable(self, sequence: int) -> None:
        """Record the journal spans of all messages up to `sequence`."""
        publishes = self._written
        if not publishes or publishes[0].sequence > sequence:
            return
        now = time_ns()
        while publishes and publishes[0].sequence <= sequence:
            publish = publishes.popleft()
            self._export(_child(publish, "journal", publish.begun, now))
            if not publish.ended:
                self._published(publish._replace(ended=now))

    def delivered(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
        """Record the deliver spans of the traced messages."""
        for delivery in deliveries:
            self.ended(subscription, delivery.sequence, REDELIVERED)
            message = delivery.message
            if message is None or message.properties is None:
                continue
            context = parse_traceparent(message.properties.get(TRACEPARENT))
            if context is None:
                continue
            now = time_ns()
            if not self._is_within_limit(now):
                continue
            deliver = SpanRecord(
                "deliver",
                context.trace,
                getrandbits(64) or 1,
                context.span,
                True,
                _state_of(message),
                self._ready_time(message, delivery.sequence, now),
                now,
                delivery.sequence,
                _attributes_of(message, subscription.destination),
                delivery.attempts,
                subscription.name,
            )
            self._export(deliver)
            if len(self._unacked) < MAX_REMEMBERED:
                self._unacked[subscription, delivery.sequence] = deliver

    def ended(self, subscription: Subscription, sequence: int, outcome: str) -> None:
        """Record the span that ends a delivery: ack, requeue or discard."""
        deliver = self._unacked.pop((subscription, sequence), None)
        if deliver is None:
            return
        now = time_ns()
        operation = "ack"
        if outcome in (RELEASED, REDELIVERED):
            operation = "requeue"
            self._remember(sequence, now)
        elif outcome != ACKNOWLEDGED:
            operation = "discard"
        self._export(_child(deliver, operation, deliver.ended, now)._replace(outcome=outcome))

    def _published(self, publish: SpanRecord) -> None:
        self._remember(publish.sequence, publish.ended)
        self._export(publish)

    def _remember(self, sequence: int, now: int) -> None:
        since = self._ready_times
        since[sequence] = now
        if len(since) > MAX_REMEMBERED:
            del since[next(iter(since))]

    def _ready_time(self, message: Message, sequence: int, now: int) -> int:
        """Fall back to the arrival time if the start of the wait is no longer remembered."""
        since = self._ready_times.get(sequence)
        if since is not None:
            return since
        if any(candidate is message for candidate, _ in self._accepted):
            return now  # delivered while it is being published
        return min(message.arrival * 1_000_000, now)


def _state_of(message: Message) -> str:
    state = (message.properties or {}).get(TRACESTATE)
    return state if isinstance(state, str) and len(state) <= MAX_TEXT else ""


def _child(span: SpanRecord, operation: str, begun: int, ended: int) -> SpanRecord:
    """Return a span of the same message whose parent is `span`."""
    return span._replace(
        operation=operation,
        span=getrandbits(64) or 1,
        parent=span.span,
        remote=False,
        begun=begun,
        ended=ended,
    )


def _attributes_of(message: Message, destination: Destination) -> Attributes:
    return {
        "messaging.destination.name": destination.name,
        "messaging.destination.temporary": destination.temporary,
        "messaging.message.body.size": len(message.body),
        "messaging.message.id": message.message_id[:MAX_TEXT],
        "messaging.message.conversation_id": message.correlation_id[:MAX_TEXT],
        "sluicemq.destination.kind": "topic" if destination.topic else "queue",
        "sluicemq.protocol": message.origin.name.lower(),
        "sluicemq.durability": message.durability.name.lower(),
    }


# --- trace context -------------------------------------------------------------------------------


class TraceContext(NamedTuple):
    """Reference to a span of a sampled trace."""

    trace: int
    span: int


def parse_traceparent(text: object) -> TraceContext | None:
    """Return the context in the property's value; None if it is invalid or not sampled."""
    if not isinstance(text, str):
        return None
    match = _FORM.match(text)
    if match is None:
        return None
    version, trace, span, flags, extra = match.groups()
    if version == "ff" or (version == "00" and extra) or not int(flags, 16) & SAMPLED:
        return None
    context = TraceContext(int(trace, 16), int(span, 16))
    return context if context.trace and context.span else None


def format_traceparent(trace: int, span: int) -> str:
    """Return the property's value for a span of a sampled trace."""
    return f"00-{trace:032x}-{span:016x}-01"
