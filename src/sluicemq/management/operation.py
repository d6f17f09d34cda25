"""Declaration of an operation of the management API.

    GET_USER = ApiOperation(
        "getUser", "GET", "/users/{name}", Need.SUPERUSER, "Show a user", NamePath, UserView
    )

The HTTP API routes, authorizes, decodes and documents requests by these declarations, and the
client encodes requests and decodes responses by them.

`parameters` is a msgspec Struct with everything that a request contains. A field is sent

- in the path if the path has its name in braces; `{kind}/{name}` in a path is the field `address`,
- as the JSON body if its name is `body` and the method is not GET,
- otherwise as a query parameter; the client omits those that have their default value.

A name of a destination that no URL can carry is sent as `~` in the path and as the name's bytes in
the query parameter `name_base64`.

All lists have the same pages:

    GET …?limit=100                  -> {"items": […], "total": 250, "next_cursor": "100"}
    GET …?limit=100&cursor=100       -> {"items": […], "total": 250, "next_cursor": "200"}
    GET …?limit=100&offset=200       -> {"items": […], "total": 250, "next_cursor": null}
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from sluicemq.model.access import Operation
from sluicemq.model.destination import Kind, encode_name

PREFIX: Final = "/api/v1"
KindName = Literal["queue", "topic"]
KINDS: Final = {"queue": Kind.QUEUE, "topic": Kind.TOPIC}
BY_BASE64: Final = "~"
"""Path part that refers to the parameter `name_base64`."""
OCTETS: Final = "application/octet-stream"
_BOUND: Final = "bound_operations"
MAX_EXACT: Final = (1 << 53) - 1
"""Largest integer that every JSON reader represents exactly."""

ParametersT = TypeVar("ParametersT", bound=msgspec.Struct)
AnswerT = TypeVar("AnswerT", covariant=True)
BodyT = TypeVar("BodyT")
ItemT = TypeVar("ItemT")
ServiceT = TypeVar("ServiceT")
CallT = TypeVar("CallT")


class Need(Enum):
    """Access requirement of an operation that needs no permission on a destination."""

    NOTHING = "Requires no login."
    USER = "Requires a login."
    VISIBLE = "Requires a login; the response contains what the user may see."
    OWNER = "Requires the object's owner, or a user who may administer it; others receive 404."
    SUPERUSER = "Requires a superuser."


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of an operation that has none, and its body: nothing, or an empty object."""


