"""Operations on the messages of a destination: browsing, publishing, and actions.

The value of a body depends on its encoding:

    encoding  value
    text      text
    json      text that is JSON, as it was sent
    map       {"name": {"type": …, "value": …}}
    stream    [{"type": …, "value": …}]
    object    base64 of a Java serialization stream, which is not decoded; `class` is its class name
    base64    any other bytes, and bodies that are too long to be decoded as a map or a stream

Values that not every JSON reader can represent are text: integers beyond 2^53, NaN and infinities.
Bytes are in base64.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sluicemq.management.destinations import AddressView, DestinationBody, DestinationPath
from sluicemq.management.operation import (
    OCTETS,
    ApiOperation,
    KindName,
    Page,
    PageQuery,
    is_utf_8,
    kind_name,
    to_base64,
)
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address

MAX_VIEW: Final = 1 << 20
EXAMPLE_SELECTOR: Final = "customer = 'anna' AND JMSPriority > 5"
MessageState = Literal["ready", "unacked", "scheduled"]


class PropertyView(msgspec.Struct, kw_only=True, frozen=True):
    """A property, or a value in a map or a stream.

    type   boolean, int, float, string, bytes, null; in maps and streams also byte, short, char,
           long, double and map
    value  text for integers beyond 2^53, NaN and infinities; base64 for bytes
    """

    type: str
    value: Any


class BodyView(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A body, or its beginning.

    kind   none, text, json, bytes, map, stream, object
    class  class of an object
    """

    kind: str
    encoding: str
    value: Any
    truncated: bool
    class_: str = msgspec.field(name="class", default="")


class DeadLetterView(msgspec.Struct, kw_only=True, frozen=True):
    """Origin of a dead letter, and the reason why it became one.

    original_destination  destination that it was published to
    subscription          subscription of a topic that it was in; otherwise ""
    time                  time at which it became a dead letter, in ISO 8601
    """

    reason: str
    original_destination: AddressView | None
    subscription: str
    attempts: int | None
    time: str


class MessageQuery(PageQuery, kw_only=True, frozen=True):
    """Selection of messages."""

    address: Address
    subscription: Annotated[str, Meta(description="Of a topic: the name of its subscription.")] = ""
    selector: Annotated[
        str,
        Meta(
            description="Only messages that match this JMS selector.", examples=[EXAMPLE_SELECTOR]
        ),
    ] = ""
    state: Annotated[MessageState, Meta(description="Only messages in this state.")] = "ready"
    cursor: Annotated[
        str, Meta(description="`next_cursor` of the previous page; replaces `offset`.")
    ] = ""
    body: Annotated[bool, Meta(description="Include the beginning of each body.")] = False


class MessagePath(DestinationPath, kw_only=True, frozen=True):
    """A message."""

    id: Annotated[str, Meta(min_length=1, description="Id of the message, as in the list.")]
    subscription: Annotated[str, Meta(description="Of a topic: the name of its subscription.")] = ""


class MessageLookup(MessagePath, kw_only=True, frozen=True):
    """A message to be read."""

    max_body_bytes: Annotated[
        int, Meta(ge=0, le=MAX_VIEW, description="Maximum bytes of the body.")
    ] = 65536


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
    dead_letter  reason and origin of a dead letter; null for other messages
    """

    id: str
    position: int | None
    state: MessageState
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
    dead_letter: DeadLetterView | None
    damaged: bool = False
    body: BodyView | None = None


class MessagePage(Page[MessageItem], kw_only=True, frozen=True):
    """A page of messages: `total` is the number of messages in the requested state, null with a
    selector; `scanned` the number of messages examined."""

    scanned: int


class MessageView(MessageItem, kw_only=True, frozen=True, omit_defaults=True):
    """A whole message."""

    properties: dict[str, PropertyView]


Milliseconds = Annotated[int, Meta(ge=0, le=10 * 365 * 86_400_000)]
Text = Annotated[str, Meta(max_length=65_535)]


class MessageTarget(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A destination, by its name or by the name's bytes in base64."""

    kind: KindName
    name: str = ""
    name_base64: str = ""

    @classmethod
    def of(cls, address: Address) -> MessageTarget:
        """Return the target for an address."""
        kind = kind_name(address.kind)
        if is_utf_8(address.name):
            return cls(kind=kind, name=address.name)
        return cls(kind=kind, name_base64=to_base64(address.name))


