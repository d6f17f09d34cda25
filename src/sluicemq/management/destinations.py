"""Operations on queues and topics, and the list of dead-letter queues."""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Final, Generic, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sluicemq.management.operation import (
    MAX_EXACT,
    SORT,
    ApiOperation,
    BodyT,
    Expect,
    KindName,
    Need,
    Page,
    SortedPageQuery,
)
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, Overflow

Count = Annotated[int, Meta(ge=0, le=MAX_EXACT)] | UnsetType | None
Flag = bool | UnsetType | None
Sort = Literal[
    "name",
    "kind",
    "ready",
    "unacked",
    "scheduled",
    "bytes",
    "consumers",
    "subscriptions",
    "published",
    "delivered",
    "dead_lettered",
    "publish_rate",
    "deliver_rate",
]


class DestinationQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Selection and order of destinations."""

    kind: Annotated[
        Literal["queue", "topic"] | None, Meta(description="Only destinations of this kind.")
    ] = None
    filter: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Text anywhere in the name; with `*`, a pattern for the whole name.",
            examples=["orders.*"],
        ),
    ] = ""
    temporary: Annotated[
        bool | None, Meta(description="Only temporary destinations, or only others.")
    ] = None
    sort: Annotated[Sort, SORT] = "name"


class AddressView(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A destination's kind and name."""

    kind: KindName
    name: str
    name_base64: str | None = None


class Counters(msgspec.Struct, kw_only=True, frozen=True):
    """Numbers of messages since the start of the broker, bytes of bodies, and rates in
    messages/s."""

    published: int
    delivered: int
    redelivered: int
    acknowledged: int
    expired: int
    dropped: int
    rejected: int
    dead_lettered: int
    published_bytes: int
    delivered_bytes: int
    publish_rate: float
    deliver_rate: float


class DestinationItem(Counters, kw_only=True, frozen=True, omit_defaults=True):
    """A destination and its statistics. For a topic, `ready` is that of its longest subscription.

    auto_created  true if it was created by use; it is removed when it is not used any more
    durable       true if its settings survive a restart
    oldest_ms     age of the oldest ready message; null if there is none
    """

    kind: KindName
    name: str
    name_base64: str | None = None
    temporary: bool
    auto_created: bool
    durable: bool
    paused: bool
    ready: int
    unacked: int
    scheduled: int
    bytes: int
    consumers: int
    subscriptions: int
    oldest_ms: int | None


class EffectiveSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Effective policy: the dead-letter queue, "" if dead letters are disabled."""

    dead_letter_queue: str


class DestinationView(DestinationItem, kw_only=True, frozen=True, omit_defaults=True):
    """A destination with its settings. Times in ms, sizes in bytes; 0 = no limit, never.

    configured         true if the configuration file declares it, which restores its settings at
                       the next start
    created            time of creation in ms since the epoch
    created_by         broker, configuration, management, or the protocol of the client
    explicit           names of the settings that were set explicitly; the others are defaults of
                       the broker or of that protocol
    blocked_publishes  number of messages of publishers that are blocked by its limits
    """

    settings: dict[str, int | bool | str | None]
    effective: EffectiveSettings
    configured: bool
    created: int
    created_by: str
    explicit: list[str]
    blocked_publishes: int


class DestinationRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Settings of a destination, named as in the configuration; times in ms, sizes in bytes.
    Omitted settings stay unchanged; `null` selects the broker's default."""

    max_messages: Count = UNSET
    max_bytes: Count = UNSET
    max_message_bytes: Count = UNSET
    overflow: Overflow | UnsetType | None = UNSET
    message_ttl: Count = UNSET
    ack_timeout: Count = UNSET
    max_attempts: Count = UNSET
    retry_delay: Count = UNSET
    retry_delay_max: Count = UNSET
    dead_letter: Flag = UNSET
    dead_letter_queue: str | UnsetType | None = UNSET
    max_consumers: Count = UNSET
    active_consumers: Count = UNSET
    max_subscriptions: Count = UNSET
    retain_without_subscriptions: Flag = UNSET
    priority_ordering: Flag = UNSET
    auto_ack: Flag = UNSET
    idle_timeout: Count = UNSET


