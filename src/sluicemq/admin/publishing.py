"""Endpoint that publishes one message, for tests and for users of the console.

The response is sent when the message is as durable as requested. `ttl_ms` and `delay_ms` count from
the time of the request.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.destinations import MOST, not_found
from sluicemq.admin.durability import wait_until_durable
from sluicemq.admin.errors import ApiError
from sluicemq.admin.routing import KINDS, Call, Endpoint, from_base64
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, CreatedBy, decode_name, encode_name
from sluicemq.model.errors import DestinationNotFound
from sluicemq.model.message import BodyKind, Durability, Message, Origin, Property

MOST_PROPERTIES: Final = 1000
_BESIDES: Final = 256 * 1024
"""Maximum size of a request in addition to the body of its message, in bytes."""

Milliseconds = Annotated[int, Meta(ge=0, le=10 * 365 * 86_400_000)]
Text = Annotated[str, Meta(max_length=65_535)]

_DURABILITIES: Final = {
    each.name.lower(): each for each in Durability if each is not Durability.TRANSIENT
}
_KINDS: Final = {
    "text": BodyKind.TEXT,
    "json": BodyKind.JSON,
    "bytes": BodyKind.BYTES,
    "none": BodyKind.NONE,
}
_PROPERTIES: Final[dict[str, type | tuple[type, ...]]] = {
    "boolean": bool,
    "int": int,
    "float": (int, float),
    "string": str,
    "bytes": str,
    "null": type(None),
}
"""JSON types accepted for each type of property."""


class MessageTarget(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A destination, by its name or by the name's bytes in base64."""

    kind: Literal["queue", "topic"]
    name: str = ""
    name_base64: str = ""

    @property
    def address(self) -> Address:
        """Return the address. Raises ApiError for a missing name."""
        name = self.name
        if self.name_base64:
            name = decode_name(from_base64("name_base64", self.name_base64))
        if not name:
            raise ApiError(400, "bad-body", "a destination has a name")
        return Address(KINDS[self.kind], name)


class PublishRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A message. At most one of the three bodies is given.

    properties  by name: a value, or `{"type": …, "value": …}` as messages are shown
    """

    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    body_json: msgspec.Raw | UnsetType = UNSET
    body_kind: Literal["text", "json", "bytes", "none"] | UnsetType = UNSET
    properties: dict[str, Any] = {}
    priority: Annotated[int, Meta(ge=0, le=9)] = 4
    ttl_ms: Milliseconds = 0
    delay_ms: Milliseconds = 0
    correlation_id: Text = ""
    reply_to: MessageTarget | None = None
    type: Text = ""
    message_id: Text = ""
    durability: Literal["none", "lazy", "sync"] = "sync"


class PublishResult(msgspec.Struct, kw_only=True, frozen=True):
    """Its id, by which it is found as long as it waits."""

    id: str


class PublishingEndpoints:
    """Handlers of POST /destinations/{kind}/{name}/messages."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._broker = context.broker

    async def post(self, call: Call) -> PublishResult:
        """Publish one message."""
        broker = self._broker
        address = call.address
        if not 0 < len(encode_name(address.name)) <= self._context.limits.name:
            raise not_found(address)
        message = self._message(address, call.body)
        broker.wake()
        try:
            destination = broker.destinations.resolve(
                address, creator=call.identity.creator, by=CreatedBy.MANAGEMENT
            )
        except DestinationNotFound:
            raise not_found(address) from None
        destination.touch()
        broker.publish(destination, message)
        broker.traffic_of("http").published += 1
        if message.durability is Durability.SYNC:
            await wait_until_durable(broker, message.sequence)
        prefix = "" if message.durability else "m"
        return PublishResult(id=f"{prefix}{message.sequence}")

    def _message(self, address: Address, publication: PublishRequest) -> Message:
        """Return the message. Raises ApiError for an invalid request."""
        kind, body = _body(publication)
        most = self._context.limits.publish
        if len(body) > most:
            raise ApiError(
                413, "too-large", f"the body has more than {most} bytes", more={"limit": most}
            )
        wall = self._context.clock.wall
        return Message(
            address,
            body,
            kind,
            Origin.INTERNAL,
            _DURABILITIES[publication.durability],
            wall,
            wall + publication.ttl_ms if publication.ttl_ms else 0,
            publication.priority,
            wall + publication.delay_ms if publication.delay_ms else 0,
            publication.message_id,
            publication.correlation_id,
            publication.reply_to.address if publication.reply_to is not None else None,
            publication.type,
            properties_of(publication.properties) or None,
        )


