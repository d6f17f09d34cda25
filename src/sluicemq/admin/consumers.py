"""Endpoint that lists the consumers of the destinations that the caller may see."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.destinations import sees
from sluicemq.admin.pagination import Page, SortedPageQuery, page_of
from sluicemq.admin.printable_names import base64_of, printable
from sluicemq.admin.routing import KINDS, Call, Endpoint, Need, from_base64
from sluicemq.admin.server_interface import AttachedConsumer
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.model.destination import Kind, decode_name


class ConsumerQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Selection and order of consumers."""

    destination: Annotated[str, Meta(description="Exact name of the destination.")] = ""
    destination_base64: Annotated[str, Meta(description="The same name in base64.")] = ""
    kind: Annotated[Literal["", "queue", "topic"], Meta(description="Kind of the destination.")] = (
        ""
    )
    connection: Annotated[int, Meta(ge=0, description="ID of the connection; 0 = all.")] = 0
    sort: Literal["id", "destination", "connection", "credit", "unacked", "delivered"] = "id"


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
    kind: str
    subscription: str
    connection: int
    protocol: str
    selector: str
    credit: int
    unacked: int
    delivered: int
    active: bool
    destination_base64: str | None = None


class ConsumerEndpoints:
    """Handlers of `/consumers`."""

    def __init__(self, context: ApiContext) -> None:
        self._broker = context.broker
        self._connections = context.connections

    async def list(self, call: Call) -> Page[ConsumerItem]:
        """GET /consumers"""
        query: ConsumerQuery = call.query
        name = query.destination
        if query.destination_base64:
            name = decode_name(from_base64("destination_base64", query.destination_base64))
        kind = KINDS.get(query.kind)
        slices = TimeSlices(self._broker)
        found: list[ConsumerItem] = []
        for attached in self._connections.consumers():
            destination = attached.consumer.subscription.destination
            address = destination.address
            if (
                (not name or address.name == name)
                and (kind is None or address.kind is kind)
                and (not query.connection or attached.connection == query.connection)
                and sees(call.identity, destination)
            ):
                found.append(_item(attached))
            if slices.due:
                await slices.rest()
        found.sort(key=attrgetter(query.sort, "id"), reverse=query.order == "desc")
        return page_of(found, query)


def _item(attached: AttachedConsumer) -> ConsumerItem:
    consumer = attached.consumer
    subscription = consumer.subscription
    destination = subscription.destination
    selector = consumer.pending_queue.selector or subscription.selector
    return ConsumerItem(
        id=consumer.number,
        destination=printable(destination.name),
        destination_base64=base64_of(destination.name),
        kind="topic" if destination.address.kind is Kind.TOPIC else "queue",
        subscription=printable(subscription.name),
        connection=attached.connection,
        protocol=attached.protocol,
        selector="" if selector is None else printable(selector.text),
        credit=max(0, consumer.window.credit),
        unacked=len(consumer.unacked),
        delivered=consumer.delivered,
        active=consumer.active,
    )


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /consumers."""
    handlers = ConsumerEndpoints(context)
    return [
        Endpoint(
            "GET",
            "/consumers",
            "listConsumers",
            handlers.list,
            "List the consumers",
            Need.VISIBLE,
            query=ConsumerQuery,
            answer=Page[ConsumerItem],
        )
    ]
