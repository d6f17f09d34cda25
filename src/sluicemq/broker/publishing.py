"""Publishing: limits, staging until the group commit, confirmations, and low disk space.

A message with Durability.SYNC becomes visible, and its publisher gets its confirmation, only after
the fdatasync that contains it: until then the message is *staged*.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from sluicemq.broker.destinations import Destinations
from sluicemq.broker.dispatch import add
from sluicemq.broker.fan_out import fan_out, reserve
from sluicemq.broker.pending.entry import READY, RECORDED, SCHEDULED, UNJOURNALED
from sluicemq.broker.state import Core, Delivery, Destination, Subscription
from sluicemq.broker.subscription import end_unjournaled, journal_completion, prepare_completion
from sluicemq.journal.format import Cause
from sluicemq.journal.space import SpaceLevel, SpaceReport
from sluicemq.model.dead_letters import is_dead_letter
from sluicemq.model.destination import Overflow
from sluicemq.model.errors import (
    BrokerError,
    BrokerStopping,
    DestinationPrivate,
    JournalFailed,
    LimitExceeded,
    LowDiskSpace,
    MessageTooLarge,
)
from sluicemq.model.message import Durability, Message

# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_SYNC: Final = Durability.SYNC
_BLOCK: Final = Overflow.BLOCK

Staged = tuple[Message, Destination, list[Subscription] | None]
"""A message, its destination, and its targets if that is a topic."""


class Publisher:
    """Accepts messages, within the limits, and makes them visible.

    is_refusing  True while the journal's disk is nearly full, so that persistent messages are
                 refused, or a write of the journal takes too long (Journal.is_stalled), so that all
                 messages are
    staged       messages not yet durable
    """

    def __init__(self, core: Core, destinations: Destinations) -> None:
        self._core = core
        self._journal = core.journal
        self._clock = core.clock
        self._destinations = destinations
        self.is_refusing = self._is_space_low = False
        self._space_waiters: dict[object, Callable[[], None]] = {}
        self.staged: deque[Staged] = deque()
        self._unit: list[Staged] = []

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
        DestinationNotFound, DestinationPrivate.
        """
        if self._core.stopping:
            raise BrokerStopping("the broker is shutting down")
        if self.is_refusing:
            self.expect_space(message)
        if destination.removed:
            destination = self._destinations.resolve(
                destination.address,
                creator=destination.creator,
                by=destination.provenance.created_by,
            )
        if not message.durability:
            self.record_transient(destination, message)
            if not message.durability:
                self.expect_memory()
        if destination.limited or destination.parked:
            if unblocked is not None and destination.settings.overflow is _BLOCK:
                _check_message(destination, message)
                if destination.parked or destination.would_exceed_limits(len(message.body)):
                    self._park(destination, message, unblocked)
                    return False
            else:
                target = self.apply_limits(destination, message)
                if target is not destination:
                    dead_letter = self.redirect(message, destination, target)
                    self.accept(target, dead_letter)
                    message.sequence = dead_letter.sequence
                    return True
        self.accept(destination, message)
        return True

    def record_transient(self, destination: Destination, message: Message) -> None:
        """Set durability TRANSIENT on a message with durability NONE if the journal records those.

        Messages of temporary destinations, and all messages while persistent ones are refused, are
        not recorded.
        """
        if (
            not message.durability
            and self._journal.options.record_transient
            and not destination.temporary
            and not self.is_refusing
        ):
            message.durability = Durability.TRANSIENT

    def expect_space(self, *messages: Message) -> None:
        """Raise LowDiskSpace if a message is persistent and disk space is low, or for any message
        if a write of the journal takes too long to assign more sequence numbers.

        TRANSIENT messages are in memory as well.
        """
        if not self.is_refusing or not messages:
            return
        if self._journal.is_stalled:
            raise LowDiskSpace(
                "the disk of the journal is full or does not respond: no messages are accepted "
                "until the journal can be written again. Free disk space, or check the disk"
            )
        if self._is_space_low and any(message.durability.survives for message in messages):
            space = self._journal.space_state()
            raise LowDiskSpace(
                f"the disk of the journal is nearly full: {space.free} bytes are free, and "
                f"persistent messages are accepted again from {space.resume} bytes on. Consume "
                "or purge messages, or free disk space"
            )

    def expect_memory(self) -> None:
        """Raise LimitExceeded if the memory for messages that are not journaled is used up."""
        if self._core.memory > self._core.settings.memory_limit:
            raise LimitExceeded(
                "messages in memory have reached the limit (broker.memory_limit): only messages "
                "that are journaled are accepted; consume messages, or publish persistent ones"
            )

    def accept(
        self,
        destination: Destination,
        message: Message,
        last: bool = True,
        chosen: Subscription | None = None,
    ) -> None:
        """Accept a message without checking limits; `last` ends the journal unit.

        The message goes to every matching subscription, or only to `chosen`, a subscription of the
        topic.
        """
        observer = self._core.observer
        is_traced = observer is not None and observer.accepted(destination, message)
        statistics = destination.statistics
        statistics.published += 1
        statistics.published_bytes += len(message.body)
        targets = None
        references = 1
        if destination.topic:
            targets = destination.targets(message) if chosen is None else [chosen]
        message.arrival = self._clock.wall
        if (message.expiration or message.deliver_at) and not message.epoch:
            message.epoch = self._clock.epoch
        durability = message.durability
        if not durability:
            message.sequence = self._journal.next_sequence()
        else:
            number = destination.number or self._destinations.assign_number(destination)
            if targets is not None:
                references = reserve(destination, message, targets)
            self._journal.append_message(message, number, references, last)
            if durability == _SYNC:
                destination.staged += 1
                destination.staged_bytes += len(message.body)
                self.staged.append((message, destination, targets))
                if observer is not None and is_traced:
                    observer.staged(message)
                return
        if not last or self._unit:
            self._unit.append((message, destination, targets))
        elif targets is None:
            add(
                destination.queue,
                message,
                RECORDED if durability else UNJOURNALED,
                is_only_target=True,
            )
        else:
            fan_out(destination, message, targets)
        if observer is not None and is_traced:
            observer.visible(message)

    def publish_unit(
        self,
        publications: list[tuple[Destination, Message]],
        deliveries: Sequence[Delivery] = (),
        cause: Cause = Cause.ACKNOWLEDGED,
        *,
        append_last: Callable[[], int] | None = None,
        chosen: Subscription | None = None,
    ) -> int:
        """Publish messages, without checking limits, and end deliveries in one journal unit.

        `append_last` appends the last record of the unit and returns its sequence; `chosen` as in
        `accept`. Return the sequence to pass to `when_durable` (0 = none).

        The messages become visible when the unit is complete: making one visible may drop another
        message, whose record would end the unit too early.
        """
        for destination, message in publications:
            if message.durability:
                # numbering appends records of its own, which must not become part of the unit
                self._destinations.assign_number(destination)
        completions = prepare_completion(self._core, deliveries)
        journaled_messages = sum(1 for _, message in publications if message.durability)
        remaining = journaled_messages + len(completions) + (append_last is not None)
        sequence = 0
        try:
            for destination, message in publications:
                if message.durability:
                    remaining -= 1
                    self.accept(destination, message, last=remaining == 0, chosen=chosen)
                    sequence = message.sequence
                else:
                    self.accept(destination, message, last=False, chosen=chosen)
            for subscription, sequences in completions.items():
                remaining -= 1
                sequence = journal_completion(subscription, cause, sequences, remaining == 0)
            if append_last is not None:
                sequence = append_last()
        except Exception as error:
            # the next record of any client would complete the unit
            self._journal.fail(JournalFailed(f"a unit of the journal is incomplete: {error!r}"))
            raise
        self._make_unit_visible()
        for delivery in deliveries:
            end_unjournaled(delivery, cause)
        return sequence

    def _make_unit_visible(self) -> None:
        """Make the messages accepted in the completed journal unit visible."""
        unit, self._unit = self._unit, []
        for message, destination, targets in unit:
            if targets is None:
                journaled = RECORDED if message.durability else UNJOURNALED
                add(destination.queue, message, journaled)
            else:
                fan_out(destination, message, targets)

    def _park(
        self, destination: Destination, message: Message, unblocked: Callable[[], None]
    ) -> None:
        """Keep a message until its full destination has capacity.

        Raises MessageTooLarge, LimitExceeded.
        """
        core = self._core
        _expect_capacity_when_empty(destination, len(message.body))
        size = core.size_in_memory(message)
        if core.memory + size > core.settings.memory_limit:
            _reject(
                destination,
                LimitExceeded,
                f"{destination.address} is full, and messages in memory have reached the limit "
                "(broker.memory_limit), so that no more can wait for capacity",
            )
        core.memory += size
        message.epoch = self._clock.epoch
        destination.parked[message] = unblocked

    def admit(
        self, destination: Destination, message: Message, source: Destination | None = None
    ) -> tuple[Destination, Message]:
        """Apply the limits and return the destination and the message to accept.

        These are the given ones, or for Overflow.DEAD_LETTER the dead-letter queue and the dead
        letter. Raises as `apply_limits`, and LimitExceeded if that queue is `source`, from which
        the message is moved.
        """
        target = self.apply_limits(destination, message)
        if target is destination:
            return destination, message
        if target is source:
            raise LimitExceeded(
                f"{destination.address} is full, and would return it to {source.address}"
            )
        return target, self.redirect(message, destination, target)

    def apply_limits(self, destination: Destination, message: Message) -> Destination:
        """Apply the limits and return the destination, or its dead-letter queue if it is full.

        The destination's `message_ttl` counts from now, regardless of the client's clock. Raises
        LimitExceeded, MessageTooLarge, DestinationPrivate.
        """
        _check_message(destination, message)
        settings = destination.settings
        size = len(message.body)
        if destination.parked or destination.would_exceed_limits(size):
            if settings.overflow is Overflow.DEAD_LETTER and settings.dead_letter:
                queue = self._destinations.dead_letter_queue(destination)
                if queue is not destination and self._core.dead_letters.becomes_dead_letter(
                    message, True
                ):
                    if queue.accepts_dead_letter(size):
                        return queue
                    _reject(
                        destination,
                        LimitExceeded,
                        f"{destination.address} is full, and so is its dead-letter queue "
                        f"{queue.name}: {queue.waiting} messages, {queue.waiting_bytes} bytes "
                        "are waiting there",
                    )
            if not destination.drops_when_full:
                _expect_capacity_when_empty(destination, size)
                _reject(
                    destination,
                    LimitExceeded,
                    f"{destination.address} is full: {destination.waiting} messages, "
                    f"{destination.waiting_bytes} bytes are waiting",
                )
        return destination

    def redirect(self, message: Message, source: Destination, queue: Destination) -> Message:
        """Return the dead letter of a message that a full destination does not accept."""
        dead_letter = self._core.dead_letters.make(
            message, source.address, "overflow", 0, self._clock.wall
        )
        dead_letter.destination = queue.address
        source.statistics.dead_lettered += 1
        return dead_letter

    def withdraw(self, destination: Destination, message: Message) -> bool:
        """Remove a parked message; return False if it has been accepted already.

        If `destination` has been deleted, the message may be parked in that which has replaced it.
        """
        if destination.removed:
            destination = self._destinations.find(destination.address) or destination
        if message not in destination.parked:
            return False
        self.take_parked(destination, message)
        destination.unpark_later()
        return True

    def take_parked(self, destination: Destination, message: Message) -> Callable[[], None]:
        """Remove a parked message, which then does not count as in memory, and return the callback
        for its acceptance."""
        self._core.memory -= self._core.size_in_memory(message)
        return destination.parked.pop(message)

    def unpark(self) -> None:
        """Accept the parked messages for which their destinations have capacity again, or drop
        others because their overflow policy has been changed.

        A message of more than `max_bytes`, which has been lowered since, is accepted once the
        destination is empty.
        """
        destinations, self._core.unblocking = self._core.unblocking, {}
        for destination in destinations:
            while destination.parked:
                message = next(iter(destination.parked))
                is_full = destination.waiting and destination.would_exceed_limits(len(message.body))
                if (is_full and not destination.drops_when_full) or (
                    self.is_refusing and message.durability.survives
                ):
                    break
                unblocked = self.take_parked(destination, message)
                self.accept(destination, message)
                unblocked()

    # --- disk space ----------------------------------------------------------------------------

    def on_space(self, report: SpaceReport) -> None:
        """Apply a changed level of free disk space."""
        core = self._core
        was_halted = core.halted
        self._is_space_low = report.level > SpaceLevel.ENOUGH
        core.halted = report.level == SpaceLevel.EXHAUSTED
        core.event_recorder.suspend(self._is_space_low)
        if was_halted and not core.halted:
            for destination in self._destinations.values():
                for subscription in destination.all_subscriptions:
                    if subscription.waiting:
                        core.dispatchable[subscription] = None
        self.update_refusing()
        core.schedule_flush()

    def update_refusing(self) -> None:
        """Refuse messages while space is low or the journal is stalled; accept them afterwards."""
        was_refusing = self.is_refusing
        self.is_refusing = self._is_space_low or self._journal.is_stalled
        if was_refusing and not self.is_refusing:
            for destination in self._destinations.values():
                destination.unpark_later()
            waiters, self._space_waiters = self._space_waiters, {}
            for callback in waiters.values():
                callback()

    def when_space(self, waiter: object, callback: Callable[[], None]) -> None:
        """Register a single call of `callback` when journaled messages are accepted again.

        Each `waiter` has at most one callback.
        """
        self._space_waiters[waiter] = callback

    def forget_waiter(self, waiter: object) -> None:
        """Cancel the callback registered with `when_space`."""
        self._space_waiters.pop(waiter, None)

    def make_durable_visible(self, sequence: int) -> None:
        """Make the staged messages up to `sequence`, which are durable now, visible."""
        staged = self.staged
        while staged and staged[0][0].sequence <= sequence:
            message, destination, targets = staged.popleft()
            destination.staged -= 1
            destination.staged_bytes -= len(message.body)
            if targets is not None:
                self._fan_out(message, destination, targets)
            elif not destination.removed:
                add(destination.queue, message, RECORDED)
            else:
                journal_completion(destination.queue, Cause.DISCARDED, [message.sequence])

    def _fan_out(self, message: Message, topic: Destination, targets: list[Subscription]) -> None:
        """Make a staged message visible; some of its subscriptions may have been deleted since."""
        topic.unpark_later()  # a full subscription may have been deleted
        closed_targets = [target for target in targets if target.closed]
        if closed_targets:
            targets = [target for target in targets if not target.closed]
        if not topic.removed:
            fan_out(topic, message, targets)
        elif topic.number in message.routes:
            journal_completion(topic.queue, Cause.DISCARDED, [message.sequence])
        for target in closed_targets:
            if target.durable:
                journal_completion(target, Cause.DISCARDED, [message.sequence])

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
        if not delivery.journaled:
            message.durability = Durability.NONE
        message.destination = target.address
        return self.publish_unit([(target, message)], [delivery], cause, chosen=chosen)

    def move_to_dead_letters(self, delivery: Delivery, reason: str, force: bool) -> bool | None:
        """Replace a delivery by its dead letter.

        Return False if the delivery gets no dead letter, None if the dead-letter queue has no
        capacity. An overflow delivery gets no dead letter in that case.
        """
        rules = self._core.dead_letters
        subscription = delivery.subscription
        source = subscription.destination
        by_default = (force or source.settings.dead_letter) and not source.temporary
        if not by_default and not rules.policies:
            return False  # avoids reading the message
        message = self._core.read(delivery)
        if is_dead_letter(message) or not rules.becomes_dead_letter(message, by_default):
            return False
        queue = self._destinations.dead_letter_queue(source)
        if queue is source:
            if reason == "overflow":
                return False  # its dead letter would displace another message
        elif not queue.accepts_dead_letter(delivery.size):
            return False if reason == "overflow" else None
        dead_letter = rules.make(
            message,
            source.address,
            reason,
            delivery.attempts,
            self._clock.wall,
            subscription.name,
        )
        source.statistics.dead_lettered += 1
        self.replace(delivery, queue, dead_letter, Cause.DEAD_LETTERED)
        return True


