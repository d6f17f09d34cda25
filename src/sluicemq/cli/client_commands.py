"""Commands on the resources of clients: `sluicemq connections …`, `subscriptions …`, `consumers`,
`transactions …` and `slots …`."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from msgspec.structs import astuple

from sluicemq.cli.api import (
    Api,
    CommandResult,
    YesFlag,
    action_command,
    confirm,
    list_result,
    query_command,
)
from sluicemq.cli.console import (
    Column,
    UsageError,
    moment,
    number,
    pairs,
    quantity,
    size,
)
from sluicemq.cli.destinations import DefaultListGroup, address_of, complete_name
from sluicemq.cli.message_options import subscription_name
from sluicemq.clients.http import HttpRefusal
from sluicemq.journal.slots import now_ms
from sluicemq.management.clients import (
    CLOSE_CONNECTION,
    COMMIT_TRANSACTION,
    DELETE_SUBSCRIPTION,
    LIST_CONNECTIONS,
    LIST_CONSUMERS,
    LIST_SUBSCRIPTIONS,
    LIST_TRANSACTIONS,
    ROLL_BACK_TRANSACTION,
    ClientProtocol,
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
)
from sluicemq.management.journal import (
    DELETE_SLOT,
    GET_SLOT,
    LIST_SLOTS,
    PUT_SLOT,
    SlotRequest,
    SlotView,
)
from sluicemq.management.operation import (
    ApiOperation,
    IdPath,
    NamedBody,
    NamePath,
    PageQuery,
    kind_name,
)
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import RequestRefused
from sluicemq.server.settings import Unit

# --- `sluicemq connections …` ---------------------------------------------------------------------

connections = typer.Typer(
    cls=DefaultListGroup,
    help="List and close client connections. Default: list.",
)

CONNECTION_COLUMNS: Final[tuple[Column[ConnectionItem], ...]] = (
    Column("ID", lambda item: str(item.id), align_right=True),
    Column(
        "Protocol",
        lambda item: f"{item.protocol}{'+tls' if item.tls else ''}",
        no_fold=True,
    ),
    Column("Peer", lambda item: item.peer),
    Column("User", lambda item: item.user or "-"),
    Column("Client ID", lambda item: item.client_id or "-"),
    Column("Started", lambda item: moment(item.started), no_fold=True, optional=True),
    Column("State", lambda item: item.state, no_fold=True),
    Column("Consumers", lambda item: number(item.consumers), align_right=True),
    Column("Received", lambda item: size(item.received_bytes), align_right=True, optional=True),
    Column("Sent", lambda item: size(item.sent_bytes), align_right=True, optional=True),
)


@query_command(connections, "list")
def list_connections(
    api: Api,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]", help="Only connections with TEXT in peer, user or client."
        ),
    ] = None,
    protocol: Annotated[
        ClientProtocol | None,
        typer.Option("--protocol", metavar="NAME", help="Only this protocol: phpmq, jmq, ..."),
    ] = None,
) -> CommandResult:
    """List the connections of clients."""
    query = ConnectionQuery(filter=text or "", protocol=protocol or "")
    empty = "There are no connections." if text is None else f"No connection matches {text}."
    return list_result(api.items(LIST_CONNECTIONS, query), CONNECTION_COLUMNS, empty)


@action_command(connections, "close")
def close(
    api: Api,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Connection ids, as listed.")],
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Reason, recorded in the log.")
    ] = None,
    yes: YesFlag = False,
) -> CommandResult:
    """Close connections. Their unacknowledged messages are redelivered."""
    target = f"connection {ids[0]}" if len(ids) == 1 else f"{len(ids)} connections"
    confirm(f"Close {target}?", yes)
    closed, errors = [], []
    for connection_id in ids:
        try:
            api.call(CLOSE_CONNECTION, CloseConnection(id=connection_id, reason=reason or ""))
        except HttpRefusal as error:
            errors.append(str(error))
        else:
            closed.append(connection_id)
    text = f"Closed {len(closed)} of {len(ids)}."
    return CommandResult({"closed": closed}, text, errors=errors)


# --- `sluicemq subscriptions …` and `sluicemq consumers` ------------------------------------------

subscriptions = typer.Typer(
    cls=DefaultListGroup,
    help="List topic subscriptions, delete durable ones. Default: list.",
)

SUBSCRIPTION_COLUMNS: Final[tuple[Column[SubscriptionItem], ...]] = (
    Column("Topic", lambda item: item.destination),
    Column("Subscription", lambda item: item.display_name),
    Column("Client ID", lambda item: item.client_id or "-"),
    Column("Owner", lambda item: item.owner or "-", optional=True),
    Column("Kind", lambda item: _kind(item), no_fold=True, optional=True),
    Column("Ready", lambda item: number(item.ready), align_right=True),
    Column("Unacked", lambda item: number(item.unacked), align_right=True),
    Column("Consumers", lambda item: number(item.consumers), align_right=True),
    Column("Selector", lambda item: item.selector or "", optional=True),
)


@query_command(subscriptions, "list")
def list_subscriptions(
    api: Api,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="Only subscriptions with TEXT in the name."),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="NAME", help="Only subscriptions of this topic."),
    ] = None,
) -> CommandResult:
    """List the subscriptions of topics."""
    name = _topic(topic) if topic is not None else ""
    query = SubscriptionQuery(destination=name, filter=text or "")
    empty = "There are no such subscriptions."
    return list_result(api.items(LIST_SUBSCRIPTIONS, query), SUBSCRIPTION_COLUMNS, empty)


@action_command(subscriptions, "delete")
def delete(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Subscription name, as listed.", show_default=False),
    ],
    client_id: Annotated[
        str | None,
        typer.Option(
            "--client-id", metavar="ID", help="Client id, if several clients have the name."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even if it has consumers.")] = False,
    yes: YesFlag = False,
) -> CommandResult:
    """Delete a durable subscription and its messages."""
    destination = _topic(topic)
    confirm(f"Delete the subscription {name} of the topic {destination}, with its messages?", yes)
    subscription = subscription_name(api, Address(Kind.TOPIC, destination), name, client_id)
    api.call(
        DELETE_SUBSCRIPTION,
        DeleteSubscription(name=subscription, destination=destination, force=force),
    )
    return CommandResult(
        {"deleted": name, "destination": destination},
        f"Deleted the subscription {name} of the topic {destination}.",
    )


def _topic(text: str) -> str:
    """Return the topic's name: `prices` and `topic:prices` are the same topic."""
    address = address_of(text if text.startswith(("topic:", "queue:")) else f"topic:{text}")
    if address.kind is not Kind.TOPIC:
        raise UsageError(f"{text}: only topics have subscriptions")
    return address.name


