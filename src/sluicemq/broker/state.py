"""State of the engine: the records that refer to each other.

Deliveries, consumers, subscriptions and destinations, and the core that they share, are in one
module, so that no import cycle is needed. Methods here compute, look up and count. What happens to
a delivery is in subscription.py, redelivery.py and dispatch.py.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, count
from typing import Final, Protocol

from sluicemq.broker.dead_letters import DeadLetters
from sluicemq.broker.pending.cursor import NO_END, Cursor
from sluicemq.broker.pending.entry import (
    ENDED,
    READY,
    RECORDED,
    SCHEDULED,
    UNACKED,
    Entry,
    queue_order,
)
from sluicemq.broker.pending.queue import PRIORITIES, PendingQueue
from sluicemq.broker.records import ClockLog, EventRecorder
from sluicemq.broker.routing import Routes, Selector
from sluicemq.broker.scheduler import Clock, ExpiryWheel, Scans, StartDeadline, Timers
from sluicemq.broker.settings import EngineSettings
from sluicemq.broker.stats import DestinationStats
from sluicemq.journal.interface import Journal
from sluicemq.journal.space import ignore
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow, Provenance
from sluicemq.model.message import DEFAULT_PRIORITY, Message

DURABLE_SUBSCRIPTION: Final = 1 << 31
"""Bit set in the numbers of durable subscriptions; without it the number is a destination's."""
SHORT_BYTES: Final = 4096
"""Reading a body of up to this size costs less than leaving it out."""
REQUEUED_AT_TAIL_LIMIT: Final = 1024
"""Number of deliveries in `requeued_at_tail` before those that have ended are removed."""

_DROPPING: Final = frozenset({Overflow.DROP_OLDEST, Overflow.DROP_LOWEST})
_numbers: Final = count(1)


class Delivery(Entry):
    """One message in one subscription.

    Millions of deliveries wait in memory, so the object is small and drops the message if the body
    can be read back from the journal.

    consumer    consumer that holds it while unacked
    delivered   steady ms of the last delivery; while SCHEDULED, of the end of the delay
    """

    __slots__ = ("consumer", "delivered", "subscription")

    def __init__(
        self,
        subscription: Subscription,
        sequence: int,
        message: Message | None,
        priority: int,
        size: int,
        journaled: int,
        expiration: int,
        expires: int,
    ) -> None:
        self.subscription = subscription
        self.sequence = sequence
        self.order = sequence
        self.message = message
        self.priority = priority
        self.size = size
        self.journaled = journaled
        self.expiration = expiration
        self.expires = expires
        self.pinned = False
        self.attempts = 0
        self.state = READY
        self.consumer: Consumer | None = None
        self.delivered = 0

    def copy_with(self, sequence: int, size: int) -> Delivery:
        """Return a READY delivery in the same subscription, see Entry."""
        return Delivery(
            self.subscription, sequence, None, self.priority, size, self.journaled, 0, 0
        )

    @property
    def ready(self) -> bool:
        """True if it waits for a consumer."""
        return self.state == READY

    @property
    def scheduled(self) -> bool:
        """True if it waits for the end of a delay."""
        return self.state == SCHEDULED

    @property
    def unacked(self) -> bool:
        """True if a consumer or a transaction holds it."""
        return self.state == UNACKED

    @property
    def ended(self) -> bool:
        """True once it is acknowledged or removed."""
        return self.state == ENDED

    @property
    def recorded(self) -> bool:
        """True if its end is journaled, so that it is known after a restart."""
        return self.journaled == RECORDED

    def __repr__(self) -> str:
        state = ("ready", "unacked", "scheduled", "ended")[self.state]
        return f"<Delivery {self.sequence} of {self.subscription.destination.name}, {state}>"


