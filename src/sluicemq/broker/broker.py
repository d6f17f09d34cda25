"""The broker: destinations, subscriptions, consumers and event loop iterations.

All methods are synchronous and run in one thread. An iteration consists of calls by any number of
sessions, followed by `flush`, which dispatches, journals acknowledgements and starts a group
commit.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from sluicemq.broker import attachment, redelivery
from sluicemq.broker.batches import Batches
from sluicemq.broker.destinations import Destinations, creator_text
from sluicemq.broker.dispatch import acknowledge, deliver_one, dispatch, flush_acks, requeue_at_tail
from sluicemq.broker.fan_out import join_group, leave_group, transfer_retained
from sluicemq.broker.operations import Operations
from sluicemq.broker.publishing import GroupCommit, Publisher, limited_expiration
from sluicemq.broker.routing import Selector
from sluicemq.broker.samplers import DepthSampler, StatsSampler
from sluicemq.broker.scheduler import Clock, StartDeadline, unlimited
from sluicemq.broker.selectors import CompiledSelector, compile_selector
from sluicemq.broker.settings import EngineSettings
from sluicemq.broker.state import (
    DURABLE_SUBSCRIPTION,
    Consumer,
    Core,
    Delivery,
    Destination,
    Observer,
    Sink,
    Subscription,
    Window,
)
from sluicemq.broker.stats import Traffic
from sluicemq.broker.subscription import (
    dead_letter,
    discard_waiting,
    drop,
    end,
    expire_all,
    mark_available,
    notify_detached,
    remove_delivered,
    suspend,
)
from sluicemq.broker.transaction import Transactions
from sluicemq.journal.format import MAX_REFERENCES, Cause
from sluicemq.journal.interface import Journal
from sluicemq.model.errors import (
    BrokerError,
    DestinationInUse,
    JournalError,
    JournalFailed,
    LimitExceeded,
    QuotaExceeded,
    SubscriptionInUse,
)
from sluicemq.model.message import Message

MAX_DURABLE_SUBSCRIPTIONS: Final = MAX_REFERENCES - 1
"""Maximum number of durable subscriptions of a topic: a record of a message has one reference for
each of them, and one for the topic's group."""
_NO_OWNER: Final = object()
"""Stands for the owner of a temporary destination that has been deleted."""