class DestinationPath(msgspec.Struct, kw_only=True, frozen=True):
    """A destination."""

    address: Address


class DestinationBody(DestinationPath, Generic[BodyT], kw_only=True, frozen=True):
    """A destination, and a body."""

    body: BodyT


class PutDestination(DestinationPath, kw_only=True, frozen=True):
    """Settings of a destination, and the precondition of the request."""

    expect: Expect = ""
    body: DestinationRequest = DestinationRequest()


class DeleteDestination(DestinationPath, kw_only=True, frozen=True):
    """Options for deleting a destination."""

    force: Annotated[bool, Meta(description="Delete it even if it has consumers.")] = False


class PurgeRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Messages to drop: all ready and scheduled ones; with `unacked`, unacked ones as well."""

    unacked: bool = False


class PurgeResult(msgspec.Struct, kw_only=True, frozen=True):
    """Number of messages dropped."""

    purged: int


class DeadLetterQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Order of the dead-letter queues."""

    sort: Annotated[Literal["name", "ready"], SORT] = "name"


class DeadLetterItem(AddressView, kw_only=True, frozen=True, omit_defaults=True):
    """A dead-letter queue.

    reasons    number of messages by reason, among at most the first thousand; empty if the caller
               may not browse the queue
    scanned    number of messages examined
    oldest_ms  age of the oldest message; null if the queue is empty
    sources    the first 20 destinations that send their dead letters there, because their
               `dead_letter` is set; only those that are visible to the caller
    """

    ready: int
    reasons: dict[str, int]
    scanned: int
    oldest_ms: int | None
    sources: list[str]


_DESTINATION: Final = "/destinations/{kind}/{name}"

LIST_DESTINATIONS: Final = ApiOperation(
    "listDestinations",
    "GET",
    "/destinations",
    Need.VISIBLE,
    "List the queues and topics",
    DestinationQuery,
    Page[DestinationItem],
)
GET_DESTINATION: Final = ApiOperation(
    "getDestination",
    "GET",
    _DESTINATION,
    (Operation.BROWSE,),
    "Show a destination with its settings",
    DestinationPath,
    DestinationView,
)
PUT_DESTINATION: Final = ApiOperation(
    "putDestination",
    "PUT",
    _DESTINATION,
    (Operation.CREATE, Operation.MANAGE),
    "Create a destination or change its settings",
    PutDestination,
    DestinationView,
    other_statuses=(201,),
)
DELETE_DESTINATION: Final = ApiOperation(
    "deleteDestination",
    "DELETE",
    _DESTINATION,
    (Operation.DELETE,),
    "Delete a destination and its messages",
    DeleteDestination,
    NoneType,
    status=204,
)
PURGE_DESTINATION: Final = ApiOperation(
    "purgeDestination",
    "POST",
    f"{_DESTINATION}/purge",
    (Operation.MANAGE,),
    "Purge a destination",
    DestinationBody[PurgeRequest],
    PurgeResult,
)
PAUSE_DESTINATION: Final = ApiOperation(
    "pauseDestination",
    "POST",
    f"{_DESTINATION}/pause",
    (Operation.MANAGE,),
    "Pause delivery, also after a restart",
    DestinationPath,
    DestinationItem,
)
RESUME_DESTINATION: Final = ApiOperation(
    "resumeDestination",
    "POST",
    f"{_DESTINATION}/resume",
    (Operation.MANAGE,),
    "Resume delivery",
    DestinationPath,
    DestinationItem,
)
LIST_DEAD_LETTER_QUEUES: Final = ApiOperation(
    "listDeadLetterQueues",
    "GET",
    "/dead-letters",
    Need.VISIBLE,
    "List the dead-letter queues with the reasons of their messages",
    DeadLetterQuery,
    Page[DeadLetterItem],
)