class TypedProperty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A property to be published, with its type.

    value  value of that type; an int or float may be text, bytes are in base64
    """

    type: Literal["boolean", "int", "float", "string", "bytes", "null"]
    value: bool | int | float | str | None = None


PropertyName = Annotated[str, Meta(min_length=1, max_length=255)]
PropertyInput = TypedProperty | bool | int | float | str | None
PublishedKind = Literal["text", "json", "bytes", "none"]
"""Kind of the body of a message that is published over the API."""
PublishedDurability = Literal["sync", "lazy", "none"]


class PublishRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A message. At most one of the three bodies is given.

    body         body as text
    body_base64  body as bytes, in base64
    body_json    body as a JSON value
    body_kind    kind of the body, if it differs from that of its field
    properties   by name: a value, or `{"type": …, "value": …}` as messages are shown
    ttl_ms       time to live from the request on; 0 = no limit
    delay_ms     delay of the delivery from the request on
    reply_to     destination for replies
    durability   `sync`: the response is sent when the message is on disk
    """

    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    body_json: msgspec.Raw | UnsetType = UNSET
    body_kind: PublishedKind | UnsetType = UNSET
    properties: Annotated[dict[PropertyName, PropertyInput], Meta(max_length=1000)] = {}
    priority: Annotated[int, Meta(ge=0, le=9)] = 4
    ttl_ms: Milliseconds = 0
    delay_ms: Milliseconds = 0
    correlation_id: Text = ""
    reply_to: MessageTarget | None = None
    type: Text = ""
    message_id: Text = ""
    durability: PublishedDurability = "sync"


class PublishResult(msgspec.Struct, kw_only=True, frozen=True):
    """Id of the published message."""

    id: str


MAX_IDS: Final = 1000
Action = Literal["delete", "move", "copy", "redeliver", "redrive"]


class MessageActionRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An action, and its messages: given by `ids`, `selector` or `all`.

    ids           ids of the messages, as in the list
    selector      JMS selector that the messages match
    all           true for all messages
    target        destination of move and copy; with redrive, it replaces the original destination
    subscription  for a topic, the name of the subscription with the messages
    state         with `selector` or `all`: only ready messages, or only scheduled ones
    cursor        `next_cursor` of the previous response
    limit         maximum number of messages; 0 = all
    """

    action: Action
    ids: Annotated[list[str], Meta(max_length=MAX_IDS)] | None = None
    selector: Annotated[str, Meta(examples=[EXAMPLE_SELECTOR])] = ""
    all: bool = False
    target: MessageTarget | None = None
    subscription: str = ""
    state: Literal["ready", "scheduled"] = "ready"
    cursor: str = ""
    limit: Annotated[int, Meta(ge=0)] = 0


class MessageActionFailure(msgspec.Struct, kw_only=True, frozen=True):
    """A message that the action could not be applied to, and the reason."""

    id: str
    reason: str


class MessageActionResult(msgspec.Struct, kw_only=True, frozen=True):
    """Result of an action.

    processed    number of messages that the action was applied to
    scanned      number of messages examined
    next_cursor  cursor to send to continue; null if there are no more messages
    """

    processed: int
    failed: list[MessageActionFailure]
    scanned: int
    next_cursor: str | None


_MESSAGES: Final = "/destinations/{kind}/{name}/messages"

LIST_MESSAGES: Final = ApiOperation(
    "listMessages",
    "GET",
    _MESSAGES,
    (Operation.BROWSE,),
    "List ready, unacked or scheduled messages",
    MessageQuery,
    MessagePage,
)
GET_MESSAGE: Final = ApiOperation(
    "getMessage",
    "GET",
    f"{_MESSAGES}/{{id}}",
    (Operation.BROWSE,),
    "Show a message",
    MessageLookup,
    MessageView,
)
GET_MESSAGE_BODY: Final = ApiOperation(
    "getMessageBody",
    "GET",
    f"{_MESSAGES}/{{id}}/body",
    (Operation.BROWSE,),
    "Download the body of a message",
    MessagePath,
    bytes,
    media=OCTETS,
)
PUBLISH_MESSAGE: Final = ApiOperation(
    "publishMessage",
    "POST",
    _MESSAGES,
    (Operation.PRODUCE,),
    "Publish a message",
    DestinationBody[PublishRequest],
    PublishResult,
    status=201,
    audited=False,
)
APPLY_MESSAGE_ACTION: Final = ApiOperation(
    "applyMessageAction",
    "POST",
    f"{_MESSAGES}/actions",
    (Operation.BROWSE, Operation.CONSUME, Operation.MANAGE),
    "Delete, move, copy, redeliver or redrive messages",
    DestinationBody[MessageActionRequest],
    MessageActionResult,
)
