"""Dead letters: which undeliverable messages become one, and the move to the dead-letter queue."""

from __future__ import annotations

from typing import Protocol

from sluicemq.broker.destinations import Destinations
from sluicemq.broker.publishing import Publisher
from sluicemq.broker.state import Core, Delivery, Destination
from sluicemq.journal.format import Cause
from sluicemq.model.dead_letters import dead_letter_of, is_dead_letter, note_topic
from sluicemq.model.message import Message, Origin


class DeadLetterPolicy(Protocol):
    """Rules of one protocol for its messages that cannot be delivered, or are moved or copied."""

    def keep(self, message: Message, destination: Destination) -> bool | None:
        """Return whether the message becomes a dead letter; None = the destination's settings
        decide.
        """

    def dead_letter(
        self, message: Message, origin: str, reason: str, attempts: int, wall: int
    ) -> Message:
        """Return the dead letter of a message, based on `dead_letter_of`."""

    def adapt_copy(self, copy: Message) -> None:
        """Adapt the framing of a moved, copied or redriven message to its destination, expiration
        and body.
        """


class DeadLetters:
    """Moves undeliverable messages to the dead-letter queues of their destinations.

    policies  rules of the protocols for dead letters of their messages
    """

    def __init__(self, core: Core, destinations: Destinations, publisher: Publisher) -> None:
        self._core = core
        self._destinations = destinations
        self._publisher = publisher
        self.policies: dict[Origin, DeadLetterPolicy] = {}

    def becomes_dead_letter(self, message: Message, source: Destination, by_default: bool) -> bool:
        """Return whether an undeliverable message becomes a dead letter.

        The policy of the message's protocol decides; without a decision of the policy,
        `by_default` does.
        """
        policy = self.policies.get(message.origin)
        if policy is not None:
            decision = policy.keep(message, source)
            if decision is not None:
                return decision
        return by_default

    def make_dead_letter(
        self,
        message: Message,
        source: Destination,
        reason: str,
        attempts: int,
        subscription: str = "",
    ) -> Message:
        """Return the dead letter of a message that was in `source`, in its `subscription`."""
        policy = self.policies.get(message.origin)
        make = policy.dead_letter if policy is not None else dead_letter_of
        dead_letter = make(message, source.name, reason, attempts, self._core.clock.wall)
        if source.topic:
            note_topic(dead_letter, subscription)
        return dead_letter

    def adapt_copy(self, copy: Message) -> None:
        """Let the policy of its protocol adapt the copy of a message for another destination."""
        policy = self.policies.get(copy.origin)
        if policy is not None:
            policy.adapt_copy(copy)

    def has_capacity(self, source: Destination, size: int) -> bool:
        """Return whether the dead-letter queue of a destination accepts a body of `size` bytes."""
        queue = self._destinations.find(source.dead_letter_address)
        return queue is None or queue is source or queue.accepts_dead_letter(size)

    def move(self, delivery: Delivery, reason: str, force: bool) -> bool | None:
        """Replace a delivery by its dead letter.

        Return False if the delivery gets no dead letter, None if the dead-letter queue has no
        capacity. An overflow delivery gets no dead letter in that case.
        """
        source = delivery.subscription.destination
        by_default = (force or source.settings.dead_letter) and not source.temporary
        if not by_default and not self.policies:
            return False  # avoids reading the message
        message = delivery.message or self._core.journal.fetch(delivery.sequence)
        if is_dead_letter(message) or not self.becomes_dead_letter(message, source, by_default):
            return False
        queue = self._destinations.dead_letter_queue(source)
        if queue is source:
            if reason == "overflow":
                return False  # its dead letter would displace another message
        elif not queue.accepts_dead_letter(delivery.size):
            return False if reason == "overflow" else None
        dead_letter = self.make_dead_letter(
            message, source, reason, delivery.attempts, delivery.subscription.name
        )
        source.statistics.dead_lettered += 1
        self._publisher.replace(delivery, queue, dead_letter, Cause.DEAD_LETTERED)
        return True
