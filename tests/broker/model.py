"""A naive model of the engine: plain lists and linear searches.

The model does not predict which consumer gets which message. It follows the reports of the engine
(deliveries, durability, unblocked producers) and checks whether each step was allowed. Comparing
the two afterwards finds steps that had to happen but were not reported.

All times to live end 50 ms between two steps of the test clock, which advances by tenths of a
second. The engine may expire a message up to one slot late, which is therefore not observable.
"""

from __future__ import annotations

from collections.abc import Callable

from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.message import Durability

READY, UNACKED, SCHEDULED = "ready", "unacked", "scheduled"
DROPPING = (Overflow.DROP_OLDEST, Overflow.DROP_LOWEST)


class ModelMessage:
    """A message, as published or as copied to another destination."""

    def __init__(
        self,
        name: str,
        size: int,
        priority: int,
        durability: Durability,
        expiration: int = 0,
        deliver_at: int = 0,
        sender: object = None,
        dead: bool = False,
        origin: tuple[Address, str] | None = None,
    ) -> None:
        self.name = name
        self.size = size
        self.priority = priority
        self.durability = durability
        self.expiration = expiration
        self.deliver_at = deliver_at
        self.sender = sender
        self.dead = dead
        self.origin = origin
        """Original destination of a dead letter, and the subscription if that is a topic."""
        self.sequence = 0
        self.max_reported = 0
        """Highest number of attempts that any delivery of the message reported."""
        self.routes: list[Subscription] = []
        """Durable subscriptions that it was sent to."""
        self.published_at = 0
        """Publication order, for use while the engine's sequence number is unknown."""


class Entry:
    """A message in one subscription. `sequence` and `order` are the engine's, 0 until known."""

    def __init__(
        self, model_message: ModelMessage, subscription: Subscription, now: int, wall: int
    ) -> None:
        self.model_message = model_message
        self.subscription = subscription
        self.sequence = model_message.sequence
        self.order = model_message.sequence
        self.set_priority()
        self.requeued = 0
        self.expires = now + model_message.expiration - wall if model_message.expiration else 0
        self.attempts = 0
        self.failed = 0
        self.reported = 0
        """Attempts at the last delivery, which the journal records."""
        self.may_count = (0, 0)
        """Lowest and highest number of attempts that recovery may restore."""
        self.state = READY
        self.until = 0
        self.scheduled = 0
        """Order of the starts of delays."""
        self.delivered = 0
        self.holder: object = None
        self.shared = False
        """Whether the topic's group has it; its end is journaled when all copies have ended."""
        self.alone = False
        """Whether it is the only copy of the group."""

    def __repr__(self) -> str:
        return f"{self.model_message.name}#{self.sequence} {self.state} in {self.subscription}"

    def set_priority(self) -> None:
        """Set the priority, which is 4 in destinations that ignore priorities."""
        priority_ordering = self.subscription.destination.settings.priority_ordering
        self.priority = self.model_message.priority if priority_ordering else 4

    @property
    def queue_order(self) -> tuple[int, int]:
        """Dispatch order; lower goes first."""
        return (-self.priority, self.order)

    @property
    def age(self) -> int:
        """Order of publication or requeue; lower is older."""
        return self.requeued or self.model_message.published_at


class Window:
    def __init__(self, credit: int, refill: bool) -> None:
        self.credit = credit
        self.refill = refill


class Consumer:
    def __init__(
        self,
        subscription: Subscription,
        window: Window,
        matches: Callable[[int, int], bool] | None,
        ack_timeout: int,
    ) -> None:
        self.subscription = subscription
        self.window = window
        self.matches = matches
        self.ack_timeout = ack_timeout
        self.active = True
        self.suspended = False
        self.retired = False

    def held(self) -> list[Entry]:
        entries = [e for e in self.subscription.entries if e.holder is self]
        return sorted(entries, key=lambda entry: entry.delivered)

    def may_receive(self, entry: Entry) -> bool:
        return self.matches is None or self.matches(
            entry.model_message.priority, entry.model_message.size
        )


