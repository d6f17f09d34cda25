"""Operations on connections, subscriptions, consumers and transactions of clients."""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from sluicemq.management.operation import (
    SORT,
    ApiOperation,
    IdPath,
    KindName,
    Need,
    Page,
    SortedPageQuery,
)

# --- Connections ----------------------------------------------------------------------------------
#
# Operations on the connections of clients.

ClientProtocol = Literal[
    "auto", "http", "jmq", "msglite", "msglite-http", "phpmq", "phpmq-maintenance", "vibemq"
]
"""Protocol of a connection; `auto` until it is detected (`model.url.PROTOCOLS`)."""
MAX_REASON: Final = 200
"""Maximum length of the reason for closing a connection, in characters."""


class ConnectionQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Selection and order of connections."""

    filter: Annotated[
        str,
        Meta(
            description="Only connections with this text in the peer's address, user or client ID."
        ),
    ] = ""
    protocol: Annotated[
        ClientProtocol | Literal[""], Meta(description="Only connections with this protocol.")
    ] = ""
    sort: Annotated[
        Literal[
            "id",
            "protocol",
            "peer",
            "user",
            "client_id",
            "listener",
            "started",
            "state",
            "consumers",
            "received_bytes",
            "sent_bytes",
        ],
        SORT,
    ] = "id"


class CloseConnection(IdPath, kw_only=True, frozen=True):
    """A connection to be closed."""

    reason: Annotated[
        str,
        Meta(
            max_length=MAX_REASON,
            description="Reason sent to the client and written to the log.",
        ),
    ] = ""


class ConnectionItem(msgspec.Struct, kw_only=True, frozen=True):
    """A connection. `started` is in ms since the epoch.

    state  connecting, open, blocked (the broker has paused reading from it), slow (the client does
           not read its output), or closing
    """

    id: int
    protocol: str
    peer: str
    user: str
    client_id: str
    listener: str
    started: int
    state: str
    consumers: int
    received_bytes: int
    sent_bytes: int
    tls: bool


LIST_CONNECTIONS: Final = ApiOperation(
    "listConnections",
    "GET",
    "/connections",
    Need.VISIBLE,
    "List the connections",
    ConnectionQuery,
    Page[ConnectionItem],
)
GET_CONNECTION: Final = ApiOperation(
    "getConnection",
    "GET",
    "/connections/{id}",
    Need.OWNER,
    "Show a connection",
    IdPath,
    ConnectionItem,
)
CLOSE_CONNECTION: Final = ApiOperation(
    "closeConnection",
    "DELETE",
    "/connections/{id}",
    Need.SUPERUSER,
    "Close a connection",
    CloseConnection,
    NoneType,
    status=204,
)


# --- Subscriptions and consumers ------------------------------------------------------------------
#
# Operations on subscriptions of topics and on consumers.


class SubscriptionQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Selection and order of subscriptions."""

    destination: Annotated[str, Meta(description="Exact name of the topic.")] = ""
    destination_base64: Annotated[str, Meta(description="The same name in base64.")] = ""
    filter: Annotated[str, Meta(description="Text anywhere in its name or that of the topic.")] = ""
    durable: Annotated[
        bool | None, Meta(description="Only durable subscriptions, or only others.")
    ] = None
    sort: Annotated[Literal["destination", "name", "ready", "unacked", "consumers"], SORT] = (
        "destination"
    )


class DeleteSubscription(msgspec.Struct, kw_only=True, frozen=True):
    """Subscription to delete."""

    name: Annotated[str, Meta(description="Name of the subscription, as in the list.")]
    destination: Annotated[str, Meta(description="Name of the topic.")] = ""
    destination_base64: Annotated[str, Meta(description="The same name in base64.")] = ""
    force: Annotated[bool, Meta(description="Delete it even if it has consumers.")] = False


