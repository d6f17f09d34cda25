"""Endpoints that list, create, alter, purge, pause, resume and delete queues and topics.

Lists contain the destinations that the caller may see, and are built in time slices. Statistics are
collected for the destinations of the page only, or for all if the list is sorted by them. Purging
runs in slices too: each is one record of the journal, and the response is sent when all are on
disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import asdict, replace

from sluicemq.admin.collectors import DEAD_LETTERS_END
from sluicemq.admin.endpoints import ApiContext, Call, Service, handles
from sluicemq.admin.errors import ApiError, base64_of, printable
from sluicemq.admin.time_slices import TimeSlices, wait_until_durable
from sluicemq.broker import Broker, Delivery, Destination
from sluicemq.management.destinations import (
    DELETE_DESTINATION,
    GET_DESTINATION,
    LIST_DEAD_LETTER_QUEUES,
    LIST_DESTINATIONS,
    PAUSE_DESTINATION,
    PURGE_DESTINATION,
    PUT_DESTINATION,
    RESUME_DESTINATION,
    DeadLetterItem,
    DeadLetterQuery,
    DeleteDestination,
    DestinationBody,
    DestinationItem,
    DestinationPath,
    DestinationQuery,
    DestinationRequest,
    DestinationView,
    EffectiveSettings,
    PurgeRequest,
    PurgeResult,
    PutDestination,
)
from sluicemq.management.operation import Page, kind_name
from sluicemq.model.access import Identity, Operation, matcher
from sluicemq.model.dead_letters import REASON
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    DestinationSettings,
    encode_name,
    is_temporary,
)
from sluicemq.model.errors import JournalError
from sluicemq.model.message import Message
from sluicemq.protocols.jmq.destinations import is_wildcard
from sluicemq.protocols.ownership import selected_dead_letter_queue
from sluicemq.security.access import wait_for_callback

MAX_SUBSCRIPTIONS: Final = 200
"""Maximum number of subscriptions of a topic that are searched for its oldest message."""


def _scheduled_count(destination: Destination) -> int:
    return sum(len(subscription.scheduled) for subscription in destination.all_subscriptions)


SORT_VALUES: Final[dict[str, Callable[[Destination], Any]]] = {
    "name": lambda destination: destination.name,
    "kind": lambda destination: destination.address.kind,
    "ready": lambda destination: destination.waiting,
    "unacked": lambda destination: destination.unacked,
    "scheduled": _scheduled_count,
    "bytes": lambda destination: destination.bytes,
    "consumers": lambda destination: destination.consumers,
    "subscriptions": lambda destination: len(destination.subscriptions),
    "published": lambda destination: destination.statistics.published,
    "delivered": lambda destination: destination.statistics.delivered,
    "dead_lettered": lambda destination: destination.statistics.dead_lettered,
    "publish_rate": lambda destination: destination.statistics.publish_rate,
    "deliver_rate": lambda destination: destination.statistics.deliver_rate,
}
"""Values that lists are sorted by; the name and the kind decide between equal ones."""


class DestinationService(Service):
    """Handlers of `/destinations`."""

    @handles(LIST_DESTINATIONS)
    async def index(self, call: Call, query: DestinationQuery) -> Page[DestinationItem]:
        """Return a page of the destinations that the user may see."""
        is_selected = _filter(query)
        destinations = (
            destination
            async for destination in call.slices.iterate(list(self._broker.destinations.values()))
            if is_selected(destination) and may_see_destination(call.identity, destination)
        )
        page = await call.slices.sorted_page(
            query,
            destinations,
            SORT_VALUES[query.sort],
            lambda destination: (destination.name, destination.topic),
        )
        items = [
            self.item(destination)
            async for destination in call.slices.iterate(page.items)
            if not destination.removed
        ]
        return query.page_with(items, page.total or 0)

    def item(self, destination: Destination) -> DestinationItem:
        """Return the list entry of a destination."""
        statistics = destination.statistics
        name = destination.name
        return DestinationItem(
            kind=kind_name(destination.address.kind),
            name=printable(name),
            name_base64=base64_of(name),
            temporary=destination.temporary,
            auto_created=destination.automatic,
            durable=not (destination.automatic or destination.temporary),
            paused=destination.paused,
            ready=destination.waiting,
            unacked=destination.unacked,
            scheduled=_scheduled_count(destination),
            bytes=destination.bytes,
            consumers=destination.consumers,
            subscriptions=len(destination.subscriptions),
            oldest_ms=oldest_age(self._broker, destination),
            published=statistics.published,
            delivered=statistics.delivered,
            redelivered=statistics.redelivered,
            acknowledged=statistics.acknowledged,
            expired=statistics.expired,
            dropped=statistics.dropped,
            rejected=statistics.rejected,
            dead_lettered=statistics.dead_lettered,
            published_bytes=statistics.published_bytes,
            delivered_bytes=statistics.delivered_bytes,
            publish_rate=round(statistics.publish_rate, 3),
            deliver_rate=round(statistics.deliver_rate, 3),
        )

    @handles(GET_DESTINATION)
    async def show(self, call: Call, parameters: DestinationPath) -> DestinationView:
        """Return a destination with its settings."""
        return self._view(find_destination(self._context, call, parameters.address))

    def _view(self, destination: Destination) -> DestinationView:
        settings = destination.settings
        queue = destination.dead_letter_address.name if settings.dead_letter else ""
        return DestinationView(
            **asdict(self.item(destination)),
            settings=asdict(settings),
            effective=EffectiveSettings(dead_letter_queue=printable(queue)),
            configured=self._context.configuration.declares(destination.address),
            created=destination.created,
            created_by=destination.provenance.created_by.value,
            explicit=sorted(destination.provenance.explicit),
            blocked_publishes=len(destination.parked),
        )

    @handles(PUT_DESTINATION)
    async def put(self, call: Call, parameters: PutDestination) -> DestinationView:
        """Create a destination or change its settings."""
        broker = self._broker
        address = parameters.address
        existing = broker.destinations.find(address)
        call.demand(Operation.CREATE if existing is None else Operation.MANAGE, address.name)
        if existing is None:
            if parameters.expect == "existing":
                raise not_found(address)
            self._check_name(address.name)
            if is_wildcard(address):
                raise ApiError(
                    400,
                    "bad-name",
                    f"{printable(address.name)} is the name of several topics, not of one",
                )
        elif parameters.expect == "new":
            raise ApiError(409, "destination-exists", f"{printable(str(address))} exists already")
        elif existing.temporary:
            raise ApiError(
                409,
                "destination-temporary",
                "the destination is temporary: its settings cannot be changed",
            )
        changes = self._changed(parameters.body)
        call.note = " ".join(f"{name}={value}" for name, value in changes.items())
        default_provenance = broker.destinations.provenance_of(CreatedBy.MANAGEMENT)
        base, provenance = broker.settings.default_destination, default_provenance
        if existing is not None:
            base, provenance = existing.settings, existing.provenance
        settings = replace(base, **changes)
        if (settings.dead_letter, settings.dead_letter_queue) != (
            base.dead_letter,
            base.dead_letter_queue,
        ):
            dead_letter_queue = selected_dead_letter_queue(
                broker,
                call.identity,
                address.name,
                settings.dead_letter_queue
                if settings.dead_letter or "dead_letter_queue" in changes
                else "",
                is_enabled=settings.dead_letter,
            )
            if dead_letter_queue:
                call.demand(Operation.PRODUCE, dead_letter_queue)
            broker.destinations.expect_pair(address, settings, call.identity.creator)
        reset = {
            name for name in changes if getattr(parameters.body, name) is None
        } - default_provenance.explicit
        broker.destinations.declare(
            address,
            settings,
            creator=call.identity.creator,
            provenance=provenance.changed(changes.keys() - reset, reset),
        )
        await wait_until_durable(broker, broker.journal.next_sequence())
        call.status = 201 if existing is None else 200
        return self._view(find_destination(self._context, call, parameters.address))

    def _changed(self, requested: DestinationRequest) -> dict[str, Any]:
        defaults = self._broker.settings.default_destination
        changes: dict[str, Any] = {}
        for name in DestinationSettings.__struct_fields__:
            value = getattr(requested, name)
            if value is None:
                changes[name] = getattr(defaults, name)
            elif value is not UNSET:
                changes[name] = value
        queue = changes.get("dead_letter_queue")
        if queue:
            self._check_name(queue)
        return changes

    def _check_name(self, name: str) -> None:
        check_length(name, self._context.limits.name, "bad-name")
        if is_temporary(name):
            raise ApiError(
                400,
                "bad-name",
                f"{name} is reserved for temporary destinations, which clients create",
            )

    @handles(DELETE_DESTINATION)
    async def delete(self, call: Call, parameters: DeleteDestination) -> None:
        """Delete a destination and its messages."""
        broker = self._broker
        destination = find_destination(self._context, call, parameters.address)
        if destination.consumers and not parameters.force:
            raise ApiError(
                409,
                "destination-in-use",
                f"it has {destination.consumers} consumers; delete it with force=true",
            )
        count = sum(subscription.waiting for subscription in destination.all_subscriptions)
        call.note = f"with {count} messages"
        broker.remove(destination, force=True)
        await wait_until_durable(broker, broker.journal.next_sequence())

    @handles(PURGE_DESTINATION)
    async def purge(self, call: Call, parameters: DestinationBody[PurgeRequest]) -> PurgeResult:
        """Purge a destination and return the number of deleted messages."""
        broker = self._broker
        destination = find_destination(self._context, call, parameters.address)
        purged: int = await wait_for_callback(
            broker.operations.purge, destination, parameters.body.unacked
        )
        call.note = f"purged {purged}"
        await wait_until_durable(broker, broker.journal.next_sequence())
        return PurgeResult(purged=purged)

    @handles(PAUSE_DESTINATION)
    @handles(RESUME_DESTINATION)
    async def set_paused(self, call: Call, parameters: DestinationPath) -> DestinationItem:
        """Pause or resume the delivery of a destination."""
        broker = self._broker
        destination = find_destination(self._context, call, parameters.address)
        paused = call.endpoint.operation is PAUSE_DESTINATION
        broker.destinations.set_paused(destination, paused)
        await wait_until_durable(broker, broker.journal.next_sequence())
        return self.item(destination)


def check_length(name: str, max_bytes: int, code: str) -> None:
    """Check the length of a destination's name. Raises ApiError with the code."""
    if not 0 < len(encode_name(name)) <= max_bytes:
        raise ApiError(400, code, f"the name of a destination has 1 to {max_bytes} bytes")


