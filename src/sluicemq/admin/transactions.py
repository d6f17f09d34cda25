"""Endpoints that list open and prepared transactions, and commit or roll them back.

A prepared transaction waits for the decision of its transaction manager, also after restarts. If
the decision never arrives, an operator can make it (heuristic completion). The broker reports the
outcome to a manager that asks later, as long as the same process runs or the manager has asked
before; otherwise it reports an unknown transaction.

Users see and end their own transactions, and those whose destinations they may all manage
(protocols/ownership.py). Other transactions do not exist for them.

An open transaction belongs to a connected client. It can be rolled back, as after a time-out, but
not committed.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.durability import wait_until_called_back, wait_until_durable
from sluicemq.admin.errors import ApiError
from sluicemq.admin.pagination import Page, SortedPageQuery, page_of
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.broker import Transaction, TransactionState
from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.jmq.fields import decode_xid
from sluicemq.protocols.ownership import may_administer_transaction

_PROTOCOL = "jmq"
"""Protocol of all transactions: only JMQ has transactions that last longer than a request."""


class TransactionQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Selection and order of transactions."""

    state: Annotated[Literal["", "open", "prepared"], Meta(description='"" = both.')] = ""
    sort: Literal["started", "state", "publishes", "acks"] = "started"


class XidView(msgspec.Struct, frozen=True):
    """A global transaction's name: format, and the two parts in hex."""

    format_id: int
    branch_qualifier: str
    global_transaction_id: str


class TransactionItem(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A transaction.

    publishes  number of messages that it publishes
    acks       number of messages that it acknowledges
    started    ms since the epoch; after a restart, the time when it was prepared
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


class TransactionEndpoints:
    """Handlers of `/transactions`."""

    def __init__(self, context: ApiContext) -> None:
        self._broker = context.broker

    async def list(self, call: Call) -> Page[TransactionItem]:
        """GET /transactions"""
        query: TransactionQuery = call.query
        transactions = self._broker.transactions
        slices = TimeSlices(self._broker)
        found: list[TransactionItem] = []
        for each in (*transactions.prepared.values(), *transactions.open.values()):
            if (
                each.state is not TransactionState.ENDED
                and query.state in ("", each.state.value)
                and may_administer_transaction(call.identity, each)
            ):
                found.append(_item(each))
            if slices.due:
                await slices.rest()
        found.sort(key=attrgetter(query.sort, "started", "id"), reverse=query.order == "desc")
        return page_of(found, query)

    async def commit(self, call: Call) -> None:
        """POST /transactions/{id}/commit"""
        transaction = self._find(call)
        if transaction.state is not TransactionState.PREPARED:
            raise ApiError(
                409,
                "transaction-open",
                "its client has not prepared it, and may not have sent everything yet; it can only "
                "be rolled back",
            )
        await wait_until_called_back(
            self._broker, partial(self._broker.transactions.commit, transaction)
        )

    async def roll_back(self, call: Call) -> None:
        """POST /transactions/{id}/rollback"""
        transaction = self._find(call)
        await wait_until_durable(self._broker, self._broker.transactions.rollback(transaction))

    def _find(self, call: Call) -> Transaction:
        transaction_id = call.names["id"]
        transactions = self._broker.transactions
        for each in (*transactions.prepared.values(), *transactions.open.values()):
            if id_of(each) == transaction_id and may_administer_transaction(call.identity, each):
                call.note = f"{len(each.sends)} sent, {len(each.acks)} taken"
                if each.xid:
                    xid = _xid(each.xid)
                    call.note += (
                        f", xid {xid.format_id}:{xid.global_transaction_id}:{xid.branch_qualifier}"
                    )
                return each
        raise ApiError(
            404, "transaction-not-found", "there is no such transaction, or not any more"
        )


def id_of(transaction: Transaction) -> str:
    """Return a unique id of the transaction; for a prepared one, it survives restarts."""
    if transaction.state is TransactionState.PREPARED:
        return f"p{transaction.record}"
    return f"o{transaction.created}.{transaction.number}"


def _item(transaction: Transaction) -> TransactionItem:
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


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /transactions."""
    handlers = TransactionEndpoints(context)
    return [
        Endpoint(
            "GET",
            "/transactions",
            "listTransactions",
            handlers.list,
            "List the open and prepared transactions",
            Need.VISIBLE,
            query=TransactionQuery,
            answer=Page[TransactionItem],
        ),
        Endpoint(
            "POST",
            "/transactions/{id}/commit",
            "commitTransaction",
            handlers.commit,
            "Commit a prepared transaction",
            Need.OWNER,
            status=204,
        ),
        Endpoint(
            "POST",
            "/transactions/{id}/rollback",
            "rollBackTransaction",
            handlers.roll_back,
            "Roll back a transaction",
            Need.OWNER,
            status=204,
        ),
    ]
