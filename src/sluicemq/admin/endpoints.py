"""Endpoints of the HTTP API: their context, the requests, and the route table, which dispatches
requests and is the source of the OpenAPI document.

    @handles(GET_DESTINATION)
    async def show(self, call: Call, parameters: DestinationPath) -> DestinationView: ...

The methods of the services are bound to the operations of `sluicemq.management`. The application
handles the stages common to all requests: login, permission, parameters, body, audit.

The raw path is split before it is decoded: `%2F` in a name is part of the name. `{kind}` and
`{name}` in a path identify a destination; for a name that no URL can carry, the client sends `~`
and the name's bytes in `?name_base64=`. `{*rest}` at the end of a path matches its rest.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec.inspect import IntType, Metadata, StructType, type_info
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from sluicemq.admin.caller import BrowserSessions, Caller, RequestIdentity
from sluicemq.admin.collectors import ScrapeState
from sluicemq.admin.errors import ApiError, decoding_error_text
from sluicemq.admin.history import History
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.broker import Broker, Consumer
from sluicemq.management.broker import BrokerState, InputItem, ListenerItem, SettingView
from sluicemq.management.operation import (
    BY_BASE64,
    KINDS,
    MAX_EXACT,
    AnswerT,
    ApiOperation,
    ParametersT,
    ServiceT,
    implements,
)
from sluicemq.management.settings import HttpSettings
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address, decode_name
from sluicemq.model.errors import AccessDenied
from sluicemq.model.histogram import Histogram
from sluicemq.model.url import Url
from sluicemq.protocols.transport import Process, SessionInfo
from sluicemq.security.access import demand
from sluicemq.security.audit import Audit
from sluicemq.security.user_service import UserService

# --- Interfaces to the server process -------------------------------------------------------------
#
# Interfaces to the server process that the endpoints use. The server implements them; tests supply
# their own implementations.


class ListedConnection(Protocol):
    """Connection of a client.

    number        id of the connection
    peer          address of the client
    connected_at  time of the connect, ms since the epoch
    """

    number: int
    peer: str
    connected_at: int
    received_bytes: int
    sent_bytes: int

    @property
    def listener_url(self) -> Url:
        """URL of its listener, with the actual port."""

    @property
    def state(self) -> str:
        """State of the connection (`ConnectionItem`)."""

    def session_info(self) -> SessionInfo:
        """Return protocol, user and client id of the connection."""

    def consumers(self) -> Iterable[Consumer]:
        """Return the current consumers of the client, in a new collection."""

    def disconnect(self, reason: str) -> None:
        """Send the client the reason in the terms of its protocol, and close the connection after
        a few seconds at most."""


class Connections(Protocol):
    """Connections of all listeners."""

    def __len__(self) -> int:
        """Return the number of connections."""

    def __iter__(self) -> Iterator[ListedConnection]:
        """Iterate over the present connections. The caller may yield to the event loop during
        the iteration; connections that open or close meanwhile may be missing or repeated."""

    def listeners(self) -> list[ListenerItem]:
        """Return the open listeners in the order of the configuration."""

    def input(self) -> InputItem:
        """Return the memory used by unfinished input."""


def count_by_protocol(connections: Connections) -> Counter[str]:
    """Return the number of connections by protocol."""
    return Counter(connection.session_info().protocol for connection in connections)


class Configuration(Protocol):
    """Effective settings, the directory of backups, and the files of a backup besides the
    journal."""

    def settings(self) -> list[SettingView]:
        """Return the settings in the order of the documentation, without those of destinations,
        which may be many."""

    def declares(self, address: Address) -> bool:
        """Return whether the configuration file declares the destination."""

    @property
    def directory(self) -> Path | None:
        """Directory of backups requested over HTTP; None = disabled."""

    @property
    def users_file(self) -> Path:
        """User database; may not exist."""

    @property
    def configuration(self) -> str:
        """Settings in force, as the text of a TOML file."""

    def sources(self) -> dict[str, bytes]:
        """Return the contents of the files by name. Raises OSError."""


class ServerProcess(Process, Protocol):
    """Server process, as the management API sees it."""

    lag: Histogram
    """Event loop lag: delay of timers."""

    def state(self) -> BrokerState:
        """Return the state of the broker."""


# --- Context --------------------------------------------------------------------------------------
#
# Context of the endpoints, one per HTTP listener. Listeners share everything but `limits`.

BODY_BYTES: Final = 64 * 1024 * 1024
PART_OVERHEAD_BYTES: Final = 16 * 1024 * 1024
"""Size of a part of a batch, in addition to one message of the listener's maximum size."""
_REQUEST_BYTES: Final = 256 * 1024
"""Size of a request besides the body of its message."""