def find_destination(context: ApiContext, call: Call, address: Address) -> Destination:
    """Return the destination of a request. Raises ApiError if it does not exist or if the caller
    may not see it: only superusers and their own connections may see temporary destinations."""
    destination = context.broker.destinations.find(address)
    if destination is None or (destination.temporary and not call.identity.superuser):
        raise not_found(address)
    return destination


def may_see_destination(identity: Identity, destination: Destination) -> bool:
    """Return whether lists show it to the user."""
    return identity.superuser or (not destination.temporary and identity.sees(destination.name))


def not_found(address: Address) -> ApiError:
    """Return the error for a missing destination."""
    return ApiError(
        404,
        "destination-not-found",
        f"there is no {kind_name(address.kind)} {printable(address.name)}",
    )


def oldest_age(broker: Broker, destination: Destination) -> int | None:
    """Return the age in ms of the oldest ready message. For a topic, only the first
    MAX_SUBSCRIPTIONS subscriptions are searched."""
    subscriptions = destination.all_subscriptions[:MAX_SUBSCRIPTIONS]
    oldest = broker.operations.oldest_ready(subscriptions)
    message = None if oldest is None else intact_head(broker, oldest)
    return None if message is None else max(0, broker.clock.wall - message.arrival)


def intact_head(broker: Broker, delivery: Delivery) -> Message | None:
    """Return a message without its body; None if it cannot be read."""
    try:
        return broker.read_head(delivery)
    except JournalError:
        return None