class Subscription:
    def __init__(
        self,
        destination: Destination,
        name: str = "",
        durable: bool = False,
        shared: bool = True,
        matches: Callable[[int, int], bool] | None = None,
        exclude: object = None,
    ) -> None:
        self.destination = destination
        self.name = name
        self.durable = durable
        self.shared = shared
        self.matches = matches
        self.exclude = exclude
        self.member = False
        self.entries: list[Entry] = []
        self.consumers: list[Consumer] = []
        self.retired: list[Consumer] = []
        self.closed = False

    def __repr__(self) -> str:
        return f"{self.destination.address}/{self.name}"

    def waiting(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.state != UNACKED]

    def ready(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.state == READY]

    def unacked(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.state == UNACKED]

    def accepts(self, model_message: ModelMessage) -> bool:
        if self.exclude is not None and model_message.sender == self.exclude:
            return False
        return self.matches is None or self.matches(model_message.priority, model_message.size)

    def activate_consumers(self) -> None:
        limit = self.destination.settings.active_consumers or len(self.consumers)
        for index, consumer in enumerate(self.consumers):
            consumer.active = index < limit


class Totals:
    """Expected statistics of a destination."""

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.redelivered = 0
        self.acknowledged = 0
        self.expired = 0
        self.dropped = 0
        self.dead_lettered = 0
        self.rejected = 0
        self.published_bytes = 0
        self.delivered_bytes = 0


class Destination:
    def __init__(self, address: Address, settings: DestinationSettings, owner: object) -> None:
        self.address = address
        self.settings = settings
        self.owner = owner
        self.automatic = False
        self.paused = False
        self.queue = Subscription(self)
        self.subscriptions: dict[str, Subscription] = {}
        self.grouped = False
        self.parked: list[ModelMessage] = []
        self.totals = Totals()
        self.removed = False

    def all_subscriptions(self) -> list[Subscription]:
        return [self.queue, *self.subscriptions.values()]

    def members(self) -> list[Subscription]:
        return [s for s in self.subscriptions.values() if s.member]

    def is_of_group(self, subscription: Subscription) -> bool:
        """Return whether messages of the subscription belong to the group.

        Without members, subscriptions that are not durable belong to it.
        """
        if subscription is self.queue or subscription.member:
            return True
        return not (self.grouped or subscription.durable)


class Transaction:
    def __init__(self) -> None:
        self.sends: list[tuple[Destination, ModelMessage]] = []
        self.acks: list[tuple[Entry, Consumer | None]] = []
        self.prepared = False


