"""Endpoints that list, create, alter, purge, pause, resume and delete queues and topics.

Lists contain the destinations that the caller may see, and are built in time slices. Statistics are
collected for the destinations of the page only, or for all if the list is sorted by them. Purging
runs in slices too: each is one record of the journal, and the response is sent when all are on
disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict, replace

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.durability import wait_until_durable
from sluicemq.admin.errors import ApiError
from sluicemq.admin.pagination import Page, SortedPageQuery, page_with
from sluicemq.admin.printable_names import base64_of, printable
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.broker import Broker, Destination, Subscription
from sluicemq.model.access import Identity, Operation, matcher
from sluicemq.model.destination import (
    TEMPORARY,
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Overflow,
    encode_name,
    is_temporary,
)
from sluicemq.model.errors import JournalError

MOST: Final = (1 << 53) - 1
"""Largest integer that every JSON reader represents exactly."""
MOST_SUBSCRIPTIONS: Final = 200
"""Maximum number of subscriptions of a topic that are searched for its oldest message."""

Count = Annotated[int, Meta(ge=0, le=MOST)] | UnsetType | None
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
        str, Meta(description="Text anywhere in the name; with `*`, a pattern for the whole name.")
    ] = ""
    temporary: Annotated[
        bool | None, Meta(description="Only temporary destinations, or only others.")
    ] = None
    sort: Sort = "name"


class DestinationItem(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A destination and its figures. For a topic, `ready` is that of its longest subscription.

    auto_created    created by use, and removed when it is not used any more
    durable  its settings survive a restart
    oldest_ms       age of the oldest message that waits; null if none does
    """

    kind: str
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


class EffectiveSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Effective policy: the dead-letter queue, "" if dead letters are disabled."""

    dead_letter_queue: str


class DestinationView(DestinationItem, kw_only=True, frozen=True, omit_defaults=True):
    """A destination with its settings. Times in ms, sizes in bytes; 0 = no limit, never.

    configured   true if the configuration file declares it, which restores its settings at the
                 next start
    created      time of creation in ms since the epoch
    created_by   broker, configuration, management, or the protocol of the client
    explicit     names of the settings that were set explicitly; the others are defaults of the
                 broker or of that protocol
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


class PutQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Precondition of the request."""

    expect: Annotated[
        Literal["new", "existing"] | None,
        Meta(
            description="Required state: `new` only creates a destination, `existing` only changes "
            "one."
        ),
    ] = None


class DestinationDeletionQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Options for deleting a destination."""

    force: Annotated[bool, Meta(description="Delete it even if it has consumers.")] = False


class PurgeRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Messages to drop: all ready and scheduled ones; with `unacked`, unacked ones as well."""

    unacked: bool = False


class PurgeResult(msgspec.Struct, kw_only=True, frozen=True):
    """Number of messages dropped."""

    purged: int


def _delayed(destination: Destination) -> int:
    return sum(len(each.delayed) for each in every(destination))


FIGURES: Final[dict[str, Callable[[Destination], Any]]] = {
    "kind": lambda destination: destination.address.kind,
    "ready": lambda destination: destination.waiting,
    "unacked": lambda destination: destination.unacked,
    "scheduled": _delayed,
    "bytes": lambda destination: destination.bytes,
    "consumers": lambda destination: destination.consumers,
    "subscriptions": lambda destination: len(destination.subscriptions),
    "published": lambda destination: destination.statistics.published,
    "delivered": lambda destination: destination.statistics.delivered,
    "dead_lettered": lambda destination: destination.statistics.dead_lettered,
    "publish_rate": lambda destination: destination.statistics.publish_rate,
    "deliver_rate": lambda destination: destination.statistics.deliver_rate,
}
"""Sort keys of lists besides the name."""


class DestinationEndpoints:
    """Handlers of `/destinations`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._broker = context.broker

    async def index(self, call: Call) -> Page[DestinationItem]:
        """GET /destinations"""
        return await self.page(call.identity, call.query)

    async def page(self, identity: Identity, query: DestinationQuery) -> Page[DestinationItem]:
        """Return a page of the selected destinations that the user may see."""
        slices = TimeSlices(self._broker)
        chosen = await self._chosen(identity, query, slices)
        items = []
        for destination in chosen[query.part]:
            if not destination.removed:
                items.append(self.item(destination))
            if slices.due:
                await slices.rest()
        return page_with(items, query, len(chosen))

    async def _chosen(
        self, identity: Identity, query: DestinationQuery, slices: TimeSlices
    ) -> list[Destination]:
        """Return all selected destinations in order."""
        is_meant = _filter(query)
        figure = FIGURES.get(query.sort)
        keyed: list[tuple[Any, str, int, Destination]] = []
        for place, destination in enumerate(list(self._broker.destinations.values())):
            if is_meant(destination) and sees(identity, destination):
                key = figure(destination) if figure is not None else None
                keyed.append((key, destination.name, place, destination))
            if not place & 63 and slices.due:
                await slices.rest()
        # no two have the same place, so that destinations are never compared
        if figure is None:
            keyed.sort(key=_by_name, reverse=query.order == "desc")
        else:
            keyed.sort(key=_by_figure, reverse=query.order == "desc")
        return [each[3] for each in keyed]

    def item(self, destination: Destination) -> DestinationItem:
        """Return the list entry of a destination."""
        return DestinationItem(**self._figures(destination))

    def _figures(self, destination: Destination) -> dict[str, Any]:
        statistics = destination.statistics
        name = destination.name
        return {
            "kind": kind_of(destination.address),
            "name": printable(name),
            "name_base64": base64_of(name),
            "temporary": destination.temporary,
            "auto_created": destination.automatic,
            "durable": not (destination.automatic or destination.temporary),
            "paused": destination.paused,
            "ready": destination.waiting,
            "unacked": destination.unacked,
            "scheduled": _delayed(destination),
            "bytes": destination.bytes,
            "consumers": destination.consumers,
            "subscriptions": len(destination.subscriptions),
            "oldest_ms": self.oldest(destination),
            "published": statistics.published,
            "delivered": statistics.delivered,
            "redelivered": statistics.redelivered,
            "acknowledged": statistics.acknowledged,
            "expired": statistics.expired,
            "dropped": statistics.dropped,
            "rejected": statistics.rejected,
            "dead_lettered": statistics.dead_lettered,
            "published_bytes": statistics.published_bytes,
            "delivered_bytes": statistics.delivered_bytes,
            "publish_rate": round(statistics.publish_rate, 3),
            "deliver_rate": round(statistics.deliver_rate, 3),
        }

    def oldest(self, destination: Destination) -> int | None:
        """Return the age in ms of the oldest ready message. For a topic, only the first
        MOST_SUBSCRIPTIONS subscriptions are searched."""
        eldest = None
        for subscription in every(destination)[:MOST_SUBSCRIPTIONS]:
            if subscription.ready:
                delivery = subscription.eldest()
                if delivery is not None and (eldest is None or delivery.order < eldest.order):
                    eldest = delivery
        if eldest is None:
            return None
        try:
            message = self._broker.glance(eldest)
        except JournalError:
            return None
        return max(0, self._context.clock.wall - message.arrival)

    async def show(self, call: Call) -> DestinationView:
        """GET /destinations/{kind}/{name}"""
        return self._view(found(self._context, call))

    def _view(self, destination: Destination) -> DestinationView:
        settings = destination.settings
        queue = ""
        if settings.dead_letter:
            queue = settings.dead_letter_queue or f"{destination.name}.dlq"
        return DestinationView(
            **self._figures(destination),
            settings=asdict(settings),
            effective=EffectiveSettings(dead_letter_queue=printable(queue)),
            configured=self._context.configuration.declares(destination.address),
            created=destination.created,
            created_by=destination.provenance.created_by.value,
            explicit=sorted(destination.provenance.explicit),
            blocked_publishes=len(destination.parked),
        )

    async def put(self, call: Call) -> DestinationView:
        """PUT /destinations/{kind}/{name}"""
        broker = self._broker
        address = call.address
        there = broker.destinations.find(address)
        call.demand(Operation.CREATE if there is None else Operation.MANAGE, address.name)
        query: PutQuery = call.query
        if there is None:
            if query.expect == "existing":
                raise not_found(address)
            self._check_name(address.name)
        elif query.expect == "new":
            raise ApiError(409, "destination-exists", f"{printable(str(address))} exists already")
        elif there.temporary:
            raise ApiError(
                409,
                "destination-temporary",
                "the destination is temporary: its settings cannot be changed",
            )
        changed = self._changed(call.body)
        if queue := changed.get("dead_letter_queue"):
            # otherwise its creator could fill any other queue with expired messages
            call.demand(Operation.PRODUCE, queue)
        usual = broker.destinations.provenance_of(CreatedBy.MANAGEMENT)
        base, provenance = broker.settings.defaults, usual
        if there is not None:
            base, provenance = there.settings, there.provenance
        reset = {name for name in changed if getattr(call.body, name) is None} - usual.explicit
        broker.destinations.declare(
            address,
            replace(base, **changed),
            creator=call.identity.creator,
            provenance=provenance.changed(changed.keys() - reset, reset),
        )
        call.note = " ".join(f"{name}={value}" for name, value in changed.items())
        await wait_until_durable(broker, broker.journal.next_sequence())
        call.status = 201 if there is None else 200
        return self._view(found(self._context, call))

    def _changed(self, requested: DestinationRequest) -> dict[str, Any]:
        defaults = self._broker.settings.defaults
        changed: dict[str, Any] = {}
        for name in DestinationSettings.__struct_fields__:
            value = getattr(requested, name)
            if value is None:
                changed[name] = getattr(defaults, name)
            elif value is not UNSET:
                changed[name] = value
        queue = changed.get("dead_letter_queue")
        if queue:
            self._check_name(queue)
        return changed

    def _check_name(self, name: str) -> None:
        most = self._context.limits.name
        if not 0 < len(encode_name(name)) <= most:
            raise ApiError(400, "bad-name", f"the name of a destination has 1 to {most} bytes")
        if is_temporary(name):
            raise ApiError(
                400,
                "bad-name",
                f"names with {TEMPORARY} are for temporary destinations, which clients create",
            )

    async def delete(self, call: Call) -> None:
        """DELETE /destinations/{kind}/{name}"""
        broker = self._broker
        destination = found(self._context, call)
        if destination.consumers and not call.query.force:
            raise ApiError(
                409,
                "destination-in-use",
                f"it has {destination.consumers} consumers; delete it with force=true",
            )
        dropped = await _purge(broker, destination, False)
        if not destination.removed:
            broker.remove(destination, force=True)
        call.note = f"with {dropped} messages"
        await wait_until_durable(broker, broker.journal.next_sequence())

    async def purge(self, call: Call) -> PurgeResult:
        """POST /destinations/{kind}/{name}/purge"""
        broker = self._broker
        purged = await _purge(broker, found(self._context, call), call.body.unacked)
        call.note = f"purged {purged}"
        await wait_until_durable(broker, broker.journal.next_sequence())
        return PurgeResult(purged=purged)

    async def pause(self, call: Call) -> DestinationItem:
        """POST /destinations/{kind}/{name}/pause"""
        return await self._set_paused(call, True)

    async def resume(self, call: Call) -> DestinationItem:
        """POST /destinations/{kind}/{name}/resume"""
        return await self._set_paused(call, False)

    async def _set_paused(self, call: Call, paused: bool) -> DestinationItem:
        broker = self._broker
        destination = found(self._context, call)
        (broker.destinations.pause if paused else broker.destinations.unpause)(destination)
        await wait_until_durable(broker, broker.journal.next_sequence())
        return self.item(destination)