class IdPath(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of an operation on an object with an id."""

    id: Annotated[str, Meta(min_length=1, description="Id of the object, as in its list.")]


class NamePath(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of an operation on an object with a name."""

    name: Annotated[str, Meta(min_length=1, description="Name of the object.")]


class Body(msgspec.Struct, Generic[BodyT], frozen=True, kw_only=True):
    """Parameters of an operation that has only a body."""

    body: BodyT


class NamedBody(NamePath, Generic[BodyT], frozen=True, kw_only=True):
    """Parameters of an operation on an object with a name, and a body."""

    body: BodyT


@dataclass(frozen=True)
class ApiOperation(Generic[ParametersT, AnswerT]):
    """Operation of the management API.

    operation_id  name in the OpenAPI document, in clients generated from it and in the audit log
    needs       access requirement. SUPERUSER and permissions, one of which the caller has for the
                destination in the path, are checked before the parameters. Of several permissions,
                the handler checks those that the request needs. It also checks OWNER and VISIBLE
    parameters  type of the parameters
    answer      type of the JSON response; `NoneType` = no content, `bytes` = content of the media
                type `media`
    status      status of a successful response; it may also be one of `other_statuses`, such as 201
                for an operation that creates something only if it does not exist
    raw_body    media type of a body that is not one JSON document
    audited     True if requests are written to the audit log; None = all methods except GET
    """

    operation_id: str
    method: str
    path: str
    needs: Need | tuple[Operation, ...]
    summary: str
    parameters: type[ParametersT]
    answer: type[AnswerT]
    _: KW_ONLY
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    media: str = "application/json"
    raw_body: str = ""
    audited: bool | None = None
    prefix: str = PREFIX

    @property
    def full_path(self) -> str:
        """Path with the prefix."""
        return self.prefix + self.path

    @property
    def changes(self) -> bool:
        """True if the operation may change something; requests of browser sessions then need a
        CSRF token."""
        return self.method != "GET"

    @property
    def has_address(self) -> bool:
        """True if the path identifies a destination."""
        return "{kind}/{name}" in self.path

    @cached_property
    def path_names(self) -> tuple[str, ...]:
        """Names of the parts of the path that are parameters, in order."""
        return tuple(part.strip("{*}") for part in self.path.split("/") if part.startswith("{"))

    @cached_property
    def query_names(self) -> tuple[str, ...]:
        """Names of the fields of `parameters` that are query parameters."""
        other_names = {*self.path_names, "address" if self.has_address else ""}
        if self.changes:
            other_names.add("body")
        return tuple(
            field.name for field in fields(self.parameters) if field.name not in other_names
        )

    @cached_property
    def body(self) -> Any:
        """Type of the JSON body; None if the operation has none."""
        if not self.changes:
            return None
        return next((field.type for field in fields(self.parameters) if field.name == "body"), None)


Method = Callable[[ServiceT, CallT, ParametersT], Awaitable[AnswerT]]
"""Method of a service that carries out an operation: it takes the call, of which it needs the
caller, and the parameters."""


def implements(
    operation: ApiOperation[ParametersT, AnswerT],
) -> Callable[
    [Method[ServiceT, CallT, ParametersT, AnswerT]], Method[ServiceT, CallT, ParametersT, AnswerT]
]:
    """Return a decorator that binds an operation to the method that carries it out."""

    def bind(
        method: Method[ServiceT, CallT, ParametersT, AnswerT],
    ) -> Method[ServiceT, CallT, ParametersT, AnswerT]:
        method.__dict__.setdefault(_BOUND, []).append(operation)
        return method

    return bind


def implementations(
    service: object,
) -> Iterator[tuple[ApiOperation[Any, Any], Callable[[Any, Any], Awaitable[Any]]]]:
    """Yield the operations that a service implements, with its bound methods."""
    for name, function in vars(type(service)).items():
        for operation in getattr(function, _BOUND, ()):
            yield operation, getattr(service, name)


Expect = Annotated[
    Literal["", "new", "existing"],
    Meta(description="`new`: refuse to alter one; `existing`: refuse to create one."),
]
"""Precondition of a request that creates or changes something."""


class PageQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Parameters of all lists. The query of a list extends it (`class Q(PageQuery, kw_only=True,
    frozen=True)`). The cursor of a list in memory is an offset."""

    limit: Annotated[int, Meta(ge=1, le=500, description="Maximum number of items.")] = 100
    offset: Annotated[int, Meta(ge=0, le=MAX_EXACT, description="Number of items to skip.")] = 0
    cursor: Annotated[
        str,
        Meta(
            pattern="^([0-9]{1,9})?$",
            description="`next_cursor` of the previous page; replaces `offset`.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        if self.offset and self.cursor:
            raise ValueError("offset and cursor exclude each other")

    @property
    def part(self) -> slice:
        """Slice of the whole list that the page contains."""
        start = int(self.cursor or self.offset)
        return slice(start, start + self.limit)

    def page(self, items: list[ItemT]) -> Page[ItemT]:
        """Return the requested page of `items`, which are in order."""
        return self.page_with(items[self.part], len(items))

    def page_with(self, items: list[ItemT], total: int) -> Page[ItemT]:
        """Return the requested page, whose items are given."""
        end = self.part.stop
        return Page(items=items, total=total, next_cursor=str(end) if end < total else None)


SORT: Final = Meta(description="Field that the list is sorted by.")


class SortedPageQuery(PageQuery, kw_only=True, frozen=True):
    """Parameters of a list whose query has a `sort: Literal[…]`, or one fixed sort field."""

    order: Annotated[Literal["asc", "desc"], Meta(description="Order of the `sort` field.")] = "asc"


class Page(msgspec.Struct, Generic[ItemT], kw_only=True, frozen=True):
    """A page of a list.

    total        number of items in all pages; null if unknown
    next_cursor  cursor of the next page; null on the last page
    """

    items: list[ItemT]
    total: int | None
    next_cursor: str | None


def kind_name(kind: Kind) -> KindName:
    """Return the API's name of a kind."""
    return "topic" if kind is Kind.TOPIC else "queue"


def is_utf_8(name: str) -> bool:
    """Return whether a destination's name is UTF-8; it may have any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def to_base64(name: str) -> str:
    """Return the bytes of a destination's name in base64."""
    return base64.b64encode(encode_name(name)).decode()