class ApiLimits(NamedTuple):
    """Limits of a listener.

    Sizes in bytes: of a part of a batch, a destination's name, and a message published over the
    API."""

    part: int = BODY_BYTES + PART_OVERHEAD_BYTES
    name: int = 1024
    publish: int = 4 * 1024 * 1024

    @property
    def publish_request(self) -> int:
        """Size of a request that publishes a message. JSON may write each byte of its body as six,
        such as `\\u003c`."""
        return 6 * min(self.publish, MAX_EXACT) + _REQUEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """Interfaces to the broker and the server process.

    broker         the engine; call `broker.schedule_flush()` before anything that depends on
                   the time
    connections    connections of all listeners
    configuration  effective settings, and the files of a backup
    process        state and resource usage of the server process
    users          service for users, roles and tokens
    sessions       browser sessions
    audit          audit log
    history        samples of the last hour
    scrape_state   state that /metrics keeps between scrapes
    http           settings of all listeners
    """

    broker: Broker
    connections: Connections
    configuration: Configuration
    process: ServerProcess
    users: UserService
    sessions: BrowserSessions
    audit: Audit
    history: History
    scrape_state: ScrapeState
    http: HttpSettings = field(default_factory=HttpSettings)
    limits: ApiLimits = field(default_factory=ApiLimits)


class Service:
    """Base class of services, which are created once per listener."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._broker = context.broker


# --- Request bodies -------------------------------------------------------------------------------
#
# Request bodies: of known length, and within limits.
#
# Bodies require Content-Length, so that the broker can reject one that is too large before it is
# sent. `broker.input_memory_limit` bounds the bodies of all requests that are not yet answered
# (`HttpSession.buffered`).

SMALL_BYTES: Final = 64 * 1024
"""Default maximum size of a body in bytes."""

_MAX_DIGITS: Final = 15


async def read_body(request: Request, limit: int, advice: str) -> bytearray:
    """Return the body, which is empty if there is none. Raises ApiError if its length is unknown or
    above the limit, or if the client disconnects before its end."""
    if "transfer-encoding" in request.headers:
        raise ApiError(411, "length-required", "the request needs a Content-Length")
    text = request.headers.get("content-length", "0")
    # h11 has verified that it is a number
    if len(text) > _MAX_DIGITS or int(text) > limit:
        raise ApiError(
            413,
            "too-large",
            f"the body has more than {limit} bytes; {advice}",
            more={"limit": limit},
        )
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
    except ClientDisconnect:
        raise ApiError(400, "client-disconnected", "the body was not sent to its end") from None
    return body


def may_be_unread(request: Request) -> bool:
    """Return whether a large part of the request body may be unread, or all of it may not be sent
    because the client waits for `100 Continue`."""
    text = request.headers.get("content-length", "0")
    is_large = len(text) > _MAX_DIGITS or int(text) > SMALL_BYTES
    return is_large or "transfer-encoding" in request.headers or "expect" in request.headers


# --- Calls and routes -----------------------------------------------------------------------------

_ABSOLUTE_FORM: Final = re.compile(rb"https?://([^/]*)", re.IGNORECASE)
_PARAMETER: Final = re.compile(r"\{(\*?)\w+\}")
_NUMBER: Final = re.compile("-?[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Operation with its handler. `limit` is the maximum size of the body in bytes."""

    operation: ApiOperation[Any, Any]
    handler: Callable[[Call, Any], Awaitable[Any]]
    limit: int = SMALL_BYTES


def handles(
    operation: ApiOperation[ParametersT, AnswerT],
) -> Callable[
    [Callable[[ServiceT, Call, ParametersT], Awaitable[AnswerT | Response]]],
    Callable[[ServiceT, Call, ParametersT], Awaitable[AnswerT | Response]],
]:
    """Return a decorator that binds an operation to its handler. The handler returns the
    operation's answer, or a starlette Response that is sent unchanged."""
    return implements(cast(Any, operation))