def _check_message(destination: Destination, message: Message) -> None:
    """Check the size of a message, and limit its lifetime.

    Raises MessageTooLarge, and DestinationPrivate if the destination accepts no messages.
    """
    settings = destination.settings
    size = len(message.body)
    if destination.refuses_messages:
        _reject(
            destination,
            DestinationPrivate,
            f"{destination.address} does not accept messages from clients",
        )
    if settings.max_message_bytes and size > settings.max_message_bytes:
        _reject(
            destination,
            MessageTooLarge,
            f"{destination.address} accepts bodies of up to {settings.max_message_bytes} bytes, "
            f"this one has {size}",
        )
    if settings.message_ttl:
        message.expiration = limited_expiration(destination, message.expiration)


def limited_expiration(destination: Destination, expiration: int) -> int:
    """Return an expiration in wall ms (0 = never), or a lower one as `message_ttl` requires."""
    ttl = destination.settings.message_ttl
    if not ttl:
        return expiration
    latest_expiration = destination.core.clock.wall + ttl
    return min(expiration or latest_expiration, latest_expiration)


def _expect_capacity_when_empty(destination: Destination, size: int) -> None:
    """Raise MessageTooLarge if a body of `size` bytes exceeds `max_bytes` alone."""
    max_bytes = destination.settings.max_bytes
    if max_bytes and size > max_bytes:
        _reject(
            destination,
            MessageTooLarge,
            f"{destination.address} holds up to {max_bytes} bytes, this body alone has {size}",
        )


