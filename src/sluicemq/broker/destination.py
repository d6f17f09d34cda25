"""Destinations: settings, subscriptions, and the routing of published messages to them.

A topic that retains messages (`settings.retain_without_subscriptions`) may have a *group*:
subscriptions whose messages stay with the topic when the last of them is deleted. The journal
treats a group as one durable subscription that has the topic's number and ends a message once all
of its members have:

    members    subscriptions with a message of the group   journaled when it ends for
    0          the topic's own subscription, `queue`       `queue` (RECORDED)
    1          the member                                  the member (RECORDED)
    2 or more  each member present at publication          the last of them (SHARED)

The last member to leave becomes `queue`, with all its ready and unacked messages; the first member
to join takes the place of `queue`. So no messages are moved, whatever their number, and their
order, attempts and expiry are unchanged. The copies of a member that leaves other members behind
end. After a restart there are no members: every message that at least one member had not
acknowledged is in `queue`.

Other subscriptions are independent of the group. Only at a topic that never had a member do
nondurable subscriptions act as the group (each copy is SHARED): no message is held as long as any
subscription matches it, and the first subscription that matches a held message takes it out of
`queue`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from sluicemq.broker.core import Core
from sluicemq.broker.delivery import RECORDED, SHARED, UNJOURNALED
from sluicemq.broker.routing import Routes
from sluicemq.broker.stats import DestinationStats
from sluicemq.broker.subscription import DURABLE_SUBSCRIPTION, Subscription
from sluicemq.journal.format import Cause
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow, Provenance
from sluicemq.model.message import DEFAULT_PRIORITY, Message

_DROPPING: Final = frozenset({Overflow.DROP_OLDEST, Overflow.DROP_LOWEST})


class Parked(NamedTuple):
    """Message that waits for capacity, and the callback for its acceptance."""

    message: Message
    unblocked: Callable[[], None]


class Destination:
    """Queue or topic with its settings, subscriptions and counters. Created by the Broker only.

    number         number in the journal; 0 until something about it is journaled
    queue          a queue's own subscription; for a topic, the one that holds messages while it
                   has no subscribers (settings.retain_without_subscriptions)
    subscriptions  a topic's subscriptions by name; changed by `subscribe` and `unsubscribe` only
    members        subscriptions in the group, in order of arrival
    grouped        True once the topic has had a member, or will have one (Broker.form_group)
    owner          token of the connection that owns a temporary destination
    automatic      created by use, and therefore removed when idle
    creator        user whose quota it counts against, "" = anonymous users; None = no quota
    created        wall ms since the epoch
    provenance     creator, and the settings that were set explicitly
    staged         messages written to the journal but not yet durable, and so not yet visible
    parked         messages of blocked publishers, in order of arrival
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
        "held",
        "idle_since",
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
        self.parked: deque[Parked] = deque()
        self.committing = 0
        self.held: dict[int, int] = {}
        """Number of SHARED deliveries of each message that has any, by sequence."""
        self.idle_since = core.clock.steady
        self.used = 0
        self.dead_letters: Address | None = None
        self.apply(settings)
        self.queue: Subscription = Subscription(core, self)

    def __repr__(self) -> str:
        return f"<Destination {self.address}>"

    def apply(self, settings: DestinationSettings) -> None:
        """Apply new settings; they take effect for messages and consumers from now on."""
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
        """Address of its dead-letter queue, if dead letters are enabled."""
        return Address(Kind.QUEUE, self.settings.dead_letter_queue or f"{self.name}.dlq")

    def point_dead_letters(self, queue: Address | None) -> None:
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
    def for_dead_letters(self) -> bool:
        """True if it is the dead-letter queue of an existing destination."""
        return self.address in self.core.dead_letter_queues

    @property
    def drops(self) -> bool:
        """True if it drops messages when full.

        The limits of a dead-letter queue refuse messages instead, regardless of its policy, unless
        its protocol requires that they drop.
        """
        if self.settings.overflow not in _DROPPING:
            return False
        return not self.for_dead_letters or self.address in self.core.dropping_dead_letter_queues

    def priority(self, priority: int) -> int:
        """Return the priority at which a message is queued."""
        return priority if self.settings.priority_ordering else DEFAULT_PRIORITY

    @property
    def temporary(self) -> bool:
        """True if it is deleted with the connection that created it."""
        return self.owner is not None

    @property
    def stays(self) -> bool:
        """True if it was created by use and is never deleted for being idle, nor by a restart."""
        return self.automatic and self.settings.idle_timeout == 0

    @property
    def waiting(self) -> int:
        """Number of waiting messages; for a topic, those of its longest subscription."""
        waiting = self.queue.waiting
        if self.subscriptions:
            for subscription in self.subscriptions.values():
                waiting = max(waiting, subscription.waiting)
        return waiting + self.staged

    @property
    def waiting_bytes(self) -> int:
        """Body bytes waiting; for a topic, those of its largest subscription."""
        waiting = self.queue.waiting_bytes
        for subscription in self.subscriptions.values():
            waiting = max(waiting, subscription.waiting_bytes)
        return waiting + self.staged_bytes

    @property
    def unacked(self) -> int:
        """Number of unacked deliveries."""
        return self.queue.unacked + sum(s.unacked for s in self.subscriptions.values())

    @property
    def bytes(self) -> int:
        """Body bytes of waiting and unacked messages."""
        flight = self.queue.unacked_bytes
        flight += sum(s.unacked_bytes for s in self.subscriptions.values())
        return self.waiting_bytes + flight

    @property
    def consumers(self) -> int:
        """Number of attached consumers."""
        return len(self.queue.consumers) + sum(
            len(s.consumers) for s in self.subscriptions.values()
        )

    def full(self, size: int) -> bool:
        """Return whether a message of `size` bytes would exceed max_messages or max_bytes."""
        limits = self.settings
        if limits.max_messages and self.waiting >= limits.max_messages:
            return True
        return bool(limits.max_bytes and self.waiting_bytes + size > limits.max_bytes)

    def touch(self) -> None:
        """Restart the idle time."""
        self.idle_since = self.core.clock.steady

    def busy(self) -> bool:
        """Return whether it is in use, or has been published to since the last call."""
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
        """Route messages to this subscription from now on; it replaces one of the same name."""
        replaced = self.subscriptions.get(subscription.name)
        if replaced is not None:
            self.routes.remove(replaced, replaced.selector)
        self.subscriptions[subscription.name] = subscription
        self.routes.add(subscription, subscription.selector, subscription.exclude)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop routing messages to this subscription, which must be among `subscriptions`."""
        del self.subscriptions[subscription.name]
        self.routes.remove(subscription, subscription.selector)
        if subscription.member:
            del self.members[subscription]
            subscription.member = False

    # --- the group, see the module -----------------------------------------------------------

    @property
    def keeps_group(self) -> bool:
        """Return whether messages that the last member has not acknowledged stay for the next
        member.
        """
        settings = self.settings
        return self.grouped and settings.retain_without_subscriptions and not settings.auto_ack

    def join(self, name: str) -> Subscription:
        """Add a member to the group and return it; the first member receives all held messages."""
        if self.members:
            member = Subscription(self.core, self, name, self.number, shared=False)
        else:
            member = self.queue
            member.name = name
            member.shared = False
            self.queue = Subscription(self.core, self, number=self.number)
        member.member = True
        self.members[member] = None
        self.subscribe(member)
        return member

    def leave(self, member: Subscription) -> None:
        """Remove the last member, which has no consumers, from the group; the topic holds its
        messages.
        """
        self.unsubscribe(member)
        self.queue.closed = True  # it is empty: held messages are the member's
        member.name = ""
        member.shared = True
        self.queue = member

    def set_number(self, number: int) -> None:
        """Set the number that the journal has assigned to the destination."""
        self.number = self.queue.number = number
        for member in self.members:
            member.number = number

    def is_last_copy(self, sequence: int) -> bool:
        """Count the end of a SHARED delivery of that message; return whether it was the last."""
        left = self.held.pop(sequence) - 1
        if left:
            self.held[sequence] = left
        return not left

    def end_shared(self, sequence: int) -> None:
        """Journal the end of the last SHARED delivery of a message."""
        self.core.journal.append_completed(
            self.number, self.number, Cause.ACKNOWLEDGED, [sequence], self.core.clock.wall
        )

    def hand_over(self, message: Message, subscription: Subscription) -> None:
        """Add a message just removed from `queue` to a subscription that is not in the group."""
        if message.durability:
            self.held[message.sequence] = 1
        subscription.add(message, SHARED if message.durability else UNJOURNALED)

    # --- arrival -----------------------------------------------------------------------------

    def targets(self, message: Message) -> list[Subscription]:
        """Return the subscriptions that match the message, and `queue` if the topic holds the
        message.
        """
        chosen = self.routes.targets(message)
        if (
            self.settings.retain_without_subscriptions
            and not self.members
            and (not chosen or self.keeps_group)
        ):
            chosen.append(self.queue)
        return chosen

    def holds(self, targets: list[Subscription]) -> bool:
        """Return whether the group is among the targets of a message."""
        if not self.settings.retain_without_subscriptions:
            return False
        return any(self._is_of_group(target) for target in targets)

    def _is_of_group(self, target: Subscription) -> bool:
        if target.member or target is self.queue:
            return True
        return not (self.grouped or target.durable or self.settings.auto_ack)

    def reserve(self, message: Message, targets: list[Subscription], held: bool) -> int:
        """Return the number of ends of deliveries that the journal awaits before it deletes the
        message.

        The message has its number; `held` as in `fan_out`.
        """
        routes = [t.number for t in targets if t.number >= DURABLE_SUBSCRIPTION]
        if held:
            routes.append(self.number)
        message.routes = tuple(routes)
        return len(routes)

    def fan_out(self, message: Message, targets: list[Subscription], held: bool) -> None:
        """Add a visible message to its subscriptions, none of which is closed.

        `held` states that it was published to the group and journaled so, regardless of the present
        settings.
        """
        group: list[Subscription] = []
        if held:
            group = [target for target in targets if self._is_of_group(target)]
            targets = [target for target in targets if not self._is_of_group(target)]
        if message.durability:
            passing = sum(1 for target in targets if not target.durable)
            if passing:  # before the group, where an expired message is completed at once
                self.core.journal.retain(message.sequence, passing)
        if held:
            self._give_group(message, group)
        for target in targets:
            target.add(message, target.journaling(message))

    def _give_group(self, message: Message, group: list[Subscription]) -> None:
        """Add a message to the members it was published to that still exist, or else to the present
        ones.
        """
        if not group:
            group = list(self.members) or [self.queue]
        if group[0] is self.queue and not self.grouped:
            # no subscription matched at publication; one may match now that the message is visible
            group = self.routes.targets(message) or group
        journaled = UNJOURNALED
        if message.durability:
            journaled = RECORDED
            if len(group) > 1 or not (group[0].member or group[0] is self.queue):
                journaled = SHARED
                self.held[message.sequence] = len(group)
        for target in group:
            target.add(message, journaled)
