"""Route table of the HTTP API. It dispatches requests and is the source of the OpenAPI document.

    Endpoint("GET", "/destinations/{kind}/{name}", "getDestination", self.show, "…", BROWSE)

Each module with endpoints returns a list of them (`endpoints(context)`). The application handles
the stages common to all requests: login, permission, parameters, body, audit.

The raw path is split before it is decoded: `%2F` in a name is part of the name. `{kind}` and
`{name}` in a path identify a destination (`Call.address`); for a name that no URL can carry, the
client sends `~` and the name's bytes in `?name_base64=`. `{*rest}` at the end of a path matches the
rest of the path.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec.inspect import IntType, Metadata, StructType, type_info
from msgspec.structs import fields
from starlette.requests import Request

from sluicemq.admin.caller import Caller, RequestIdentity
from sluicemq.admin.errors import ApiError
from sluicemq.admin.request_bodies import SMALL_BYTES
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address, Kind, decode_name
from sluicemq.security.access import demand

PREFIX: Final = "/api/v1"
KINDS: Final = {"queue": Kind.QUEUE, "topic": Kind.TOPIC}
BY_BASE64: Final = "~"
"""Path part that refers to the parameter `name_base64`."""

_NUMBER: Final = re.compile("-?[0-9]{1,20}")


class Need(Enum):
    """Access requirement of an endpoint that needs no operation on a destination."""

    NOTHING = "everybody, without a login"
    USER = "any user"
    VISIBLE = "any user; the response contains what the user may see"
    OWNER = "the owner, and users who may administer it; it does not exist for others"
    SUPERUSER = "a superuser"


class RawBody(Enum):
    """Media type of a body that is not one JSON document; the handler reads the request."""

    OCTETS = "application/octet-stream"


Needs = Need | Operation | tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Endpoint for one method and path.

    operation_id  name of the operation in the OpenAPI document, in clients generated from it
                  and in the audit log
    handler   returns an instance of `answer`, or a starlette Response that is sent unchanged
    needs     access requirement. SUPERUSER and an Operation, which refers to the destination in
              the path, are checked before parameters and body. Of several operations, the handler
              checks those that the request needs. It also checks OWNER and VISIBLE
    query     msgspec Struct whose fields are the parameters; None = no parameters
    body      type of the JSON body; None = the body is ignored. A missing body counts as `{}`
    answer    type of the JSON response; None = no content, or the media type `media`
    created   True if the handler may set `Call.status` to 201
    besides   other success statuses, such as 206 for partial content
    limit     maximum size of the body in bytes
    audited   True if requests are written to the audit log; None = all methods except GET
    """

    method: str
    path: str
    operation_id: str
    handler: Callable[[Call], Awaitable[Any]]
    summary: str
    needs: Needs
    query: type | None = None
    body: type | RawBody | None = None
    answer: Any = None
    status: int = 200
    created: bool = False
    besides: tuple[int, ...] = ()
    media: str = "application/json"
    limit: int = SMALL_BYTES
    audited: bool | None = None
    prefix: str = PREFIX

    @property
    def changes(self) -> bool:
        """True if the endpoint may change something; requests of browser sessions then need a
        CSRF token."""
        return self.method != "GET"

    @property
    def parameters(self) -> list[str]:
        """Names of the query parameters."""
        return [] if self.query is None else [each.name for each in fields(self.query)]

    @property
    def of_path(self) -> tuple[str, ...]:
        """Names of query parameters that are part of the destination's address."""
        return ("name_base64",) if "{kind}/{name}" in self.path else ()

    @property
    def full_path(self) -> str:
        """Path with the prefix."""
        return self.prefix + self.path


class Call:
    """One request, as passed to a handler.

    who       identity and session of the sender; `identity` is the identity alone
    names     decoded parameters of the path
    query     instance of `Endpoint.query`
    body      instance of `Endpoint.body`
    status    status of the response; the handler may set it
    note      text added to method and path in the audit line; the handler may set it
    audited   True if the request is written to the audit log
    """

    __slots__ = (
        "address",
        "audited",
        "body",
        "caller",
        "endpoint",
        "identity",
        "names",
        "note",
        "query",
        "request",
        "status",
        "who",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        request: Request,
        caller: Caller,
        who: RequestIdentity,
        names: Mapping[str, str],
        address: Address | None,
    ) -> None:
        self.endpoint = endpoint
        self.request = request
        self.caller = caller
        self.who = who
        self.identity: Identity = who.identity
        self.names = names
        self._set_address(address)
        self.query: Any = None
        self.body: Any = None
        self.status = endpoint.status
        self.note = ""
        self.audited = endpoint.changes if endpoint.audited is None else endpoint.audited

    @property
    def by(self) -> str:
        """User and peer address of the caller, for the audit log."""
        return f"{self.identity.name or 'everybody'} at {self.caller.peer}"

    def current(self) -> Identity | None:
        """Return the caller's present identity; None if the login is no longer valid, in which
        case a long-running response must end."""
        return self.who.current()

    def _set_address(self, address: Address | None) -> None:
        # declared as never None: handlers that use it have a destination in their path
        self.address: Address = address  # type: ignore[assignment]

    def demand(self, operation: Operation, destination: str) -> None:
        """Check the caller's permission for an operation on a destination. Raises AccessDenied
        and writes an audit line if the caller lacks it."""
        demand(self.caller.access, self.caller.peer, self.identity, operation, destination)

    def denied(self, what: str) -> None:
        """Write an audit line for a denied action; `what` is for example "produce x"."""
        self.caller.access.denied(self.caller.peer, self.identity, what)