def _filter(query: DestinationQuery) -> Callable[[Destination], bool]:
    text = query.filter.lower()
    pattern = matcher(text if "*" in text else f"*{text}*")
    return lambda destination: (
        query.kind in (None, kind_name(destination.address.kind))
        and query.temporary in (None, destination.temporary)
        and pattern.match(destination.name.lower()) is not None
    )


# --- Dead-letter queues ---------------------------------------------------------------------------
#
# Endpoint that lists the dead-letter queues: those that destinations are configured to use, and
# those with the suffix of dead-letter queues.
#
# Reasons are counted over the first messages of each queue. The counts are cached until the queue
# changes.

MAX_COUNTED: Final = 1000
"""Maximum number of messages per queue whose reasons are counted."""
MAX_SCANNED: Final = 10_000
"""Maximum number of messages scanned for one page, divided among its queues."""
MAX_REASONS: Final = 20
MAX_SOURCES: Final = 20
MAX_CACHED: Final = 2000
"""Maximum number of queues whose counts are cached."""
OTHERS: Final = "(others)"


class CountedReasons(NamedTuple):
    """Cached counts of a queue, valid as long as the queue has the same `stamp`."""

    stamp: tuple[int, ...]
    reasons: dict[str, int]
    counted: int


_NOT_COUNTED: Final = CountedReasons((), {}, 0)
"""Counts for callers who may not browse the queue."""