class Sink(Protocol):
    """Receiver of a consumer's deliveries."""

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Accept one or more deliveries, in order. Must only queue bytes, never block or raise."""

    def detached(self, consumer: Consumer) -> None:
        """Handle the deletion of the consumer's destination or subscription by another client.

        Called after the deletion, so that attaching again is possible.
        """


class Window:
    """Credit: number of further deliveries that its consumers may receive.

    credit    deliveries allowed now, >= 0; below 0 only if acknowledgements were withdrawn in a
              transaction after the credit they restored had been used
    refill    True: each acknowledged delivery restores one (prefetch); False: only grants add
    consumers consumers that share it: msglite's ready command covers several addresses with it
    """

    __slots__ = ("consumers", "credit", "refill")

    def __init__(self, credit: int, refill: bool) -> None:
        self.credit = credit
        self.refill = refill
        self.consumers: list[Consumer] = []


class Consumer:
    """Consumer attached to one subscription.

    number       number among all consumers since the process began
    delivered    number of deliveries it has received
    unacked      deliveries it holds, oldest delivery first
    ack_timeout  ms after which an unacked delivery is redelivered, 0 = never
    active       False while it is a standby for an active consumer
    suspended    True while its connection cannot accept more bytes
    retired      True once it is detached, though it may still hold deliveries
    """

    __slots__ = (
        "ack_timeout",
        "active",
        "delivered",
        "has_ack_timer",
        "number",
        "pending_queue",
        "retired",
        "sink",
        "subscription",
        "suspended",
        "unacked",
        "window",
    )

    def __init__(
        self,
        subscription: Subscription,
        sink: Sink,
        window: Window,
        pending_queue: PendingQueue[Delivery, Consumer],
        ack_timeout: int,
    ) -> None:
        self.number: int = next(_numbers)
        self.subscription = subscription
        self.sink = sink
        self.window = window
        self.pending_queue = pending_queue
        self.ack_timeout = ack_timeout
        self.unacked: dict[int, Delivery] = {}
        self.delivered = 0
        self.active = True
        self.suspended = False
        self.retired = False
        self.has_ack_timer = False
        """True while a timer runs for its oldest unacked delivery."""


class Rescan(Protocol):
    """Matching of ready messages against new selectors (selector_rescan.py)."""

    def add_queue(self, pending_queue: PendingQueue[Delivery, Consumer]) -> None:
        """Match the waiting messages against the selector of a new pending queue."""

    def remove_queue(self, pending_queue: PendingQueue[Delivery, Consumer]) -> None:
        """Stop the rescan of an unused pending queue."""

    def defers(self, pending_queue: PendingQueue[Delivery, Consumer], delivery: Delivery) -> bool:
        """Return whether a matching delivery must not enter the pending queue yet."""

    def resume(self) -> None:
        """Resume a paused pass after deliveries were taken from the pending queues."""


class Subscription:
    """One independent cursor over a destination's messages, with its consumers.

    name      "" for a queue's own subscription; otherwise unique within the topic
    number    number in the journal, 0 = none; members of a group have their topic's number
    exclude   no-local token: messages of this sender are not delivered
    owner     user that owns it; "" = no owner yet, or not owned by a user
    waiting   number of READY and SCHEDULED deliveries; waiting_bytes = size of their bodies
    unacked   number of UNACKED deliveries; unacked_bytes = size of their bodies
    requeued  READY and SCHEDULED deliveries that were delivered before, by sequence: the consumer
              may still acknowledge them by their id
    all_ready pending queue without a selector, which has all READY deliveries
    pending_queues  by the text of the selector; "" is `all_ready`
    selective routes to the pending queues that have a selector
    retired   consumers that are detached and still hold deliveries
    refused   SCHEDULED deliveries that no consumer gets and that wait for capacity in the
              dead-letter queue, by sequence, with the reason and whether they are dead-lettered
              unconditionally
    retrying  True while a timer runs that offers the refused deliveries again
    rescan    matches ready messages against the selectors of new pending queues, or None
    requeuing  steps of the scans that return deliveries to it; nothing is dispatched until they end
    closed    True once the subscription is deleted: returned deliveries are dropped, and those
              that still wait are being discarded
    acked     sequences to journal as acknowledged in this iteration
    acked_in_transactions  UNACKED deliveries that transactions which have not ended have
              acknowledged, by sequence; no consumer holds them
    """

    __slots__ = (
        "acked",
        "acked_in_transactions",
        "all_ready",
        "closed",
        "consumers",
        "core",
        "destination",
        "exclude",
        "name",
        "number",
        "owner",
        "pending_queues",
        "refused",
        "requeued",
        "requeuing",
        "rescan",
        "retired",
        "retrying",
        "scheduled",
        "selective",
        "selector",
        "shared",
        "unacked",
        "unacked_bytes",
        "waiting",
        "waiting_bytes",
    )

    def __init__(
        self,
        core: Core,
        destination: Destination,
        name: str = "",
        number: int = 0,
        selector: Selector | None = None,
        exclude: object = None,
        shared: bool = True,
        owner: str = "",
    ) -> None:
        self.core = core
        self.destination = destination
        self.name = name
        self.number = number
        self.selector = selector
        self.exclude = exclude
        self.shared = shared
        self.owner = owner
        self.all_ready: PendingQueue[Delivery, Consumer] = PendingQueue(
            core.settings.chunk_deliveries
        )
        self.pending_queues: dict[str, PendingQueue[Delivery, Consumer]] = {"": self.all_ready}
        self.selective: Routes[PendingQueue[Delivery, Consumer]] = Routes()
        self.rescan: Rescan | None = None
        self.consumers: dict[Consumer, None] = {}
        self.retired: dict[Consumer, None] = {}
        self.scheduled: dict[int, Delivery] = {}
        self.requeued: dict[int, Delivery] = {}
        self.refused: dict[int, tuple[Delivery, str, bool]] = {}
        self.retrying = False
        self.requeuing: list[Iterator[None]] = []
        self.acked: list[int] = []
        self.acked_in_transactions: dict[int, Delivery] = {}
        self.closed = False
        self.waiting = 0
        self.waiting_bytes = 0
        self.unacked = 0
        self.unacked_bytes = 0

    @property
    def all_consumers(self) -> list[Consumer]:
        """Return the consumers that may hold a delivery."""
        return [*self.consumers, *self.retired]

    @property
    def unacked_deliveries(self) -> Iterator[Delivery]:
        """Its unacked deliveries, by consumer, then by time; those in transactions are last."""
        held = [consumer.unacked.values() for consumer in self.all_consumers]
        return chain(chain.from_iterable(held), self.acked_in_transactions.values())

    def browse(self) -> Iterator[Delivery]:
        """Iterate over the deliveries in queue order: unacked ones in their position, and scheduled
        ones last.

        The iterator is read-only and valid until the next change of the subscription.
        """
        deliveries = sorted(self.unacked_deliveries, key=queue_order)
        return chain(merge(self.cursor(), deliveries, key=queue_order), self.scheduled.values())

    def cursor(
        self, until: int = NO_END, priority: int = PRIORITIES - 1, last: int = 0
    ) -> Cursor[Delivery]:
        """Return a cursor over the ready deliveries; arguments as in Cursor."""
        return Cursor(self.all_ready, until, priority, last)

    def head(self) -> Delivery | None:
        """Return the next delivery to dispatch to a consumer without a selector, or None."""
        return self.all_ready.head()

    @property
    def ready(self) -> int:
        """Number of deliveries that wait and are not scheduled."""
        return self.waiting - len(self.scheduled)

    def accepts(self, message: Message) -> bool:
        """Return whether the selector matches and the message's sender is not excluded."""
        if self.exclude is not None and message.sender == self.exclude:
            return False
        return self.selector is None or self.selector(message)

    @property
    def durable(self) -> bool:
        """True if it belongs to a topic and outlives its consumers and the process."""
        return self.number >= DURABLE_SUBSCRIPTION

    @property
    def has_idle_consumer(self) -> bool:
        """True if a consumer is available and no message is ready, or about to be, for it."""
        return not self.requeuing and any(
            pending_queue.available_consumers and not pending_queue.mask
            for pending_queue in self.pending_queues.values()
        )