class _Node:
    __slots__ = ("endpoints", "literal", "parameter", "rest")

    def __init__(self) -> None:
        self.literal: dict[bytes, _Node] = {}
        self.parameter: _Node | None = None
        self.rest: _Node | None = None
        self.endpoints: dict[str, Endpoint] = {}


class RouteTable:
    """Table that maps method and path to endpoints."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        """Build the table. Raises ValueError if two endpoints have the same method and path."""
        self._root = _Node()
        self.endpoints = list(endpoints)
        for endpoint in self.endpoints:
            self._add(endpoint)

    def _add(self, endpoint: Endpoint) -> None:
        node = self._root
        for part in endpoint.full_path.split("/")[1:]:
            if part.startswith("{*"):
                node.rest = node = node.rest or _Node()
            elif part.startswith("{"):
                node.parameter = node = node.parameter or _Node()
            else:
                node = node.literal.setdefault(part.encode(), _Node())
        if endpoint.method in node.endpoints:
            raise ValueError(f"{endpoint.method} {endpoint.full_path} is there twice")
        node.endpoints[endpoint.method] = endpoint

    def find(self, method: str, raw_path: bytes) -> tuple[Endpoint, dict[str, str]]:
        """Return the endpoint and the parameters of the path. Raises ApiError if none matches."""
        parts = raw_path.split(b"/")[1:]
        found = _match(self._root, parts, 0)
        if found is None:
            raise ApiError(404, "not-found", "there is nothing at this path")
        node, values = found
        endpoint = node.endpoints.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = sorted({*node.endpoints, *(["HEAD"] if "GET" in node.endpoints else [])})
            message = f"method not allowed; allowed methods: {', '.join(allowed)}"
            raise ApiError(405, "method-not-allowed", message, {"Allow": ", ".join(allowed)})
        names = [
            part.strip("{*}") for part in endpoint.full_path.split("/") if part.startswith("{")
        ]
        return endpoint, {
            name: decode_name(unquote_to_bytes(value))
            for name, value in zip(names, values, strict=True)
        }


def _match(node: _Node, parts: list[bytes], at: int) -> tuple[_Node, list[bytes]] | None:
    """Match the parts from index `at`. Literal parts take precedence over parameters, parameters
    over `{*rest}`."""
    if at == len(parts):
        return (node, []) if node.endpoints else None
    part = parts[at]
    literal = node.literal.get(part)
    if literal is not None and (found := _match(literal, parts, at + 1)) is not None:
        return found
    if node.parameter is not None and part:
        found = _match(node.parameter, parts, at + 1)
        if found is not None:
            return found[0], [part, *found[1]]
    if node.rest is not None:
        return node.rest, [b"/".join(parts[at:])]
    return None


def address_in(names: Mapping[str, str], query: Mapping[str, str]) -> Address | None:
    """Return the destination in a path; None if the path has no `{kind}` and `{name}`. Raises
    Problem for an invalid kind or name."""
    if "kind" not in names or "name" not in names:
        return None
    kind = KINDS.get(names["kind"])
    if kind is None:
        raise ApiError(404, "not-found", "a destination is a queue or a topic")
    name = names["name"]
    encoded = query.get("name_base64")
    if encoded is not None:
        if name != BY_BASE64:
            raise ApiError(
                400, "bad-parameter", "with name_base64, the name in the path is written as ~"
            )
        name = decode_name(from_base64("name_base64", encoded))
    return Address(kind, name)


def from_base64(what: str, text: str) -> bytes:
    """Decode base64 of the standard or URL-safe alphabet, with or without padding. Raises ApiError
    that names `what`."""
    text = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, "bad-parameter", f"{what} is not base64") from None


def read_query(raw: bytes) -> dict[str, str]:
    """Return the query parameters by name; bytes that are not UTF-8 become surrogate escapes, as
    in destination names. Raises ApiError for a repeated parameter."""
    try:
        pairs = parse_qsl(raw.decode("latin-1"), True, errors="surrogateescape", max_num_fields=100)
    except ValueError:
        raise ApiError(400, "bad-parameter", "there are too many parameters") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ApiError(400, "bad-parameter", "a parameter is given twice")
    return found


def parameters(endpoint: Endpoint, query: Mapping[str, str]) -> Any:
    """Return an instance of the endpoint's `query`. Raises ApiError for unknown parameters and
    invalid values."""
    known = (
        [] if endpoint.query is None else [f.name for f in msgspec.structs.fields(endpoint.query)]
    )
    for name in query:
        if name not in known and name not in endpoint.of_path:
            there = f"there are {', '.join(known)}" if known else "there are none here"
            raise ApiError(
                400, "bad-parameter", f"the parameter {name[:100]!r} is unknown; {there}"
            )
    if endpoint.query is None:
        return None
    for name in _numbers(endpoint.query) & query.keys():
        if not _NUMBER.fullmatch(query[name]):  # msgspec also accepts 1.0 as an int
            raise ApiError(400, "bad-parameter", f"the parameter {name} is a whole number")
    try:
        return msgspec.convert(dict(query), endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise ApiError(400, "bad-parameter", f"in the parameters: {error}") from None
    except UnicodeEncodeError:  # raised for the value of a Literal parameter
        message = f"a value of {', '.join(query)} is not UTF-8"
        raise ApiError(400, "bad-parameter", message) from None


@cache
def _numbers(query: type) -> frozenset[str]:
    """Return the names of the integer parameters."""
    info = type_info(query)
    assert isinstance(info, StructType)
    return frozenset(
        field.name
        for field in info.fields
        if isinstance(field.type.type if isinstance(field.type, Metadata) else field.type, IntType)
    )
