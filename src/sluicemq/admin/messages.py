"""Endpoints that list the messages of a queue or topic subscription and show one message.

A request selects a page by its offset or by the cursor of the previous page. The cursor is the
position of that page's last message and survives concurrent changes.
Skipped messages are not read (broker/cursor.py).

With a selector every message has to be examined. A request does so in time slices, within limits of
time and of messages; then it returns the messages found so far, and a cursor to continue.
"""

from __future__ import annotations

import asyncio
import re
from itertools import islice
from time import perf_counter
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.destinations import found
from sluicemq.admin.errors import ApiError
from sluicemq.admin.message_view import (
    PROTOCOLS,
    AddressView,
    BodyView,
    DeadLetterView,
    PropertyView,
    address_view,
    body_view,
    death_view,
    property_views,
    raw_body,
    view_of_body,
)
from sluicemq.admin.pagination import Page, PageQuery
from sluicemq.admin.printable_names import printable
from sluicemq.admin.routing import Call, Endpoint
from sluicemq.admin.subscriptions import sees_subscription
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.broker import (
    NO_END,
    Broker,
    Cursor,
    Delivery,
    Destination,
    Selector,
    Subscription,
    is_held,
)
from sluicemq.model.access import Operation
from sluicemq.model.errors import JournalError, SelectorError
from sluicemq.model.message import Message

STEP: Final = 20
"""Messages scanned between two checks of the clock."""
SKIP_BUDGET: Final = 20_000
"""Messages that one call of `Cursor.skip` may visit; takes a few ms."""
PREVIEW_BYTES: Final = 4096
"""Maximum number of bytes of each body in a list."""
LARGEST_VIEW: Final = 1 << 20

_ID: Final = re.compile(r"(m?)([1-9][0-9]{0,18})")
_CURSOR: Final = re.compile(r"([0-9])\.([0-9]{1,19})\.([0-9]{1,19})")

State = Literal["ready", "unacked", "scheduled"]


class MessageQuery(PageQuery, kw_only=True, frozen=True):
    """Selection of messages."""

    subscription: Annotated[str, Meta(description="Of a topic: the name of its subscription.")] = ""
    selector: Annotated[str, Meta(description="Only messages that match this JMS selector.")] = ""
    state: State = "ready"
    cursor: Annotated[
        str, Meta(description="`next_cursor` of the previous page; replaces `offset`.")
    ] = ""
    body: Annotated[bool, Meta(description="Include the beginning of each body.")] = False


class MessageLookupQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Options for reading one message."""

    subscription: Annotated[str, Meta(description="Of a topic: the name of its subscription.")] = ""
    max_body_bytes: Annotated[
        int, Meta(ge=0, le=LARGEST_VIEW, description="Maximum bytes of the body.")
    ] = 65536


class SubscriptionChoiceQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Subscription that contains the message."""

    subscription: Annotated[str, Meta(description="Of a topic: the name of its subscription.")] = ""


