"""The table of what can be asked over HTTP: it serves, and the OpenAPI document is made from it.

    Endpoint("GET", "/destinations/{kind}/{name}", self.show, "One destination", …)

Each module with endpoints contributes a list of these (`endpoints(context)`), and the application
does for all of them what every request has to pass: login, permission, parameters, body, audit.

A path is taken apart as it was sent: `%2F` in a name is part of the name. Where a path has
`{kind}` and `{name}`, they are a destination (`Call.address`); a name that no URL can carry is
sent as `~` with its bytes in `?name_base64=`. `{*rest}` at the end of a path stands for everything
that follows.
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
from sluicemq.admin.errors import Problem
from sluicemq.admin.request_bodies import SMALL_BYTES
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address, Kind, decode_name
from sluicemq.protocols.access import demand

PREFIX: Final = "/api/v1"
KINDS: Final = {"queue": Kind.QUEUE, "topic": Kind.TOPIC}
BY_BASE64: Final = "~"
"""Stands for a name that is given in the parameter `name_base64`."""

_NUMBER: Final = re.compile("-?[0-9]{1,20}")


class Need(Enum):
    """Who may use an endpoint, where that is no operation on the destination in its path."""

    NOTHING = "everybody, without a login"
    USER = "any user, who is shown or may change what the permissions allow"
    SUPERUSER = "a superuser"


class RawBody(Enum):
    """A body that is not one JSON document; its handler reads the request itself."""

    OCTETS = "application/octet-stream"


Needs = Need | Operation


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is done for one method at one path.

    handler   returns what `answer` says, or a starlette Response as it is to be sent
    needs     checked before anything else of the request is looked at; an Operation is one on the
              destination in the path
    query     a msgspec Struct: its fields are the parameters; None = there are none
    body      the type of the JSON body; None = a body is not looked at. One that may be left out
              altogether counts as `{}`
    answer    the type of the JSON answer; None = no content, or what `media` says
    created   it may answer 201 instead, as the handler says by `Call.status`
    besides   other statuses of what has been done, as 206 for a part of something
    limit     bytes of the body
    audited   None = whatever is not a GET is a line in the audit log
    """

    method: str
    path: str
    handler: Callable[[Call], Awaitable[Any]]
    summary: str
    needs: Needs = Need.USER
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
    tag: str = ""

    @property
    def changes(self) -> bool:
        """Whether it may change something: then a browser's request has to show that its page sent
        it."""
        return self.method != "GET"

    @property
    def parameters(self) -> list[str]:
        """Their names."""
        return [] if self.query is None else [each.name for each in fields(self.query)]

    @property
    def of_path(self) -> tuple[str, ...]:
        """Parameters that say more about the path."""
        return ("name_base64",) if "{kind}/{name}" in self.path else ()

    @property
    def full_path(self) -> str:
        """With the prefix."""
        return self.prefix + self.path


