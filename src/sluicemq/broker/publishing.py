"""Publishing: limits, staging, confirmations by the journal, and dead letters.

A message with Durability.SYNC becomes visible, and its publisher gets its confirmation, only after
the fdatasync that contains it: until then the message is *staged*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from sluicemq.broker.clock import Clock
from sluicemq.broker.deadletter import DeadLetterPolicy, dead_letter_of, is_dead_letter, note_topic
from sluicemq.broker.delivery import RECORDED, UNJOURNALED, Delivery
from sluicemq.broker.destination import Destination, Parked
from sluicemq.broker.registry import Registry
from sluicemq.broker.scans import Scans, StartDeadline
from sluicemq.broker.settings import EngineSettings
from sluicemq.broker.subscription import Subscription
from sluicemq.journal.format import Cause
from sluicemq.journal.port import Journal
from sluicemq.journal.space import SpaceLevel, SpaceReport
from sluicemq.model.destination import Overflow
from sluicemq.model.errors import (
    BrokerStopping,
    LimitExceeded,
    LowDiskSpace,
    MessageTooLarge,
)
from sluicemq.model.message import Durability, Message, Origin

PERSISTENT: Final = frozenset({Durability.LAZY, Durability.SYNC})
"""Durabilities refused while the disk is nearly full. TRANSIENT messages are in memory as well."""

Staged = tuple[Message, Destination, list[Subscription] | None, bool]
"""A message, its destination, its targets at a topic, and whether the topic's group holds it."""


