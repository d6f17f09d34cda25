"""A destination: its settings, its subscriptions, and who gets a message sent to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from sluicemq.broker.core import Core
from sluicemq.broker.delivery import HELD, RECORDED, UNJOURNALED
from sluicemq.broker.routing import Routes
from sluicemq.broker.statistics import Statistics
from sluicemq.broker.subscription import Subscription
from sluicemq.journal.format import Cause
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.message import DEFAULT_PRIORITY, Message

_DROPPING: Final = frozenset({Overflow.DROP_OLDEST, Overflow.DROP_LOWEST})


class Parked(NamedTuple):
    """A message that waits for room, and whom to tell when it has been accepted."""

    message: Message
    unblocked: Callable[[], None]


class Destination:
    """See the module. Created by the Broker only.

    number         the journal's name for it; 0 until something about it is journaled
    queue          a queue's own subscription; of a topic, the one that holds messages while
                   nobody subscribes (settings.hold)
    subscriptions  a topic's, by name; changed by `subscribe` and `unsubscribe` only
    owner          token of the connection a temporary destination belongs to
    automatic      created by use, so removed when idle
    creator        user whose quota it counts against, "" = any without a name; None = nobody's
    created        wall ms since the epoch; of an automatic one that the journal brought back, when
                   the oldest message was sent that it then had
    staged         messages written to the journal but not yet durable, and so not yet visible
    parked         messages of blocked producers, in order of arrival
    committing     commits under way that will publish here
    dead_letters   the queue that its dead letters go to; None if it has none, or is that itself
    gauged         waiting, in flight and consumers as the journal was last told; None = not known
    removed        True once it is gone: whoever kept a reference must look it up again
    """

    __slots__ = (
        "address",
        "automatic",
        "committing",
        "core",
        "created",
        "creator",
        "dead_letters",
        "gauged",
        "held",
        "idle_since",
        "limited",
        "name",
        "number",
        "owner",
        "parked",
        "paused",
        "queue",
        "removed",
        "routes",
        "settings",
        "staged",
        "staged_bytes",
        "statistics",
        "subscriptions",
        "topic",
        "used",
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
    ) -> None:
        self.core = core
        self.created = created or core.clock.wall
        self.creator = creator
        self.address = address
        self.name = address.name
        self.number = 0
        self.owner = owner
        self.automatic = automatic
        self.topic = address.kind is Kind.TOPIC
        self.subscriptions: dict[str, Subscription] = {}
        self.routes: Routes[Subscription] = Routes()
        self.statistics = Statistics()
        self.paused = False
        self.removed = False
        self.gauged: tuple[int, int, int] | None = (0, 0, 0)
        self.staged = 0
        self.staged_bytes = 0
        self.parked: deque[Parked] = deque()
        self.committing = 0
        self.held: dict[int, int] = {}
        self.idle_since = core.clock.steady
        self.used = 0
        self.dead_letters: Address | None = None
        self.apply(settings)
        self.queue: Subscription = core.subscriptions(core, self)

    def __repr__(self) -> str:
        return f"<Destination {self.address}>"

    def apply(self, settings: DestinationSettings) -> None:
        """Take new settings; they hold for messages and consumers from now on."""
        self.settings = settings
        self.limited = bool(
            settings.max_messages
            or settings.max_bytes
            or settings.max_message_bytes
            or settings.message_ttl
        )
        keeps = settings.dead_letter and not self.temporary and not self.removed
        self.point_dead_letters(self.dead_letter_address if keeps else None)

    @property
    def dead_letter_address(self) -> Address:
        """The queue that its dead letters go to, if it has any."""
        return Address(Kind.QUEUE, self.settings.dead_letter_queue or f"{self.name}.dlq")

    def point_dead_letters(self, queue: Address | None) -> None:
        """Note which queue its dead letters go to, None = none."""
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
    def for_dead_letters(self) -> bool:
        """It is the dead-letter queue of a destination that exists."""
        return self.address in self.core.dead_letter_queues

    @property
    def drops(self) -> bool:
        """It makes room by dropping messages. The limits of a dead-letter queue refuse instead,
        whatever its policy is, unless its protocol demands that they drop."""
        if self.settings.overflow not in _DROPPING:
            return False
        return not self.for_dead_letters or self.address in self.core.dropping_dead_letter_queues

    def priority(self, priority: int) -> int:
        """Which place in line a message of that priority has."""
        return priority if self.settings.by_priority else DEFAULT_PRIORITY

    @property
    def temporary(self) -> bool:
        """It lives only as long as the connection that created it."""
        return self.owner is not None

    @property
    def stays(self) -> bool:
        """It came into being by use and does not go when it is idle: nor does it at a restart."""
        return self.automatic and self.settings.idle_timeout == 0

    @property
    def waiting(self) -> int:
        """Messages waiting; of a topic, those of its longest subscription."""
        waiting = self.queue.waiting
        if self.subscriptions:
            for subscription in self.subscriptions.values():
                waiting = max(waiting, subscription.waiting)
        return waiting + self.staged

    @property
    def waiting_bytes(self) -> int:
        """Body bytes waiting; of a topic, those of its largest subscription."""
        waiting = self.queue.waiting_bytes
        for subscription in self.subscriptions.values():
            waiting = max(waiting, subscription.waiting_bytes)
        return waiting + self.staged_bytes

    @property
    def unacked(self) -> int:
        """Deliveries in flight."""
        return self.queue.unacked + sum(s.unacked for s in self.subscriptions.values())

    @property
    def bytes(self) -> int:
        """Body bytes waiting and in flight."""
        flight = self.queue.unacked_bytes
        flight += sum(s.unacked_bytes for s in self.subscriptions.values())
        return self.waiting_bytes + flight

    @property
    def consumers(self) -> int:
        """Consumers attached."""
        return len(self.queue.consumers) + sum(
            len(s.consumers) for s in self.subscriptions.values()
        )

    def full(self, size: int) -> bool:
        """A message of `size` bytes would exceed max_messages or max_bytes."""
        limits = self.settings
        if limits.max_messages and self.waiting >= limits.max_messages:
            return True
        return bool(limits.max_bytes and self.waiting_bytes + size > limits.max_bytes)

    def touch(self) -> None:
        """It has been used: the time until it counts as idle begins again."""
        self.idle_since = self.core.clock.steady

    def busy(self) -> bool:
        """There is a reason to keep it, or there was one since the last call."""
        if self.statistics.published != self.used:
            self.used = self.statistics.published
            self.touch()
        return bool(
            self.consumers
            or self.waiting
            or self.unacked
            or self.parked
            or self.committing
            or self.subscriptions
            or self.paused
        )

    # --- routing -----------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Messages are for this one too from now on; it replaces one of the same name."""
        replaced = self.subscriptions.get(subscription.name)
        if replaced is not None:
            self.routes.remove(replaced, replaced.selector)
        self.subscriptions[subscription.name] = subscription
        self.routes.add(subscription, subscription.selector, subscription.exclude)

    def unsubscribe(self, subscription: Subscription) -> None:
        """No longer; it must be among `subscriptions`."""
        del self.subscriptions[subscription.name]
        self.routes.remove(subscription, subscription.selector)

    def targets(self, message: Message) -> list[Subscription]:
        """The subscriptions that want the message, or the one that holds it until there is one."""
        chosen = self.routes.targets(message)
        if not chosen and self.settings.hold:
            chosen.append(self.queue)
        return chosen

    def reserve(self, message: Message, targets: list[Subscription]) -> int:
        """How many ends of deliveries the journal has to wait for before it forgets the message."""
        if self.settings.hold:
            return 1
        message.routes = tuple(target.number for target in targets if target.number)
        return len(message.routes)

    def fan_out(self, message: Message, targets: list[Subscription], held: bool) -> None:
        """Give a visible message to its subscriptions. `held`: the topic held messages when it
        came, and so it was journaled as one that is held, whatever the settings are by now."""
        if held and (not targets or targets == [self.queue]):
            # nobody wanted it when it was sent; somebody may now that it is visible
            targets = self.targets(message) or [self.queue]
        if held and targets != [self.queue]:
            journaled = HELD if message.durability else UNJOURNALED
            if journaled:
                self.held[message.sequence] = len(targets)
            for target in targets:
                target.add(message, journaled)
            return
        if message.durability:
            passing = sum(1 for target in targets if not target.number)
            if passing:
                self.core.journal.retain(message.sequence, passing)
        for target in targets:
            if target is self.queue:
                target.add(message, RECORDED if message.durability else UNJOURNALED)
            else:
                target.add(message, target.journaling(message))

    def let_go(self, sequence: int) -> None:
        """A delivery that only kept the record readable is over."""
        left = self.held.get(sequence)
        if left is None:
            self.core.journal.release(sequence)
        elif left > 1:
            self.held[sequence] = left - 1
        else:
            del self.held[sequence]
            self.core.journal.append_settled(
                self.number, self.number, Cause.ACKNOWLEDGED, [sequence], self.core.clock.wall
            )