class Call:
    """One request, as a handler sees it.

    who       who sends it; `identity` is whom it acts as
    names     the parameters of the path, decoded
    query     an instance of `Endpoint.query`
    body      an instance of `Endpoint.body`
    status    of the answer; the handler may set it
    note      more for the audit line than method and path; the handler may set it
    audited   whether there will be one
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
        """Who changes something, for the audit log."""
        return f"{self.identity.name or 'everybody'} at {self.caller.peer}"

    def current(self) -> Identity | None:
        """Whom it acts as by now; None when the login is over, and an answer that goes on ends."""
        return self.who.current()

    def _set_address(self, address: Address | None) -> None:
        # most handlers that ask for it have one in their path, and need not look
        self.address: Address = address  # type: ignore[assignment]

    def demand(self, operation: Operation, destination: str) -> None:
        """AccessDenied, and a line in the audit log, unless the caller may do that there."""
        demand(self.caller.access, self.caller.peer, self.identity, operation, destination)

    def denied(self, what: str) -> None:
        """A line in the audit log for something that is not done; `what` is like "produce x"."""
        self.caller.access.denied(self.caller.peer, self.identity, what)


class _Node:
    __slots__ = ("endpoints", "literal", "parameter", "rest")

    def __init__(self) -> None:
        self.literal: dict[bytes, _Node] = {}
        self.parameter: _Node | None = None
        self.rest: _Node | None = None
        self.endpoints: dict[str, Endpoint] = {}


class RouteTable:
    """Finds the endpoint of a request."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        """ValueError if two are for the same method and path."""
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
        """The endpoint and the parameters of the path. Problem if there is none."""
        parts = raw_path.split(b"/")[1:]
        found = _walk(self._root, parts, 0)
        if found is None:
            raise Problem(404, "not-found", "there is nothing at this path")
        node, values = found
        endpoint = node.endpoints.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = sorted({*node.endpoints, *(["HEAD"] if "GET" in node.endpoints else [])})
            said = f"that is not done here; what is: {', '.join(allowed)}"
            raise Problem(405, "method-not-allowed", said, {"Allow": ", ".join(allowed)})
        names = [
            part.strip("{*}") for part in endpoint.full_path.split("/") if part.startswith("{")
        ]
        return endpoint, {
            name: decode_name(unquote_to_bytes(value))
            for name, value in zip(names, values, strict=True)
        }


def _walk(node: _Node, parts: list[bytes], at: int) -> tuple[_Node, list[bytes]] | None:
    """Literal parts go before parameters, and those before the rest of a path."""
    if at == len(parts):
        return (node, []) if node.endpoints else None
    part = parts[at]
    literal = node.literal.get(part)
    if literal is not None and (found := _walk(literal, parts, at + 1)) is not None:
        return found
    if node.parameter is not None and part:
        found = _walk(node.parameter, parts, at + 1)
        if found is not None:
            return found[0], [part, *found[1]]
    if node.rest is not None:
        return node.rest, [b"/".join(parts[at:])]
    return None


def address_in(names: Mapping[str, str], query: Mapping[str, str]) -> Address | None:
    """The destination that a path names; None if it has no `{kind}` and `{name}`. Problem for a
    kind or a name that cannot be."""
    if "kind" not in names or "name" not in names:
        return None
    kind = KINDS.get(names["kind"])
    if kind is None:
        raise Problem(404, "not-found", "a destination is a queue or a topic")
    name = names["name"]
    encoded = query.get("name_base64")
    if encoded is not None:
        if name != BY_BASE64:
            raise Problem(
                400, "bad-parameter", "with name_base64, the name in the path is written as ~"
            )
        name = decode_name(from_base64("name_base64", encoded))
    return Address(kind, name)


def from_base64(what: str, text: str) -> bytes:
    """Base64, of either alphabet, with or without padding. Problem, naming `what`."""
    text = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise Problem(400, "bad-parameter", f"{what} is not base64") from None


def read_query(raw: bytes) -> dict[str, str]:
    """The parameters by name; bytes that are not UTF-8 as in names of destinations. Problem if one
    is there twice."""
    try:
        pairs = parse_qsl(raw.decode("latin-1"), True, errors="surrogateescape", max_num_fields=100)
    except ValueError:
        raise Problem(400, "bad-parameter", "there are too many parameters") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Problem(400, "bad-parameter", "a parameter is given twice")
    return found


def parameters(endpoint: Endpoint, query: Mapping[str, str]) -> Any:
    """An instance of its `query`. Problem for what it does not know or cannot be."""
    known = (
        [] if endpoint.query is None else [f.name for f in msgspec.structs.fields(endpoint.query)]
    )
    for name in query:
        if name not in known and name not in endpoint.of_path:
            there = f"there are {', '.join(known)}" if known else "there are none here"
            raise Problem(400, "bad-parameter", f"the parameter {name[:100]!r} is unknown; {there}")
    if endpoint.query is None:
        return None
    for name in _numbers(endpoint.query) & query.keys():
        if not _NUMBER.fullmatch(query[name]):  # msgspec takes 1.0 for one, too
            raise Problem(400, "bad-parameter", f"the parameter {name} is a whole number")
    try:
        return msgspec.convert(dict(query), endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(400, "bad-parameter", f"in the parameters: {error}") from None
    except UnicodeEncodeError:  # of a value that is one of several words
        said = f"a value of {', '.join(query)} is not UTF-8"
        raise Problem(400, "bad-parameter", said) from None


@cache
def _numbers(query: type) -> frozenset[str]:
    """Its parameters that are whole numbers."""
    info = type_info(query)
    assert isinstance(info, StructType)
    return frozenset(
        field.name
        for field in info.fields
        if isinstance(field.type.type if isinstance(field.type, Metadata) else field.type, IntType)
    )
