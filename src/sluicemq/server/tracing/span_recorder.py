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

The recorder runs for each message. For speed, a span is a tuple here; `otel_spans` converts it to
an OpenTelemetry span on the exporter's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import getrandbits, random
from time import time_ns
from typing import TYPE_CHECKING, Final, NamedTuple

from sluicemq.broker import ACKNOWLEDGED, REDELIVERED, RELEASED
from sluicemq.model.message import Message, Origin
from sluicemq.server.tracing.context import PARENT, STATE, TraceContext, read, write

if TYPE_CHECKING:
    from sluicemq.broker import Delivery, Destination, Subscription

MOST_REMEMBERED: Final = 10_000
"""Maximum number of remembered ready times, and of deliveries with a pending end event. Above it,
`deliver` spans start at the arrival time and deliveries have no `ack` span."""
_SECOND: Final = 1_000_000_000

Native = Callable[[Message, Mapping[str, str]], bytes]
"""Function that returns `Message.native` with additional properties."""


class SpanRecord(NamedTuple):
    """Span of a message.

    operation  publish, journal, deliver, ack, requeue, discard
    parent     id of the parent span, or 0
    remote     True if the parent span comes from the message's `traceparent`
    state      tracestate
    begun      start, ns since the epoch
    ended      end, ns since the epoch
    """

    operation: str
    trace: int
    span: int
    parent: int
    remote: bool
    state: str
    begun: int
    ended: int
    facts: Facts
    attempts: int
    subscription: str
    outcome: str


class Facts(NamedTuple):
    """Attributes of the message, the same in each of its spans."""

    destination: str
    topic: bool
    temporary: bool
    sequence: int
    message_id: str
    correlation_id: str
    size: int
    origin: int
    durability: int


class _Taken(NamedTuple):
    """Accepted message that has no sequence number yet."""

    message: Message
    destination: Destination
    context: TraceContext
    parent: int
    state: str
    begun: int


class _Written(NamedTuple):
    """Message that is not durable yet. `recorded` is True if its publish span is recorded."""

    sequence: int
    taken: _Taken
    facts: Facts
    recorded: bool


class _Handling(NamedTuple):
    """Unacked message of a consumer."""

    trace: int
    span: int
    state: str
    begun: int
    facts: Facts
    attempts: int
    subscription: str


