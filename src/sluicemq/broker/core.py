"""Shared state of the engine: time, journal, memory accounting, and work pending in an
iteration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sluicemq.broker.clocklog import ClockLog
from sluicemq.broker.codec import RecordWriter
from sluicemq.broker.delivery import DELAYED, GONE, READY
from sluicemq.broker.event_recorder import EventRecorder
from sluicemq.broker.scans import Scans, StartDeadline
from sluicemq.broker.timers import ExpiryWheel, Timers

if TYPE_CHECKING:
    from sluicemq.broker.clock import Clock
    from sluicemq.broker.dead_letters import DeadLetters
    from sluicemq.broker.delivery import Delivery
    from sluicemq.broker.destination import Destination
    from sluicemq.broker.events import Observer
    from sluicemq.broker.settings import EngineSettings
    from sluicemq.broker.subscription import Subscription
    from sluicemq.journal.port import Journal
    from sluicemq.model.destination import Address
    from sluicemq.model.message import Message

ITERATION_DELIVERIES: Final = 1000
ITERATION_BYTES: Final = 1 << 20
"""Limits per consumer and iteration, so that no backlog blocks the other connections."""
TRIES: Final = 60
"""Reading and matching one takes some 5 µs, so that two thirds of the time remain for other
work.
"""
TRIES_FIRST: Final = 500
SHORT_BYTES: Final = 4096
"""Reading a body of up to this size costs less than leaving it out."""
REQUEUED_LIMIT: Final = 1024
"""Number of requeued deliveries recorded before those that have ended are removed."""


class Core:
    """Shared state of one broker.

    memory          bytes of messages held in memory: their bodies, and `overhead` for each
    chunk_deliveries  deliveries in a chunk of a backlog
    memory_budget   above it, journaled bodies are paged out and read back when they are dispatched
    dirty           subscriptions that may be able to dispatch
    again           subscriptions that have used up their share of this iteration
    event_recorder  recorder of deliveries and depths, which cause no writes of their own
    selector_load   nodes of selectors that one message may be evaluated with; 0 = no limit
    settling        subscriptions with acknowledgements not yet journaled
    settled         sequence number of the last record of acknowledgements, or of a change of the
                    durable subscriptions
    tries           deliveries that a subscription matches against new selectors per ms
    tries_first     the same for the first slice of a new selector
    iterations      event loop iterations of the broker so far
    requeued        deliveries whose position differs from that of their sequence, by
                    (subscription, sequence), and some that have ended since
    scans           time available for scans, and the scans that wait for it
    unpaged         deliveries over the budget that cannot be paged out before they are durable
    halted          True while nothing is delivered: there is no space to record acknowledgements
    unblocking      destinations with parked messages that may have capacity again
    dead_letters    moves undeliverable messages to their dead-letter queues; set by the broker
    observer        observer of the stages of messages, or None
    stopping        True once no more messages are accepted
    wake            called if a flush is needed outside of an event loop iteration
    records         appends the records that only the engine decodes
    refused_retry   ms after which a dead letter is offered again to a full dead-letter queue
    dead_letter_queues  destinations that send their dead letters to each queue
    dropping_dead_letter_queues  those whose limits drop messages, as their protocol requires
    """

    __slots__ = (
        "again",
        "chunk_deliveries",
        "clock",
        "clock_log",
        "dead_letter_queues",
        "dead_letters",
        "dirty",
        "dropping_dead_letter_queues",
        "event_recorder",
        "halted",
        "iterations",
        "journal",
        "memory",
        "memory_budget",
        "observer",
        "overhead",
        "records",
        "refused_retry",
        "requeued",
        "requeued_limit",
        "scans",
        "selector_load",
        "settings",
        "settled",
        "settling",
        "stopping",
        "timers",
        "tries",
        "tries_first",
        "unblocking",
        "unpaged",
        "wake",
        "wheel",
    )

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        settings: EngineSettings,
        start_deadline: StartDeadline,
        observer: Observer | None = None,
    ) -> None:
        self.journal = journal
        self.settings = settings
        self.wake: Callable[[], None] = _nothing
        self.scans = Scans(start_deadline, lambda: self.wake())
        self.stopping = False
        self.observer = observer
        self.dead_letters: DeadLetters
        self.clock = clock
        self.memory = 0
        self.memory_budget = settings.memory_budget
        self.overhead = settings.message_overhead
        self.chunk_deliveries = settings.chunk_deliveries
        self.selector_load = settings.selector_load
        self.refused_retry = settings.dead_letter_retry
        self.dead_letter_queues: dict[Address, dict[Destination, None]] = {}
        self.dropping_dead_letter_queues: set[Address] = set()
        self.records = RecordWriter(journal, clock)
        self.event_recorder = EventRecorder(journal, clock, observer)
        self.clock_log = ClockLog(self.records, clock)
        self.timers = Timers()
        self.wheel = ExpiryWheel()
        self.dirty: dict[Subscription, None] = {}
        self.again: dict[Subscription, None] = {}
        self.settling: dict[Subscription, None] = {}
        self.settled = 0
        self.requeued: dict[tuple[int, int], Delivery] = {}
        self.requeued_limit = REQUEUED_LIMIT
        self.tries = TRIES
        self.tries_first = TRIES_FIRST
        self.iterations = 0
        self.halted = False
        self.unpaged: deque[Delivery] = deque()
        self.unblocking: dict[Destination, None] = {}

    def read(self, delivery: Delivery) -> Message:
        """Return the message of a delivery, for reading. Raises JournalDamaged or
        RecordNotFound.
        """
        return delivery.message or self.journal.fetch(delivery.sequence)

    def glance(self, delivery: Delivery) -> Message:
        """Return the message of a delivery, possibly without its body if that is long."""
        if delivery.message is not None or delivery.size <= SHORT_BYTES:
            return self.read(delivery)
        return self.journal.head(delivery.sequence)

    def load(self, delivery: Delivery) -> Message:
        """Load a paged-out message into memory. Raises JournalDamaged or RecordNotFound."""
        message = self.journal.fetch(delivery.sequence)
        message.sequence = delivery.sequence
        if not message.references:
            self.memory += delivery.size + self.overhead
        message.references += 1
        delivery.message = message
        return message

    def page_out(self, delivery: Delivery) -> None:
        """Drop the body of a delivery that can be read back from the journal."""
        message = delivery.message
        assert message is not None
        message.references -= 1
        if message.references == 0:
            self.memory -= delivery.size + self.overhead
        delivery.message = None

    def page_out_until(self, durable: int) -> None:
        """Page out bodies over the budget that have become durable."""
        unpaged = self.unpaged
        while unpaged and unpaged[0].sequence <= durable:
            delivery = unpaged.popleft()
            waits = delivery.state == READY or delivery.state == DELAYED
            if waits and delivery.message is not None and self.memory > self.memory_budget:
                self.page_out(delivery)

    def note_requeued(self, delivery: Delivery) -> None:
        """Record a delivery outside its original position, for the next snapshot."""
        self.requeued[delivery.subscription.number, delivery.sequence] = delivery
        if len(self.requeued) > self.requeued_limit:
            self.requeued = {key: d for key, d in self.requeued.items() if d.state != GONE}
            self.requeued_limit = 2 * len(self.requeued) + REQUEUED_LIMIT


def _nothing() -> None:
    return None