async def _purge(broker: Broker, destination: Destination, unacked: bool) -> int:
    """Purge a destination and return the number of messages."""
    purged: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(count: int) -> None:
        if not purged.done():  # the request may be cancelled
            purged.set_result(count)

    broker.operations.purge(destination, unacked, done)
    return await purged


def found(context: ApiContext, call: Call) -> Destination:
    """Return the destination in the path. Raises ApiError if it does not exist or if the caller may
    not see it: only superusers and their own connections may see temporary destinations."""
    destination = context.broker.destinations.find(call.address)
    if destination is None or (destination.temporary and not call.identity.superuser):
        raise not_found(call.address)
    return destination


def sees(identity: Identity, destination: Destination) -> bool:
    """Return whether lists show it to the user."""
    return identity.superuser or (not destination.temporary and identity.sees(destination.name))


def not_found(address: Address) -> ApiError:
    """Return the error for a missing destination."""
    return ApiError(
        404, "destination-not-found", f"there is no {kind_of(address)} {printable(address.name)}"
    )


def kind_of(address: Address) -> str:
    """Return `queue` or `topic`."""
    return "topic" if address.kind is Kind.TOPIC else "queue"


def every(destination: Destination) -> list[Subscription]:
    """Return all subscriptions of a queue or topic."""
    return [destination.queue, *destination.subscriptions.values()]


