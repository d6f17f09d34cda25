"""Record the path of messages as spans from the events of the engine (`sluicemq.broker.tracing`).

    publish orders   taken in ──────────────> shown to consumers; of SYNC messages, on disk
      journal orders   given to the journal ─> on disk
    deliver orders   shown ─────────────────> given to a consumer: how long it waited
      ack orders       given ───────────────> acknowledged: how long the consumer took
                       (release: taken back or given back; discard: nobody will have it)

`publish` and `deliver` are children of the span in the message's `traceparent`. That is left as the
sender has written it, so that the consumer's own spans find the sender's. A message without one may
begin a trace (`ratio`): then the broker's `publish` is its first span, and what the message carries
on. So the broker need not remember anything about a message, and after a restart its trace goes on.

All of this runs for each message. So a span is a tuple here; `otel_spans` makes the OpenTelemetry
span of it, on the exporter's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from random import getrandbits, random
from time import time_ns
from typing import TYPE_CHECKING, Final, NamedTuple

from sluicemq.broker.tracing import ACKNOWLEDGED, REDELIVERED, RELEASED
from sluicemq.model.message import Message, Origin
from sluicemq.server.tracing.context import PARENT, STATE, TraceContext, read, write

if TYPE_CHECKING:
    from sluicemq.broker import Delivery, Destination, Subscription

MOST_REMEMBERED: Final = 10_000
"""Messages of which is known since when they can be delivered, and deliveries whose end is awaited:
both only make spans more exact."""
_SECOND: Final = 1_000_000_000

Native = Callable[[Message, Mapping[str, str]], bytes]
"""`Message.native` with more properties."""


class SpanRecord(NamedTuple):
    """A span: part of the path of a message.

    operation  publish, journal, deliver, ack, release, discard
    parent     a span of the trace, or 0
    remote     that is somebody else's
    state      tracestate
    begun      ns since the epoch, and
    ended      the same
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
    """What is said of the message itself in each of its spans."""

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
    """A message that is being taken in."""

    message: Message
    destination: Destination
    context: TraceContext
    parent: int
    state: str
    begun: int


class _Written(NamedTuple):
    """One that is not on disk yet."""

    sequence: int
    taken: _Taken
    facts: Facts
    shown: bool


class _Handling(NamedTuple):
    """One that a consumer has."""

    trace: int
    span: int
    state: str
    begun: int
    facts: Facts
    attempts: int
    subscription: str


class SpanRecorder:
    """See the module, and `sluicemq.broker.tracing.Observer`."""

    def __init__(
        self,
        done: Callable[[SpanRecord], None],
        ratio: float,
        limit: int,
        natives: Mapping[Origin, Native] | None = None,
    ) -> None:
        """`done` gets all spans. `ratio` of the messages that belong to no trace begin one; `limit`
        is how many traces begin in a second at most, 0 = no limit. `natives` know how to add
        properties to what goes out as it came in."""
        self._done = done
        self._ratio = ratio
        self._limit = limit
        self._natives = dict(natives or {})
        self._taken: list[_Taken] = []
        """The last is what is being taken in: that may mean to take in another (a dead letter)."""
        self._written: deque[_Written] = deque()
        self._since: dict[int, int] = {}
        """When a message could be delivered, by its number."""
        self._handled = 0
        self._second = 0
        self._followed = 0

    def accepted(self, destination: Destination, message: Message) -> bool:
        """See Observer."""
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
        """Whether there is room for one more in this second."""
        if not self._limit:
            return True
        second = now // _SECOND
        if second != self._second:
            self._second = second
            self._followed = 0
        self._followed += 1
        return self._followed <= self._limit

    def _send_on(self, message: Message, context: TraceContext) -> None:
        """Have the consumer learn of the trace, if the message can carry it."""
        added = {PARENT: write(context.trace, context.span)}
        if message.native:
            native = self._natives.get(message.origin)
            if native is None:
                return
            message.native = native(message, added)
        message.properties = {**(message.properties or {}), **added}

    def shown(self, message: Message) -> None:
        """See Observer."""
        taken = self._taken.pop()
        facts = _facts(taken)
        self._published(taken, facts, time_ns())
        if message.durability:
            self._written.append(_Written(message.sequence, taken, facts, True))

    def staged(self, message: Message) -> None:
        """See Observer."""
        taken = self._taken.pop()
        self._written.append(_Written(message.sequence, taken, _facts(taken), False))

    def durable(self, sequence: int) -> None:
        """See Observer."""
        written = self._written
        if not written or written[0].sequence > sequence:
            return
        now = time_ns()
        while written and written[0].sequence <= sequence:
            _, taken, facts, shown = written.popleft()
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
            if not shown:
                self._published(taken, facts, now)

    def delivered(self, subscription: Subscription, delivery: Delivery) -> object:
        """See Observer."""
        message = delivery.message
        if message is None or message.properties is None:
            return None
        found = read(message.properties.get(PARENT))
        if found is None or not found.sampled:
            return None
        now = time_ns()
        if not self._follow(now):
            return None
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
        if self._handled >= MOST_REMEMBERED:
            return None
        self._handled += 1
        return _Handling(found.trace, span, state, now, facts, delivery.attempts, subscription.name)

    def over(self, handling: object, how: str) -> None:
        """See Observer."""
        assert isinstance(handling, _Handling)
        self._handled -= 1
        now = time_ns()
        operation = "ack"
        if how in (RELEASED, REDELIVERED):
            operation = "release"
            self._remember(handling.facts.sequence, now)
        elif how != ACKNOWLEDGED:
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
                how,
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
            return now  # it has been handed over at once
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
