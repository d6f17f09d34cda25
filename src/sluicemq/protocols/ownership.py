"""Who may use what outlives a connection: durable subscriptions and transactions.

    owner                     may use it
    a user                    that user, superusers
    "" (nobody yet)           users with rights on all destinations concerned, superusers
    a user that was deleted   superusers

"" is the owner of what was created while the broker knew no users, or by a migration. The first
user who uses it becomes its owner. Users are known by their names only: who is created again under
the name of a deleted user owns what that one owned. Where the broker knows no users, everybody is a
superuser.

The administration also lets users with MANAGE on all destinations concerned list and end these
things (`may_administer_...`).
"""

from __future__ import annotations

from collections.abc import Iterable

from sluicemq.broker import Broker, Subscription, Transaction
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import is_temporary

Right = tuple[Operation, str]
"""An operation on the destinations that match a name."""


def may_use(identity: Identity, owner: str, rights: Iterable[Right]) -> bool:
    """Return whether the user may use what has that owner.

    `rights` are those that it takes to claim it if it has none; without any, nobody can.
    """
    if identity.superuser:
        return True
    if owner:
        return owner == identity.name
    return _has_all(identity, rights)


def may_use_subscription(identity: Identity, subscription: Subscription) -> bool:
    """Return whether the user may consume from, replace or delete the subscription."""
    return may_use(
        identity, subscription.owner, [(Operation.CONSUME, subscription.destination.name)]
    )


def may_use_transaction(identity: Identity, transaction: Transaction) -> bool:
    """Return whether the user may list, join or end the transaction."""
    if identity.superuser or transaction.owner:
        return may_use(identity, transaction.owner, ())
    return _has_all(identity, _rights(transaction))


def claim_transaction(identity: Identity, transaction: Transaction) -> None:
    """Make the user the owner of a transaction that has none."""
    if not transaction.owner:
        transaction.owner = identity.name


def claim_subscription(broker: Broker, identity: Identity, subscription: Subscription) -> None:
    """Make the user the owner of a subscription that has none."""
    if not subscription.owner and identity.name:
        broker.claim(subscription, identity.name)


def may_administer_subscription(identity: Identity, subscription: Subscription) -> bool:
    """Return whether the user may list and delete the subscription by the administration."""
    return may_use_subscription(identity, subscription) or identity.may(
        Operation.MANAGE, subscription.destination.name
    )


def may_administer_transaction(identity: Identity, transaction: Transaction) -> bool:
    """Return whether the user may list and end the transaction by the administration."""
    return may_use_transaction(identity, transaction) or _has_all(
        identity, {(Operation.MANAGE, name) for _, name in _rights(transaction)}
    )


def _rights(transaction: Transaction) -> set[Right]:
    """Return what it takes to send and acknowledge what the transaction has.

    Everybody who knows its name may send to a temporary destination.
    """
    sent, acked = transaction.touched()
    rights = {(Operation.PRODUCE, name) for name in sent if not is_temporary(name)}
    return rights | {(Operation.CONSUME, name) for name in acked}


def _has_all(identity: Identity, rights: Iterable[Right]) -> bool:
    """Return whether the user has all these rights, and there are some."""
    needed = list(rights)
    return bool(needed) and all(identity.may(operation, name) for operation, name in needed)
