"""Endpoints that list the messages of a queue or topic subscription and show one message.

A request selects a page by its offset or by the cursor of the previous page. The cursor of ready
messages is the position of that page's last message and survives concurrent changes; that of others
is an offset. Skipped messages are not read (broker/pending/cursor.py).

With a selector every message has to be examined. A request does so in time slices, within limits of
time and of messages; then it returns the messages found so far, and a cursor to continue.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from itertools import islice
from math import inf, isfinite
from time import perf_counter
from typing import Any, Final, Literal

import msgspec
from starlette.responses import Response, StreamingResponse

from sluicemq.admin.clients import may_see_subscription
from sluicemq.admin.destinations import find_destination, intact_head
from sluicemq.admin.endpoints import ApiContext, Call, Service, handles
from sluicemq.admin.errors import ApiError, base64_of, printable
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.broker import (
    NO_END,
    Broker,
    Cursor,
    Delivery,
    Destination,
    Selector,
    Subscription,
)
from sluicemq.management.destinations import AddressView
from sluicemq.management.messages import (
    GET_MESSAGE,
    GET_MESSAGE_BODY,
    LIST_MESSAGES,
    BodyView,
    DeadLetterView,
    MessageItem,
    MessageLookup,
    MessagePage,
    MessagePath,
    MessageQuery,
    MessageState,
    MessageView,
    PropertyView,
)
from sluicemq.management.operation import MAX_EXACT, is_utf_8, kind_name
from sluicemq.model.dead_letters import ATTEMPTS, REASON, TIME, origin_of
from sluicemq.model.destination import Address
from sluicemq.model.errors import (
    BrokerStopping,
    JournalDamaged,
    JournalError,
    ProtocolError,
    RecordNotFound,
    SelectorError,
)
from sluicemq.model.message import BodyKind, Message, Origin
from sluicemq.protocols.java import (
    MAX_SIZE,
    Byte,
    Char,
    Float,
    Long,
    Short,
    loads_map,
    loads_stream,
)
from sluicemq.protocols.transcoding import expanded, plain_body

# --- Representation of messages -------------------------------------------------------------------
#
# Representation of messages in the API: decoded by the code of the protocol that published them,
# and never as content that a browser would execute.
#
# The encodings of values are those of `sluicemq.management.messages`.

PROTOCOLS: Final = {
    Origin.INTERNAL: "http",
    Origin.PHPMQ: "phpmq",
    Origin.VIBEMQ: "vibemq",
    Origin.JMQ: "jmq",
    Origin.MSGLITE: "msglite",
}
_CLASS_AT: Final = 8
"""Offset of the class name in a serialization stream that begins with an object."""


def address_view(address: Address) -> AddressView:
    """Return the JSON view of an address."""
    return AddressView(
        kind=kind_name(address.kind),
        name=printable(address.name),
        name_base64=base64_of(address.name),
    )


def dead_letter_view(message: Message) -> DeadLetterView | None:
    """Return the dead-letter view of a message; None if it is not a dead letter."""
    properties = message.properties or {}
    reason = properties.get(REASON)
    if reason is None:
        return None
    origin = origin_of(message)
    attempts = properties.get(ATTEMPTS)
    return DeadLetterView(
        reason=printable(str(reason)),
        original_destination=address_view(origin.address) if origin is not None else None,
        subscription=printable(origin.subscription) if origin is not None else "",
        attempts=attempts if isinstance(attempts, int) else None,
        time=printable(str(properties.get(TIME, ""))),
    )


def view_of_body(message: Message, max_bytes: int, limit: int = MAX_SIZE) -> BodyView:
    """Return the view of the body, or of its first `max_bytes`. A body that has more than `limit`
    bytes is not decompressed."""
    kind = message.kind
    name = kind.name.lower()
    if kind in (BodyKind.MAP, BodyKind.STREAM):
        try:
            body = expanded(message, limit)
            if len(body) <= max_bytes:
                return _decoded(kind, name, body)
        except ProtocolError:
            body = message.body
        return _in_base64(name, "base64", body, max_bytes)
    plain, body = plain_body(message, limit)
    if kind is BodyKind.OBJECT:
        view = _in_base64(name, "object", body, max_bytes)
        return msgspec.structs.replace(view, class_=java_class_name(body))
    if plain in (BodyKind.TEXT, BodyKind.JSON, BodyKind.NONE):
        return BodyView(
            kind=plain.name.lower(),
            encoding="json" if plain is BodyKind.JSON else "text",
            value=body[:max_bytes].decode("utf-8", "ignore"),
            truncated=len(body) > max_bytes,
        )
    return _in_base64(name, "base64", body, max_bytes)


def raw_body(message: Message) -> bytes:
    """Return the body as the publishing program supplied it; as it was sent if it cannot be
    decoded."""
    try:
        return expanded(message)
    except ProtocolError:
        return message.body


def java_class_name(stream: bytes) -> str:
    """Return the class name of the first object of a Java serialization stream, or ""; no class is
    loaded."""
    if stream[4:6] != b"sr":
        return ""
    length = int.from_bytes(stream[_CLASS_AT - 2 : _CLASS_AT], "big")
    name = stream[_CLASS_AT : _CLASS_AT + length].decode("ascii", "replace")
    return printable(name) if len(name) == length else ""


def _decoded(kind: BodyKind, name: str, body: bytes) -> BodyView:
    """Return the decoded body. Raises ProtocolError for an invalid body."""
    value: Any
    if kind is BodyKind.MAP:
        value = {printable(key): _view(element, True) for key, element in loads_map(body).items()}
    else:
        value = [_view(element, True) for element in loads_stream(body)]
    return BodyView(kind=name, encoding=name, value=value, truncated=False)


def _in_base64(kind: str, encoding: str, body: bytes, limit: int) -> BodyView:
    return BodyView(
        kind=kind,
        encoding=encoding,
        value=b64encode(body[:limit]).decode(),
        truncated=len(body) > limit,
    )


_JAVA: Final[dict[type, str]] = {
    Byte: "byte",
    Short: "short",
    Char: "char",
    Long: "long",
    Float: "float",
    int: "int",
    float: "double",
}


_TYPES: Final = (
    (bool, "boolean"),
    (int, "int"),
    (float, "float"),
    (bytes, "bytes"),
    (dict, "map"),
    (type(None), "null"),
    (object, "string"),
)
"""Types of values by the first class that they are instances of."""


def _view(value: Any, java: bool = False) -> PropertyView:
    """Return the view of a value; `java` if it is from a map or stream, whose numbers have
    widths."""
    name = next(name for kind, name in _TYPES if isinstance(value, kind))
    json_value = value
    if name == "int":
        json_value = int(value) if abs(value) <= MAX_EXACT else str(value)
    elif name == "float":
        json_value = float(value) if isfinite(value) else str(float(value))
    elif name == "bytes":
        json_value = b64encode(value).decode()
    elif name == "map":
        json_value = {printable(str(key)): _view(element, java) for key, element in value.items()}
    elif name == "string":
        json_value = str(value)
        if not is_utf_8(json_value):  # JSON cannot represent lone surrogates
            json_value = ascii(json_value)[1:-1]
    return PropertyView(type=_JAVA.get(type(value), name) if java else name, value=json_value)


SKIP_BUDGET: Final = 20_000
"""Messages that one call of `Cursor.skip` may visit; takes a few ms."""
PREVIEW_BYTES: Final = 4096
"""Maximum number of bytes of each body in a list."""
PREVIEWED_BYTES: Final = 256 * 1024
"""Maximum size of a compressed body that a list decompresses, because that delays other clients."""

MAX_BODIES: Final = 4
"""Bodies of a user that a listener has in memory at a time for each operation: to decode them for
the view of a message, or to send them, until the client has read them."""
CHUNK_BYTES: Final = 256 * 1024
"""Bytes of a body that are sent at a time."""

_ID: Final = re.compile(r"(m?)([1-9][0-9]{0,18})")
_CURSOR: Final = re.compile(r"([0-9])\.([0-9]{1,19})\.([0-9]{1,19})")


class MessageService(Service):
    """Handlers of `/destinations/{kind}/{name}/messages`."""

    def __init__(self, context: ApiContext) -> None:
        super().__init__(context)
        self._bodies: defaultdict[tuple[str, str], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(MAX_BODIES)
        )
        """Bodies that may be in memory, by operation and user."""

    @handles(LIST_MESSAGES)
    async def index(self, call: Call, query: MessageQuery) -> MessagePage:
        """Return a page of the messages in a state."""
        subscription = subscription_of(
            call, find_destination(self._context, call, query.address), query.subscription
        )
        selector = await compile_selector(self._broker, query.selector)
        if query.offset and selector is not None:
            raise ApiError(
                400,
                "bad-parameter",
                "with a selector there is no offset: pages follow from one to the next",
            )
        cursor, offset = subscription.cursor(), query.offset
        if query.cursor:
            priority, last, offset = read_cursor(query.cursor)
            cursor = subscription.cursor(NO_END, priority, last)
        elif query.state == "ready":
            offset -= await _skip(cursor, offset, call.slices)
        http = self._context.http
        deadline = perf_counter() + (http.max_scan_time or inf)
        scanned = 0
        items: list[MessageItem] = []

        def requested() -> int:
            if perf_counter() > deadline:
                return 0
            return min(http.max_scan_messages - scanned, query.limit - len(items))

        if query.state == "ready":
            deliveries = call.slices.scan(cursor, requested)
        else:
            count = query.limit if selector is None else http.max_scan_messages
            deliveries = _scan_not_ready(
                subscription,
                query.state,
                slice(offset, offset + count),
                call.slices,
                requested,
            )
        async for delivery in deliveries:
            scanned += 1
            if selector is None or matches_selector(self._broker, selector, delivery):
                position = offset if selector is None else None
                items.append(self._item(delivery, query.state, position, query.body))
            offset += 1
        total = {
            "ready": subscription.ready,
            "unacked": subscription.unacked,
            "scheduled": len(subscription.scheduled),
        }[query.state]
        has_more = cursor.has_more() if query.state == "ready" else offset < total
        return MessagePage(
            items=items,
            total=total if selector is None else None,
            next_cursor=encode_cursor(cursor.priority, cursor.last, offset) if has_more else None,
            scanned=scanned,
        )

    def _item(
        self, delivery: Delivery, state: MessageState, position: int | None, body: bool
    ) -> MessageItem:
        try:
            broker = self._broker
            message = broker.read(delivery) if body else broker.read_head(delivery)
        except JournalError:
            return damaged_item(self._broker, delivery, state, position)
        preview = view_of_body(message, PREVIEW_BYTES, PREVIEWED_BYTES) if body else None
        return message_item(self._broker, delivery, message, state, position, preview)

    @handles(GET_MESSAGE)
    async def show(self, call: Call, parameters: MessageLookup) -> MessageView:
        """Return a message with its properties and its decoded body."""
        async with AsyncExitStack() as stack:
            await self._wait_for_memory(call, stack)
            delivery, message = self._find_message(call, parameters)
            fields = msgspec.structs.asdict(
                message_item(self._broker, delivery, message, state_of(delivery), None)
            )
            fields["body"] = await asyncio.to_thread(
                view_of_body, message, parameters.max_body_bytes
            )
        message_properties = message.properties or {}
        properties = {printable(name): _view(value) for name, value in message_properties.items()}
        return MessageView(**fields, properties=properties)

    @handles(GET_MESSAGE_BODY)
    async def body(self, call: Call, parameters: MessagePath) -> Response:
        """Return the whole body of a message, as a download that no browser displays."""
        async with AsyncExitStack() as stack:
            await self._wait_for_memory(call, stack)
            delivery, message = self._find_message(call, parameters)
            content = await asyncio.to_thread(raw_body, message)
            headers = {
                "Content-Disposition": f'attachment; filename="message-{delivery.sequence}.bin"',
                "Content-Length": str(len(content)),
                "Content-Security-Policy": "default-src 'none'; sandbox",
            }
            chunks = _chunks(content, stack.pop_all())
            await anext(chunks)  # from here on, it closes the stack
        return StreamingResponse(chunks, 200, headers, "application/octet-stream")

    async def _wait_for_memory(self, call: Call, stack: AsyncExitStack) -> None:
        """Wait until the user has fewer than MAX_BODIES in memory for this operation; the end of
        `stack` releases one. Raises BrokerStopping if the connection is about to close: a client
        could wait with any number of them."""
        bodies = self._bodies[call.endpoint.operation.operation_id, call.identity.name]
        begin = asyncio.ensure_future(stack.enter_async_context(bodies))
        closing = asyncio.ensure_future(call.caller.closing.wait())
        try:
            await asyncio.wait((begin, closing), return_when=asyncio.FIRST_COMPLETED)
            if not begin.done():
                raise BrokerStopping("the connection is closing; send the request on another one")
        finally:
            begin.cancel()
            closing.cancel()

    def _find_message(self, call: Call, parameters: MessagePath) -> tuple[Delivery, Message]:
        """Return the message of the path and its delivery. Raises ApiError if it does not exist or
        cannot be read."""
        subscription = subscription_of(
            call, find_destination(self._context, call, parameters.address), parameters.subscription
        )
        delivery = find_delivery(self._broker, subscription, parameters.id)
        if delivery is None:
            raise ApiError(404, "message-not-found", "the message does not exist or has ended")
        try:
            return delivery, self._broker.read(delivery)
        except (JournalDamaged, RecordNotFound) as error:
            raise ApiError(
                500, "message-damaged", f"the journal cannot read the message: {error}"
            ) from None


# --- what actions need too -----------------------------------------------------------------------


def subscription_of(call: Call, destination: Destination, name: str) -> Subscription:
    """Return the subscription of a topic with that name; without one a destination's own.

    Raises ApiError if none exists that the caller may browse.
    """
    if not name:
        return destination.queue
    subscription = destination.subscriptions.get(name)
    if subscription is None or not may_see_subscription(call.identity, subscription):
        raise ApiError(
            404, "subscription-not-found", f"there is no subscription {printable(name)} here"
        )
    return subscription


async def compile_selector(broker: Broker, text: str) -> Selector | None:
    """Compile a selector; None for an empty one. Raises ApiError for an invalid selector.

    Runs on another thread, because the first compilation loads the grammar, which takes long.
    """
    if not text.strip():
        return None
    try:
        return await asyncio.to_thread(broker.compile_selector, text)
    except SelectorError as error:
        raise ApiError(400, "bad-selector", str(error), more={"position": error.position}) from None


def matches_selector(broker: Broker, selector: Selector, delivery: Delivery) -> bool:
    """Return whether the selector matches a message; False if the message cannot be read."""
    message = intact_head(broker, delivery)
    return message is not None and selector(message)


def find_delivery(broker: Broker, subscription: Subscription, text: str) -> Delivery | None:
    """Return the delivery of the message with that id; None if there is none."""
    match = _ID.fullmatch(text)
    if match is None:
        return None
    delivery = broker.operations.find(subscription, int(match[2]))
    if delivery is None or bool(delivery.journaled) == bool(match[1]):
        return None
    return delivery


def id_of(delivery: Delivery) -> str:
    """Return the message id that `find_delivery` accepts."""
    return f"{delivery.sequence}" if delivery.journaled else f"m{delivery.sequence}"


def encode_cursor(priority: int, last: int, position: int) -> str:
    """Encode a cursor as the text of `next_cursor`."""
    return f"{priority}.{last}.{position}"


def read_cursor(text: str) -> tuple[int, int, int]:
    """Decode the text of `next_cursor`. Raises ApiError for any other text."""
    match = _CURSOR.fullmatch(text)
    numbers = [int(group) for group in match.groups()] if match is not None else []
    if not numbers or max(numbers) > NO_END:
        raise ApiError(
            400, "bad-cursor", "the cursor is not the next_cursor of an earlier response"
        )
    return numbers[0], numbers[1], numbers[2]


def state_of(delivery: Delivery) -> MessageState:
    """Return the API's name for the state of a delivery."""
    if delivery.ready:
        return "ready"
    return "scheduled" if delivery.scheduled else "unacked"