class Call:
    """One request, as passed to a handler.

    sender    identity and session of the sender; `identity` is the identity alone
    names     decoded parameters of the path
    query     query parameters by name, not yet validated
    status    status of the response; the handler may set it
    note      text added to method and path in the audit line; the handler may set it
    audited   True if the application writes the request to the audit log, before it responds
    slices    time slices of the request
    """

    __slots__ = (
        "audited",
        "caller",
        "endpoint",
        "identity",
        "names",
        "note",
        "query",
        "request",
        "sender",
        "slices",
        "status",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        request: Request,
        caller: Caller,
        sender: RequestIdentity,
        names: Mapping[str, str],
        query: Mapping[str, str],
        slices: TimeSlices,
    ) -> None:
        self.endpoint = endpoint
        self.request = request
        self.caller = caller
        self.sender = sender
        self.identity: Identity = sender.identity
        self.names = names
        self.query = query
        self.slices = slices
        self.status = endpoint.operation.status
        self.note = ""
        audited = endpoint.operation.audited
        self.audited = endpoint.operation.changes if audited is None else audited

    @property
    def by(self) -> str:
        """User and peer address of the caller, as the author of a change of users. Raises ApiError
        if the caller is anonymous: only a user, or the owner of the data, can change users."""
        if not self.identity.name:
            raise ApiError(
                409,
                "authentication-disabled",
                "users cannot be changed over the network while the broker requires no login; "
                "change them on its machine, for example: sluicemq users add NAME --superuser",
            )
        return f"{self.identity.name} at {self.caller.peer}"

    def demand(self, operation: Operation, destination: str) -> None:
        """Check the caller's permission for an operation on a destination. Raises AccessDenied
        and writes an audit line if the caller lacks it."""
        demand(self.caller.access, self.caller.peer, self.identity, operation, destination)

    def audit(self, audit_log: Audit, status: int) -> None:
        """Write an audit line for a request that may have changed something, and its status."""
        path = decode_name(unquote_to_bytes(self.request.scope["raw_path"]))
        if encoded := self.query.get("name_base64"):
            path += f"?name_base64={encoded}"
        target = f"{self.request.method} {path} {self.note}".rstrip()
        result = "done" if status < 400 else str(status)
        action = self.endpoint.operation.operation_id
        audit_log.log_change(self.caller.peer, self.identity.name, action, target, result)

    def log_denied(self, operation: str) -> None:
        """Write an audit line for a denied action; `operation` is for example "produce x"."""
        self.caller.access.log_denied(self.caller.peer, self.identity, operation)

    def denial(self, operation: str, destination: str = "", reason: str = "") -> AccessDenied:
        """Write an audit line for an action that is denied, of a destination if it is given, and
        return the error, which may end in a reason."""
        self.log_denied(f"{operation} {destination}".rstrip())
        client = self.identity.name or "an anonymous client"
        quoted = f" {destination!r}" if destination else ""
        return AccessDenied(f"{client} may not {operation}{quoted}{reason}")


def in_origin_form(scope: Scope) -> Scope:
    """Return the scope of a request with a path as its target. A client may send a URL instead,
    whose host then replaces the `Host` header (RFC 9112, 3.2.2)."""
    match = _ABSOLUTE_FORM.match(scope["raw_path"])
    if match is None:
        return scope
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    path = scope["raw_path"][match.end() :] or b"/"
    return {**scope, "raw_path": path, "headers": [*headers, (b"host", match[1])]}