class PublishOperations(Registry):
    """Part of the broker that accepts messages and moves dead letters.

    wake      called if a flush is needed outside of an event loop iteration
    stopping  True once no more messages are accepted
    low_space True while the journal's disk is nearly full: journaled messages are refused
    staged    messages not yet durable
    dead_letter_policies  rules of the protocols for dead letters of their messages
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        settings: EngineSettings,
        start_deadline: StartDeadline,
    ) -> None:
        scans = Scans(start_deadline, lambda: self.wake())
        super().__init__(journal, clock, settings, scans)
        self.wake: Callable[[], None] = _nothing
        self.stopping = False
        self.low_space = False
        self._space_waiters: dict[object, Callable[[], None]] = {}
        self.dead_letter_policies: dict[Origin, DeadLetterPolicy] = {}
        self.staged: deque[Staged] = deque()
        self._unit: list[Staged] = []
        self._confirmations: deque[tuple[int, Callable[[], None]]] = deque()
        self._settlements: list[Callable[[], None]] = []
        self._settled: deque[tuple[int, Callable[[], None]]] = deque()
        self._flushing = False
        self._syncing = False
        """True while a timer runs for records not yet synced, or held back for the next write."""
        self._overdue = False
        """True once the timer has expired: the next commit is synced."""
        self.core.move_to_dead_letters = self._move_to_dead_letters
        self.core.dead_letter_fits = self._dead_letter_fits
        journal.on_durable = self._on_durable
        journal.on_written = self._on_written
        journal.on_space = self._on_space

    def publish(
        self,
        destination: Destination,
        message: Message,
        unblocked: Callable[[], None] | None = None,
    ) -> bool:
        """Accept a message and set its `sequence`. See `when_durable` for confirmations.

        Return False if the destination is full and blocks its publishers: the message is parked,
        and the broker calls `unblocked` once it is accepted. Without `unblocked` a full destination
        is an error. Raises LimitExceeded, LowDiskSpace, MessageTooLarge, BrokerStopping,
        DestinationNotFound.
        """
        if self.stopping:
            raise BrokerStopping("the broker is shutting down")
        if self.low_space:
            self.expect_space(message)
        if destination.removed:
            destination = self.resolve(
                destination.address,
                creator=destination.creator,
                by=destination.provenance.created_by,
            )
        if not message.durability:
            self.record_transient(destination, message)
        if destination.limited or destination.parked:
            admitted = self.admit(destination, message, unblocked)
            if admitted is None:
                return False
            target, taken = admitted
            if taken is not message:
                self.accept(target, taken)
                message.sequence = taken.sequence
                return True
        if not message.durability:
            self.expect_memory()
        self.accept(destination, message)
        return True

    def record_transient(self, destination: Destination, message: Message) -> None:
        """Set durability TRANSIENT on a message with durability NONE if the journal records those.

        Messages of temporary destinations, and all messages while disk space is low, are not
        recorded.
        """
        if (
            not message.durability
            and self.journal.record_transient
            and not destination.temporary
            and not self.low_space
        ):
            message.durability = Durability.TRANSIENT

    def expect_space(self, *messages: Message) -> None:
        """Raise LowDiskSpace if a message is persistent and disk space is low."""
        if self.low_space and any(message.durability in PERSISTENT for message in messages):
            space = self.journal.space_state()
            raise LowDiskSpace(
                f"the disk of the journal is nearly full: {space.free} bytes are free, and "
                f"persistent messages are accepted again from {space.resume} bytes on. Consume "
                "or purge messages, or make room on the disk"
            )

    def expect_memory(self) -> None:
        """Raise LimitExceeded if the memory for messages that are not journaled is used up."""
        if self.core.memory > self.settings.memory_limit:
            raise LimitExceeded(
                "the broker's memory for messages that are not journaled is used up"
            )

    def accept(
        self,
        destination: Destination,
        message: Message,
        last: bool = True,
        chosen: Subscription | None = None,
    ) -> None:
        """Accept a message without checking limits; `last` ends the journal unit.

        Without `last` the message becomes visible only in `show_unit`: making it visible may drop
        another message, whose record would end the unit too early. The message goes to every
        matching subscription, or only to `chosen`, a subscription of the topic.
        """
        statistics = destination.statistics
        statistics.published += 1
        statistics.published_bytes += len(message.body)
        targets = None
        references = 1
        held = False
        if destination.topic:
            targets = destination.targets(message) if chosen is None else [chosen]
            held = destination.holds(targets)
        message.arrival = self.clock.wall
        if (message.expiration or message.deliver_at) and not message.epoch:
            message.epoch = self.clock.epoch
        durability = message.durability
        if not durability:
            message.sequence = self.journal.next_sequence()
        else:
            number = destination.number or self.number(destination)
            if targets is not None:
                references = destination.reserve(message, targets, held)
            self.journal.append_message(message, number, references, last)
            if durability == Durability.SYNC:
                destination.staged += 1
                destination.staged_bytes += len(message.body)
                self.staged.append((message, destination, targets, held))
                return
        if not last:
            self._unit.append((message, destination, targets, held))
        elif targets is None:
            destination.queue.add(message, RECORDED if durability else UNJOURNALED, alone=True)
        else:
            destination.fan_out(message, targets, held)

    def show_unit(self) -> None:
        """Make the messages accepted in the completed journal unit visible."""
        unit, self._unit = self._unit, []
        for message, destination, targets, held in unit:
            if targets is None:
                journaled = RECORDED if message.durability else UNJOURNALED
                destination.queue.add(message, journaled)
            else:
                destination.fan_out(message, targets, held)

    def admit(
        self, destination: Destination, message: Message, unblocked: Callable[[], None] | None
    ) -> tuple[Destination, Message] | None:
        """Apply the limits; return the destination and message to accept, or None if it was parked.

        The message is the given one, or for Overflow.DEAD_LETTER its dead letter. Raises as
        `publish`.
        """
        target = self.judge(destination, message, unblocked is not None)
        if target is destination:
            return destination, message
        if target is not None:
            return target, self.redirect(message, destination, target)
        assert unblocked is not None
        message.epoch = self.clock.epoch
        destination.parked.append(Parked(message, unblocked))
        return None

    def judge(
        self, destination: Destination, message: Message, may_wait: bool
    ) -> Destination | None:
        """Apply the limits and return the destination, its dead-letter queue, or None to park.

        None is returned only if `may_wait`. The destination's `message_ttl` counts from now,
        regardless of the client's clock. Raises LimitExceeded, MessageTooLarge.
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
            latest = self.clock.wall + settings.message_ttl
            if not message.expiration or message.expiration > latest:
                message.expiration = latest
        if destination.parked or destination.full(size):
            if settings.overflow is Overflow.BLOCK and may_wait:
                if settings.max_bytes and size > settings.max_bytes:
                    destination.statistics.rejected += 1
                    raise MessageTooLarge(
                        f"{destination.address} holds up to {settings.max_bytes} bytes, "
                        f"this body alone has {size}"
                    )
                return None
            if settings.overflow is Overflow.DEAD_LETTER and settings.dead_letter:
                queue = self.dead_letter_queue(destination)
                if queue is not destination and self._keeps(message, destination, True):
                    if takes_dead_letter(queue, size):
                        return queue
                    destination.statistics.rejected += 1
                    raise LimitExceeded(
                        f"{destination.address} is full, and its dead-letter queue {queue.name} "
                        f"takes no more: {queue.waiting} messages, {queue.waiting_bytes} bytes "
                        "are waiting there"
                    )
            if not destination.drops:
                destination.statistics.rejected += 1
                raise LimitExceeded(
                    f"{destination.address} is full: {destination.waiting} messages, "
                    f"{destination.waiting_bytes} bytes are waiting"
                )
        return destination

    def redirect(self, message: Message, source: Destination, queue: Destination) -> Message:
        """Return the dead letter of a message that a full destination does not accept."""
        dead = self._make_dead_letter(message, source, "overflow", 0)
        dead.destination = queue.address
        source.statistics.dead_lettered += 1
        return dead

    def withdraw(self, destination: Destination, message: Message) -> bool:
        """Remove a parked message; return False if it has been accepted already."""
        for place, parked in enumerate(destination.parked):
            if parked.message is message:
                del destination.parked[place]
                self.core.unblocking[destination] = None
                return True
        return False

    def unpark(self) -> None:
        """Accept the parked messages for which their destinations have capacity again."""
        waiting, self.core.unblocking = self.core.unblocking, {}
        for destination in waiting:
            while destination.parked:
                message = destination.parked[0].message
                if destination.full(len(message.body)) or (
                    self.low_space and message.durability in PERSISTENT
                ):
                    break
                parked = destination.parked.popleft()
                self.accept(destination, parked.message)
                parked.unblocked()

    # --- disk space ----------------------------------------------------------------------------

    def _on_space(self, report: SpaceReport) -> None:
        """Apply a changed level of free disk space."""
        core = self.core
        was_halted = core.halted
        self.low_space = report.level > SpaceLevel.ENOUGH
        core.halted = report.level == SpaceLevel.EXHAUSTED
        if self.low_space and not core.event_recorder.suspended:
            core.event_recorder.suspend()
        elif not self.low_space and core.event_recorder.suspended:
            core.event_recorder.resume()
        if was_halted and not core.halted:
            for destination in self.destinations.values():
                for subscription in (destination.queue, *destination.subscriptions.values()):
                    if subscription.waiting:
                        core.dirty[subscription] = None
        if not self.low_space:
            for destination in self.destinations.values():
                if destination.parked:
                    core.unblocking[destination] = None
            waiters, self._space_waiters = self._space_waiters, {}
            for callback in waiters.values():
                callback()
        self.wake()

    def when_space(self, waiter: object, callback: Callable[[], None]) -> None:
        """Register a single call of `callback` when journaled messages are accepted again.

        Each `waiter` has at most one callback.
        """
        self._space_waiters[waiter] = callback

    def forget_waiter(self, waiter: object) -> None:
        """Cancel the callback registered with `when_space`."""
        self._space_waiters.pop(waiter, None)

    def when_durable(self, sequence: int, callback: Callable[[], None]) -> None:
        """Call `callback` once all records up to `sequence` are on disk; immediately if they
        are.
        """
        if sequence <= self.journal.durable:
            callback()
        else:
            self._confirmations.append((sequence, callback))

    def when_completed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the acknowledgements made so far are written.

        The call follows after this event loop iteration. Written acknowledgements survive the end
        of this process; they are on disk within the journal's `flush_interval`.
        """
        self._settlements.append(callback)

    def commit(self) -> None:
        """End an iteration: commit the appended records to the journal.

        The journal syncs now if a message or a publisher waits for it, otherwise later.
        """
        journal = self.journal
        if self._settlements:
            settlements, self._settlements = self._settlements, []
            settled = self.core.settled
            for callback in settlements:
                if settled <= journal.written:
                    callback()
                else:
                    self._settled.append((settled, callback))
        if self.core.event_recorder.end_iteration():
            if journal.pending or self._overdue or self.stopping:
                self.core.event_recorder.write()
            else:
                self._set_alarm()
        sync = bool(self.staged or self._confirmations or self._overdue)
        self._overdue = False
        journal.commit(sync)

    def _set_alarm(self) -> None:
        """Set a timer to write and sync records for which no client waits."""
        if not self._syncing:
            self._syncing = True
            core = self.core
            core.timers.add(core.clock.steady + self.journal.flush_interval, self._sync, None)

    def _sync(self, argument: None) -> None:
        # not now: records of this iteration may precede acknowledgements that are not yet appended
        self._syncing = False
        self._overdue = True

    def _on_written(self, sequence: int) -> None:
        settled = self._settled
        while settled and settled[0][0] <= sequence:
            settled.popleft()[1]()
        if sequence > self.journal.durable and not self._syncing:
            if not self._flushing:
                self.wake()  # the event loop must recompute its deadline for the new timer
            self._set_alarm()

    def _on_durable(self, sequence: int) -> None:
        staged = self.staged
        while staged and staged[0][0].sequence <= sequence:
            message, destination, targets, held = staged.popleft()
            destination.staged -= 1
            destination.staged_bytes -= len(message.body)
            if targets is not None:
                self._fan_out(message, destination, targets, held)
            elif not destination.removed:
                destination.queue.add(message, RECORDED)
            else:
                self._discard(message, destination.queue)
        if self.core.unpaged:
            self.core.page_out_until(sequence)
        confirmations = self._confirmations
        while confirmations and confirmations[0][0] <= sequence:
            confirmations.popleft()[1]()
        if not self._flushing:
            self.wake()

    def _fan_out(
        self, message: Message, topic: Destination, targets: list[Subscription], held: bool
    ) -> None:
        """Make a staged message visible; some of its subscriptions may have been deleted since."""
        if topic.parked:
            self.core.unblocking[topic] = None  # a full subscription may be gone
        closed = [target for target in targets if target.closed]
        if closed:
            targets = [target for target in targets if not target.closed]
        if not topic.removed:
            topic.fan_out(message, targets, held)
        elif held:
            self._discard(message, topic.queue)
        for target in closed:
            if target.durable:
                self._discard(message, target)

    def _discard(self, message: Message, subscription: Subscription) -> None:
        """Journal that the message will not be delivered in this subscription."""
        self.journal.append_completed(
            subscription.number,
            subscription.destination.number,
            Cause.DISCARDED,
            [message.sequence],
            self.clock.wall,
        )

    # --- dead letters ------------------------------------------------------------------------

    def _keeps(self, message: Message, source: Destination, usual: bool) -> bool:
        """Return whether an undeliverable message becomes a dead letter.

        The policy of the message's protocol decides; without a decision of the policy, `usual`
        does.
        """
        policy = self.dead_letter_policies.get(message.origin)
        if policy is not None:
            keep = policy.keep(message, source)
            if keep is not None:
                return keep
        return usual

    def _make_dead_letter(
        self,
        message: Message,
        source: Destination,
        reason: str,
        attempts: int,
        subscription: str = "",
    ) -> Message:
        policy = self.dead_letter_policies.get(message.origin)
        make = policy.dead_letter if policy is not None else dead_letter_of
        dead_letter = make(message, source.name, reason, attempts, self.clock.wall)
        if source.topic:
            note_topic(dead_letter, subscription)
        return dead_letter

    def _dead_letter_fits(self, source: Destination, size: int) -> bool:
        """Return whether the dead-letter queue of a destination accepts a body of `size` bytes."""
        queue = self.destinations.get(source.dead_letter_address)
        return queue is None or queue is source or takes_dead_letter(queue, size)

    def _move_to_dead_letters(self, delivery: Delivery, reason: str, force: bool) -> bool | None:
        """Replace a delivery by its dead letter.

        Return False if the delivery gets no dead letter, None if the dead-letter queue has no
        capacity. An overflow delivery gets no dead letter in that case.
        """
        source = delivery.subscription.destination
        usual = (force or source.settings.dead_letter) and not source.temporary
        if not usual and not self.dead_letter_policies:
            return False  # avoids reading the message
        message = delivery.message or self.journal.fetch(delivery.sequence)
        if is_dead_letter(message) or not self._keeps(message, source, usual):
            return False
        queue = self.dead_letter_queue(source)
        if queue is not source and not takes_dead_letter(queue, delivery.size):
            return False if reason == "overflow" else None
        dead = self._make_dead_letter(
            message, source, reason, delivery.attempts, delivery.subscription.name
        )
        source.statistics.dead_lettered += 1
        self.replace(delivery, queue, dead, Cause.DEAD_LETTERED)
        return True

    def replace(
        self,
        delivery: Delivery,
        target: Destination,
        message: Message,
        cause: Cause,
        chosen: Subscription | None = None,
    ) -> int:
        """End a delivery and publish its successor in one journal unit; `chosen` as in `accept`.

        Return the sequence to pass to `when_durable` (0 = none).
        """
        subscription = delivery.subscription
        recorded = delivery.journaled == RECORDED
        if not delivery.journaled:
            message.durability = Durability.NONE
        message.destination = target.address
        if message.durability and not target.number:
            self.number(target)
        if recorded:
            self.core.event_recorder.write()
        self.accept(target, message, not recorded, chosen)
        sequence = message.sequence if message.durability else 0
        if recorded:
            sequence = self.journal.append_completed(
                subscription.number,
                subscription.destination.number,
                cause,
                [delivery.sequence],
                self.clock.wall,
            )
            self.show_unit()
        subscription.forget(delivery)
        return sequence


def takes_dead_letter(queue: Destination, size: int) -> bool:
    """Return whether the limits of a dead-letter queue allow another body of `size` bytes."""
    if queue.drops or not (queue.limited or queue.parked):
        return True
    largest = queue.settings.max_message_bytes
    return not (queue.parked or queue.full(size) or (largest and size > largest))


def _nothing() -> None:
    return None