def _kind(item: SubscriptionItem) -> str:
    return f"{'durable' if item.durable else 'while connected'}{', shared' if item.shared else ''}"


consumers = typer.Typer(
    cls=DefaultListGroup,
    help="List the consumers of one destination or of all. Default: list.",
)


CONSUMER_COLUMNS: Final[tuple[Column[ConsumerItem], ...]] = (
    Column("ID", lambda item: str(item.id), align_right=True),
    Column(
        "Destination",
        lambda item: f"topic:{item.destination}" if item.kind == "topic" else item.destination,
    ),
    Column("Subscription", lambda item: item.subscription or "-"),
    Column("Protocol", lambda item: item.protocol, no_fold=True, optional=True),
    Column("Connection", lambda item: str(item.connection or "-"), align_right=True),
    Column("Unacked", lambda item: number(item.unacked), align_right=True),
    Column(
        "Credit", lambda item: number(item.credit) if item.active else "standby", align_right=True
    ),
    Column("Delivered", lambda item: number(item.delivered), align_right=True),
    Column("Selector", lambda item: item.selector or "", optional=True),
)


@query_command(consumers, "list")
def list_consumers(
    api: Api,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Only consumers of this queue, or topic:NAME.",
            autocompletion=complete_name,
        ),
    ] = None,
) -> CommandResult:
    """List the consumers."""
    address = address_of(name) if name is not None else None
    query = ConsumerQuery()
    if address is not None:
        query = ConsumerQuery(destination=address.name, kind=kind_name(address.kind))
    empty = f"There are no consumers{f' of {name}' if name else ''}."
    return list_result(api.items(LIST_CONSUMERS, query), CONSUMER_COLUMNS, empty)


# --- `sluicemq transactions …` --------------------------------------------------------------------
#
# An administrator commits or rolls back a prepared transaction whose coordinator does not return.

transactions = typer.Typer(
    cls=DefaultListGroup,
    help="List transactions, commit or roll back prepared ones by hand. Default: list.",
)

TRANSACTION_COLUMNS: Final[tuple[Column[TransactionItem], ...]] = (
    Column("ID", lambda item: item.id, align_right=True),
    Column("State", lambda item: item.state, no_fold=True),
    Column("Protocol", lambda item: item.protocol or "-", no_fold=True, optional=True),
    Column("Owner", lambda item: item.owner or "-"),
    Column("Publishes", lambda item: number(item.publishes), align_right=True),
    Column("Acks", lambda item: number(item.acks), align_right=True),
    Column("Created", lambda item: moment(item.started or 0), no_fold=True),
    Column("XID", lambda item: " ".join(map(str, astuple(item.xid))) if item.xid else "-"),
)
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Transaction id, as listed.", show_default=False)
]


@query_command(transactions, "list")
def list_transactions(
    api: Api,
    prepared: Annotated[
        bool, typer.Option("--prepared", help="Only prepared transactions.")
    ] = False,
) -> CommandResult:
    """List the transactions."""
    query = TransactionQuery(state="prepared" if prepared else "")
    empty = f"There are no {'prepared' if prepared else 'open'} transactions."
    return list_result(api.items(LIST_TRANSACTIONS, query), TRANSACTION_COLUMNS, empty)