class Model:
    """All destinations and the operations on them. Times are the engine's clock readings."""

    def __init__(self, wall: int, steady: int) -> None:
        self.wall = wall
        self.steady = steady
        self.event_count = 0
        self.destinations: dict[Address, Destination] = {}
        self.staged: list[tuple[ModelMessage, Destination, list[Subscription], bool]] = []
        self.visible: dict[Subscription, list[Entry]] = {}
        self.unchecked_deliveries: list[tuple[Consumer, Entry]] = []

    def subscriptions(self) -> list[Subscription]:
        return [s for d in self.destinations.values() for s in d.all_subscriptions()]

    # --- destinations ---------------------------------------------------------------------------

    def declare(
        self, address: Address, settings: DestinationSettings, owner: object = None
    ) -> Destination:
        destination = self.destinations.get(address)
        if destination is None:
            destination = self.destinations[address] = Destination(address, settings, owner)
        destination.settings = settings
        destination.automatic = False
        for subscription in destination.all_subscriptions():
            subscription.activate_consumers()
        return destination

    def resolve(self, address: Address) -> Destination:
        if address not in self.destinations:
            self.declare(address, DestinationSettings()).automatic = True
        return self.destinations[address]

    def remove(self, destination: Destination) -> None:
        for subscription in destination.all_subscriptions():
            self.close(subscription)
        self.forget(destination.address)
        # blocked producers publish to the present destination of that name
        for model_message in destination.parked:
            self.accept(self.resolve(destination.address), model_message)

    def forget(self, address: Address) -> None:
        self.destinations.pop(address).removed = True

    def close(self, subscription: Subscription) -> None:
        """Drop its consumers and messages, except messages acked in open transactions."""
        subscription.closed = True
        self.purge(subscription, True)
        for consumer in list(subscription.consumers):
            self.detach(consumer)

    def purge(self, subscription: Subscription, unacked: bool) -> int:
        count = 0
        for entry in list(subscription.entries):
            if entry.state != UNACKED:
                subscription.entries.remove(entry)
                count += 1
            elif unacked and isinstance(entry.holder, Consumer):
                self.restore_credit(entry.holder)
                subscription.entries.remove(entry)
                count += 1
        return count

    def staged_of(self, destination: Destination) -> list[ModelMessage]:
        return [model_message for model_message, target, *_ in self.staged if target is destination]

    def count_waiting(self, destination: Destination) -> int:
        longest = max(len(s.waiting()) for s in destination.all_subscriptions())
        return longest + len(self.staged_of(destination))

    def bytes_waiting(self, destination: Destination) -> int:
        largest = max(
            sum(e.model_message.size for e in s.waiting()) for s in destination.all_subscriptions()
        )
        return largest + sum(model_message.size for model_message in self.staged_of(destination))

    def full(self, destination: Destination, size: int) -> bool:
        limits = destination.settings
        if limits.max_messages and self.count_waiting(destination) >= limits.max_messages:
            return True
        return bool(limits.max_bytes and self.bytes_waiting(destination) + size > limits.max_bytes)

    def blocks(self, destination: Destination, size: int) -> bool:
        """Return whether a parked message of that size has to wait."""
        return self.full(destination, size) and self.count_waiting(destination) > 0

    # --- publishing -----------------------------------------------------------------------------

    def admit(self, destination: Destination, model_message: ModelMessage, may_wait: bool) -> str:
        """Return the broker's decision: "accept", "park", "reject" or "redirect"."""
        limits = destination.settings
        if limits.max_message_bytes and model_message.size > limits.max_message_bytes:
            return "reject"
        if limits.message_ttl:
            latest_expiration = self.wall + limits.message_ttl
            model_message.expiration = min(
                model_message.expiration or latest_expiration, latest_expiration
            )
        if destination.parked or self.full(destination, model_message.size):
            if limits.overflow is Overflow.BLOCK and may_wait:
                never_fits = limits.max_bytes and model_message.size > limits.max_bytes
                return "reject" if never_fits else "park"
            if limits.overflow is Overflow.DEAD_LETTER and limits.dead_letter:
                return "redirect"
            if limits.overflow not in DROPPING:
                return "reject"
        return "accept"

    def targets(self, destination: Destination, model_message: ModelMessage) -> list[Subscription]:
        if destination.address.kind is Kind.QUEUE:
            return [destination.queue]
        matching = [s for s in destination.subscriptions.values() if s.accepts(model_message)]
        is_retaining = (
            destination.settings.retain_without_subscriptions and not destination.members()
        )
        if is_retaining and (destination.grouped or not matching):
            matching.append(destination.queue)
        return matching

    def accept(
        self,
        destination: Destination,
        model_message: ModelMessage,
        only_subscription: Subscription | None = None,
    ) -> None:
        destination.totals.published += 1
        destination.totals.published_bytes += model_message.size
        self.event_count += 1
        model_message.published_at = self.event_count
        targets = (
            [only_subscription] if only_subscription else self.targets(destination, model_message)
        )
        model_message.routes = [target for target in targets if target.durable]
        is_for_group = destination.settings.retain_without_subscriptions and any(
            map(destination.is_of_group, targets)
        )
        if model_message.durability is Durability.SYNC:
            self.staged.append((model_message, destination, targets, is_for_group))
        else:
            self.make_visible(model_message, destination, targets, is_for_group)

    def make_staged_visible(self) -> None:
        """Make all staged messages visible, because they are on disk."""
        self.check_dispatch_order()
        for _ in range(len(self.staged)):
            self.make_visible(*self.staged.pop(0))
        self.check_dispatch_order()

    def make_visible(
        self,
        model_message: ModelMessage,
        destination: Destination,
        targets: list[Subscription],
        held: bool,
    ) -> None:
        """Put the message into its subscriptions; `held` if it was also for the topic's group."""
        targets = [subscription for subscription in targets if not subscription.closed]
        group: list[Subscription] = []
        if held and not destination.removed:
            group = [target for target in targets if destination.is_of_group(target)]
            targets = [target for target in targets if target not in group]
            group = group or destination.members() or [destination.queue]
            if group == [destination.queue] and not destination.grouped:
                # a later subscription may match it
                matching = [
                    s
                    for s in destination.subscriptions.values()
                    if s.accepts(model_message) and s not in targets
                ]
                group = matching or group
        is_alone = len(group) == 1 and (group[0].member or group[0] is destination.queue)
        for subscription in (*group, *targets):
            entry = Entry(model_message, subscription, self.steady, self.wall)
            entry.shared = subscription in group
            entry.alone = entry.shared and is_alone
            if model_message.deliver_at > self.wall:
                self.schedule(entry, self.steady + model_message.deliver_at - self.wall)
            subscription.entries.append(entry)
            if entry.expires and entry.expires <= self.steady:
                self.expire(entry)
            self.drop_overflow(entry)

    def drop_overflow(self, arrived: Entry) -> None:
        subscription = arrived.subscription
        limits = subscription.destination.settings
        if limits.overflow not in DROPPING:
            return
        is_too_large = bool(limits.max_bytes) and arrived.model_message.size > limits.max_bytes
        if is_too_large and arrived in subscription.entries:
            self.drop(arrived)
        while True:
            waiting_entries = subscription.waiting()
            size = sum(entry.model_message.size for entry in waiting_entries)
            if not (limits.max_messages and len(waiting_entries) > limits.max_messages) and not (
                limits.max_bytes and size > limits.max_bytes
            ):
                return
            ready = subscription.ready()
            if not ready:
                victim = min(waiting_entries, key=lambda entry: entry.scheduled)
            elif limits.overflow is Overflow.DROP_OLDEST:
                victim = min(ready, key=lambda entry: entry.age)
            else:
                victim = min(ready, key=lambda entry: (entry.priority, entry.age))
            self.drop(victim)

    def schedule(self, entry: Entry, until: int) -> None:
        entry.state = SCHEDULED
        entry.until = until
        self.event_count += 1
        entry.scheduled = self.event_count

    # --- removal --------------------------------------------------------------------------------

    def drop(self, entry: Entry) -> None:
        if not self.move_to_dead_letters(entry):
            entry.subscription.destination.totals.dropped += 1

    def expire(self, entry: Entry) -> None:
        entry.subscription.destination.totals.expired += 1
        self.move_to_dead_letters(entry)

    def move_to_dead_letters(self, entry: Entry, force: bool = False) -> bool:
        """Remove the entry; return whether a dead letter was published for it."""
        entry.subscription.entries.remove(entry)
        source = entry.subscription.destination
        if not (force or source.settings.dead_letter) or source.owner is not None:
            return False
        if entry.model_message.dead:
            return False
        source.totals.dead_lettered += 1
        model_message = self.dead_letter_of(entry.model_message, source, entry.subscription.name)
        self.accept(self.dead_letter_queue(source), model_message)
        return True

    def dead_letter_queue(self, source: Destination) -> Destination:
        name = source.settings.dead_letter_queue or f"{source.address.name}.dlq"
        return self.resolve(Address(Kind.QUEUE, name))

    def dead_letter_of(
        self, model_message: ModelMessage, source: Destination, subscription: str = ""
    ) -> ModelMessage:
        return ModelMessage(
            model_message.name,
            model_message.size,
            model_message.priority,
            model_message.durability,
            dead=True,
            origin=(source.address, subscription),
        )

    # --- consumers ------------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        self.check_dispatch_order()
        consumer.subscription.consumers.append(consumer)
        consumer.subscription.activate_consumers()

    def detach(self, consumer: Consumer) -> None:
        subscription = consumer.subscription
        holders = subscription.retired if consumer.retired else subscription.consumers
        holders.remove(consumer)
        self.release(consumer, consumer.held(), True, False)
        subscription.activate_consumers()

    def retire(self, consumer: Consumer, kept: list[Entry], attempted: bool) -> None:
        subscription = consumer.subscription
        subscription.consumers.remove(consumer)
        subscription.retired.append(consumer)
        remaining = [entry for entry in consumer.held() if entry not in kept]
        self.release(consumer, remaining, attempted, False)
        consumer.retired = True
        consumer.window = Window(0, False)
        subscription.activate_consumers()

    def restore_credit(self, consumer: Consumer) -> None:
        if consumer.window.refill:
            consumer.window.credit += 1

    def check_dispatch_order(self) -> None:
        """Check the order of the deliveries since the last check: each one was the first message
        that its consumer may receive, of those that were ready all the time."""
        for consumer, entry in self.unchecked_deliveries:
            for ready_entry in self.visible.get(consumer.subscription, []):
                if (
                    ready_entry.state != READY
                    or not ready_entry.order
                    or ready_entry not in ready_entry.subscription.entries
                ):
                    continue
                assert (
                    not consumer.may_receive(ready_entry)
                    or entry.queue_order < ready_entry.queue_order
                ), f"{entry} was delivered before {ready_entry}"
        self.unchecked_deliveries = []
        self.visible = {s: s.ready() for s in self.subscriptions()}

    def deliver(self, consumer: Consumer, name: str, sequence: int, order: int) -> Entry:
        """Check that a delivery of the engine to a consumer is allowed, and apply it."""
        subscription = consumer.subscription
        assert consumer in subscription.consumers, "delivered to a detached consumer"
        assert not subscription.destination.paused, "delivered from a paused destination"
        assert consumer.active, "delivered to a consumer that stands by"
        assert not consumer.suspended, "delivered to a suspended consumer"
        assert consumer.window.credit > 0, "delivered without credit"
        candidates = self._ready(subscription, name, sequence)
        assert candidates, f"{name} #{sequence} was not ready in {subscription}"
        entry = candidates[0]
        assert entry.model_message.name == name
        assert consumer.may_receive(entry), f"{entry} does not match the selector"
        assert not entry.expires or entry.expires > self.steady, f"{entry} has expired"
        entry.sequence, entry.order = sequence, order
        consumer.window.credit -= 1
        entry.state = UNACKED
        entry.holder = consumer
        entry.attempts += 1
        entry.reported = entry.attempts
        entry.model_message.max_reported = max(entry.model_message.max_reported, entry.reported)
        entry.delivered = self.steady
        totals = subscription.destination.totals
        totals.delivered += 1
        totals.redelivered += entry.attempts > 1
        totals.delivered_bytes += entry.model_message.size
        self.unchecked_deliveries.append((consumer, entry))
        return entry

    def knows(self, consumer: Consumer, name: str, sequence: int) -> bool:
        """Return whether the message is ready according to the reports so far."""
        return bool(self._ready(consumer.subscription, name, sequence))

    def _ready(self, subscription: Subscription, name: str, sequence: int) -> list[Entry]:
        candidates = [e for e in subscription.ready() if e.sequence == sequence]
        if not candidates:  # a copy, whose number only the engine knew so far
            candidates = [
                e for e in subscription.ready() if not e.sequence and e.model_message.name == name
            ]
        return candidates

    def acknowledge(self, entry: Entry) -> None:
        if isinstance(entry.holder, Consumer):
            self.restore_credit(entry.holder)
        entry.subscription.entries.remove(entry)
        entry.subscription.destination.totals.acknowledged += 1

    def release(
        self, consumer: Consumer, entries: list[Entry], attempted: bool, spared: bool
    ) -> None:
        for entry in entries:
            self.requeue_unacked(entry, attempted, 0, spared)
            self.restore_credit(consumer)

    def start_next_attempt(
        self, consumer: Consumer, entries: list[Entry], attempted: bool
    ) -> list[Entry]:
        """Return the entries to redeliver, in order."""
        limits = consumer.subscription.destination.settings
        totals = consumer.subscription.destination.totals
        sent = []
        for entry in sorted(entries, key=lambda entry: entry.queue_order):
            if entry.expires and entry.expires <= self.steady:
                self.restore_credit(consumer)
                self.expire(entry)
            elif attempted and limits.max_attempts and entry.attempts >= limits.max_attempts:
                self.restore_credit(consumer)
                self.drop(entry)
            else:
                if attempted:
                    entry.failed = entry.attempts
                    entry.attempts += 1
                entry.reported = entry.attempts
                entry.model_message.max_reported = max(
                    entry.model_message.max_reported, entry.reported
                )
                entry.delivered = self.steady
                totals.delivered += 1
                totals.redelivered += entry.attempts > 1
                totals.delivered_bytes += entry.model_message.size
                sent.append(entry)
        return sent

    def time_out(self, consumer: Consumer, entries: list[Entry]) -> None:
        limits = consumer.subscription.destination.settings
        for entry in entries:
            delay = limits.retry_delay * 2 ** (entry.attempts - 1)
            self.restore_credit(consumer)
            self.requeue_unacked(entry, True, min(delay, limits.retry_delay_max or delay))

    def requeue_unacked(
        self, entry: Entry, attempted: bool, delay: int = 0, spared: bool = False
    ) -> None:
        subscription = entry.subscription
        limit = subscription.destination.settings.max_attempts
        entry.holder = None
        entry.state = READY
        if subscription.closed:
            subscription.entries.remove(entry)
            return
        if not attempted:
            entry.attempts -= 1
        if entry.expires and entry.expires <= self.steady:
            self.expire(entry)
        elif attempted and limit and entry.attempts >= limit and not spared:
            self.drop(entry)
        else:
            if attempted:
                entry.failed = entry.attempts
            if delay:
                self.schedule(entry, self.steady + delay)

    def requeue(self, entry: Entry, expiration: int) -> None:
        limits = entry.subscription.destination.settings
        if isinstance(entry.holder, Consumer):
            self.restore_credit(entry.holder)
        entry.holder = None
        entry.state = READY
        if limits.max_attempts and entry.attempts >= limits.max_attempts:
            self.drop(entry)
            return
        if limits.message_ttl:
            latest_expiration = self.wall + limits.message_ttl
            expiration = min(expiration or latest_expiration, latest_expiration)
        entry.expires = self.steady + expiration - self.wall if expiration else 0
        entry.failed = entry.attempts
        entry.order = 0  # behind all others; the engine reports the number
        self.event_count += 1
        entry.requeued = self.event_count
        self.drop_overflow(entry)

    def dead_letter(self, entry: Entry, force: bool) -> None:
        if isinstance(entry.holder, Consumer):
            self.restore_credit(entry.holder)
        if not self.move_to_dead_letters(entry, force):
            entry.subscription.destination.totals.dropped += 1

    # --- management operations ------------------------------------------------------------------

    def delete(self, entry: Entry) -> bool:
        """Return False, without a change, if the operation is not allowed."""
        if isinstance(entry.holder, Transaction):
            return False
        if isinstance(entry.holder, Consumer):
            self.restore_credit(entry.holder)
        entry.subscription.entries.remove(entry)
        return True

    def move_one(self, entry: Entry, target: Destination) -> bool:
        if entry.state == UNACKED:
            return False
        return self.transfer(entry, target, self.copy_of(entry), entry)

    def copy_one(self, entry: Entry, target: Destination) -> bool:
        return self.transfer(entry, target, self.copy_of(entry), None, always=True)

    def copy_of(self, entry: Entry) -> ModelMessage:
        model_message = entry.model_message
        expiration = entry.expires - self.steady + self.wall if entry.expires else 0
        copy = ModelMessage(
            model_message.name,
            model_message.size,
            model_message.priority,
            model_message.durability,
            expiration,
        )
        if model_message.deliver_at > self.wall:
            copy.deliver_at = model_message.deliver_at
        copy.dead, copy.origin = model_message.dead, model_message.origin
        return copy

    def transfer(
        self,
        entry: Entry,
        target: Destination,
        copy: ModelMessage,
        moved_entry: Entry | None,
        only_subscription: Subscription | None = None,
        always: bool = False,
    ) -> bool:
        """Publish the copy if the target accepts it, and then remove `moved_entry`.

        Limits do not apply within a destination unless `always` is set.
        """
        if always or target is not entry.subscription.destination:
            verdict = self.admit(target, copy, False)
            if verdict == "reject":
                target.totals.rejected += 1
                return False
            if verdict == "redirect":
                if moved_entry and self.dead_letter_queue(target) is entry.subscription.destination:
                    return False
                target.totals.dead_lettered += 1
                copy = self.dead_letter_of(copy, target)
                target = self.dead_letter_queue(target)
                only_subscription = None
        if moved_entry is not None:
            moved_entry.subscription.entries.remove(moved_entry)
        self.accept(target, copy, only_subscription)
        return True

    def redrive(self, entry: Entry) -> bool:
        model_message = entry.model_message
        if entry.state == UNACKED or model_message.origin is None:
            return False
        address, name = model_message.origin
        if address.kind is Kind.TOPIC and address not in self.destinations:
            return False
        target = self.resolve(address)
        subscription = target.subscriptions.get(name) if name else None
        if name and subscription is None:
            return False
        copy = ModelMessage(
            model_message.name, model_message.size, model_message.priority, model_message.durability
        )
        return self.transfer(entry, target, copy, entry, subscription)

    def redeliver(self, entry: Entry, recorded: bool) -> bool:
        """Make the entry ready; `recorded` if the journal would delay it again after a restart."""
        if isinstance(entry.holder, Transaction):
            return False
        if isinstance(entry.holder, Consumer):
            consumer = entry.holder
            self.requeue_unacked(entry, True, 0, True)
            self.restore_credit(consumer)
        elif entry.state == SCHEDULED:
            entry.state = READY
            if recorded and entry.model_message.deliver_at > self.wall:
                entry.order = 0
                self.event_count += 1
                entry.requeued = self.event_count
                self.drop_overflow(entry)
        return True

    # --- time -----------------------------------------------------------------------------------

    def tick(self) -> None:
        self.check_dispatch_order()
        for subscription in self.subscriptions():
            for entry in subscription.waiting():
                if entry.expires and entry.expires <= self.steady:
                    self.expire(entry)
        for subscription in self.subscriptions():
            for entry in subscription.waiting():
                if entry.state == SCHEDULED and entry.until <= self.steady:
                    entry.state = READY
        for subscription in self.subscriptions():
            for consumer in (*subscription.consumers, *subscription.retired):
                if consumer.ack_timeout:
                    latest_delivery = self.steady - consumer.ack_timeout
                    self.time_out(
                        consumer, [e for e in consumer.held() if e.delivered <= latest_delivery]
                    )
        self.check_dispatch_order()

    # --- topics ---------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        topic = subscription.destination
        topic.subscriptions[subscription.name] = subscription
        if topic.settings.retain_without_subscriptions and not topic.grouped:
            entries = sorted(topic.queue.waiting(), key=lambda entry: entry.queue_order)
            for entry in entries:
                if subscription.accepts(entry.model_message):
                    topic.queue.entries.remove(entry)
                    entry.subscription = subscription
                    entry.alone = False
                    entry.set_priority()
                    subscription.entries.append(entry)
                    self.drop_overflow(entry)

    def join(self, topic: Destination, name: str) -> Subscription:
        """Add a member to the topic's group; the first one receives the retained messages."""
        if topic.members():
            member = Subscription(topic, name, shared=False)
        else:
            member, topic.queue = topic.queue, Subscription(topic)
            member.name, member.shared = name, False
        member.member = topic.grouped = True
        topic.subscriptions[name] = member
        return member

    def unsubscribe(self, subscription: Subscription) -> None:
        topic = subscription.destination
        last = topic.members() == [subscription] and topic.settings.retain_without_subscriptions
        if last:
            for consumer in list(subscription.consumers):
                self.detach(consumer)
        else:
            self.close(subscription)
        del topic.subscriptions[subscription.name]
        if last:
            topic.queue.closed = True
            subscription.name, subscription.shared, subscription.member = "", True, False
            topic.queue = subscription

    # --- transactions ---------------------------------------------------------------------------

    def acknowledge_in(self, transaction: Transaction, entry: Entry) -> None:
        consumer = entry.holder
        assert isinstance(consumer, Consumer)
        self.restore_credit(consumer)
        entry.holder = transaction
        transaction.acks.append((entry, consumer))

    def withdraw_ack(self, entry: Entry, transaction: Transaction, consumer: Consumer) -> None:
        transaction.acks.remove((entry, consumer))
        if consumer.subscription.closed:  # the destination was deleted, and its messages with it
            self.requeue_unacked(entry, True)
            return
        entry.holder = consumer
        entry.delivered = self.steady
        if consumer.window.refill:
            consumer.window.credit -= 1

    def commit(self, transaction: Transaction) -> None:
        for destination, model_message in transaction.sends:
            if destination.removed:
                destination = self.resolve(destination.address)
            self.accept(destination, model_message)
        for entry, _ in transaction.acks:
            self.acknowledge(entry)

    def rollback(self, transaction: Transaction) -> None:
        for entry, _ in transaction.acks:
            self.requeue_unacked(entry, True)

    # --- restart --------------------------------------------------------------------------------

    def restart(self, deliveries_recorded: bool) -> None:
        """Keep only the state the journal has: no consumers, unfinished transactions or messages
        that are not journaled. `deliveries_recorded`: the journal has all deliveries."""
        for address, destination in list(self.destinations.items()):
            if destination.owner is not None:
                self.forget(address)
            destination.parked = []
            destination.totals = Totals()
            entries = [entry for s in destination.all_subscriptions() for entry in s.entries]
            for name, subscription in list(destination.subscriptions.items()):
                if not subscription.durable:
                    subscription.closed = True
                    del destination.subscriptions[name]
            for subscription in destination.all_subscriptions():
                subscription.consumers = []
                subscription.retired = []
                for entry in list(subscription.entries):
                    entry.set_priority()
                    if entry.model_message.durability is Durability.NONE:
                        subscription.entries.remove(entry)
                    elif not isinstance(entry.holder, Transaction) or not entry.holder.prepared:
                        self.make_ready(entry, deliveries_recorded)
            self.retain_again(destination, [e for e in entries if e.shared], deliveries_recorded)
        scheduled = [e for s in self.subscriptions() for e in s.entries if e.state == SCHEDULED]
        for entry in sorted(scheduled, key=lambda entry: entry.sequence):
            self.schedule(entry, entry.until)

    def make_ready(self, entry: Entry, deliveries_recorded: bool) -> None:
        """Make the entry ready without its consumer; its attempts stay. An entry requeued unseen
        may count as delivered."""
        maximum = max(entry.failed, entry.reported)
        entry.may_count = (
            maximum if deliveries_recorded and entry.state == UNACKED else entry.failed,
            maximum,
        )
        entry.model_message.sender = None
        entry.holder = None
        entry.state = READY
        if entry.model_message.deliver_at > self.wall and not entry.requeued:
            self.schedule(entry, self.steady + entry.model_message.deliver_at - self.wall)

    def retain_again(
        self, topic: Destination, copies: list[Entry], deliveries_recorded: bool
    ) -> None:
        """Requeue the group's messages; the journal knows only that the group still had them."""
        for subscription in topic.all_subscriptions():
            subscription.entries = [e for e in subscription.entries if not e.shared]
        copies_by_sequence = {
            e.sequence: e for e in copies if e.model_message.durability is not Durability.NONE
        }
        for old_entry in copies_by_sequence.values():
            model_message = old_entry.model_message
            model_message.sender = None
            subscriptions = [topic.queue]
            if not topic.grouped:
                matching = [
                    subscription
                    for subscription in topic.subscriptions.values()
                    if subscription not in model_message.routes
                    and subscription.accepts(model_message)
                ]
                subscriptions = matching or subscriptions
            for subscription in subscriptions:
                entry = Entry(model_message, subscription, self.steady, self.wall)
                entry.sequence = old_entry.sequence
                entry.order, entry.requeued = old_entry.sequence, 0
                if old_entry.alone:
                    entry.order, entry.requeued = old_entry.order, old_entry.requeued
                    entry.expires = old_entry.expires
                    entry.state = old_entry.state
                entry.failed, entry.reported = old_entry.failed, old_entry.reported
                entry.shared = True
                entry.alone = old_entry.alone and subscription is topic.queue
                subscription.entries.append(entry)
                self.make_ready(entry, deliveries_recorded)
                if not entry.alone:
                    entry.may_count = (0, model_message.max_reported)