class DeadLetterService(Service):
    """Handlers of `/dead-letters`."""

    def __init__(self, context: ApiContext) -> None:
        super().__init__(context)
        self._known: dict[Destination, CountedReasons] = {}

    @handles(LIST_DEAD_LETTER_QUEUES)
    async def index(self, call: Call, query: DeadLetterQuery) -> Page[DeadLetterItem]:
        """Return a page of the dead-letter queues, with the reasons of their messages."""
        queues = await self._queues(call.identity, call.slices)
        page = await call.slices.sorted_page(
            query,
            call.slices.iterate(queues, 64),
            SORT_VALUES[query.sort],
            lambda queue: queue.name,
        )
        limit = min(MAX_COUNTED, MAX_SCANNED // max(1, len(page.items)))
        items = []
        async for queue in call.slices.iterate(page.items):
            may_browse = call.identity.may(Operation.BROWSE, queue.name)
            summary = await self._count(queue, limit, call.slices) if may_browse else _NOT_COUNTED
            item = DeadLetterItem(
                kind="queue",
                name=printable(queue.name),
                name_base64=base64_of(queue.name),
                ready=queue.waiting,
                reasons=summary.reasons,
                scanned=summary.counted,
                oldest_ms=oldest_age(self._broker, queue),
                sources=queues[queue],
            )
            items.append(item)
        return query.page_with(items, len(queues))

    async def _queues(self, identity: Identity, slices: TimeSlices) -> dict[Destination, list[str]]:
        """Return the dead-letter queues that the caller may see, with the first destinations that
        send their dead letters there.

        A queue stays in the list while a destination names it, even if dead letters are disabled
        there: it may still contain some.
        """
        find = self._broker.destinations.find
        queues: dict[Destination, list[str]] = {}
        async for destination in slices.iterate(list(self._broker.destinations.values())):
            is_dead_letter_queue = (
                destination.name.endswith(DEAD_LETTERS_END) and not destination.topic
            )
            if is_dead_letter_queue and may_see_destination(identity, destination):
                queues.setdefault(destination, [])
            queue = find(destination.dead_letter_address)
            if (
                queue is not None
                and queue is not destination
                and may_see_destination(identity, queue)
            ):
                sources = queues.setdefault(queue, [])
                is_source = destination.dead_letters is not None and may_see_destination(
                    identity, destination
                )
                if is_source and len(sources) < MAX_SOURCES:
                    sources.append(printable(str(destination.address)))
        return queues

    async def _count(self, queue: Destination, limit: int, slices: TimeSlices) -> CountedReasons:
        statistics = queue.statistics
        stamp = (
            limit,
            queue.waiting,
            statistics.published,
            statistics.acknowledged,
            queue.queue.ready,
            queue.unacked,
        )
        cached = self._known.get(queue)
        if cached is not None and cached.stamp == stamp:
            return cached
        reasons: Counter[str] = Counter()
        cursor = queue.queue.cursor()
        async for delivery in slices.scan(cursor, lambda: limit - reasons.total()):
            reasons[self._reason_of(delivery)] += 1
        if len(self._known) >= MAX_CACHED:
            self._known.clear()
        cached = self._known[queue] = CountedReasons(stamp, _first(reasons), reasons.total())
        return cached

    def _reason_of(self, delivery: Delivery) -> str:
        message = intact_head(self._broker, delivery)
        if message is None:
            return "(damaged)"
        reason = (message.properties or {}).get(REASON)
        return "(none)" if reason is None else printable(str(reason))[:100]


def _first(reasons: Counter[str]) -> dict[str, int]:
    """Return the most frequent reasons with their counts, and the sum of the others."""
    counts = dict(reasons.most_common(MAX_REASONS))
    others = reasons.total() - sum(counts.values())
    if others:
        counts[OTHERS] = counts.get(OTHERS, 0) + others
    return counts