@action_command(transactions, "commit")
def commit(api: Api, transaction: IdArgument, yes: YesFlag = False) -> CommandResult:
    """Commit a prepared transaction in place of its coordinator."""
    return _decide(api, COMMIT_TRANSACTION, transaction, "commit", "Committed", yes)


@action_command(transactions, "rollback")
def rollback(api: Api, transaction: IdArgument, yes: YesFlag = False) -> CommandResult:
    """Roll back a prepared transaction in place of its coordinator."""
    return _decide(api, ROLL_BACK_TRANSACTION, transaction, "rollback", "Rolled back", yes)


def _decide(
    api: Api,
    operation: ApiOperation[IdPath, None],
    transaction: str,
    verdict: str,
    done: str,
    yes: bool,
) -> CommandResult:
    confirm(
        f"Decide transaction {transaction} by hand ({verdict})? Its coordinator may have decided "
        "otherwise elsewhere.",
        yes,
    )
    api.call(operation, IdPath(id=transaction))
    return CommandResult({"id": transaction, "state": verdict}, f"{done} {transaction}.")


# --- `sluicemq slots …` ---------------------------------------------------------------------------
#
# The slots of a running broker. `sluicemq journal slots` manages those of a stopped broker's
# journal.

slots = typer.Typer(
    cls=DefaultListGroup,
    help="List, create, advance and delete retention slots. Default: list.",
)

SLOT_COLUMNS: Final[tuple[Column[SlotView], ...]] = (
    Column("Slot", lambda item: item.name),
    Column("Position", lambda item: str(item.position), align_right=True),
    Column("Lag", lambda item: number(item.lag_records), align_right=True),
    Column("Limit", lambda item: size(item.limit_bytes), align_right=True),
    Column("Created", lambda item: moment(item.created), no_fold=True, optional=True),
    Column(
        "Moved",
        lambda item: moment(item.last_advanced) if item.last_advanced else "never",
        no_fold=True,
    ),
    Column("State", lambda item: _slot_state(item), no_fold=True),
)


def _slot_state(item: SlotView) -> str:
    if 0 < item.lease_until <= now_ms():
        return "expired"
    return "lost (idle)" if item.idle_expired else "lost" if item.lost else "held"


NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
PositionOption = Annotated[
    int,
    typer.Option("--position", min=0, help="Last sequence number that the reader has processed."),
]


@query_command(slots, "list")
def list_slots(api: Api) -> CommandResult:
    """List the slots."""
    empty = "There are no slots. A pipeline's first run creates one."
    return list_result(api.items(LIST_SLOTS, PageQuery()), SLOT_COLUMNS, empty)


@query_command(slots, "show")
def show_slot(api: Api, name: NameArgument) -> CommandResult:
    """Show one slot, and the number of records that its reader has not processed (lag)."""
    slot = api.call(GET_SLOT, NamePath(name=name))
    return CommandResult(
        slot,
        output=pairs([(column.title.lower(), str(column.of(slot))) for column in SLOT_COLUMNS]),
    )


@action_command(slots, "create")
def create_slot(
    api: Api,
    name: NameArgument,
    position: PositionOption = 0,
    limit: Annotated[
        str | None,
        typer.Option(
            "--limit", metavar="SIZE", help="Maximum journal retained for it, such as 5GiB."
        ),
    ] = None,
) -> CommandResult:
    """Create a slot: the journal is retained from its position on. Fails if it exists."""
    if name in {slot.name for slot in api.items(LIST_SLOTS, PageQuery())}:
        raise RequestRefused(f"the slot {name} exists already; slots advance moves it")
    body = SlotRequest(
        position, int(quantity("--limit", limit, Unit.BYTES)) if limit is not None else None
    )
    slot = api.call(PUT_SLOT, NamedBody(name=name, body=body))
    return CommandResult(slot, f"The slot {name} is at {slot.position}.")


@action_command(slots, "advance")
def advance_slot(api: Api, name: NameArgument, position: PositionOption) -> CommandResult:
    """Advance a slot; the journal before its position may be deleted."""
    slot = api.call(GET_SLOT, NamePath(name=name))
    if position < slot.position:
        raise UsageError(f"the slot {name} is at {slot.position} and cannot go back to {position}")
    slot = api.call(PUT_SLOT, NamedBody(name=name, body=SlotRequest(position)))
    return CommandResult(slot, f"The slot {name} is at {slot.position}.")


@action_command(slots, "delete")
def delete_slot(api: Api, name: NameArgument, yes: YesFlag = False) -> CommandResult:
    """Delete a slot; its reader has to start over."""
    confirm(f"Delete the slot {name}?", yes)
    api.call(DELETE_SLOT, NamePath(name=name))
    return CommandResult({"deleted": name}, f"Deleted the slot {name}.")
