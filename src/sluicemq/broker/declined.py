"""Messages that some consumers cannot take: they wait for others.

A consumer may be unable to take a message that it has been given, such as one too large for its
protocol. It says so (`decline`), and names its kind: consumers of one kind can take the same
messages. From then on it is served like a consumer with a selector that does not match what its
kind has declined (pending_queue.py). So such a message blocks nothing, is not offered to that kind
again, and costs other queues nothing.

    another attached consumer may take it    it waits, in its place
    no other attached consumer can           it becomes a dead letter
    the same, but it is one already          it waits
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sluicemq.broker.attachment import reselect
from sluicemq.broker.deadletter import is_dead_letter
from sluicemq.broker.redelivery import release

if TYPE_CHECKING:
    from sluicemq.broker.consumer import Consumer
    from sluicemq.broker.selectors.equality import Equality
    from sluicemq.broker.subscription import Subscription
    from sluicemq.model.message import Message

MOST_DECLINED: Final = 4096
"""Messages of a subscription that a kind of consumer is known not to take. Beyond it the oldest is
forgotten: it is offered once more if it comes back to its place."""


class Acceptable:
    """Selects what a kind of consumer has not declined, for one subscription."""

    __slots__ = ("_declined", "_subscription", "equalities", "nodes", "text")

    def __init__(self, subscription: Subscription, text: str) -> None:
        """`text` cannot be that of a JMS selector."""
        self.text: str = text
        self.nodes: int = 1
        self.equalities: tuple[Equality, ...] = ()
        self._subscription = subscription
        self._declined: dict[int, None] = {}

    @property
    def declined(self) -> int:
        """Number of messages that are remembered."""
        return len(self._declined)

    def __call__(self, message: Message) -> bool:
        """Whether the message is for these consumers: they may take it, or it has to end here as a
        dead letter."""
        return message.sequence not in self._declined or not self.waits(message)

    def takes(self, message: Message) -> bool:
        """Whether these consumers have not declined the message."""
        return message.sequence not in self._declined

    def decline(self, sequence: int) -> None:
        """Remember that these consumers cannot take a message."""
        self._declined[sequence] = None
        if len(self._declined) > MOST_DECLINED:
            del self._declined[next(iter(self._declined))]

    def waits(self, message: Message) -> bool:
        """Whether a message that has been declined waits for another consumer."""
        if is_dead_letter(message):
            return True
        for pending_queue in self._subscription.pending_queues.values():
            selector = pending_queue.selector
            if selector is self or not pending_queue.consumers:
                continue
            if selector is None:
                return True
            if selector.takes(message) if isinstance(selector, Acceptable) else selector(message):
                return True
        return False


def decline(consumer: Consumer, sequences: Iterable[int], kind: str, reason: str) -> None:
    """Give back what a consumer cannot take; see Broker.decline."""
    subscription = consumer.subscription
    held = [sequence for sequence in sequences if sequence in consumer.unacked]
    if not held or consumer not in subscription.consumers:
        return
    text = f"(not too large for {kind})"
    pending_queue = subscription.pending_queues.get(text)
    selector = Acceptable(subscription, text) if pending_queue is None else pending_queue.selector
    assert isinstance(selector, Acceptable)
    if consumer.pending_queue.selector is None:
        reselect(consumer, selector)
    returned: list[int] = []
    for sequence in held:
        message = consumer.unacked[sequence].message
        assert message is not None  # in flight
        selector.decline(sequence)
        if selector.waits(message):
            returned.append(sequence)
        else:
            subscription.dead_letter(sequence, reason, True)
    release(consumer, returned, attempted=False)