class SubscriptionItem(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A subscription.

    name          name that identifies it, for example to delete it
    owner         user who owns it; absent if it has no owner or is neither durable nor shared
    client_id     client ID of its JMS client; "" for other protocols
    display_name  name that its JMS client uses; `name` for other protocols
    """

    destination: str
    kind: KindName
    name: str
    client_id: str
    display_name: str
    durable: bool
    shared: bool
    selector: str
    ready: int
    unacked: int
    bytes: int
    consumers: int
    destination_base64: str | None = None
    owner: str = ""


class ConsumerQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Selection and order of consumers."""

    destination: Annotated[str, Meta(description="Exact name of the destination.")] = ""
    destination_base64: Annotated[str, Meta(description="The same name in base64.")] = ""
    kind: Annotated[Literal["", "queue", "topic"], Meta(description="Kind of the destination.")] = (
        ""
    )
    connection: Annotated[int, Meta(ge=0, description="ID of the connection; 0 = all.")] = 0
    sort: Annotated[
        Literal["id", "destination", "connection", "credit", "unacked", "delivered"], SORT
    ] = "id"


class ConsumerItem(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A consumer.

    subscription  subscription of the topic; "" for a queue
    credit        number of messages that may still be delivered to it
    active        false while it is on standby
    unacked       number of unacknowledged messages
    delivered     total number of messages delivered to it
    """

    id: int
    destination: str
    kind: KindName
    subscription: str
    connection: int
    protocol: str
    selector: str
    credit: int
    unacked: int
    delivered: int
    active: bool
    destination_base64: str | None = None


LIST_SUBSCRIPTIONS: Final = ApiOperation(
    "listSubscriptions",
    "GET",
    "/subscriptions",
    Need.VISIBLE,
    "List the subscriptions of topics",
    SubscriptionQuery,
    Page[SubscriptionItem],
)
DELETE_SUBSCRIPTION: Final = ApiOperation(
    "deleteSubscription",
    "DELETE",
    "/subscriptions",
    Need.OWNER,
    "Delete a subscription and its messages",
    DeleteSubscription,
    NoneType,
    status=204,
)
LIST_CONSUMERS: Final = ApiOperation(
    "listConsumers",
    "GET",
    "/consumers",
    Need.VISIBLE,
    "List the consumers",
    ConsumerQuery,
    Page[ConsumerItem],
)


# --- Transactions ---------------------------------------------------------------------------------
#
# Operations on open and prepared transactions.


class TransactionQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Selection and order of transactions."""

    state: Annotated[Literal["", "open", "prepared"], Meta(description='"" = both.')] = ""
    sort: Annotated[Literal["started", "state", "publishes", "acks"], SORT] = "started"


class XidView(msgspec.Struct, frozen=True):
    """A global transaction's name: format, and the two parts in hex."""

    format_id: int
    branch_qualifier: str
    global_transaction_id: str


class TransactionItem(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A transaction.

    publishes  number of messages that it publishes
    acks       number of messages that it acknowledges
    started    time of its start in ms since the epoch; after a restart, of its preparation
    owner      user that it belongs to; omitted if it has no owner
    """

    id: str
    state: str
    protocol: str
    publishes: int
    acks: int
    started: int
    xid: XidView | None = None
    owner: str = ""


LIST_TRANSACTIONS: Final = ApiOperation(
    "listTransactions",
    "GET",
    "/transactions",
    Need.VISIBLE,
    "List the open and prepared transactions",
    TransactionQuery,
    Page[TransactionItem],
)
COMMIT_TRANSACTION: Final = ApiOperation(
    "commitTransaction",
    "POST",
    "/transactions/{id}/commit",
    Need.OWNER,
    "Commit a prepared transaction",
    IdPath,
    NoneType,
    status=204,
)
ROLL_BACK_TRANSACTION: Final = ApiOperation(
    "rollBackTransaction",
    "POST",
    "/transactions/{id}/rollback",
    Need.OWNER,
    "Roll back a transaction",
    IdPath,
    NoneType,
    status=204,
)
