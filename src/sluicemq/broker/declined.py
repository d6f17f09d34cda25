"""Declined messages: messages that some consumers cannot process and that wait for others.

A consumer may be unable to process a message dispatched to it, such as one too large for its
protocol. It calls `decline` and names its kind: consumers of one kind can process the same
messages. From then on the broker treats it as a consumer with a selector that does not match the
messages declined by its kind (pending/queue.py). So a declined message blocks no other message, is
not dispatched to that kind again, and costs other queues nothing.

    another attached consumer can process it    it waits in its position
    no other attached consumer can              it becomes a dead letter
    the same, but it is a dead letter           it waits
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sluicemq.broker.attachment import reselect
from sluicemq.broker.redelivery import release
from sluicemq.broker.subscription import dead_letter
from sluicemq.model.dead_letters import is_dead_letter

if TYPE_CHECKING:
    from sluicemq.broker.selectors.equality import Equality
    from sluicemq.broker.state import Consumer, Subscription
    from sluicemq.model.message import Message

MOST_DECLINED: Final = 4096
"""Number of declined messages recorded for each kind of consumer and subscription.

Beyond it the oldest one is forgotten: it is dispatched again if it is requeued.
"""


class Acceptable:
    """Selector of the messages of one subscription that a kind of consumer has not declined."""

    __slots__ = ("_declined", "_subscription", "equalities", "nodes", "text")

    def __init__(self, subscription: Subscription, text: str) -> None:
        """Create a selector that matches all messages; `text` must differ from every JMS
        selector.
        """
        self.text: str = text
        self.nodes: int = 1
        self.equalities: tuple[Equality, ...] = ()
        self._subscription = subscription
        self._declined: dict[int, None] = {}

    @property
    def declined(self) -> int:
        """Number of declined messages recorded."""
        return len(self._declined)

    def __call__(self, message: Message) -> bool:
        """Return whether to dispatch the message to these consumers.

        True unless they have declined it and it waits for others: a declined message that does not
        wait must come back here to become a dead letter.
        """
        return message.sequence not in self._declined or not self.waits(message)

    def takes(self, message: Message) -> bool:
        """Return whether these consumers have not declined the message."""
        return message.sequence not in self._declined

    def decline(self, sequence: int) -> None:
        """Record that these consumers cannot process a message."""
        self._declined[sequence] = None
        if len(self._declined) > MOST_DECLINED:
            del self._declined[next(iter(self._declined))]

    def waits(self, message: Message) -> bool:
        """Return whether a declined message waits for another consumer."""
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
    """Return deliveries that a consumer cannot process; see Broker.decline."""
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
        assert message is not None  # unacked deliveries have their message in memory
        selector.decline(sequence)
        if selector.waits(message):
            returned.append(sequence)
        else:
            dead_letter(subscription, sequence, reason, True)
    release(consumer, returned, attempted=False)