def _by_name(entry: tuple[Any, str, int, Destination]) -> tuple[str, int]:
    return entry[1], entry[2]


def _by_figure(entry: tuple[Any, str, int, Destination]) -> tuple[Any, str, int]:
    return entry[:3]


def _filter(query: DestinationQuery) -> Callable[[Destination], bool]:
    name_filter = query.filter.lower()
    pattern = matcher(name_filter) if "*" in name_filter else None
    kind = query.kind
    temporary = query.temporary

    def is_meant(destination: Destination) -> bool:
        if kind is not None and destination.topic != (kind == "topic"):
            return False
        if temporary is not None and destination.temporary != temporary:
            return False
        if not name_filter:
            return True
        name = destination.name.lower()
        return pattern.match(name) is not None if pattern is not None else name_filter in name

    return is_meant


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /destinations, except those for messages."""
    handlers = DestinationEndpoints(context)
    one = "/destinations/{kind}/{name}"
    return [
        Endpoint(
            "GET",
            "/destinations",
            "listDestinations",
            handlers.index,
            "List the queues and topics",
            Need.VISIBLE,
            query=DestinationQuery,
            answer=Page[DestinationItem],
        ),
        Endpoint(
            "GET",
            one,
            "getDestination",
            handlers.show,
            "Show a destination with its settings",
            Operation.BROWSE,
            answer=DestinationView,
        ),
        Endpoint(
            "PUT",
            one,
            "putDestination",
            handlers.put,
            "Create a destination or change its settings",
            (Operation.CREATE, Operation.MANAGE),
            query=PutQuery,
            body=DestinationRequest,
            answer=DestinationView,
            created=True,
        ),
        Endpoint(
            "DELETE",
            one,
            "deleteDestination",
            handlers.delete,
            "Delete a destination and its messages",
            Operation.DELETE,
            query=DestinationDeletionQuery,
            status=204,
        ),
        Endpoint(
            "POST",
            f"{one}/purge",
            "purgeDestination",
            handlers.purge,
            "Purge a destination",
            Operation.MANAGE,
            body=PurgeRequest,
            answer=PurgeResult,
        ),
        Endpoint(
            "POST",
            f"{one}/pause",
            "pauseDestination",
            handlers.pause,
            "Pause delivery, also after a restart",
            Operation.MANAGE,
            answer=DestinationItem,
        ),
        Endpoint(
            "POST",
            f"{one}/resume",
            "resumeDestination",
            handlers.resume,
            "Resume delivery",
            Operation.MANAGE,
            answer=DestinationItem,
        ),
    ]
