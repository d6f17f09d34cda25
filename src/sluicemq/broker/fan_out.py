"""Fan-out: the subscriptions that receive a topic's message, its group, and retained messages.

A topic that retains messages (`settings.retain_without_subscriptions`) may have a *group*:
subscriptions whose messages stay with the topic when the last of them is deleted. The journal
treats a group as one durable subscription that has the topic's number and ends a message once all
of its members have:

    members    subscriptions with a message of the group   journaled when it ends for
    0          the topic's own subscription, `queue`       `queue` (RECORDED)
    1          the member                                  the member (RECORDED)
    2 or more  each member present at publication          the last of them (SHARED)

The last member to leave becomes `queue`, with all its ready and unacked messages; the first member
to join takes the place of `queue`. So no messages are moved, regardless of their number, and their
order, attempts and expiry are unchanged. The copies of a member that leaves other members behind
end. After a restart there are no members: every message that at least one member had not
acknowledged is in `queue`.

Other subscriptions are independent of the group. Only at a topic that never had a member do
nondurable subscriptions act as the group (each copy is SHARED): no message is retained as long as
any subscription matches it, and the first subscription that matches a retained message takes it out
of `queue`.

Members of the group need no scan for retained messages. Another first subscription that matches
some of them gets them by a scan (`transfer_retained`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from sluicemq.broker.dispatch import add
from sluicemq.broker.pending.cursor import Cursor
from sluicemq.broker.pending.entry import (
    RECORDED,
    REFERENCED,
    SCHEDULED,
    SHARED,
    UNJOURNALED,
)
from sluicemq.broker.state import DURABLE_SUBSCRIPTION, Delivery, Destination, Subscription
from sluicemq.broker.subscription import compact_pending_queues, end_unjournaled, withdraw
from sluicemq.journal.format import Cause
from sluicemq.model.errors import JournalDamaged, RecordNotFound
from sluicemq.model.message import Durability, Message


def join_group(topic: Destination, name: str) -> Subscription:
    """Add a member to the group and return it; the first member receives all retained messages."""
    if topic.members:
        member = Subscription(topic.core, topic, name, topic.number, shared=False)
    else:
        member = topic.queue
        member.name = name
        member.shared = False
        topic.queue = Subscription(topic.core, topic, number=topic.number)
    topic.members[member] = None
    topic.subscribe(member)
    return member


def leave_group(member: Subscription) -> None:
    """Remove the last member, which has no consumers, from the group; the topic retains its
    messages. The topic's own subscription is empty: it gets none while there are members.
    """
    topic = member.destination
    topic.unsubscribe(member)
    member.name = ""
    member.shared = True
    topic.queue = member


def _includes_group(topic: Destination, targets: list[Subscription]) -> bool:
    """Return whether the group is among the targets of a message."""
    if not topic.settings.retain_without_subscriptions:
        return False
    return any(_belongs_to_group(topic, target) for target in targets)


def _belongs_to_group(topic: Destination, target: Subscription) -> bool:
    if target in topic.members or target is topic.queue:
        return True
    return not (topic.grouped or target.durable or topic.settings.auto_ack)


def reserve(topic: Destination, message: Message, targets: list[Subscription]) -> int:
    """Set the routes of a message that will be journaled: its durable targets and the group.

    The topic has its number. Return the number of ends of deliveries that the journal awaits before
    it deletes the message.
    """
    routes = [target.number for target in targets if target.number >= DURABLE_SUBSCRIPTION]
    if _includes_group(topic, targets):
        routes.append(topic.number)
    message.routes = tuple(routes)
    return len(routes)


def fan_out(topic: Destination, message: Message, targets: list[Subscription]) -> None:
    """Add a visible message to its subscriptions, none of which is closed.

    A journaled message goes to the group if that is among its routes, regardless of the present
    settings.
    """
    if message.durability:
        for_group = topic.number in message.routes
    else:
        for_group = _includes_group(topic, targets)
    group: list[Subscription] = []
    if for_group:
        group = [target for target in targets if _belongs_to_group(topic, target)]
        targets = [target for target in targets if not _belongs_to_group(topic, target)]
    if message.durability:
        references = sum(1 for target in targets if not target.durable)
        if references:  # before the group, where an expired message is completed at once
            topic.core.journal.retain(message.sequence, references)
    if for_group:
        _add_to_group(topic, message, group, targets)
    durable_mode = RECORDED if message.durability else UNJOURNALED
    other_mode = REFERENCED if message.durability else UNJOURNALED
    for target in targets:
        add(target, message, durable_mode if target.durable else other_mode)


def _add_to_group(
    topic: Destination, message: Message, group: list[Subscription], others: list[Subscription]
) -> None:
    """Add a message to the members it was published to that still exist, or else to the present
    ones; `others` are its subscriptions outside the group.
    """
    if not group:
        group = list(topic.members) or [topic.queue]
    if group[0] is topic.queue and not topic.grouped:
        # no subscription of the group is left; a new one may match now that the message is visible
        targets = topic.routes.targets(message)
        group = [target for target in targets if target not in others] or group
    journaled = UNJOURNALED
    if message.durability:
        journaled = RECORDED
        if len(group) > 1 or not (group[0] in topic.members or group[0] is topic.queue):
            journaled = SHARED
            topic.shared_copies[message.sequence] = len(group)
    for target in group:
        add(target, message, journaled)


def transfer_retained(subscription: Subscription) -> None:
    """Give the messages that the topic retains to a new subscription, in slices of the scans' time.

    Messages published meanwhile go to the subscription immediately, and may be delivered before
    retained ones that are still to be transferred.
    """
    queue = subscription.destination.queue
    cursor = queue.cursor(queue.core.journal.next_sequence())
    scheduled = deque(queue.scheduled.values())
    queue.core.scans.begin_steps(_transfer(subscription, queue, cursor, scheduled))


def _transfer(
    subscription: Subscription,
    queue: Subscription,
    cursor: Cursor[Delivery],
    scheduled: deque[Delivery],
) -> Iterator[None]:
    while not subscription.closed and not queue.closed and queue.destination.queue is queue:
        if cursor.priority >= 0:
            for delivery in cursor.examine(1):
                _transfer_accepted(subscription, delivery, ready=True)
        elif scheduled:
            delivery = scheduled.popleft()
            if delivery.state == SCHEDULED:
                _transfer_accepted(subscription, delivery, ready=False)
        else:
            break
        yield


def _transfer_accepted(subscription: Subscription, delivery: Delivery, *, ready: bool) -> None:
    """Move a retained delivery to the subscription if that accepts it."""
    queue = delivery.subscription
    try:
        message = queue.core.read(delivery)
    except (JournalDamaged, RecordNotFound):
        return  # it stays in the queue and is reported there
    if not message.epoch:  # it has been read back from the journal
        expires = delivery.expires
        message.epoch = delivery.expiration - expires if expires else queue.core.clock.epoch
    if not subscription.accepts(message):
        return
    if ready:
        queue.all_ready.pin_unpacked(delivery)
    withdraw(delivery)
    end_unjournaled(delivery, Cause.MOVED)
    if delivery.journaled:
        message.durability = message.durability or Durability.SYNC
    if message.durability:
        queue.destination.shared_copies[message.sequence] = 1
    add(subscription, message, SHARED if message.durability else UNJOURNALED)
    compact_pending_queues(queue)
