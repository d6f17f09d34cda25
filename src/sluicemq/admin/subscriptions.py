"""Endpoints that list and delete subscriptions of topics.

A list contains the subscriptions of the topics that the caller may see. Durable subscriptions are
visible only to their owner and to users who may manage the topic (protocols/ownership.py). The same
users may delete them, which drops their messages.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Annotated, Final, Literal
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.destinations import sees
from sluicemq.admin.durability import wait_until_durable
from sluicemq.admin.errors import ApiError
from sluicemq.admin.pagination import Page, SortedPageQuery, page_of
from sluicemq.admin.printable_names import base64_of, printable
from sluicemq.admin.routing import Call, Endpoint, Need, from_base64
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.broker import Destination, Subscription
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address, Kind, decode_name
from sluicemq.protocols.ownership import may_administer_subscription

_OF_JMS: Final = re.compile(r"(?:shared-)?(?:durable|group|shared|consumer):([^/ ]*)/([^ ]*)")
"""Names of JMQ subscriptions: client id and name, percent-encoded."""


class SubscriptionQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Selection and order of subscriptions."""

    destination: Annotated[str, Meta(description="Exact name of the topic.")] = ""
    destination_base64: Annotated[str, Meta(description="The same name in base64.")] = ""
    filter: Annotated[str, Meta(description="Text anywhere in its name or that of the topic.")] = ""
    durable: Annotated[
        bool | None, Meta(description="Only durable subscriptions, or only others.")
    ] = None
    sort: Literal["destination", "name", "ready", "unacked", "consumers"] = "destination"


class SubscriptionDeletionQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Subscription to delete."""

    name: Annotated[str, Meta(description="Name of the subscription, as in the list.")]
    destination: Annotated[str, Meta(description="Name of the topic.")] = ""
    destination_base64: Annotated[str, Meta(description="The same name in base64.")] = ""
    force: Annotated[bool, Meta(description="Delete it even if it has consumers.")] = False


class SubscriptionItem(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A subscription.

    name          name that identifies it, for example to delete it
    owner         user who owns it; absent if it has no owner or is not durable
    client_id     client ID of its JMS client; "" for other protocols
    display_name  name that its JMS client uses; `name` for other protocols
    """

    destination: str
    kind: str
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


class SubscriptionEndpoints:
    """Handlers of `/subscriptions`."""

    def __init__(self, context: ApiContext) -> None:
        self._broker = context.broker

    async def list(self, call: Call) -> Page[SubscriptionItem]:
        """GET /subscriptions"""
        query: SubscriptionQuery = call.query
        topic_name = _topic_name(query)
        if topic_name:
            topic = self._broker.destinations.find(Address(Kind.TOPIC, topic_name))
            topics = [] if topic is None else [topic]
        else:
            topics = list(self._broker.destinations.values())
        slices = TimeSlices(self._broker)
        found: list[SubscriptionItem] = []
        for topic in topics:
            topic_is_visible = sees(call.identity, topic)
            for subscription in list(topic.subscriptions.values()):
                if (
                    (topic_is_visible or subscription.durable)  # the owner may lack permissions
                    and _is_meant(query, topic, subscription)
                    and sees_subscription(call.identity, subscription)
                ):
                    found.append(_item(topic, subscription))
                if slices.due:
                    await slices.rest()
            if slices.due:
                await slices.rest()
        key = attrgetter(query.sort, "destination", "name")
        found.sort(key=key, reverse=query.order == "desc")
        return page_of(found, query)

    async def delete(self, call: Call) -> None:
        """DELETE /subscriptions"""
        query: SubscriptionDeletionQuery = call.query
        name = _topic_name(query)
        call.note = f"{printable(query.name)} of {printable(name)}"
        broker = self._broker
        topic = broker.destinations.find(Address(Kind.TOPIC, name))
        subscription = None if topic is None else topic.subscriptions.get(query.name)
        if (
            subscription is None
            or not subscription.durable
            or not may_administer_subscription(call.identity, subscription)
        ):
            call.demand(Operation.MANAGE, name)
        if subscription is None:
            raise ApiError(404, "subscription-not-found", "there is no such subscription")
        if subscription.consumers and not query.force:
            raise ApiError(
                409,
                "subscription-in-use",
                f"it has {len(subscription.consumers)} consumers; delete it with force=true",
            )
        kept = subscription.durable
        broker.unsubscribe(subscription)
        if kept:
            await wait_until_durable(broker, broker.last_ack_record)


def sees_subscription(identity: Identity, subscription: Subscription) -> bool:
    """Return whether the user may browse the subscription; the user sees its topic or owns it."""
    return not subscription.durable or may_administer_subscription(identity, subscription)


def _topic_name(query: SubscriptionQuery | SubscriptionDeletionQuery) -> str:
    if query.destination_base64:
        return decode_name(from_base64("destination_base64", query.destination_base64))
    return query.destination


def _is_meant(query: SubscriptionQuery, topic: Destination, subscription: Subscription) -> bool:
    if query.durable is not None and subscription.durable != query.durable:
        return False
    substring = query.filter
    return (
        not substring
        or substring in topic.name
        or substring in subscription.name
        or substring in unquote(subscription.name)
    )


def _item(topic: Destination, subscription: Subscription) -> SubscriptionItem:
    client_id, label = "", subscription.name
    found = _OF_JMS.match(subscription.name)
    if found is not None:
        client_id, label = unquote(found[1]), unquote(found[2])
    selector = subscription.selector
    return SubscriptionItem(
        destination=printable(topic.name),
        destination_base64=base64_of(topic.name),
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
        owner=subscription.owner if subscription.durable else "",
    )


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /subscriptions."""
    handlers = SubscriptionEndpoints(context)
    return [
        Endpoint(
            "GET",
            "/subscriptions",
            "listSubscriptions",
            handlers.list,
            "List the subscriptions of topics",
            Need.VISIBLE,
            query=SubscriptionQuery,
            answer=Page[SubscriptionItem],
        ),
        Endpoint(
            "DELETE",
            "/subscriptions",
            "deleteSubscription",
            handlers.delete,
            "Delete a subscription and its messages",
            Need.OWNER,
            query=SubscriptionDeletionQuery,
            status=204,
        ),
    ]
