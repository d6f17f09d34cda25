"""Restrictions on deleting and redeclaring existing queues by VibeMQ clients.

On a VibeMQ server all queues are VibeMQ's. Here other protocols share them: an application that
declares a queue with `OnConflict: Override` must delete neither the messages of another protocol's
clients nor a queue that an operator has set up.
"""

from __future__ import annotations

from typing import Final

from sluicemq.broker import Broker, Destination
from sluicemq.model.access import Identity
from sluicemq.model.destination import CreatedBy, Overflow
from sluicemq.protocols.vibemq.queues import QueueOptions
from sluicemq.protocols.vibemq.subscriber import Subscriber

_CREATORS: Final = {
    CreatedBy.BROKER: "belongs to the broker itself",
    CreatedBy.CONFIGURATION: "is declared in the broker's configuration",
    CreatedBy.MANAGEMENT: "was created by an administrator",
    CreatedBy.JMQ: "was created by JMS",
    CreatedBy.MSGLITE: "was created by msglite",
    CreatedBy.PHPMQ: "was created by PHPMQ",
}


def foreign(broker: Broker, destination: Destination, identity: Identity) -> str:
    """Return why VibeMQ clients may not delete a queue; "" if they may.

    The text names another queue only if the user may see it.
    """
    name = destination.name
    if how := _CREATORS.get(destination.provenance.created_by):
        return f"queue {name} {how}; VibeMQ clients cannot delete it"
    source = broker.destinations.dead_letters_of(destination)
    if source is not None:
        of = source.name if identity.sees(source.name) else "another queue"
        return f"queue {name} is the dead-letter queue of {of}; delete that one first"
    if _serves_others(destination):
        return f"queue {name} has consumers of other protocols; VibeMQ clients cannot delete it"
    return ""


def _serves_others(destination: Destination) -> bool:
    """Return whether clients of other protocols consume or durably subscribe to it."""
    subscriptions = (destination.queue, *destination.subscriptions.values())
    consumers = [consumer for item in subscriptions for consumer in item.consumers]
    if any(not isinstance(consumer.sink, Subscriber) for consumer in consumers):
        return True
    return any(item.durable and not item.consumers for item in destination.subscriptions.values())


def takes_options(broker: Broker, existing: Destination, options: QueueOptions) -> bool:
    """Return whether CreateQueue may change the options of an existing queue.

    Only if VibeMQ use created the queue, and the change neither drops a message nor changes the
    kind of a queue that has messages or consumers.
    """
    if not existing.automatic or existing.provenance.created_by is not CreatedBy.VIBEMQ:
        return False
    if broker.destinations.dead_letters_of(existing) is not None:
        return False
    if not existing.busy():
        return True
    settings = options.settings
    if existing.address.kind is not options.kind:
        return False
    limit = settings.max_messages
    drops = settings.overflow in (Overflow.DROP_OLDEST, Overflow.DROP_LOWEST)
    return not (limit and drops and existing.waiting > limit)
