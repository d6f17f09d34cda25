"""The broker: destinations and what may be done with them.

Everything here is synchronous and belongs to one thread. A turn is: calls of any number of
sessions, then `flush`, which dispatches, journals acknowledgements and starts a group commit.
A message with Durability.SYNC becomes visible, and its sender is answered, only after the
fdatasync that holds it: until then it is *staged*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from sluicemq.broker.clock import Clock
from sluicemq.broker.consumer import Consumer, Sink, Window
from sluicemq.broker.core import Core
from sluicemq.broker.deadletter import dead_letter_of, is_dead_letter
from sluicemq.broker.delivery import GONE, RECORDED, UNJOURNALED, Delivery
from sluicemq.broker.destination import Destination, Parked
from sluicemq.broker.dispatch import dispatch, serve_one
from sluicemq.broker.lane import Selector
from sluicemq.broker.records import Settings, SubscriptionEntry, encode
from sluicemq.broker.settings import BrokerSettings
from sluicemq.broker.subscription import Subscription
from sluicemq.broker.transaction import Transactions
from sluicemq.journal.format import Cause, RecordType
from sluicemq.journal.port import Journal
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.errors import (
    BrokerError,
    BrokerStopping,
    DestinationConflict,
    DestinationInUse,
    DestinationNotFound,
    LimitExceeded,
    MessageTooLarge,
    SubscriptionInUse,
)
from sluicemq.model.message import Durability, Message

_USUAL: Final = DestinationSettings()

DURABLE_SUBSCRIPTION: Final = 1 << 31
"""Numbers of durable subscriptions carry this bit; without it a number is a destination's."""


