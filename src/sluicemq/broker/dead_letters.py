"""Dead letters: the rules of the protocols for their messages that cannot be delivered.

The publisher moves these messages to the dead-letter queues (publishing.py).
"""

from __future__ import annotations

from typing import Protocol

from sluicemq.model.dead_letters import dead_letter_of, note_topic
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Message, Origin


class DeadLetterPolicy(Protocol):
    """Rules of one protocol for its messages that cannot be delivered, or are moved or copied."""

    def keep(self, message: Message) -> bool | None:
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
    """Rules for dead letters, by the protocol of the message."""

    def __init__(self) -> None:
        self.policies: dict[Origin, DeadLetterPolicy] = {}

    def becomes_dead_letter(self, message: Message, by_default: bool) -> bool:
        """Return whether an undeliverable message becomes a dead letter.

        The policy of the message's protocol decides; without a decision of the policy,
        `by_default` does.
        """
        policy = self.policies.get(message.origin)
        decision = policy.keep(message) if policy is not None else None
        return by_default if decision is None else decision

    def make(
        self,
        message: Message,
        source: Address,
        reason: str,
        attempts: int,
        wall: int,
        subscription: str = "",
    ) -> Message:
        """Return the dead letter of a message that was in `source`, in its `subscription`, at
        `wall` ms.
        """
        policy = self.policies.get(message.origin)
        make = policy.dead_letter if policy is not None else dead_letter_of
        dead_letter = make(message, source.name, reason, attempts, wall)
        if source.kind is Kind.TOPIC:
            note_topic(dead_letter, subscription)
        return dead_letter

    def adapt_copy(self, copy: Message) -> None:
        """Let the policy of its protocol adapt the copy of a message for another destination."""
        policy = self.policies.get(copy.origin)
        if policy is not None:
            policy.adapt_copy(copy)