def _reject(destination: Destination, error: type[BrokerError], text: str) -> NoReturn:
    """Count a message that the destination rejects, and raise the error with that text."""
    destination.statistics.rejected += 1
    raise error(text)


class GroupCommit:
    """Commits the records of each iteration, and confirms what the journal has made durable."""

    def __init__(self, core: Core, publisher: Publisher) -> None:
        self._core = core
        self._journal = core.journal
        self._publisher = publisher
        self._confirmations: deque[tuple[int, Callable[[], None]]] = deque()
        self._completion_callbacks: list[Callable[[], None]] = []
        self._commit_callbacks: deque[tuple[int, Callable[[], None]]] = deque()
        self._committing = False
        self._syncing = False
        """True while a timer runs for records not yet synced, or held back for the next write."""
        self._overdue = False
        """True once the timer has expired: the next commit is synced."""

    def when_durable(self, sequence: int, callback: Callable[[], None]) -> None:
        """Call `callback` once all records up to `sequence` are on disk; immediately if they
        are.
        """
        if sequence <= self._journal.durable:
            callback()
        else:
            self._confirmations.append((sequence, callback))

    def when_completed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the acknowledgements made so far are written.

        The call follows after this event loop iteration. Written acknowledgements survive the end
        of this process; they are on disk within the journal's `flush_interval`.
        """
        self._completion_callbacks.append(callback)

    def commit(self) -> None:
        """End an iteration: commit the appended records to the journal.

        The journal syncs now if a message or a publisher waits for it, otherwise later.
        """
        journal = self._journal
        if self._completion_callbacks:
            callbacks, self._completion_callbacks = self._completion_callbacks, []
            sequence = self._core.last_ack_record
            for callback in callbacks:
                if sequence <= journal.written:
                    callback()
                else:
                    self._commit_callbacks.append((sequence, callback))
        if self._core.event_recorder.end_iteration():
            if journal.has_pending_records or self._overdue or self._core.stopping:
                self._core.event_recorder.write()
            else:
                self._set_alarm()
        sync = bool(self._publisher.staged or self._confirmations or self._overdue)
        self._overdue = False
        self._committing = True
        try:
            journal.commit(sync)
        finally:
            self._committing = False
        self._publisher.update_refusing()  # the commit may have begun another segment

    def _set_alarm(self) -> None:
        """Set a timer to write and sync records for which no client waits."""
        if not self._syncing:
            self._syncing = True
            core = self._core
            core.timers.add(
                core.clock.steady + self._journal.options.flush_interval, self._sync, None
            )

    def _sync(self, argument: None) -> None:
        # not now: records of this iteration may precede acknowledgements that are not yet appended
        self._syncing = False
        self._overdue = True

    def on_written(self, sequence: int) -> None:
        """Confirm the acknowledgements up to `sequence`, which are written but not yet durable."""
        callbacks = self._commit_callbacks
        while callbacks and callbacks[0][0] <= sequence:
            callbacks.popleft()[1]()
        if sequence > self._journal.durable and not self._syncing:
            if not self._committing:
                # the event loop must recompute its deadline for the new timer
                self._core.schedule_flush()
            self._set_alarm()

    def on_durable(self, sequence: int) -> None:
        """Make staged messages visible and confirm everything up to `sequence`."""
        core = self._core
        if core.observer is not None:
            core.observer.durable(sequence)
        self._publisher.make_durable_visible(sequence)
        if core.unpaged:
            _page_out_until(core, sequence)
        confirmations = self._confirmations
        while confirmations and confirmations[0][0] <= sequence:
            confirmations.popleft()[1]()
        if not self._committing:
            core.schedule_flush()


def _page_out_until(core: Core, durable: int) -> None:
    """Page out bodies over the budget that have become durable."""
    unpaged = core.unpaged
    while unpaged and unpaged[0].sequence <= durable:
        delivery = unpaged.popleft()
        is_waiting = delivery.state == READY or delivery.state == SCHEDULED
        if is_waiting and delivery.message is not None and core.memory > core.memory_budget:
            core.drop_message(delivery)