class Broker:
    """See the module. `wake` is called whenever a flush is needed although no turn is under way."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        settings: BrokerSettings | None = None,
        compile_selector: Callable[[str], Selector] | None = None,
    ) -> None:
        self.journal = journal
        self.clock = clock
        self.settings = settings or BrokerSettings()
        self.compile_selector = compile_selector
        self.core = Core(journal, clock, self.settings, self._bury)
        self.destinations: dict[Address, Destination] = {}
        self.durable_subscriptions: dict[int, Subscription] = {}
        self.transactions = Transactions(self)
        self.wake: Callable[[], None] = _nothing
        self.stopping = False
        self.staged: deque[tuple[Message, Destination, list[Subscription] | None]] = deque()
        self._unit: list[tuple[Message, Destination, list[Subscription] | None]] = []
        self._confirmations: deque[tuple[int, Callable[[], None]]] = deque()
        self._awaited: dict[str, list[Callable[[Destination], None]]] = {}
        self.next_subscription = 1
        journal.on_durable = self._on_durable

    @property
    def identity(self) -> bytes:
        """8 bytes that stay the same for the life of the data directory."""
        return self.journal.identity

    # --- destinations ------------------------------------------------------------------------

    def queue(self, name: str) -> Destination:
        """The queue of that name, created if need be. Raises as `resolve`."""
        return self.resolve(Address(Kind.QUEUE, name))

    def topic(self, name: str) -> Destination:
        """The topic of that name, created if need be. Raises as `resolve`."""
        return self.resolve(Address(Kind.TOPIC, name))

    def find(self, address: Address) -> Destination | None:
        """The destination, if it exists."""
        return self.destinations.get(address)

    def resolve(self, address: Address, defaults: DestinationSettings | None = None) -> Destination:
        """Find or automatically create. Raises DestinationNotFound, LimitExceeded.

        `defaults`: what a protocol's clients expect of a new one. They yield to the broker's own if
        those are anything but the usual.
        """
        destination = self.destinations.get(address)
        if destination is not None:
            return destination
        settings = self.settings
        allowed = (
            settings.auto_create_queues
            if address.kind is Kind.QUEUE
            else settings.auto_create_topics
        )
        if not allowed:
            raise DestinationNotFound(
                f"{address} does not exist and automatic creation is switched off"
            )
        self._make_room(address)
        if defaults is None or settings.defaults != _USUAL:
            defaults = settings.defaults
        return self._create(address, defaults, None, True)

    def await_creation(self, name: str, callback: Callable[[Destination], None]) -> None:
        """Call back when there is a queue or topic of that name, once; there must be none now."""
        self._awaited.setdefault(name, []).append(callback)

    def stop_waiting(self, name: str, callback: Callable[[Destination], None]) -> None:
        """End an `await_creation` that has not called back."""
        waiting = self._awaited[name]
        waiting.remove(callback)
        if not waiting:
            del self._awaited[name]

    def declare(
        self,
        address: Address,
        settings: DestinationSettings | None = None,
        *,
        owner: object = None,
    ) -> Destination:
        """Create on purpose, or take new settings for an existing one; survives a restart.

        With an `owner` it is temporary: nobody can declare it again, nothing about it is kept.
        Raises DestinationConflict, LimitExceeded.
        """
        settings = settings or DestinationSettings()
        destination = self.destinations.get(address)
        if destination is None:
            self._make_room(address)
            destination = self._create(address, settings, owner, False)
            if owner is not None:
                return destination
        elif owner is not None or destination.owner is not None:
            raise DestinationConflict(f"{address} exists already")
        elif destination.settings == settings and not destination.automatic:
            return destination
        destination.automatic = False
        served = destination.settings.active_consumers
        destination.apply(settings)
        if settings.active_consumers != served:
            for subscription in (destination.queue, *destination.subscriptions.values()):
                subscription.elect()
        if destination.parked:
            self.core.unblocking[destination] = None
        self.journal.append_entry(
            RecordType.SETTINGS,
            encode(Settings.of(destination)),
            self.clock.wall,
            destination=self.number(destination),
        )
        return destination

    def _make_room(self, address: Address) -> None:
        limit = self.settings.max_destinations
        if limit and len(self.destinations) >= limit:
            raise LimitExceeded(f"{address}: there are {limit} destinations already, the limit")

    def _create(
        self, address: Address, settings: DestinationSettings, owner: object, automatic: bool
    ) -> Destination:
        destination = Destination(self.core, address, settings, owner, automatic)
        self.destinations[address] = destination
        for callback in self._awaited.pop(address.name, ()):
            callback(destination)
        return destination

    def adopt(
        self,
        address: Address,
        settings: DestinationSettings | None,
        automatic: bool = False,
        created: int = 0,
    ) -> Destination:
        """Create a destination that the journal knows already; without settings, an automatic one
        with the broker's. `created` as in Destination."""
        if settings is None:
            automatic = True
            settings = self.settings.defaults
        destination = Destination(self.core, address, settings, None, automatic, created)
        self.destinations[address] = destination
        return destination

    def adopt_subscription(self, subscription: Subscription) -> None:
        """Take in a durable subscription that the journal knows already."""
        subscription.destination.subscriptions[subscription.name] = subscription
        self.durable_subscriptions[subscription.number] = subscription

    def number(self, destination: Destination) -> int:
        """The journal's number of the destination, and so of its own subscription."""
        number = destination.number
        if not number:
            number = destination.number = self.journal.destination(destination.address)
            destination.queue.number = number
            if destination.owner is not None or (
                destination.automatic and destination.settings != self.settings.defaults
            ):
                self.journal.append_entry(
                    RecordType.SETTINGS,
                    encode(Settings.of(destination)),
                    self.clock.wall,
                    destination=number,
                )
        return number

    def remove(self, destination: Destination, *, force: bool = False) -> None:
        """Delete a destination and its messages. Raises DestinationInUse unless forced."""
        if destination.consumers and not force:
            raise DestinationInUse(
                f"{destination.address} has {destination.consumers} consumers; close them first"
            )
        orphans: list[Consumer] = []
        for subscription in (destination.queue, *destination.subscriptions.values()):
            orphans += self._close(subscription)
            self.durable_subscriptions.pop(subscription.number, None)
        destination.removed = True
        if self.destinations.get(destination.address) is destination:
            del self.destinations[destination.address]
            # the journal may know it from before a restart
            self.journal.forget_destination(destination.address)
        parked = list(destination.parked)
        destination.parked.clear()
        for message, unblocked in parked:
            # the producer was promised nothing yet, but it will not send again either
            over = True
            with suppress(BrokerError):
                over = self.publish(destination, message, unblocked)
            if over:
                unblocked()
        for consumer in orphans:
            consumer.sink.detached(consumer)

    def _close(self, subscription: Subscription) -> list[Consumer]:
        """Drop what a subscription holds, and its consumers, which are returned."""
        subscription.closed = True
        subscription.purge(True, Cause.DISCARDED)
        consumers = list(subscription.consumers)
        for consumer in consumers:
            subscription.detach(consumer)
        return consumers

    def disown(self, owner: object) -> None:
        """Remove the temporary destinations of a connection that has gone."""
        for destination in [d for d in self.destinations.values() if d.owner is owner]:
            self.remove(destination, force=True)

    def purge(self, destination: Destination, *, unacked: bool = False) -> int:
        """Drop the messages that wait, and with `unacked` those in flight. Returns how many."""
        count = destination.queue.purge(unacked)
        for subscription in destination.subscriptions.values():
            count += subscription.purge(unacked)
        return count

    def pause(self, destination: Destination) -> None:
        """Accept messages but deliver none until `resume`."""
        destination.paused = True

    def unpause(self, destination: Destination) -> None:
        """Deliver again."""
        destination.paused = False
        for subscription in (destination.queue, *destination.subscriptions.values()):
            self.core.dirty[subscription] = None

    def move(
        self,
        source: Subscription,
        target: Destination,
        predicate: Callable[[Message], bool] | None = None,
        limit: int = 0,
    ) -> int:
        """Move waiting messages, in order, as one unit each. Returns how many (0 limit = all)."""
        moved = 0
        for delivery in source.matching(predicate):
            if limit and moved >= limit:
                break
            message = delivery.message or self.journal.fetch(delivery.sequence)
            # its end in wall time may be another by now than when it was sent
            expiration = delivery.expires + self.clock.epoch if delivery.expires else 0
            copy = message.copy(target.address, expiration)
            source.withdraw(delivery)
            self._replace(delivery, target, copy, Cause.MOVED)
            moved += 1
        return moved

    def reap(self) -> None:
        """Remove automatic destinations that have been idle for their time. Call now and then."""
        now = self.clock.steady
        for destination in list(self.destinations.values()):
            if destination.automatic and not destination.busy():
                timeout = destination.settings.idle_timeout
                if timeout is None:
                    timeout = self.settings.idle_timeout
                if timeout and now - destination.idle_since >= timeout:
                    self.remove(destination)

    # --- publishing --------------------------------------------------------------------------

    def publish(
        self,
        destination: Destination,
        message: Message,
        unblocked: Callable[[], None] | None = None,
    ) -> bool:
        """Accept a message; its `sequence` is set. See also `when_durable`.

        False: the destination is full and blocks its producers; the message is parked, and
        `unblocked` is called when it has been accepted. Without `unblocked` that is an error.
        Raises LimitExceeded, MessageTooLarge, BrokerStopping, DestinationNotFound.
        """
        if self.stopping:
            raise BrokerStopping("the broker is shutting down")
        if destination.removed:
            destination = self.resolve(destination.address)
        if destination.limited or destination.parked:
            admitted = self.admit(destination, message, unblocked)
            if admitted is None:
                return False
            target, taken = admitted
            if taken is not message:
                self.accept(target, taken)
                message.sequence = taken.sequence
                return True
        if not message.durability and self.core.memory > self.settings.memory_limit:
            raise LimitExceeded(
                "the broker's memory for messages that are not journaled is used up"
            )
        self.accept(destination, message)
        return True

    def accept(self, destination: Destination, message: Message, last: bool = True) -> None:
        """Take a message without asking for limits; `last` ends the journal unit.

        Without `last` the message does not become visible before `show_unit`: to show one may
        drop another, and that record would end the unit too early.
        """
        statistics = destination.statistics
        statistics.published += 1
        statistics.bytes_in += len(message.body)
        targets = None
        references = 1
        if destination.topic:
            targets = destination.targets(message)
            references = destination.reserve(message, targets)
        if (message.expiration or message.deliver_at) and not message.epoch:
            message.epoch = self.clock.epoch
        durability = message.durability
        if not durability:
            message.sequence = self.journal.next_sequence()
        else:
            number = destination.number or self.number(destination)
            self.journal.append_message(message, number, references, last)
            if durability == Durability.SYNC:
                destination.staged += 1
                destination.staged_bytes += len(message.body)
                self.staged.append((message, destination, targets))
                return
        if not last:
            self._unit.append((message, destination, targets))
        elif targets is None:
            destination.queue.add(message, RECORDED if durability else UNJOURNALED, alone=True)
        else:
            destination.fan_out(message, targets)

    def show_unit(self) -> None:
        """The journal unit is complete: what was accepted in it becomes visible."""
        unit, self._unit = self._unit, []
        for message, destination, targets in unit:
            if targets is None:
                journaled = RECORDED if message.durability else UNJOURNALED
                destination.queue.add(message, journaled)
            else:
                destination.fan_out(message, targets)

    def admit(
        self, destination: Destination, message: Message, unblocked: Callable[[], None] | None
    ) -> tuple[Destination, Message] | None:
        """Apply the limits: what to accept where, or None when the message was parked.

        That is the message itself, or for Overflow.DEAD_LETTER a dead letter. Raises as `publish`.
        """
        settings = destination.settings
        size = len(message.body)
        if settings.max_message_bytes and size > settings.max_message_bytes:
            destination.statistics.rejected += 1
            raise MessageTooLarge(
                f"{destination.address} takes bodies of up to {settings.max_message_bytes} bytes, "
                f"this one has {size}"
            )
        if settings.message_ttl:
            latest = message.timestamp + settings.message_ttl
            if not message.expiration or message.expiration > latest:
                message.expiration = latest
        if destination.parked or destination.full(size):
            if settings.overflow is Overflow.BLOCK and unblocked is not None:
                if settings.max_bytes and size > settings.max_bytes:
                    destination.statistics.rejected += 1
                    raise MessageTooLarge(
                        f"{destination.address} holds up to {settings.max_bytes} bytes, "
                        f"this body alone has {size}"
                    )
                message.epoch = self.clock.epoch
                destination.parked.append(Parked(message, unblocked))
                return None
            if settings.overflow is Overflow.DEAD_LETTER and settings.dead_letter:
                dead = dead_letter_of(message, destination.name, "overflow", 0, self.clock.wall)
                queue = self._dead_letter_queue(destination)
                if queue is not destination:
                    dead.destination = queue.address
                    destination.statistics.dead_lettered += 1
                    return queue, dead
            if settings.overflow not in (Overflow.DROP_OLDEST, Overflow.DROP_LOWEST):
                destination.statistics.rejected += 1
                raise LimitExceeded(
                    f"{destination.address} is full: {destination.waiting} messages, "
                    f"{destination.waiting_bytes} bytes are waiting"
                )
        return destination, message

    def withdraw(self, destination: Destination, message: Message) -> bool:
        """Give up on a parked message; False if it has been accepted already."""
        for place, parked in enumerate(destination.parked):
            if parked.message is message:
                del destination.parked[place]
                self.core.unblocking[destination] = None
                return True
        return False

    def _unpark(self) -> None:
        """Accept the messages of blocked producers for which there is room now."""
        waiting, self.core.unblocking = self.core.unblocking, {}
        for destination in waiting:
            while destination.parked and not destination.full(
                len(destination.parked[0].message.body)
            ):
                parked = destination.parked.popleft()
                self.accept(destination, parked.message)
                parked.unblocked()

    def when_durable(self, sequence: int, callback: Callable[[], None]) -> None:
        """Call back once everything up to `sequence` is on disk; at once if it is."""
        if sequence <= self.journal.durable:
            callback()
        else:
            self._confirmations.append((sequence, callback))

    def _on_durable(self, sequence: int) -> None:
        staged = self.staged
        while staged and staged[0][0].sequence <= sequence:
            message, destination, targets = staged.popleft()
            destination.staged -= 1
            destination.staged_bytes -= len(message.body)
            if targets is not None:
                self._fan_out(message, destination, targets)
            elif not destination.removed:
                destination.queue.add(message, RECORDED)
            else:
                self._discard(message, destination.queue)
        if self.core.unpaged:
            self.core.page_out_until(sequence)
        confirmations = self._confirmations
        while confirmations and confirmations[0][0] <= sequence:
            confirmations.popleft()[1]()
        self.wake()

    def _fan_out(self, message: Message, topic: Destination, targets: list[Subscription]) -> None:
        """Show a message that was staged; some of its subscriptions may have gone since."""
        if topic.parked:
            self.core.unblocking[topic] = None  # perhaps nobody took what seemed to wait
        closed = [target for target in targets if target.closed]
        if closed:
            targets = [target for target in targets if not target.closed]
        if not topic.removed:
            topic.fan_out(message, targets)
        elif topic.settings.hold:
            self._discard(message, topic.queue)
        if closed and not topic.settings.hold:
            for target in closed:
                if target.number:
                    self._discard(message, target)

    def _discard(self, message: Message, subscription: Subscription) -> None:
        """Tell the journal that nobody will ever settle the message there."""
        self.journal.append_settled(
            subscription.number,
            subscription.destination.number,
            Cause.DISCARDED,
            [message.sequence],
            self.clock.wall,
        )

    # --- dead letters ------------------------------------------------------------------------

    def _dead_letter_queue(self, source: Destination) -> Destination:
        name = source.settings.dead_letter_queue or f"{source.name}.dlq"
        address = Address(Kind.QUEUE, name)
        return self.destinations.get(address) or self._create(
            address, DestinationSettings(), None, True
        )

    def _bury(self, delivery: Delivery, reason: str, force: bool) -> bool:
        source = delivery.subscription.destination
        if not (force or source.settings.dead_letter) or source.temporary:
            return False
        message = delivery.message or self.journal.fetch(delivery.sequence)
        if is_dead_letter(message):
            return False
        dead = dead_letter_of(message, source.name, reason, delivery.attempts, self.clock.wall)
        source.statistics.dead_lettered += 1
        self._replace(delivery, self._dead_letter_queue(source), dead, Cause.DEAD_LETTERED)
        return True

    def _replace(
        self, delivery: Delivery, target: Destination, message: Message, cause: Cause
    ) -> None:
        """End a delivery and publish its successor, in one journal unit."""
        subscription = delivery.subscription
        recorded = delivery.journaled == RECORDED
        if not delivery.journaled:
            message.durability = Durability.NONE
        message.destination = target.address
        if message.durability and not target.number:
            self.number(target)
        self.accept(target, message, last=not recorded)
        if recorded:
            self.journal.append_settled(
                subscription.number,
                subscription.destination.number,
                cause,
                [delivery.sequence],
                self.clock.wall,
            )
            self.show_unit()
        subscription.forget(delivery)

    # --- subscriptions of topics -------------------------------------------------------------

    def subscribe(
        self,
        topic: Destination,
        name: str,
        *,
        durable: bool = False,
        shared: bool = False,
        selector: Selector | None = None,
        exclude: object = None,
    ) -> Subscription:
        """Find or create the subscription `name` of a topic; messages sent from now on are its.

        Raises SubscriptionInUse if it exists with other terms and has consumers (JMS 1.1
        section 6.11.1: with other terms and no consumers it is replaced), LimitExceeded.
        """
        existing = topic.subscriptions.get(name)
        if existing is not None:
            text = selector.text if selector else None
            same = (
                (existing.selector.text if existing.selector else None) == text
                and existing.exclude == exclude
                and bool(existing.number) == durable
                and existing.shared == shared
            )
            if same:
                return existing
            if existing.consumers:
                raise SubscriptionInUse(f"{name} of {topic.address} is in use on other terms")
            self.unsubscribe(existing)
        limit = topic.settings.max_subscriptions
        if limit and len(topic.subscriptions) >= limit:
            raise LimitExceeded(f"{topic.address} has {limit} subscriptions, the limit")
        number = 0
        if durable:
            number = DURABLE_SUBSCRIPTION | self.next_subscription
            self.next_subscription += 1
        subscription = Subscription(self.core, topic, name, number, selector, exclude, shared)
        if durable:
            self.durable_subscriptions[number] = subscription
            self.journal.append_entry(
                RecordType.SUBSCRIPTION,
                encode(SubscriptionEntry.of(subscription)),
                self.clock.wall,
                destination=self.number(topic),
            )
        topic.subscriptions[name] = subscription
        if topic.settings.hold and topic.queue.waiting:
            self._hand_over(topic, subscription)
        return subscription

    def _hand_over(self, topic: Destination, subscription: Subscription) -> None:
        """Give what was held for want of subscriptions to the first one that wants it."""
        held = topic.queue
        held.everything.unpack()
        for delivery in [*held.everything, *held.delayed.values()]:
            message = delivery.message or self.journal.fetch(delivery.sequence)
            message.sequence = delivery.sequence
            if not message.epoch:  # it has been read back
                expires = delivery.expires
                message.epoch = delivery.expiration - expires if expires else self.clock.epoch
            if not subscription.accepts(message):
                continue
            held.withdraw(delivery)
            journaled, delivery.journaled = delivery.journaled, UNJOURNALED
            held.forget(delivery)
            if journaled:
                message.durability = message.durability or Durability.SYNC
            topic.fan_out(message, [subscription])

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription of a topic and all it holds."""
        topic = subscription.destination
        if topic.subscriptions.get(subscription.name) is not subscription:
            return
        orphans = self._close(subscription)
        del topic.subscriptions[subscription.name]
        if subscription.number:
            del self.durable_subscriptions[subscription.number]
            self.journal.append_entry(
                RecordType.SUBSCRIPTION_GONE,
                encode(SubscriptionEntry.of(subscription)),
                self.clock.wall,
                destination=topic.number,
            )
        topic.touch()
        for consumer in orphans:
            consumer.sink.detached(consumer)

    # --- consuming ---------------------------------------------------------------------------

    def attach(
        self,
        subscription: Subscription,
        sink: Sink,
        window: Window,
        *,
        selector: Selector | None = None,
        rank: int = 0,
        ack_timeout: int | None = None,
    ) -> Consumer:
        """Add a consumer; what waits is dispatched before this returns. SubscriptionInUse."""
        return subscription.attach(sink, window, selector, rank, ack_timeout)

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer; what it holds goes back to its original position."""
        consumer.subscription.detach(consumer)

    def grant(self, window: Window, credit: int) -> None:
        """Add credit; its consumers go to the end of their lines and are served in turn."""
        window.credit += credit
        for consumer in list(window.consumers):
            if window.credit == 1:
                if serve_one(consumer):
                    return
            elif window.credit <= 0:
                return
            subscription = consumer.subscription
            subscription.enter_line(consumer)
            if consumer.lane.mask:
                dispatch(subscription)

    def dispatch(self, subscription: Subscription) -> None:
        """Serve the consumers in line now, without waiting for the end of the turn."""
        dispatch(subscription)

    def revoke(self, window: Window) -> None:
        """Take all credit back; deliveries in flight stay with their consumers."""
        window.credit = 0
        for consumer in window.consumers:
            consumer.lane.line.pop(consumer, None)

    def suspend(self, consumer: Consumer) -> None:
        """Deliver nothing more to a consumer whose connection cannot take it."""
        consumer.suspended = True
        consumer.lane.line.pop(consumer, None)

    def resume(self, consumer: Consumer) -> None:
        """The connection of a suspended consumer takes bytes again."""
        if consumer.suspended:
            consumer.suspended = False
            consumer.subscription.enter_line(consumer)

    def settle(self, consumer: Consumer, sequence: int) -> bool:
        """Acknowledge; False if the consumer does not hold that message."""
        return consumer.subscription.settle(consumer, sequence)

    def settle_any(self, subscription: Subscription, sequence: int) -> bool:
        """Acknowledge a message that has been delivered, whoever holds it."""
        return subscription.settle_any(sequence)

    def release(
        self,
        consumer: Consumer,
        sequences: Iterable[int] | None = None,
        *,
        attempted: bool = True,
        spared: bool = False,
    ) -> None:
        """Give back to the original position (None = all held); see Subscription.release."""
        consumer.subscription.release(consumer, sequences, attempted, spared)

    def time_out(self, consumer: Consumer, sequences: Iterable[int]) -> None:
        """Take back what was not acknowledged in time, for a consumer whose time the engine does
        not watch; see Subscription.time_out."""
        consumer.subscription.time_out(consumer, sequences)

    def requeue(self, subscription: Subscription, sequence: int, expiration: int) -> bool:
        """Move a delivered message to the tail, with a new expiration in wall ms (0 = never)."""
        return subscription.requeue(sequence, expiration)

    def dead_letter(
        self, subscription: Subscription, sequence: int, reason: str, *, force: bool = False
    ) -> bool:
        """Take a delivered message out; `force` keeps it even if dead_letter is not set."""
        return subscription.dead_letter(sequence, reason, force)

    # --- turns -------------------------------------------------------------------------------

    def flush(self) -> None:
        """End the turn: dispatch, journal acknowledgements, start a group commit."""
        core = self.core
        while True:
            while core.dirty or core.unblocking:
                dirty, core.dirty = core.dirty, {}
                for subscription in dirty:
                    dispatch(subscription)
                if core.unblocking:
                    self._unpark()
            if core.settling:
                settling, core.settling = core.settling, {}
                for subscription in settling:
                    subscription.flush_acks()
            self.journal.commit()
            if not (core.dirty or core.unblocking or core.settling):
                break
        if core.again:
            core.dirty, core.again = core.again, {}
            self.wake()

    def tick(self) -> None:
        """Do what time demands: expiry, delays, acknowledgement timeouts. Then `flush`."""
        now = self.clock.steady
        for delivery in self.core.wheel.due(now):
            if delivery.state != GONE:  # the end of one may be the end of another
                delivery.subscription.expire(delivery)
        self.core.timers.run(now)

    def deadline(self) -> int:
        """Steady ms at which `tick` has something to do, or NEVER."""
        return min(self.core.timers.deadline(), self.core.wheel.deadline())

    def sample(self, seconds: float) -> None:
        """Update all rates; call once per `seconds`."""
        for destination in self.destinations.values():
            destination.statistics.sample(seconds)


def _nothing() -> None:
    return None
