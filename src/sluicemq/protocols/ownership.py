"""Ownership of durable subscriptions and transactions, which outlive connections, and of
dead-letter queues.

    owner                     users that may use it
    a user                    that user, superusers
    "" (no owner yet)         users with permissions on all destinations concerned, superusers
    a deleted user            superusers

Objects that were created while the broker had no users, or by a migration, have no owner. The
first user that uses one becomes its owner. Users are identified by name only: a user created again
under the name of a deleted one owns that user's objects. In a broker without users every client is
a superuser.

Users with MANAGE on all destinations concerned may also list and end these objects through the
management API (`may_administer_...`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluicemq.broker import Broker, Subscription, Transaction
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import is_temporary

Right = tuple[Operation, str]
"""Operation on the destinations that match a name."""


def may_use(identity: Identity, owner: str, rights: Iterable[Right]) -> bool:
    """Return whether the user may use an object of that owner.

    `rights` are those needed to claim an object without an owner; if empty, only superusers can.
    """
    if identity.superuser:
        return True
    if owner:
        return owner == identity.name
    return _has_all(identity, rights)


def selected_dead_letter_queue(
    broker: Broker, identity: Identity, name: str, queue: str, *, is_enabled: bool
) -> str:
    """Return the dead-letter queue to which a user who declares the destination `name` must be
    permitted to produce; "" if none.

    Otherwise a user who may create one queue could fill any other by letting messages expire. No
    permission is needed for the default name, unless another user's queue has it. `queue` is the
    requested name, "" for the default one; that counts only if dead letters are enabled.
    """
    if queue or not is_enabled:
        return queue
    return broker.destinations.foreign_dead_letter_queue(name, identity.creator)


def may_use_transaction(identity: Identity, transaction: Transaction) -> bool:
    """Return whether the user may list, join or end the transaction."""
    return may_use(identity, transaction.owner, _rights(transaction))


def claim_transaction(identity: Identity, transaction: Transaction) -> None:
    """Make the user the owner of a transaction that has none."""
    if not transaction.owner:
        transaction.owner = identity.name


def claim_subscription(broker: Broker, identity: Identity, subscription: Subscription) -> None:
    """Make the user the owner of a subscription that has none."""
    if not subscription.owner and identity.name:
        broker.claim(subscription, identity.name)


def may_administer_subscription(identity: Identity, subscription: Subscription) -> bool:
    """Return whether the user may list and delete the subscription in the management API."""
    name = subscription.destination.name
    may_consume = may_use(identity, subscription.owner, [(Operation.CONSUME, name)])
    return may_consume or identity.may(Operation.MANAGE, name)


def may_administer_transaction(identity: Identity, transaction: Transaction) -> bool:
    """Return whether the user may list and end the transaction in the management API."""
    return may_use_transaction(identity, transaction) or _has_all(
        identity, ((Operation.MANAGE, name) for _, name in _rights(transaction))
    )


def _rights(transaction: Transaction) -> Iterator[Right]:
    """Yield the rights needed to publish and acknowledge the transaction's messages.

    Any user that knows a temporary destination's name may publish to it.
    """
    sent, acked = transaction.destination_names()
    yield from ((Operation.PRODUCE, name) for name in sent if not is_temporary(name))
    yield from ((Operation.CONSUME, name) for name in acked)


def _has_all(identity: Identity, rights: Iterable[Right]) -> bool:
    """Return whether the user has all these rights. False without rights."""
    needed = list(rights)
    return bool(needed) and all(identity.may(operation, name) for operation, name in needed)