def _body(publication: PublishRequest) -> tuple[BodyKind, bytes]:
    given = [
        each
        for each in (publication.body, publication.body_base64, publication.body_json)
        if each != UNSET
    ]
    if len(given) > 1:
        raise ApiError(400, "bad-body", "give one of body, body_base64 and body_json")
    kind, body = BodyKind.NONE, b""
    if isinstance(publication.body, str):
        kind, body = BodyKind.TEXT, publication.body.encode()
    elif isinstance(publication.body_base64, str):
        kind, body = BodyKind.BYTES, from_base64("body_base64", publication.body_base64)
    elif isinstance(publication.body_json, msgspec.Raw):
        kind, body = BodyKind.JSON, bytes(publication.body_json)
    if isinstance(publication.body_kind, str):
        kind = _KINDS[publication.body_kind]
        _expect(kind, body)
    return kind, body


def _expect(kind: BodyKind, body: bytes) -> None:
    """Raise ApiError for a body that does not match its kind."""
    try:
        if kind is BodyKind.NONE and body:
            raise ApiError(400, "bad-body", "a message of the kind none has no body")
        if kind is BodyKind.TEXT:
            body.decode()
        elif kind is BodyKind.JSON:
            msgspec.json.decode(body)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, "bad-body", f"the body is no {kind.name.lower()}: {error}") from None


def properties_of(given: dict[str, Any]) -> dict[str, Property]:
    """Return the properties of the model. Raises ApiError for invalid ones."""
    if len(given) > MOST_PROPERTIES:
        raise ApiError(400, "bad-body", f"a message has up to {MOST_PROPERTIES} properties here")
    found: dict[str, Property] = {}
    for name, value in given.items():
        if not 0 < len(name) <= 255:
            raise ApiError(400, "bad-body", "the name of a property has 1 to 255 characters")
        found[name] = _typed(name, value) if isinstance(value, dict) else _plain(name, value)
    return found


def _plain(name: str, value: object) -> Property:
    if isinstance(value, list):
        raise ApiError(400, "bad-body", f"the property {name!r} cannot be a list")
    assert value is None or isinstance(value, bool | int | float | str)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise ApiError(400, "bad-body", f"the property {name!r} has more than 64 bits")
    return value


def _typed(name: str, given: dict[str, Any]) -> Property:
    kind: Any = given.get("type")
    value: Any = given.get("value")
    expected = _PROPERTIES.get(kind) if isinstance(kind, str) else None
    if expected is None or set(given) - {"type", "value"}:
        there = ", ".join(_PROPERTIES)
        raise ApiError(
            400, "bad-body", f'the property {name!r} is {{"type", "value"}}; types are {there}'
        )
    if kind in ("int", "float") and isinstance(value, str):
        value = _number(name, kind, value)
    if not isinstance(value, expected) or (isinstance(value, bool) and kind != "boolean"):
        raise ApiError(400, "bad-body", f"the property {name!r} is no {kind}")
    if kind == "bytes" and isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise ApiError(400, "bad-body", f"the property {name!r} is not base64") from None
    if kind == "float" and isinstance(value, int | float):
        return float(value)
    return _plain(name, value)


def _number(name: str, kind: str, text: str) -> int | float:
    """Return a number; numbers that not every JSON reader can represent are written as text."""
    try:
        if len(text) > 40:
            raise ValueError
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise ApiError(400, "bad-body", f"the property {name!r} is no {kind}") from None


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoint that publishes messages."""
    handlers = PublishingEndpoints(context)
    most = min(context.limits.publish, MOST)
    return [
        Endpoint(
            "POST",
            "/destinations/{kind}/{name}/messages",
            "publishMessage",
            handlers.post,
            "Publish a message",
            Operation.PRODUCE,
            body=PublishRequest,
            answer=PublishResult,
            status=201,
            limit=2 * most + _BESIDES,
            audited=False,
        )
    ]