def _holder(delivery: Delivery, state: MessageState) -> Literal["consumer", "transaction"] | None:
    if state != "unacked":
        return None
    in_transaction = delivery.sequence in delivery.subscription.acked_in_transactions
    return "transaction" if in_transaction else "consumer"


def message_item(
    broker: Broker,
    delivery: Delivery,
    message: Message,
    state: MessageState,
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
        dead_letter=dead_letter_view(message),
        body=body,
    )


def damaged_item(
    broker: Broker, delivery: Delivery, state: MessageState, position: int | None
) -> MessageItem:
    """Return the list entry of a message that the journal cannot read."""
    destination = delivery.subscription.destination.address
    placeholder = Message(destination, b"", priority=delivery.priority)
    view = message_item(broker, delivery, placeholder, state, position)
    return msgspec.structs.replace(view, body_kind="none", damaged=True)


async def _chunks(content: bytes, stack: AsyncExitStack) -> AsyncIterator[bytes]:
    """Yield nothing, then the content in chunks. Closes `stack` at the end, or when the client
    disconnects."""
    async with stack:
        yield b""
        for start in range(0, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]
            await asyncio.sleep(0)  # the connection is flushed, and pauses at its high watermark


async def _scan_not_ready(
    subscription: Subscription,
    state: MessageState,
    part: slice,
    slices: TimeSlices,
    requested: Callable[[], int],
) -> AsyncIterator[Delivery]:
    """Yield a part of the unacked or scheduled messages, unless they leave that state meanwhile, as
    `TimeSlices.scan`. The pending queue does not contain them, so that a position is an offset.

    The part is read once: finding a position takes time in proportion to it.
    """
    deliveries: Iterable[Delivery] = (
        subscription.unacked_deliveries if state == "unacked" else subscription.scheduled.values()
    )
    async for delivery in slices.iterate(list(islice(deliveries, part.start, part.stop))):
        if requested() <= 0:
            return
        if delivery.unacked if state == "unacked" else delivery.scheduled:
            yield delivery


async def _skip(cursor: Cursor[Delivery], count: int, slices: TimeSlices) -> int:
    """Skip `count` messages; return how many of them did not exist."""
    while count and cursor.priority >= 0:
        count -= cursor.skip(count, SKIP_BUDGET)
        await slices.wait_if_due()
    return count