class RouteTable:
    """Table that maps method and path to endpoints."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        """Build the table. Raises ValueError if two endpoints have the same method and path."""
        self.endpoints = list(endpoints)
        routes: dict[str, dict[str, Endpoint]] = {}
        for endpoint in self.endpoints:
            operation = endpoint.operation
            path = _PARAMETER.sub(lambda match: "{~}" if match[1] else "{}", operation.full_path)
            methods = routes.setdefault(path, {})
            if operation.method in methods:
                raise ValueError(f"{operation.method} {operation.full_path} is declared twice")
            methods[operation.method] = endpoint
        # literal parts sort before {}, and {} before {~}, so that they take precedence
        self._routes = [(_pattern(path), methods) for path, methods in sorted(routes.items())]

    def find(self, method: str, raw_path: bytes) -> tuple[Endpoint, dict[str, str]]:
        """Return the endpoint and the parameters of the path. Raises ApiError if none matches."""
        matches = ((pattern.fullmatch(raw_path), methods) for pattern, methods in self._routes)
        match, methods = next((candidate for candidate in matches if candidate[0]), (None, {}))
        if match is None:
            raise ApiError(404, "not-found", "no resource has this path")
        endpoint = methods.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
            raise ApiError(
                405,
                "method-not-allowed",
                f"method not allowed; allowed methods: {allowed}",
                {"Allow": allowed},
            )
        names = zip(endpoint.operation.path_names, match.groups(), strict=True)
        return endpoint, {name: decode_name(unquote_to_bytes(value)) for name, value in names}


def _pattern(path: str) -> re.Pattern[bytes]:
    """Return the pattern of raw paths; its groups are the parameters."""
    text = re.escape(path).replace(r"\{\}", "([^/]+)").replace(r"\{\~\}", "(.*)")
    return re.compile(text.encode(), re.DOTALL)


def address_in(names: Mapping[str, str], query: Mapping[str, str]) -> Address:
    """Return the destination in a path. Raises ApiError for an invalid kind or name."""
    kind = KINDS.get(names["kind"])
    if kind is None:
        raise ApiError(404, "not-found", "the kind of a destination must be queue or topic")
    name = names["name"]
    encoded = query.get("name_base64")
    if encoded is not None:
        if name != BY_BASE64:
            raise ApiError(
                400, "bad-parameter", "with name_base64, the name in the path is written as ~"
            )
        name = decode_name(from_base64("name_base64", encoded))
    return Address(kind, name)


def destination_name(name: str, field: str, encoded: str) -> str:
    """Return the name of a destination in a request: that in base64 in `field`, if it is given,
    else `name`. Raises ApiError."""
    return decode_name(from_base64(field, encoded)) if encoded else name


def from_base64(field: str, text: str) -> bytes:
    """Decode base64 of the standard or URL-safe alphabet, with or without padding. Raises ApiError
    that names `field`."""
    text = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, "bad-parameter", f"{field} is not base64") from None


def read_query(raw: bytes) -> dict[str, str]:
    """Return the query parameters by name; bytes that are not UTF-8 become surrogate escapes, as
    in destination names. Raises ApiError for a repeated parameter."""
    try:
        pairs = parse_qsl(raw.decode("latin-1"), True, errors="surrogateescape", max_num_fields=100)
    except ValueError:
        raise ApiError(400, "bad-parameter", "there are too many parameters") from None
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ApiError(400, "bad-parameter", "a parameter is given twice")
    return values


def parameters(
    operation: ApiOperation[ParametersT, Any],
    names: Mapping[str, str],
    query: Mapping[str, str],
    body: Any = None,
) -> ParametersT:
    """Return the parameters of a request: those of its path, those of its query, and its decoded
    body. Raises ApiError for unknown parameters and invalid values."""
    query_names = operation.query_names
    for name in query:
        if name not in query_names and not (operation.has_address and name == "name_base64"):
            hint = f"there are {', '.join(query_names)}" if query_names else "there are none here"
            raise ApiError(400, "bad-parameter", f"the parameter {name[:100]!r} is unknown; {hint}")
    for name in _numbers(operation) & query.keys():
        if not _NUMBER.fullmatch(query[name]):  # msgspec also accepts 1.0 as an int
            raise ApiError(400, "bad-parameter", f"the parameter {name} is a whole number")
    values: dict[str, Any] = {**query, **names}
    if operation.has_address:
        values["address"] = address_in(names, query)
    if operation.body is not None:
        values["body"] = body
    try:
        return msgspec.convert(values, operation.parameters, strict=False)
    except msgspec.ValidationError as error:
        raise ApiError(
            400,
            "bad-parameter",
            f"in the parameters: {decoding_error_text(error, operation.parameters)}",
        ) from None
    except UnicodeEncodeError:  # raised for the value of a Literal parameter
        raise ApiError(
            400, "bad-parameter", f"a value of {', '.join(query)} is not UTF-8"
        ) from None


@cache
def _numbers(operation: ApiOperation[Any, Any]) -> frozenset[str]:
    """Return the names of the integer parameters."""
    info = type_info(operation.parameters)
    assert isinstance(info, StructType)
    return frozenset(
        field.name
        for field in info.fields
        if isinstance(field.type.type if isinstance(field.type, Metadata) else field.type, IntType)
    )