class Broker:
    """Message broker: the engine that sessions and the administration call.

    core          state that the parts below share
    destinations  destinations, and what creates them
    publisher     accepts messages
    group_commit  commits the journal, and calls back for what is durable
    dead_letters  rules of the protocols for undeliverable messages
    operations    what administrators do with messages
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        settings: EngineSettings | None = None,
        compile_selector: Callable[[str], Selector] = compile_selector,
        start_deadline: StartDeadline = unlimited,
        observer: Observer | None = None,
    ) -> None:
        """Create a broker without destinations; `recover` adds those of the journal.

        `compile_selector` compiles the selectors of durable subscriptions recovered from the
        journal; `start_deadline` limits the duration of scans (scheduler.Scans);
        `observer` is notified of the stages of messages (state.Observer).
        """
        self.journal = journal
        self.clock = clock
        self.core = Core(journal, clock, settings or EngineSettings(), start_deadline, observer)
        self.identity = journal.identity
        """Identity of the data directory: 8 bytes that never change."""
        self.scans = self.core.scans
        """Time available for scans, and the scans that wait for it."""
        self.destinations = Destinations(self.core)
        self.publisher = Publisher(self.core, self.destinations)
        self.group_commit = GroupCommit(self.core, self.publisher)
        self.dead_letters = self.core.dead_letters
        self.core.move_to_dead_letters = self.publisher.move_to_dead_letters
        self.durable_subscriptions: dict[int, Subscription] = {}
        self.next_subscription = 1
        self.restored_selector = compile_selector
        self.transactions = Transactions(
            self.core, self.destinations, self.publisher, self.group_commit
        )
        self.batches = Batches(self.core, self.destinations, self.publisher)
        self.operations = Operations(self.core, self.destinations, self.publisher)
        self.depth_sampler = DepthSampler(self.core, self.destinations)
        self.traffic: dict[str, Traffic] = {}
        """Traffic by protocol, for protocols that have had clients."""
        self.stats_sampler = StatsSampler(self.destinations, self.traffic, self.delete_if_idle)
        journal.observe(
            self.group_commit.on_durable, self.group_commit.on_written, self.publisher.on_space
        )

    @property
    def settings(self) -> EngineSettings:
        """Settings of the engine."""
        return self.core.settings

    @property
    def memory(self) -> int:
        """Bytes of messages held in memory: bodies, headers, and an overhead for each."""
        return self.core.memory

    @property
    def iterations(self) -> int:
        """Number of event loop iterations so far."""
        return self.core.iterations

    @property
    def last_ack_record(self) -> int:
        """Sequence of the last record of acknowledgements or of a change of the durable
        subscriptions.
        """
        return self.core.last_ack_record

    def call_at(self, time: int, callback: Callable[[Any], None], argument: object) -> None:
        """Call `callback` with the argument at steady time `time` in ms."""
        self.core.timers.add(time, callback, argument)

    def note_time(self) -> None:
        """Record the time of the wall clock, before the broker stops."""
        self.core.clock_log.note_time()

    def schedule_flush(self) -> None:
        """Request a flush, outside of an event loop iteration."""
        self.core.schedule_flush()

    def on_flush_needed(self, callback: Callable[[], None]) -> None:
        """Set the function that arranges for a flush, outside of an event loop iteration."""
        self.core.schedule_flush = callback

    def on_fault(self, callback: Callable[[Consumer, Exception], object]) -> None:
        """Set the function that ends the connection of a consumer whose sink has raised an error,
        later. Without it the error is raised by the call that delivers or deletes.
        """
        self.core.on_fault = callback

    def stop(self) -> None:
        """Accept no more messages; consumers are served as before.

        The messages that are being requeued return at once, because there may be no further
        iteration.
        """
        self.core.stopping = True
        for destination in list(self.destinations.values()):
            for subscription in destination.all_subscriptions:
                with suppress(JournalError):  # the others return after the restart
                    for _ in chain.from_iterable(subscription.requeuing):
                        pass

    # --- destinations ------------------------------------------------------------------------

    def remove(self, destination: Destination, *, force: bool = False) -> None:
        """Delete a destination and its messages, which end in slices of the time for scans.

        Raises DestinationInUse unless forced.
        """
        if destination.consumers and not force:
            raise DestinationInUse(
                f"{destination.address} has {destination.consumers} consumers; close them first"
            )
        orphans: list[Consumer] = []
        for subscription in destination.all_subscriptions:
            orphans += self._close(subscription)
            self.durable_subscriptions.pop(subscription.number, None)
        self.depth_sampler.sample_deleted(destination)
        self.core.event_recorder.write()  # while the journal knows the destination
        destination.removed = True
        if self.destinations.find(destination.address) is destination:
            self.destinations.unregister(destination)
            # the journal may know it from before a restart
            self.journal.forget_destination(destination.address)
            for callback in self.destinations.removals:
                callback(destination)
        while destination.parked:
            message = next(iter(destination.parked))
            unblocked = self.publisher.take_parked(destination, message)
            # the publisher has no confirmation yet, but will not send the message again
            is_complete = True
            with suppress(BrokerError):
                is_complete = self.publish(destination, message, unblocked)
            if is_complete:
                unblocked()
        if destination.owner is not None:
            # still temporary, but a reference to it must not keep the session in memory
            destination.owner = _NO_OWNER
        notify_detached(orphans)

    def _close(self, subscription: Subscription) -> list[Consumer]:
        """Close a subscription, discard its messages, and return its detached consumers."""
        subscription.closed = True
        for consumer in list(subscription.retired):
            self.detach(consumer)
        consumers = self._take_consumers(subscription)
        discard_waiting(subscription)
        return consumers

    def _take_consumers(self, subscription: Subscription) -> list[Consumer]:
        """Detach the consumers of a subscription and return them."""
        consumers = list(subscription.consumers)
        for consumer in consumers:
            self.detach(consumer)
        return consumers

    def delete_temporary(self, owner: object) -> None:
        """Delete the temporary destinations of a closed connection."""
        if owner in self.destinations.temporary:
            for destination in [d for d in self.destinations.values() if d.owner is owner]:
                self.remove(destination, force=True)

    def delete_if_idle(self, destination: Destination) -> None:
        """Delete an automatic destination that has been idle for its `idle_timeout`.

        The dead-letter queue of an existing destination is kept. The caller calls this
        periodically.
        """
        if not destination.busy() and not destination.is_dead_letter_queue:
            timeout = destination.settings.idle_timeout
            if timeout is None:
                timeout = self.settings.destination_idle_timeout
            if timeout and self.clock.steady - destination.idle_since >= timeout:
                self.remove(destination)

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
        owner: str = "",
        creator: str | None = None,
        member: bool = False,
    ) -> Subscription:
        """Return the subscription `name` of a topic, creating it if needed.

        A new subscription receives messages published from now on. A `member` of the group of a
        topic that retains messages (see fan_out.py) is neither durable nor shared and has no
        selector; the first member also receives the retained messages.

        `owner` is the user that owns a new subscription, "" = none yet; an existing one keeps its
        owner. The caller checks whether the user may use or replace an existing one. A new durable
        subscription counts against the quota of `creator` (Identity.creator), None = no quota.

        Raises LimitExceeded, QuotaExceeded, and SubscriptionInUse if the subscription exists with
        other terms and has consumers (JMS 1.1 section 6.11.1: with other terms and no consumers it
        is replaced).
        """
        attachment.expect_load(topic, topic.routes, selector)
        existing = topic.subscriptions.get(name)
        if existing is not None:
            text = selector.text if selector else None
            is_same = (
                (existing.selector.text if existing.selector else None) == text
                and existing.exclude == exclude
                and existing.durable == durable
                and (existing in topic.members) == member
                and existing.shared == shared
            )
            if is_same:
                return existing
            if existing.consumers:
                raise SubscriptionInUse(f"{name} of {topic.address} is in use with other settings")
        limit = topic.settings.max_subscriptions
        if limit and existing is None and len(topic.subscriptions) >= limit:
            raise LimitExceeded(f"{topic.address} has {limit} subscriptions, the limit")
        if durable:
            self._check_references(topic, existing)
            self._check_subscriptions(name, creator)
        if existing is not None:
            self.unsubscribe(existing)
        if member:
            self.form_group(topic)
            return join_group(topic, name)
        number = 0
        if durable:
            number = DURABLE_SUBSCRIPTION | self.next_subscription
            self.next_subscription += 1
        subscription = Subscription(
            self.core, topic, name, number, selector, exclude, shared, owner
        )
        if durable:
            self.durable_subscriptions[number] = subscription
            self.destinations.journal_subscription(subscription, True)
        topic.subscribe(subscription)
        if (
            topic.settings.retain_without_subscriptions
            and topic.queue.waiting
            and not topic.keeps_group
        ):
            transfer_retained(subscription)
        return subscription

    def _check_references(self, topic: Destination, existing: Subscription | None) -> None:
        """Raise LimitExceeded unless a message of the topic can have one more reference.

        Without this check every publication would fail as an error of the journal, which stops the
        broker.
        """
        if len(topic.subscriptions) < MAX_DURABLE_SUBSCRIPTIONS:
            return
        others = sum(
            1
            for subscription in topic.subscriptions.values()
            if subscription.durable and subscription is not existing
        )
        if others >= MAX_DURABLE_SUBSCRIPTIONS:
            raise LimitExceeded(
                f"{topic.address} has {others} durable subscriptions, the maximum of a topic"
            )

    def _check_subscriptions(self, name: str, creator: str | None) -> None:
        """Raise QuotaExceeded unless the user may have one more durable subscription.

        Subscriptions of the same name count once: a wildcard, which follows a space, has one for
        each topic.
        """
        limit = self.settings.max_subscriptions_per_user
        if creator is None or not limit or len(self.durable_subscriptions) < limit:
            return
        names = {
            subscription.name.partition(" ")[0]
            for subscription in self.durable_subscriptions.values()
            if subscription.owner == creator
        }
        if name.partition(" ")[0] not in names and len(names) >= limit:
            raise QuotaExceeded(
                f"{creator_text(creator)} has {limit} durable subscriptions, the limit of a user "
                "(broker.max_subscriptions_per_user); unsubscribe from some first"
            )

    def claim(self, subscription: Subscription, owner: str) -> None:
        """Assign a subscription to a user; for a durable one this survives a restart."""
        if subscription.owner == owner or subscription.closed:
            return
        subscription.owner = owner
        if subscription.durable:
            self.destinations.journal_subscription(subscription, True)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Delete a subscription of a topic with its messages.

        For the last member of a group the topic keeps all messages that are not acknowledged. While
        the broker stops, it keeps those of the other members too: the next member gets them after
        the restart.
        """
        topic = subscription.destination
        if topic.subscriptions.get(subscription.name) is not subscription:
            return
        if self.keeps_messages(subscription):
            orphans = self._take_consumers(subscription)
            if not self.core.stopping:
                leave_group(subscription)
        else:
            orphans = self._close(subscription)
            topic.unsubscribe(subscription)
        if subscription.durable:
            del self.durable_subscriptions[subscription.number]
            self.destinations.journal_subscription(subscription, False)
        topic.restart_idle_time()
        notify_detached(orphans)

    def form_group(self, topic: Destination) -> None:
        """Keep the retained messages of a topic for members of its group, also after a restart."""
        if not topic.grouped:
            topic.grouped = True
            self.destinations.journal_settings(topic)

    def keeps_messages(self, subscription: Subscription) -> bool:
        """Return whether the topic would keep the messages of a subscription deleted now."""
        topic = subscription.destination
        return (
            subscription in topic.members
            and topic.keeps_group
            and (len(topic.members) == 1 or self.core.stopping)
        )

    def compile_selector(self, text: str) -> CompiledSelector:
        """Return the compiled selector. Raises SelectorError, also if it exceeds the limits.
        Thread-safe.
        """
        return compile_selector(text, self.settings.selectors)

    # --- publishing --------------------------------------------------------------------------

    def publish(
        self,
        destination: Destination,
        message: Message,
        unblocked: Callable[[], None] | None = None,
    ) -> bool:
        """Accept a message; see Publisher.publish."""
        return self.publisher.publish(destination, message, unblocked)

    def when_durable(self, sequence: int, callback: Callable[[], None]) -> None:
        """Call `callback` once all records up to `sequence` are on disk; immediately if they
        are.
        """
        self.group_commit.when_durable(sequence, callback)

    def when_completed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the acknowledgements made so far are written.

        The call follows after this event loop iteration. Written acknowledgements survive the end
        of this process; they are on disk within the journal's `flush_interval`.
        """
        self.group_commit.when_completed(callback)

    # --- consuming ---------------------------------------------------------------------------

    def attach(
        self,
        subscription: Subscription,
        sink: Sink,
        window: Window,
        *,
        selector: Selector | None = None,
        ack_timeout: int | None = None,
        owner: object = None,
    ) -> Consumer:
        """Add a consumer and dispatch ready messages to it before returning.

        `owner` identifies the caller: a temporary destination serves only the owner it was declared
        with. Raises DestinationPrivate, SubscriptionInUse.
        """
        return attachment.attach(subscription, sink, window, selector, ack_timeout, owner)

    def detach(
        self,
        consumer: Consumer,
        unattempted: Container[int] = (),
        *,
        ignore_max_attempts: bool = False,
    ) -> None:
        """Remove a consumer and return its unacked deliveries to their original positions.

        Those whose sequences are `unattempted` were prefetched and count no attempt;
        `ignore_max_attempts` as in redelivery.release. Many deliveries return in slices of the time
        for scans, and their subscription dispatches nothing until then.
        """
        attachment.detach(consumer, unattempted, ignore_max_attempts=ignore_max_attempts)

    def retire(
        self, consumer: Consumer, kept: Container[int] = (), *, attempted: bool = False
    ) -> None:
        """Remove a consumer that still holds deliveries.

        The consumer no longer counts for limits, statistics and dispatch. It keeps the deliveries
        in `kept`: they may be acknowledged, released and added to transactions through it as
        before; `detach` returns the remaining ones. All other deliveries return to their original
        positions, and count no attempt unless `attempted`. The deliveries it keeps restore no
        credit.
        """
        attachment.retire(consumer, kept, attempted)

    def start_next_attempt(
        self, consumer: Consumer, sequences: Iterable[int], *, attempted: bool
    ) -> list[Delivery]:
        """Start the next delivery attempt of unacked messages to the same consumer.

        Return the deliveries that the caller has to send, in queue order. Their `attempts` are one
        higher with `attempted`, and unchanged without it (the client never saw them). Deliveries
        that have expired or may not be attempted again are ended or dead-lettered, and not
        returned; sequences that the consumer does not hold are ignored. No credit is used, but each
        ended delivery restores one if the window refills.
        """
        return redelivery.start_next_attempt(consumer, sequences, attempted)

    def mark_sent(self, deliveries: Iterable[Delivery]) -> None:
        """Set the time of unacked deliveries to now: their consumer sends them only now."""
        for delivery in deliveries:
            delivery.delivered = self.clock.steady

    def read(self, delivery: Delivery) -> Message:
        """Return the message of a delivery, for reading. Raises JournalDamaged, RecordNotFound."""
        return self.core.read(delivery)

    def page_out(self, deliveries: Iterable[Delivery]) -> None:
        """Drop unacked messages from memory if memory is above its budget and they are durable.

        For consumers without a limit in bytes, after they have written the messages to the client;
        `read` returns them again.
        """
        self.core.page_out(deliveries)

    def read_head(self, delivery: Delivery) -> Message:
        """Return the message of a delivery, possibly without its body if that is long."""
        return self.core.read_head(delivery)

    def fetch(self, sequence: int) -> Message:
        """Return a journaled message that still exists. Raises RecordNotFound, JournalDamaged."""
        return self.journal.fetch(sequence)

    def grant(self, window: Window, credit: int) -> None:
        """Add credit to a window; its available consumers are served in turn."""
        window.credit += credit
        for consumer in list(window.consumers):
            if window.credit == 1:
                if deliver_one(consumer):
                    return
            elif window.credit <= 0:
                return
            mark_available(consumer)
            if consumer.pending_queue.mask:
                dispatch(consumer.subscription)

    def dispatch(self, subscription: Subscription) -> None:
        """Serve the available consumers now, without waiting for the end of the iteration."""
        dispatch(subscription)

    def revoke(self, window: Window) -> None:
        """Set the credit to 0; unacked deliveries stay with their consumers."""
        window.credit = 0
        for consumer in window.consumers:
            consumer.pending_queue.available_consumers.pop(consumer, None)

    def suspend(self, consumer: Consumer) -> None:
        """Pause delivery to a consumer whose connection cannot accept more bytes."""
        suspend(consumer)

    def resume(self, consumer: Consumer) -> None:
        """Resume delivery to a suspended consumer whose connection accepts bytes again."""
        if consumer.suspended:
            consumer.suspended = False
            mark_available(consumer)

    def acknowledge(self, consumer: Consumer, sequence: int) -> bool:
        """Acknowledge a message; return False if the consumer does not hold it."""
        return acknowledge(consumer, sequence)

    def acknowledge_any(self, subscription: Subscription, sequence: int) -> bool:
        """Acknowledge a message that has been delivered, regardless of its present consumer."""
        for consumer in subscription.all_consumers:
            if sequence in consumer.unacked:
                return acknowledge(consumer, sequence)
        delivery = remove_delivered(subscription, sequence)
        if delivery is not None:
            subscription.destination.statistics.acknowledged += 1
            end(delivery, Cause.ACKNOWLEDGED)
        return delivery is not None

    def release(
        self,
        consumer: Consumer,
        sequences: Iterable[int],
        *,
        attempted: bool = True,
        ignore_max_attempts: bool = False,
        timed_out: bool = False,
    ) -> None:
        """Return deliveries to their original positions; see redelivery.release.

        `timed_out` is for a consumer with its own acknowledgement timeout, which the engine does
        not watch.
        """
        redelivery.release(
            consumer,
            sequences,
            attempted,
            ignore_max_attempts=ignore_max_attempts,
            timed_out=timed_out,
        )

    def decline(self, consumer: Consumer, sequences: Iterable[int], kind: str, reason: str) -> None:
        """Return deliveries that the consumer, attached without a selector, cannot process.

        They count no attempt, keep their position, and wait for a consumer that is not of this
        `kind`. A message that no other attached consumer can process becomes a dead letter with
        this `reason`, regardless of its destination's settings; a dead letter stays in its queue.
        See attachment.py.
        """
        attachment.decline(consumer, sequences, kind, reason)

    def requeue(self, subscription: Subscription, sequence: int, expiration: int) -> bool:
        """Move a delivered message to the tail, with a new expiration in wall ms (0 = never).

        The destination's `message_ttl` limits the expiration. After the last attempt the message
        becomes a dead letter, or is dropped, instead. Return False if no such delivery exists.
        """
        delivery = remove_delivered(subscription, sequence)
        if delivery is None:
            return False
        destination = subscription.destination
        limit = destination.settings.max_attempts
        if limit and delivery.attempts >= limit:
            drop(delivery, "max-attempts", False)
        else:
            requeue_at_tail(delivery, limited_expiration(destination, expiration))
        return True

    def dead_letter(
        self,
        subscription: Subscription,
        sequence: int,
        reason: str,
        *,
        force: bool = False,
        consumer: Consumer | None = None,
    ) -> bool:
        """Remove a delivered message; `force` dead-letters it even if `dead_letter` is not set.

        `consumer` is the one that holds it, None = the one that is found to hold it.
        """
        return dead_letter(subscription, sequence, reason, force, consumer)

    # --- iterations --------------------------------------------------------------------------

    def refresh(self) -> None:
        """Begin an iteration: read the clocks. Later records carry the new setting of the wall
        clock.
        """
        self.clock.refresh()
        with suppress(JournalFailed):  # the journal has notified its owner
            self.core.clock_log.detect_step()

    def flush(self) -> None:
        """End an iteration: run scans, dispatch, journal acknowledgements, start a group commit."""
        core = self.core
        core.scans.run()
        core.iterations += 1
        while True:
            while core.dispatchable or core.unblocking:
                subscriptions, core.dispatchable = core.dispatchable, {}
                for subscription in subscriptions:
                    dispatch(subscription)
                if core.unblocking:
                    self.publisher.unpark()
            if core.subscriptions_with_acks:
                core.event_recorder.write()
                subscriptions, core.subscriptions_with_acks = core.subscriptions_with_acks, {}
                for subscription in subscriptions:
                    flush_acks(subscription)
            self.group_commit.commit()
            if not (core.dispatchable or core.unblocking or core.subscriptions_with_acks):
                break
        if core.unfinished:
            core.dispatchable, core.unfinished = core.unfinished, {}
            core.schedule_flush()
        core.scans.end_iteration()

    def tick(self) -> None:
        """Apply expiry, delays and acknowledgement timeouts that are due, as far as the time for
        scans permits. Call `flush` afterwards.
        """
        core = self.core
        now = self.clock.steady
        due = core.wheel.due(now)
        if due:
            core.scans.begin_steps(expire_all(due))
        core.timers.run(now, core.scans.is_time_up)

    def deadline(self) -> int:
        """Return the steady time in ms at which `tick` is due, or NEVER."""
        return min(self.core.timers.deadline(), self.core.wheel.deadline())

    def traffic_of(self, protocol: str) -> Traffic:
        """Return the traffic counters of a protocol, creating them; its sessions update them."""
        return self.traffic.setdefault(protocol, Traffic())