class SpanRecorder:
    """Observer (`sluicemq.broker.Observer`) that records spans."""

    def __init__(
        self,
        done: Callable[[SpanRecord], None],
        ratio: float,
        limit: int,
        natives: Mapping[Origin, Native] | None = None,
    ) -> None:
        """Record spans and pass each to `done`.

        `ratio` (0 to 1) is the share of messages without a trace that start one. `limit` is the
        maximum number of traced publishes and deliveries per second, 0 = no limit. `natives`
        maps an origin to the function that adds properties to its native encoding.
        """
        self._done = done
        self._ratio = ratio
        self._limit = limit
        self._natives = dict(natives or {})
        self._taken: list[_Taken] = []
        """Stack of accepted messages: accepting one may publish another (a dead letter)."""
        self._written: deque[_Written] = deque()
        self._since: dict[int, int] = {}
        """Time at which a message became ready, ns since the epoch, by sequence number."""
        self._unacked: dict[tuple[Subscription, int], _Handling] = {}
        self._second = 0
        self._followed = 0

    def accepted(self, destination: Destination, message: Message) -> bool:
        """Start the publish span of a message; return False if it is not traced."""
        properties = message.properties
        given = None if properties is None else properties.get(PARENT)
        if given is None:
            if random() >= self._ratio:
                return False
            context = TraceContext(getrandbits(128) or 1, getrandbits(64) or 1, True)
            parent, state = 0, ""
        else:
            found = read(given)
            if found is None or not found.sampled:
                return False
            context = TraceContext(found.trace, getrandbits(64) or 1, True)
            parent, state = found.span, _state_of(message)
        now = time_ns()
        if not self._follow(now):
            return False
        if not parent:
            self._send_on(message, context)
        self._taken.append(_Taken(message, destination, context, parent, state, now))
        return True

    def _follow(self, now: int) -> bool:
        """Count an operation and return whether the limit per second allows to record it."""
        if not self._limit:
            return True
        second = now // _SECOND
        if second != self._second:
            self._second = second
            self._followed = 0
        self._followed += 1
        return self._followed <= self._limit

    def _send_on(self, message: Message, context: TraceContext) -> None:
        """Write `traceparent` to the message, unless its native encoding cannot be extended."""
        added = {PARENT: write(context.trace, context.span)}
        if message.native:
            native = self._natives.get(message.origin)
            if native is None:
                return
            message.native = native(message, added)
        message.properties = {**(message.properties or {}), **added}

    def visible(self, message: Message) -> None:
        """Record the publish span of a message that is ready for consumers."""
        taken = self._taken.pop()
        facts = _facts(taken)
        self._published(taken, facts, time_ns())
        if message.durability:
            self._written.append(_Written(message.sequence, taken, facts, True))

    def staged(self, message: Message) -> None:
        """Keep a SYNC message, whose publish span ends when it is durable."""
        taken = self._taken.pop()
        self._written.append(_Written(message.sequence, taken, _facts(taken), False))

    def durable(self, sequence: int) -> None:
        """Record the journal spans of all messages up to `sequence`."""
        written = self._written
        if not written or written[0].sequence > sequence:
            return
        now = time_ns()
        while written and written[0].sequence <= sequence:
            _, taken, facts, recorded = written.popleft()
            context = taken.context
            self._done(
                SpanRecord(
                    "journal",
                    context.trace,
                    getrandbits(64) or 1,
                    context.span,
                    False,
                    taken.state,
                    taken.begun,
                    now,
                    facts,
                    0,
                    "",
                    "",
                )
            )
            if not recorded:
                self._published(taken, facts, now)

    def delivered(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
        """Record the deliver spans of the traced messages."""
        for delivery in deliveries:
            self._delivered(subscription, delivery)

    def _delivered(self, subscription: Subscription, delivery: Delivery) -> None:
        self.ended(subscription, delivery.sequence, REDELIVERED)
        message = delivery.message
        if message is None or message.properties is None:
            return
        found = read(message.properties.get(PARENT))
        if found is None or not found.sampled:
            return
        now = time_ns()
        if not self._follow(now):
            return
        facts = _facts_of(message, subscription.destination, delivery.sequence)
        state = _state_of(message)
        span = getrandbits(64) or 1
        self._done(
            SpanRecord(
                "deliver",
                found.trace,
                span,
                found.span,
                True,
                state,
                self._waits_since(message, delivery.sequence, now),
                now,
                facts,
                delivery.attempts,
                subscription.name,
                "",
            )
        )
        if len(self._unacked) < MOST_REMEMBERED:
            self._unacked[subscription, delivery.sequence] = _Handling(
                found.trace, span, state, now, facts, delivery.attempts, subscription.name
            )

    def ended(self, subscription: Subscription, sequence: int, outcome: str) -> None:
        """Record the span that ends a delivery: ack, requeue or discard."""
        handling = self._unacked.pop((subscription, sequence), None)
        if handling is None:
            return
        now = time_ns()
        operation = "ack"
        if outcome in (RELEASED, REDELIVERED):
            operation = "requeue"
            self._remember(handling.facts.sequence, now)
        elif outcome != ACKNOWLEDGED:
            operation = "discard"
        self._done(
            SpanRecord(
                operation,
                handling.trace,
                getrandbits(64) or 1,
                handling.span,
                False,
                handling.state,
                handling.begun,
                now,
                handling.facts,
                handling.attempts,
                handling.subscription,
                outcome,
            )
        )

    def _published(self, taken: _Taken, facts: Facts, now: int) -> None:
        self._remember(facts.sequence, now)
        context = taken.context
        self._done(
            SpanRecord(
                "publish",
                context.trace,
                context.span,
                taken.parent,
                True,
                taken.state,
                taken.begun,
                now,
                facts,
                0,
                "",
                "",
            )
        )

    def _remember(self, sequence: int, now: int) -> None:
        since = self._since
        since[sequence] = now
        if len(since) > MOST_REMEMBERED:
            del since[next(iter(since))]

    def _waits_since(self, message: Message, sequence: int, now: int) -> int:
        """Fall back to the arrival time if the start of the wait is no longer remembered."""
        since = self._since.get(sequence)
        if since is not None:
            return since
        if any(taken.message is message for taken in self._taken):
            return now  # delivered while it is being published
        return min(message.arrival * 1_000_000, now)


def _state_of(message: Message) -> str:
    state = (message.properties or {}).get(STATE)
    return state if isinstance(state, str) else ""


def _facts(taken: _Taken) -> Facts:
    message = taken.message
    return _facts_of(message, taken.destination, message.sequence)


def _facts_of(message: Message, destination: Destination, sequence: int) -> Facts:
    return Facts(
        destination.name,
        destination.topic,
        destination.temporary,
        sequence,
        message.message_id,
        message.correlation_id,
        len(message.body),
        message.origin,
        message.durability,
    )
