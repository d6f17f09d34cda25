"""Services for connections, subscriptions, consumers and transactions of clients."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from sluicemq.admin.destinations import may_see_destination
from sluicemq.admin.endpoints import Call, ListedConnection, Service, destination_name, handles
from sluicemq.admin.errors import ApiError, base64_of, printable
from sluicemq.admin.time_slices import wait_until_durable
from sluicemq.broker import Consumer, Subscription, Transaction, TransactionState
from sluicemq.management.clients import (
    CLOSE_CONNECTION,
    COMMIT_TRANSACTION,
    DELETE_SUBSCRIPTION,
    GET_CONNECTION,
    LIST_CONNECTIONS,
    LIST_CONSUMERS,
    LIST_SUBSCRIPTIONS,
    LIST_TRANSACTIONS,
    ROLL_BACK_TRANSACTION,
    CloseConnection,
    ConnectionItem,
    ConnectionQuery,
    ConsumerItem,
    ConsumerQuery,
    DeleteSubscription,
    SubscriptionItem,
    SubscriptionQuery,
    TransactionItem,
    TransactionQuery,
    XidView,
)
from sluicemq.management.operation import KINDS, IdPath, Page, kind_name
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.jmq.destinations import DEFAULTS
from sluicemq.protocols.jmq.fields import decode_xid
from sluicemq.protocols.ownership import may_administer_subscription, may_administer_transaction
from sluicemq.protocols.transport import SessionInfo
from sluicemq.security.access import wait_for_callback

# --- Connections ----------------------------------------------------------------------------------
#
# Endpoints that list and close connections.
#
# A superuser sees all connections; other users see those with their own user name.

_CLOSE_REASON: Final = "closed by an administrator"


def _consumer_count(connection: ListedConnection) -> int:
    return sum(1 for _ in connection.consumers())


_CONNECTION_SORT_VALUES: Final[dict[str, Callable[[ListedConnection], Any]]] = {
    "id": lambda connection: connection.number,
    "protocol": lambda connection: connection.session_info().protocol,
    "peer": lambda connection: connection.peer,
    "user": lambda connection: connection.session_info().user,
    "client_id": lambda connection: connection.session_info().client_id,
    "listener": lambda connection: str(connection.listener_url),
    "started": lambda connection: connection.connected_at,
    "state": lambda connection: connection.state,
    "consumers": _consumer_count,
    "received_bytes": lambda connection: connection.received_bytes,
    "sent_bytes": lambda connection: connection.sent_bytes,
}
"""Values that lists are sorted by; the id decides between equal ones."""


class ConnectionService(Service):
    """Handlers of `/connections`."""

    @handles(LIST_CONNECTIONS)
    async def list(self, call: Call, query: ConnectionQuery) -> Page[ConnectionItem]:
        """Return a page of the connections that the user may see."""
        connections = (
            connection
            async for connection in call.slices.iterate(self._context.connections)
            if _selects_connection(query, connection)
            and may_see_connection(call.identity, connection.session_info())
        )
        return await call.slices.sorted_views(
            query,
            connections,
            _CONNECTION_SORT_VALUES[query.sort],
            lambda connection: connection.number,
            _connection_item,
        )

    @handles(GET_CONNECTION)
    async def show(self, call: Call, parameters: IdPath) -> ConnectionItem:
        """Return a connection."""
        return _connection_item(await self._find(call, parameters))

    @handles(CLOSE_CONNECTION)
    async def close(self, call: Call, parameters: CloseConnection) -> None:
        """Close a connection; its client receives the reason."""
        connection = await self._find(call, parameters)
        info = connection.session_info()
        reason = " ".join(printable(parameters.reason).split())
        connection.disconnect(f"{_CLOSE_REASON}: {reason}" if reason else _CLOSE_REASON)
        user = printable(info.user) or "an anonymous client"
        call.note = f"{info.protocol} of {user} at {connection.peer} {reason}"

    async def _find(self, call: Call, parameters: IdPath) -> ListedConnection:
        """Return the connection. Raises ApiError if it does not exist for the caller."""
        async for connection in call.slices.iterate(self._context.connections):
            if str(connection.number) == parameters.id and may_see_connection(
                call.identity, connection.session_info()
            ):
                return connection
        raise ApiError(404, "connection-not-found", "the connection does not exist or has ended")


def may_see_connection(identity: Identity, info: SessionInfo) -> bool:
    """Return whether the user may see the connection of the session."""
    return identity.superuser or (bool(identity.name) and info.user == identity.name)


def _selects_connection(query: ConnectionQuery, connection: ListedConnection) -> bool:
    info = connection.session_info()
    return (not query.protocol or info.protocol == query.protocol) and any(
        query.filter in text for text in (connection.peer, info.user, info.client_id)
    )


def _connection_item(connection: ListedConnection) -> ConnectionItem:
    info = connection.session_info()
    return ConnectionItem(
        id=connection.number,
        protocol=info.protocol,
        peer=connection.peer,
        user=printable(info.user),
        client_id=printable(info.client_id),
        listener=str(connection.listener_url),
        started=connection.connected_at,
        state=connection.state,
        consumers=_consumer_count(connection),
        received_bytes=connection.received_bytes,
        sent_bytes=connection.sent_bytes,
        tls=connection.listener_url.tls,
    )


# --- Subscriptions and consumers ------------------------------------------------------------------
#
# Endpoints that list and delete subscriptions of topics, and list consumers.
#
# A list contains those of the destinations that the caller may see. Durable and shared ones are
# visible only to their owner and to users who may manage the topic (protocols/ownership.py). The
# same users may delete them, which drops their messages.

_OF_JMS: Final = re.compile(r"(?:shared-)?(?:durable|group|shared|consumer):([^/ ]*)/([^ ]*)")
"""Names of JMQ subscriptions: client id and name, percent-encoded."""


_SUBSCRIPTION_SORT_VALUES: Final[dict[str, Callable[[Subscription], Any]]] = {
    "destination": lambda subscription: subscription.destination.name,
    "name": lambda subscription: subscription.name,
    "ready": lambda subscription: subscription.waiting,
    "unacked": lambda subscription: subscription.unacked,
    "consumers": lambda subscription: len(subscription.consumers),
}
"""Values that lists are sorted by; topic and name decide between equal ones."""


class ConnectedConsumer(NamedTuple):
    """A consumer with its connection."""

    connection: ListedConnection
    consumer: Consumer


_CONSUMER_SORT_VALUES: Final[dict[str, Callable[[ConnectedConsumer], Any]]] = {
    "id": lambda connected: connected.consumer.number,
    "destination": lambda connected: connected.consumer.subscription.destination.name,
    "connection": lambda connected: connected.connection.number,
    "credit": lambda connected: connected.consumer.window.credit,
    "unacked": lambda connected: len(connected.consumer.unacked),
    "delivered": lambda connected: connected.consumer.delivered,
}
"""Values that lists are sorted by; the id decides between equal ones."""


class SubscriptionService(Service):
    """Handlers of `/subscriptions`."""

    @handles(LIST_SUBSCRIPTIONS)
    async def list(self, call: Call, query: SubscriptionQuery) -> Page[SubscriptionItem]:
        """Return a page of the subscriptions that the user may see."""
        topic_name = destination_name(
            query.destination, "destination_base64", query.destination_base64
        )
        if topic_name:
            topic = self._broker.destinations.find(Address(Kind.TOPIC, topic_name))
            topics = [] if topic is None else [topic]
        else:
            topics = list(self._broker.destinations.values())
        subscriptions = (
            subscription
            async for topic in call.slices.iterate(topics)
            async for subscription in call.slices.iterate(list(topic.subscriptions.values()))
            if _selects_subscription(query, subscription)
            # the owner of a subscription may lack permissions for the topic
            and (_has_owner(subscription) or may_see_destination(call.identity, topic))
            and may_see_subscription(call.identity, subscription)
        )
        return await call.slices.sorted_views(
            query,
            subscriptions,
            _SUBSCRIPTION_SORT_VALUES[query.sort],
            lambda subscription: (subscription.destination.name, subscription.name),
            _subscription_item,
        )

    @handles(DELETE_SUBSCRIPTION)
    async def delete(self, call: Call, query: DeleteSubscription) -> None:
        """Delete a subscription and its messages."""
        name = destination_name(query.destination, "destination_base64", query.destination_base64)
        call.note = f"{printable(query.name)} of {printable(name)}"
        broker = self._broker
        topic = broker.destinations.find(Address(Kind.TOPIC, name))
        subscription = None if topic is None else topic.subscriptions.get(query.name)
        if (
            subscription is None
            or not _has_owner(subscription)
            or not may_administer_subscription(call.identity, subscription)
        ):
            call.demand(Operation.MANAGE, name)
        if subscription is None:
            raise ApiError(404, "subscription-not-found", "the subscription does not exist")
        if subscription.consumers and not query.force:
            raise ApiError(
                409,
                "subscription-in-use",
                f"it has {len(subscription.consumers)} consumers; delete it with force=true",
            )
        broker.unsubscribe(subscription)
        await wait_until_durable(broker, broker.last_ack_record)

    @handles(LIST_CONSUMERS)
    async def consumers(self, call: Call, query: ConsumerQuery) -> Page[ConsumerItem]:
        """Return a page of the consumers that the user may see."""
        name = destination_name(query.destination, "destination_base64", query.destination_base64)
        consumers = (
            ConnectedConsumer(connection, consumer)
            async for connection in call.slices.iterate(self._context.connections)
            if query.connection in (0, connection.number)
            async for consumer in call.slices.iterate(connection.consumers())
            if _selects_consumer(query, name, consumer)
            and may_see_destination(call.identity, consumer.subscription.destination)
            and may_see_subscription(call.identity, consumer.subscription)
        )
        return await call.slices.sorted_views(
            query,
            consumers,
            _CONSUMER_SORT_VALUES[query.sort],
            lambda connected: connected.consumer.number,
            _consumer_item,
        )


def may_see_subscription(identity: Identity, subscription: Subscription) -> bool:
    """Return whether the user may browse the subscription; the user sees its topic or owns it."""
    return not _has_owner(subscription) or may_administer_subscription(identity, subscription)


def is_private(subscription: Subscription) -> bool:
    """Return whether the subscription of a topic belongs to one connection, with which it ends."""
    return bool(subscription.name) and not _has_owner(subscription)


def _has_owner(subscription: Subscription) -> bool:
    """Return whether the subscription belongs to a user: it is durable or shared, and not the own
    one of a queue or topic, which has no name."""
    return subscription.durable or (subscription.shared and bool(subscription.name))


def _selects_subscription(query: SubscriptionQuery, subscription: Subscription) -> bool:
    return (query.durable is None or subscription.durable == query.durable) and (
        query.filter in subscription.destination.name
        or query.filter in subscription.name
        or query.filter in unquote(subscription.name)
    )


def _selects_consumer(query: ConsumerQuery, name: str, consumer: Consumer) -> bool:
    address = consumer.subscription.destination.address
    return (not name or address.name == name) and (
        not query.kind or address.kind is KINDS[query.kind]
    )


def _subscription_item(subscription: Subscription) -> SubscriptionItem:
    topic_name = subscription.destination.name
    client_id, label = "", subscription.name
    match = _OF_JMS.match(subscription.name)
    if match is not None:
        client_id, label = unquote(match[1]), unquote(match[2])
    selector = subscription.selector
    return SubscriptionItem(
        destination=printable(topic_name),
        destination_base64=base64_of(topic_name),
        kind="topic",
        name=printable(subscription.name),
        client_id=printable(client_id),
        display_name=printable(label),
        durable=subscription.durable,
        shared=subscription.shared,
        selector="" if selector is None else printable(selector.text),
        ready=subscription.waiting,
        unacked=subscription.unacked,
        bytes=subscription.waiting_bytes + subscription.unacked_bytes,
        consumers=len(subscription.consumers),
        owner=subscription.owner if _has_owner(subscription) else "",
    )


def _consumer_item(connected: ConnectedConsumer) -> ConsumerItem:
    connection, consumer = connected
    subscription = consumer.subscription
    destination = subscription.destination
    selector = consumer.pending_queue.selector or subscription.selector
    return ConsumerItem(
        id=consumer.number,
        destination=printable(destination.name),
        destination_base64=base64_of(destination.name),
        kind=kind_name(destination.address.kind),
        subscription=printable(subscription.name),
        connection=connection.number,
        protocol=connection.session_info().protocol,
        selector="" if selector is None else printable(selector.text),
        credit=max(0, consumer.window.credit),
        unacked=len(consumer.unacked),
        delivered=consumer.delivered,
        active=consumer.active,
    )


# --- Transactions ---------------------------------------------------------------------------------
#
# Endpoints that list open and prepared transactions, and commit or roll them back.
#
# A prepared transaction waits for the decision of its transaction manager, also after restarts. If
# the decision never arrives, an operator can make it (heuristic completion). The broker reports the
# outcome to a manager that asks later, as long as the same process runs or the manager has asked
# before; otherwise it reports an unknown transaction.
#
# Users see and end their own transactions, and those whose destinations they may all manage
# (protocols/ownership.py). Other transactions do not exist for them.
#
# An open transaction belongs to a connected client. It can be rolled back, as after a time-out, but
# not committed.

_PROTOCOL = "jmq"
"""Protocol of all transactions: only JMQ has transactions that last longer than a request."""


_TRANSACTION_SORT_VALUES: Final[dict[str, Callable[[Transaction], Any]]] = {
    "started": lambda transaction: transaction.created,
    "state": lambda transaction: transaction.state.value,
    "publishes": lambda transaction: len(transaction.sends),
    "acks": lambda transaction: len(transaction.acks),
}
"""Values that lists are sorted by; start and id decide between equal ones."""


class TransactionService(Service):
    """Handlers of `/transactions`."""

    @handles(LIST_TRANSACTIONS)
    async def list(self, call: Call, query: TransactionQuery) -> Page[TransactionItem]:
        """Return a page of the transactions that the user may administer."""
        selected = (
            transaction
            async for transaction in call.slices.iterate(self._broker.transactions.values())
            if transaction.state is not TransactionState.ENDED
            and query.state in ("", transaction.state.value)
            and may_administer_transaction(call.identity, transaction)
        )
        return await call.slices.sorted_views(
            query,
            selected,
            _TRANSACTION_SORT_VALUES[query.sort],
            lambda transaction: (transaction.created, id_of(transaction)),
            _transaction_item,
        )

    @handles(COMMIT_TRANSACTION)
    async def commit(self, call: Call, parameters: IdPath) -> None:
        """Commit a prepared transaction."""
        transaction = await self._find(call, parameters)
        if not transaction.xid:
            raise ApiError(
                409,
                "transaction-open",
                "the transaction is not prepared, and its client may not have sent everything yet; "
                "it can only be rolled back",
            )
        self._broker.schedule_flush()
        await wait_for_callback(
            partial(self._broker.transactions.commit, transaction, defaults=DEFAULTS)
        )

    @handles(ROLL_BACK_TRANSACTION)
    async def roll_back(self, call: Call, parameters: IdPath) -> None:
        """Roll a transaction back."""
        transaction = await self._find(call, parameters)
        await wait_until_durable(self._broker, self._broker.transactions.rollback(transaction))

    async def _find(self, call: Call, parameters: IdPath) -> Transaction:
        async for transaction in call.slices.iterate(self._broker.transactions.values()):
            if (
                id_of(transaction) == parameters.id
                and transaction.state is not TransactionState.ENDED
                and may_administer_transaction(call.identity, transaction)
            ):
                call.note = f"{len(transaction.sends)} sent, {len(transaction.acks)} acknowledged"
                if transaction.xid:
                    xid = _xid(transaction.xid)
                    call.note += (
                        f", xid {xid.format_id}:{xid.global_transaction_id}:{xid.branch_qualifier}"
                    )
                return transaction
        raise ApiError(404, "transaction-not-found", "the transaction does not exist or has ended")


def id_of(transaction: Transaction) -> str:
    """Return a unique id of the transaction. That of a prepared one is derived from its xid, so
    that it stays the same after a restart and while the transaction is committed."""
    if transaction.xid:
        return f"p{hashlib.sha256(transaction.xid).hexdigest()[:16]}"
    return f"o{transaction.created}.{transaction.number}"


def _transaction_item(transaction: Transaction) -> TransactionItem:
    return TransactionItem(
        id=id_of(transaction),
        state=transaction.state.value,
        protocol=_PROTOCOL,
        xid=_xid(transaction.xid) if transaction.xid else None,
        publishes=len(transaction.sends),
        acks=len(transaction.acks),
        started=transaction.created,
        owner=transaction.owner,
    )


def _xid(raw: bytes) -> XidView:
    try:
        xid = decode_xid(raw)
    except ProtocolError:
        return XidView(0, "", raw.hex())
    return XidView(xid.format_id, xid.bqual.hex(), xid.gtrid.hex())