class MessageItem(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A message in a list. Times in ms since the epoch, 0 = none; sizes in bytes.

    id          number in the journal; with the prefix `m` if the message is in memory only
    position    position among the messages of its state, from 0; null if unknown
    protocol    protocol it was published with; `http` for this API and batches
    body_kind   none, text, json, bytes, map, stream, object
    timestamp   time by the client's clock if its protocol has a timestamp; otherwise `published`
    published   time at which the broker accepted the message, by the broker's clock
    deliver_at  earliest time of delivery; for a scheduled message, the end of the delay
    attempts    number of deliveries so far
    unacked_by  holder of an unacked message: a consumer, or a transaction that has not ended
    """

    id: str
    position: int | None
    state: State
    subscription: str
    unacked_by: Literal["consumer", "transaction"] | None
    protocol: str
    body_kind: str
    size: int
    priority: int
    timestamp: int
    published: int
    expiration: int
    deliver_at: int
    attempts: int
    redelivered: bool
    durability: str
    message_id: str
    correlation_id: str
    reply_to: AddressView | None
    type: str
    property_count: int
    damaged: bool = False
    body: BodyView | None = None


class MessagePage(Page[MessageItem], kw_only=True, frozen=True):
    """A page of messages: `total` is the number of messages in the requested state, null with a
    selector; `scanned` the number of messages examined."""

    scanned: int


class MessageView(MessageItem, kw_only=True, frozen=True, omit_defaults=True):
    """A whole message."""

    properties: dict[str, PropertyView]
    dead_letter: DeadLetterView | None


class ScanBudget:
    """Time and number of messages that one request may spend on scanning."""

    def __init__(self, context: ApiContext) -> None:
        limits = context.limits
        self._until = perf_counter() + limits.scan_seconds
        self._left = limits.scan
        self.scanned = 0

    def spend(self, count: int) -> None:
        """Subtract `count` scanned messages from the budget."""
        self.scanned += count
        self._left -= count

    @property
    def over(self) -> bool:
        """True if the budget is used up."""
        return self._left <= 0 or perf_counter() > self._until


class MessageEndpoints:
    """Handlers of `/destinations/{kind}/{name}/messages`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._broker = context.broker

    async def index(self, call: Call) -> MessagePage:
        """GET …/messages"""
        query: MessageQuery = call.query
        subscription = subscription_of(call, found(self._context, call), query.subscription)
        selector = await compiled(self._broker, query.selector)
        if query.offset and selector is not None:
            raise ApiError(
                400,
                "bad-parameter",
                "with a selector there is no offset: pages follow from one to the next",
            )
        if query.state == "ready":
            return await self._waiting(subscription, query, selector)
        return await self._others(subscription, query, selector)

    async def _waiting(
        self, subscription: Subscription, query: MessageQuery, selector: Selector | None
    ) -> MessagePage:
        cursor, place = subscription.cursor(), query.offset
        slices = TimeSlices(self._broker)
        if query.cursor:
            priority, last, place = read_cursor(query.cursor)
            cursor = subscription.cursor(NO_END, priority, last)
        else:
            place -= await _skip(subscription, cursor, place, slices)
        budget = ScanBudget(self._context)
        items: list[MessageItem] = []
        while len(items) < query.limit and cursor.priority >= 0 and not budget.over:
            for delivery in cursor.look(min(STEP, query.limit - len(items))):
                budget.spend(1)
                if selector is None:
                    items.append(self._item(delivery, "ready", place, query.body))
                elif selects(self._broker, selector, delivery):
                    items.append(self._item(delivery, "ready", None, query.body))
                place += 1
                if slices.due:
                    cursor.back_to(delivery)
                    break
            if slices.due:
                await slices.rest()
        return MessagePage(
            items=items,
            total=subscription.ready if selector is None else None,
            next_cursor=encode_cursor(cursor.priority, cursor.last, place)
            if cursor.more()
            else None,
            scanned=budget.scanned,
        )

    async def _others(
        self, subscription: Subscription, query: MessageQuery, selector: Selector | None
    ) -> MessagePage:
        """Return a page of unacked or delayed messages, addressed by offset.

        The pending queue does not contain them, so the cursor is an offset instead of a position.
        """
        broker = self._broker
        place = query.offset
        if query.cursor:
            _, _, place = read_cursor(query.cursor)
        in_step = STEP if selector is not None else query.limit
        slices = TimeSlices(self._broker)
        budget = ScanBudget(self._context)
        items: list[MessageItem] = []
        more = True
        while more and len(items) < query.limit and not budget.over:
            count = min(in_step, query.limit - len(items))
            if query.state == "unacked":
                deliveries = broker.operations.in_flight(subscription, place, count)
            else:
                deliveries = delayed(subscription, place, count)
            more = len(deliveries) == count
            for delivery in deliveries:
                budget.spend(1)
                if selector is None or selects(broker, selector, delivery):
                    position = place if selector is None else None
                    items.append(self._item(delivery, query.state, position, query.body))
                place += 1
                if slices.due:
                    more = True
                    break
            if slices.due:
                await slices.rest()
        there = subscription.unacked if query.state == "unacked" else len(subscription.delayed)
        return MessagePage(
            items=items,
            total=there if selector is None else None,
            next_cursor=encode_cursor(0, 0, place) if place < there else None,
            scanned=budget.scanned,
        )

    def _item(
        self, delivery: Delivery, state: State, position: int | None, body: bool
    ) -> MessageItem:
        try:
            broker = self._broker
            message = broker.read(delivery) if body else broker.glance(delivery)
        except JournalError:
            return damaged(self._broker, delivery, state, position)
        preview = view_of_body(message, PREVIEW_BYTES) if body else None
        return item(self._broker, delivery, message, state, position, preview)

    async def show(self, call: Call) -> MessageView:
        """GET …/messages/{id}"""
        query: MessageLookupQuery = call.query
        delivery, message = self._one(call, query.subscription)
        summary = item(self._broker, delivery, message, state_of(delivery), None)
        properties, dead = property_views(message), death_view(message)
        fields = {name: getattr(summary, name) for name in MessageItem.__struct_fields__}
        fields["body"] = await body_view(message, query.max_body_bytes)
        return MessageView(**fields, properties=properties, dead_letter=dead)

    async def body(self, call: Call) -> Response:
        """GET …/messages/{id}/body: to be kept, never to be shown by a browser."""
        delivery, message = self._one(call, call.query.subscription)
        headers = {
            "Content-Disposition": f'attachment; filename="message-{delivery.sequence}.bin"',
            "Content-Security-Policy": "default-src 'none'; sandbox",
        }
        return Response(raw_body(message), 200, headers, "application/octet-stream")

    def _one(self, call: Call, name: str) -> tuple[Delivery, Message]:
        """Return the message of the path and its delivery. Raises ApiError if it does not exist."""
        subscription = subscription_of(call, found(self._context, call), name)
        delivery = by_id(self._broker, subscription, call.names["id"])
        if delivery is None:
            raise ApiError(404, "message-not-found", "no such message is here, or it has gone")
        return delivery, self._broker.read(delivery)


# --- what actions need too -----------------------------------------------------------------------


def subscription_of(call: Call, destination: Destination, name: str) -> Subscription:
    """Return the subscription of a topic with that name; without one a destination's own.

    Raises ApiError if none exists that the caller may browse.
    """
    if not name:
        return destination.queue
    subscription = destination.subscriptions.get(name)
    if subscription is None or not sees_subscription(call.identity, subscription):
        raise ApiError(
            404, "subscription-not-found", f"there is no subscription {printable(name)} here"
        )
    return subscription


async def compiled(broker: Broker, text: str) -> Selector | None:
    """Compile a selector; None for an empty one. Raises ApiError for an invalid selector.

    Runs on another thread, because the first compilation loads the grammar, which takes long.
    """
    if not text.strip():
        return None
    try:
        return await asyncio.to_thread(broker.compile_selector, text)
    except SelectorError as error:
        raise ApiError(400, "bad-selector", str(error), more={"position": error.position}) from None


def selects(broker: Broker, selector: Selector, delivery: Delivery) -> bool:
    """Return whether the selector matches a message; False if the message cannot be read."""
    try:
        return selector(broker.glance(delivery))
    except JournalError:
        return False


def by_id(broker: Broker, subscription: Subscription, text: str) -> Delivery | None:
    """Return the delivery of the message with that id; None if there is none."""
    read = _ID.fullmatch(text)
    if read is None:
        return None
    delivery = broker.operations.find(subscription, int(read[2]))
    if delivery is None or bool(delivery.journaled) == bool(read[1]):
        return None
    return delivery


def id_of(delivery: Delivery) -> str:
    """Return the message id that `by_id` accepts."""
    return f"{delivery.sequence}" if delivery.journaled else f"m{delivery.sequence}"


def delayed(subscription: Subscription, offset: int, count: int) -> list[Delivery]:
    """Return `count` delayed messages from `offset`, in the order in which they were delayed."""
    return list(islice(subscription.delayed.values(), offset, offset + count))


def encode_cursor(priority: int, last: int, place: int) -> str:
    """Encode a cursor as the text of `next_cursor`."""
    return f"{priority}.{last}.{place}"


def read_cursor(text: str) -> tuple[int, int, int]:
    """Decode the text of `next_cursor`. Raises ApiError for any other text."""
    read = _CURSOR.fullmatch(text)
    numbers = [int(each) for each in read.groups()] if read is not None else []
    if not numbers or max(numbers) > NO_END:
        raise ApiError(
            400, "bad-cursor", "the cursor is not the next_cursor of an earlier response"
        )
    return numbers[0], numbers[1], numbers[2]


def state_of(delivery: Delivery) -> State:
    """Return the API's name for the state of a delivery."""
    if delivery.ready:
        return "ready"
    return "scheduled" if delivery.scheduled else "unacked"


def _holder(delivery: Delivery, state: State) -> Literal["consumer", "transaction"] | None:
    if state != "unacked":
        return None
    return "consumer" if is_held(delivery) else "transaction"


def item(
    broker: Broker,
    delivery: Delivery,
    message: Message,
    state: State,
    position: int | None,
    body: BodyView | None = None,
) -> MessageItem:
    """Return the list entry of a message."""
    epoch = broker.clock.epoch
    due = delivery.delivered + epoch if state == "scheduled" else message.deliver_at
    return MessageItem(
        id=id_of(delivery),
        position=position,
        state=state,
        subscription=printable(delivery.subscription.name),
        unacked_by=_holder(delivery, state),
        protocol=PROTOCOLS[message.origin],
        body_kind=message.kind.name.lower(),
        size=delivery.size,
        priority=message.priority,
        timestamp=message.timestamp,
        published=message.arrival,
        expiration=delivery.expires + epoch if delivery.expires else 0,
        deliver_at=due,
        attempts=delivery.attempts,
        redelivered=delivery.attempts > (state == "unacked"),
        durability=message.durability.name.lower(),
        message_id=printable(message.message_id),
        correlation_id=printable(message.correlation_id),
        reply_to=address_view(message.reply_to) if message.reply_to is not None else None,
        type=printable(message.type),
        property_count=len(message.properties or ()),
        body=body,
    )


def damaged(broker: Broker, delivery: Delivery, state: State, position: int | None) -> MessageItem:
    """Return the list entry of a message that the journal cannot read."""
    destination = delivery.subscription.destination.address
    blank = Message(destination, b"", priority=delivery.priority)
    view = item(broker, delivery, blank, state, position)
    return msgspec.structs.replace(view, body_kind="none", damaged=True)


async def _skip(
    subscription: Subscription, cursor: Cursor[Delivery], count: int, slices: TimeSlices
) -> int:
    """Skip `count` messages; return how many of them did not exist."""
    while count and cursor.priority >= 0:
        count -= cursor.skip(count, subscription.clean, SKIP_BUDGET)
        if slices.due:
            await slices.rest()
    return count


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints that list and show messages."""
    handlers = MessageEndpoints(context)
    messages = "/destinations/{kind}/{name}/messages"
    need = Operation.BROWSE
    return [
        Endpoint(
            "GET",
            messages,
            "listMessages",
            handlers.index,
            "List ready, unacked or scheduled messages",
            need,
            query=MessageQuery,
            answer=MessagePage,
        ),
        Endpoint(
            "GET",
            f"{messages}/{{id}}",
            "getMessage",
            handlers.show,
            "Show a message",
            need,
            query=MessageLookupQuery,
            answer=MessageView,
        ),
        Endpoint(
            "GET",
            f"{messages}/{{id}}/body",
            "getMessageBody",
            handlers.body,
            "Download the body of a message",
            need,
            query=SubscriptionChoiceQuery,
            media="application/octet-stream",
        ),
    ]