class Destination:
    """Queue or topic with its settings, subscriptions and counters. Created by the Broker only.

    number         number in the journal; 0 until something about it is journaled
    queue          a queue's own subscription; for a topic, the one that retains messages while it
                   has no subscribers (settings.retain_without_subscriptions)
    subscriptions  a topic's subscriptions by name; changed by `subscribe` and `unsubscribe` only
    members        subscriptions in the group, in order of arrival
    grouped        True once the topic has had a member, or will have one (Broker.form_group)
    refuses_messages  True for a topic that only keeps subscriptions and accepts no messages
    owner          token of the connection that owns a temporary destination
    automatic      created by use, and therefore removed when idle
    creator        user whose quota it counts against, "" = anonymous users; None = no quota
    created        wall ms since the epoch
    provenance     creator, and the settings that were set explicitly
    staged         messages written to the journal but not yet durable, and so not yet visible
    parked         messages of blocked publishers, in order of arrival, and the callbacks for their
                   acceptance
    committing     number of commits in progress that will publish here
    dead_letters   queue of its dead letters; None if it has none or is that queue itself
    recorded_depth waiting, unacked and consumers as last journaled; None = not known
    removed        True once it is deleted: holders of a reference must look it up again
    """

    __slots__ = (
        "address",
        "automatic",
        "committing",
        "core",
        "created",
        "creator",
        "dead_letters",
        "grouped",
        "idle_since",
        "last_published",
        "limited",
        "members",
        "name",
        "number",
        "owner",
        "parked",
        "paused",
        "provenance",
        "queue",
        "recorded_depth",
        "refuses_messages",
        "removed",
        "routes",
        "settings",
        "shared_copies",
        "staged",
        "staged_bytes",
        "statistics",
        "subscriptions",
        "topic",
    )

    def __init__(
        self,
        core: Core,
        address: Address,
        settings: DestinationSettings,
        owner: object = None,
        automatic: bool = False,
        created: int = 0,
        creator: str | None = None,
        provenance: Provenance | None = None,
    ) -> None:
        self.core = core
        self.created = created or core.clock.wall
        self.creator = creator
        self.provenance = Provenance() if provenance is None else provenance
        self.address = address
        self.name = address.name
        self.number = 0
        self.owner = owner
        self.automatic = automatic
        self.topic = address.kind is Kind.TOPIC
        self.subscriptions: dict[str, Subscription] = {}
        self.members: dict[Subscription, None] = {}
        self.grouped = False
        self.routes: Routes[Subscription] = Routes()
        self.statistics = DestinationStats()
        self.paused = False
        self.removed = False
        self.recorded_depth: tuple[int, int, int] | None = (0, 0, 0)
        self.staged = 0
        self.staged_bytes = 0
        self.parked: OrderedDict[Message, Callable[[], None]] = OrderedDict()
        self.committing = 0
        self.shared_copies: dict[int, int] = {}
        """Number of SHARED deliveries of each message that has any, by sequence."""
        self.idle_since = core.clock.steady
        self.last_published = 0
        self.dead_letters: Address | None = None
        self.apply(settings)
        self.queue: Subscription = Subscription(core, self)

    def __repr__(self) -> str:
        return f"<Destination {self.address}>"

    def apply(self, settings: DestinationSettings) -> None:
        """Apply new settings; they take effect for messages and consumers from now on."""
        self.settings = settings
        self.refuses_messages = self.address in self.core.refusing_topics
        self.limited = bool(
            settings.max_messages
            or settings.max_bytes
            or settings.max_message_bytes
            or settings.message_ttl
            or self.refuses_messages
        )
        keeps = settings.dead_letter and not self.temporary and not self.removed
        self.set_dead_letter_queue(self.dead_letter_address if keeps else None)

    @property
    def dead_letter_address(self) -> Address:
        """Address of its dead-letter queue, if dead letters are enabled."""
        return Address(Kind.QUEUE, self.settings.dead_letter_queue or f"{self.name}.dlq")

    def set_dead_letter_queue(self, queue: Address | None) -> None:
        """Register the queue that receives its dead letters, None = none."""
        if queue == self.address:
            queue = None
        if queue == self.dead_letters:
            return
        queues = self.core.dead_letter_queues
        if self.dead_letters is not None:
            sources = queues[self.dead_letters]
            del sources[self]
            if not sources:
                del queues[self.dead_letters]
        if queue is not None:
            queues.setdefault(queue, {})[self] = None
        self.dead_letters = queue

    @property
    def is_dead_letter_queue(self) -> bool:
        """True if it is the dead-letter queue of an existing destination."""
        return self.address in self.core.dead_letter_queues

    @property
    def drops_when_full(self) -> bool:
        """True if it drops messages when full.

        The limits of a dead-letter queue refuse messages instead, regardless of its policy, unless
        its protocol requires that they drop.
        """
        if self.settings.overflow not in _DROPPING:
            return False
        dropping_queues = self.core.dropping_dead_letter_queues
        return not self.is_dead_letter_queue or self.address in dropping_queues

    def priority(self, priority: int) -> int:
        """Return the priority at which a message is queued."""
        return priority if self.settings.priority_ordering else DEFAULT_PRIORITY

    def accepts_dead_letter(self, size: int) -> bool:
        """Return whether its limits allow another dead letter with a body of `size` bytes."""
        if self.drops_when_full or not self.limited:
            return True  # without limits, the parked messages are about to be accepted
        limit = self.settings.max_message_bytes
        return not (self.parked or self.would_exceed_limits(size) or (limit and size > limit))

    def has_dead_letter_capacity(self, size: int) -> bool:
        """Return whether its dead-letter queue accepts a body of `size` bytes."""
        queue = self.core.destinations.get(self.dead_letter_address)
        return queue is None or queue is self or queue.accepts_dead_letter(size)

    @property
    def temporary(self) -> bool:
        """True if it is deleted with the connection that created it."""
        return self.owner is not None

    @property
    def is_permanent(self) -> bool:
        """True if it was created by use and is never deleted for being idle, nor by a restart."""
        return self.automatic and self.settings.idle_timeout == 0

    @property
    def all_subscriptions(self) -> list[Subscription]:
        """Its own subscription, `queue`, and those of a topic."""
        return [self.queue, *self.subscriptions.values()]

    @property
    def waiting(self) -> int:
        """Number of waiting messages; for a topic, those of its longest subscription."""
        maximum = self.queue.waiting
        if self.subscriptions:
            for subscription in self.subscriptions.values():
                maximum = max(maximum, subscription.waiting)
        return maximum + self.staged

    @property
    def waiting_bytes(self) -> int:
        """Body bytes waiting; for a topic, those of its largest subscription."""
        maximum = self.queue.waiting_bytes
        for subscription in self.subscriptions.values():
            maximum = max(maximum, subscription.waiting_bytes)
        return maximum + self.staged_bytes

    @property
    def unacked(self) -> int:
        """Number of unacked deliveries."""
        return sum(subscription.unacked for subscription in self.all_subscriptions)

    @property
    def bytes(self) -> int:
        """Body bytes of waiting and unacked messages."""
        unacked_bytes = sum(subscription.unacked_bytes for subscription in self.all_subscriptions)
        return self.waiting_bytes + unacked_bytes

    @property
    def consumers(self) -> int:
        """Number of attached consumers."""
        return sum(len(subscription.consumers) for subscription in self.all_subscriptions)

    def would_exceed_limits(self, size: int) -> bool:
        """Return whether a message of `size` bytes would exceed max_messages or max_bytes."""
        settings = self.settings
        if settings.max_messages and self.waiting >= settings.max_messages:
            return True
        return bool(settings.max_bytes and self.waiting_bytes + size > settings.max_bytes)

    def unpark_later(self) -> None:
        """Let the broker accept parked messages, in this iteration, if there is capacity again."""
        if self.parked:
            self.core.unblocking[self] = None

    def restart_idle_time(self) -> None:
        """Restart the idle time."""
        self.idle_since = self.core.clock.steady

    def busy(self) -> bool:
        """Return whether it is in use.

        Restart the idle time if it is, or has been published to since the last call.
        """
        is_in_use = bool(
            self.consumers
            or self.waiting
            or self.unacked
            or self.parked
            or self.committing
            or self.subscriptions
            or self.paused
        )
        if is_in_use or self.statistics.published != self.last_published:
            self.last_published = self.statistics.published
            self.restart_idle_time()
        return is_in_use

    # --- routing -----------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Route messages to this subscription from now on; it replaces one of the same name."""
        previous = self.subscriptions.get(subscription.name)
        if previous is not None:
            self.routes.remove(previous, previous.selector)
        self.subscriptions[subscription.name] = subscription
        self.routes.add(subscription, subscription.selector, subscription.exclude)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop routing messages to this subscription, which must be among `subscriptions`."""
        del self.subscriptions[subscription.name]
        self.routes.remove(subscription, subscription.selector)
        self.members.pop(subscription, None)

    # --- the group, see fan_out.py -----------------------------------------------------------

    @property
    def keeps_group(self) -> bool:
        """Return whether messages that the last member leaves unacked stay for the next one."""
        settings = self.settings
        return self.grouped and settings.retain_without_subscriptions and not settings.auto_ack

    def targets(self, message: Message) -> list[Subscription]:
        """Return the subscriptions that match the message, and `queue` if the topic retains it."""
        targets = self.routes.targets(message)
        if (
            self.settings.retain_without_subscriptions
            and not self.members
            and (not targets or self.keeps_group)
        ):
            targets.append(self.queue)
        return targets

    def set_number(self, number: int) -> None:
        """Set the number that the journal has assigned to the destination."""
        self.number = self.queue.number = number
        for member in self.members:
            member.number = number

    def end_shared_copy(self, sequence: int) -> bool:
        """Count the end of a SHARED delivery of that message; return whether it was the last."""
        remaining = self.shared_copies.pop(sequence) - 1
        if remaining:
            self.shared_copies[sequence] = remaining
        return not remaining


class Observer(Protocol):
    """Receiver of the notifications. Its methods must not raise."""

    def accepted(self, destination: Destination, message: Message) -> bool:
        """Handle a message before it is accepted; properties may be added until this returns.

        Return False to skip the message: `visible` and `staged` are then not called for it.
        """

    def visible(self, message: Message) -> None:
        """Handle a message that has its sequence and may be delivered, or already has been.

        For a message that must first be durable (SYNC) the broker calls `staged` instead.
        """

    def staged(self, message: Message) -> None:
        """Handle a message that has its sequence and becomes visible once it is durable."""

    def durable(self, sequence: int) -> None:
        """Handle a sync: every record up to `sequence` is on disk."""

    def delivered(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
        """Handle deliveries just dispatched to a consumer of the subscription."""

    def ended(self, subscription: Subscription, sequence: int, outcome: str) -> None:
        """Handle the end of a delivery attempt. Also called for messages that are not unacked."""


class Core:
    """Shared state of one broker.

    memory          bytes of messages held in memory, as `size_in_memory` counts them
    memory_budget   above it, journaled bodies are paged out and read back when they are dispatched
    dispatchable    subscriptions that may be able to dispatch
    unfinished      subscriptions that have used up their share of this iteration
    event_recorder  recorder of deliveries and depths, which cause no writes of their own
    subscriptions_with_acks  those with acknowledgements not yet journaled
    last_ack_record  sequence number of the last record of acknowledgements, or of a change of the
                    durable subscriptions
    iterations      event loop iterations of the broker so far
    requeued_at_tail  deliveries whose position differs from that of their sequence, by
                    (subscription, sequence), and some that have ended since
    scans           time available for scans, and the scans that wait for it
    unpaged         deliveries over the budget that cannot be paged out before they are durable
    halted          True while nothing is delivered: there is no space to record acknowledgements
    unblocking      destinations with parked messages that may have capacity again
    dead_letters    rules of the protocols for undeliverable messages
    move_to_dead_letters  moves a delivery to the dead-letter queue (Publisher.move_to_dead_letters,
                    which the broker sets)
    observer        observer of the stages of messages, or None
    stopping        True once no more messages are accepted
    on_fault        called with a consumer whose sink has raised an error, and the error; None = the
                    error is raised
    schedule_flush  called if a flush is needed outside of an event loop iteration
    destinations    destinations by address; changed by their registry only (destinations.py)
    dead_letter_queues  destinations that send their dead letters to each queue
    dropping_dead_letter_queues  those whose limits drop messages, as their protocol requires
    refusing_topics  topics that only keep subscriptions and accept no messages
    """

    __slots__ = (
        "clock",
        "clock_log",
        "dead_letter_queues",
        "dead_letters",
        "delivery_overhead",
        "destinations",
        "dispatchable",
        "dropping_dead_letter_queues",
        "event_recorder",
        "halted",
        "iterations",
        "journal",
        "last_ack_record",
        "memory",
        "memory_budget",
        "move_to_dead_letters",
        "observer",
        "on_fault",
        "overhead",
        "refusing_topics",
        "requeued_at_tail",
        "requeued_at_tail_limit",
        "scans",
        "schedule_flush",
        "settings",
        "stopping",
        "subscriptions_with_acks",
        "timers",
        "unblocking",
        "unfinished",
        "unpaged",
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
        self.schedule_flush: Callable[[], None] = ignore
        self.on_fault: Callable[[Consumer, Exception], object] | None = None
        self.scans = Scans(start_deadline, lambda: self.schedule_flush())
        self.stopping = False
        self.observer = observer
        self.dead_letters = DeadLetters()
        self.move_to_dead_letters: Callable[[Delivery, str, bool], bool | None]
        self.destinations: dict[Address, Destination] = {}
        self.clock = clock
        self.memory = 0
        self.memory_budget = settings.memory_budget
        self.overhead = settings.message_overhead
        self.delivery_overhead = settings.delivery_overhead
        self.dead_letter_queues: dict[Address, dict[Destination, None]] = {}
        self.dropping_dead_letter_queues: set[Address] = set()
        self.refusing_topics: set[Address] = set()
        self.event_recorder = EventRecorder(journal, clock)
        self.clock_log = ClockLog(journal, clock, self.event_recorder)
        self.timers = Timers(_needs_timer)
        self.wheel: ExpiryWheel[Delivery] = ExpiryWheel()
        self.dispatchable: dict[Subscription, None] = {}
        self.unfinished: dict[Subscription, None] = {}
        self.subscriptions_with_acks: dict[Subscription, None] = {}
        self.last_ack_record = 0
        self.requeued_at_tail: dict[tuple[int, int], Delivery] = {}
        self.requeued_at_tail_limit = REQUEUED_AT_TAIL_LIMIT
        self.iterations = 0
        self.halted = False
        self.unpaged: deque[Delivery] = deque()
        self.unblocking: dict[Destination, None] = {}

    def read(self, delivery: Delivery) -> Message:
        """Return a delivery's message, for reading. Raises JournalDamaged, RecordNotFound."""
        return delivery.message or self.journal.fetch(delivery.sequence)

    def read_head(self, delivery: Delivery) -> Message:
        """Return the message of a delivery, possibly without its body if that is long."""
        if delivery.message is not None or delivery.size <= SHORT_BYTES:
            return self.read(delivery)
        return self.journal.fetch_head(delivery.sequence)

    def size_in_memory(self, message: Message) -> int:
        """Return the bytes that a message with one delivery counts while it is in memory.

        Further deliveries count if the message is not journaled, because they cannot be packed.
        dispatch.py adds and subtracts the bytes without this call, for each message.
        """
        return len(message.body) + message.header_bytes() + self.overhead

    def load(self, delivery: Delivery) -> Message:
        """Load a paged-out message into memory. Raises JournalDamaged or RecordNotFound."""
        message = self.journal.fetch(delivery.sequence)
        if not message.references:
            self.memory += self.size_in_memory(message)
        message.references += 1
        delivery.message = message
        return message

    def drop_message(self, delivery: Delivery) -> None:
        """Drop the message of a delivery that has ended or can be read back from the journal."""
        message = delivery.message
        assert message is not None
        message.references -= 1
        if message.references == 0:
            self.memory -= self.size_in_memory(message)
        elif not message.durability:
            self.memory -= self.delivery_overhead
        delivery.message = None

    def page_out(self, deliveries: Iterable[Delivery]) -> None:
        """Drop messages from memory that can be read back, if memory is above its budget; those of
        waiting deliveries that are not durable yet, once they are.
        """
        if self.memory > self.memory_budget:
            durable = self.journal.durable
            for delivery in deliveries:
                if delivery.journaled and delivery.message:
                    if delivery.sequence <= durable:
                        self.drop_message(delivery)
                    else:
                        self.unpaged.append(delivery)

    def note_requeued_at_tail(self, delivery: Delivery) -> None:
        """Record a delivery outside its original position, for the next snapshot."""
        requeued = self.requeued_at_tail
        requeued[delivery.subscription.number, delivery.sequence] = delivery
        if len(requeued) > self.requeued_at_tail_limit:
            remaining = {key: d for key, d in requeued.items() if d.state != ENDED}
            self.requeued_at_tail = remaining
            self.requeued_at_tail_limit = 2 * len(remaining) + REQUEUED_AT_TAIL_LIMIT


def _needs_timer(argument: object) -> bool:
    """Return False for a delivery that is not scheduled, and for a consumer that is not watched."""
    if isinstance(argument, Delivery):
        return argument.state == SCHEDULED
    return not isinstance(argument, Consumer) or argument.has_ack_timer
