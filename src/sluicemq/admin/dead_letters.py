"""Endpoint that lists the dead-letter queues: those that destinations are configured to use, and
those with the suffix of dead-letter queues.

Reasons are counted over the first messages of each queue. The counts are cached until the queue
changes.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal, NamedTuple

import msgspec

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.destinations import DestinationEndpoints, sees
from sluicemq.admin.pagination import Page, SortedPageQuery, page_with
from sluicemq.admin.printable_names import base64_of, printable
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.admin.time_slices import TimeSlices
from sluicemq.broker import Delivery, Destination
from sluicemq.model.access import Identity
from sluicemq.model.dead_letters import REASON
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import JournalError

FIRST: Final = 1000
"""Maximum number of messages per queue whose reasons are counted."""
TOGETHER: Final = 10_000
"""Maximum number of messages scanned for one page, divided among its queues."""
MOST_REASONS: Final = 20
REMEMBERED: Final = 2000
"""Maximum number of queues whose counts are cached."""
SUFFIX: Final = ".dlq"
"""Suffix of the default dead-letter queue of a destination."""
STEP: Final = 20
OTHERS: Final = "(others)"


class DeadLetterQuery(SortedPageQuery, kw_only=True, frozen=True):
    """Order of the dead-letter queues."""

    sort: Literal["name", "ready"] = "name"


class DeadLetterItem(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A dead-letter queue.

    reasons    number of messages by reason, among at most the first thousand
    scanned    number of messages examined
    oldest_ms  age of the oldest message; null if the queue is empty
    sources    destinations that use this dead-letter queue and are visible to the caller
    """

    kind: str
    name: str
    name_base64: str | None = None
    ready: int
    reasons: dict[str, int]
    scanned: int
    oldest_ms: int | None
    sources: list[str]


class CountedReasons(NamedTuple):
    """Cached counts of a queue, valid as long as the queue has the same `stamp`."""

    stamp: tuple[int, ...]
    reasons: dict[str, int]
    counted: int


class DeadLetterEndpoints:
    """Handlers of `/dead-letters`."""

    def __init__(self, context: ApiContext) -> None:
        self._broker = context.broker
        self._destinations = DestinationEndpoints(context)
        self._known: dict[Destination, CountedReasons] = {}

    async def index(self, call: Call) -> Page[DeadLetterItem]:
        """GET /dead-letters"""
        query: DeadLetterQuery = call.query
        slices = TimeSlices(self._broker)
        queues = await self._queues(call.identity, slices)
        names = sorted(queues, key=lambda queue: queue.name)
        if query.sort == "ready":
            names.sort(key=lambda queue: queue.waiting)
        if query.order == "desc":
            names.reverse()
        part = names[query.part]
        most = min(FIRST, TOGETHER // max(1, len(part)))
        items = []
        for queue in part:
            counted = await self._count(queue, most, slices)
            items.append(
                DeadLetterItem(
                    kind="queue",
                    name=printable(queue.name),
                    name_base64=base64_of(queue.name),
                    ready=queue.waiting,
                    reasons=counted.reasons,
                    scanned=counted.counted,
                    oldest_ms=self._destinations.oldest(queue),
                    sources=queues[queue],
                )
            )
            if slices.due:
                await slices.rest()
        return page_with(items, query, len(names))

    async def _queues(self, identity: Identity, slices: TimeSlices) -> dict[Destination, list[str]]:
        """Return the dead-letter queues that the caller may see, with the destinations that use
        them."""
        find = self._broker.destinations.find
        found: dict[Destination, list[str]] = {}
        for place, destination in enumerate(list(self._broker.destinations.values())):
            called_so = destination.name.endswith(SUFFIX) and not destination.topic
            if called_so and sees(identity, destination):
                found.setdefault(destination, [])
            settings = destination.settings
            queue = find(
                Address(Kind.QUEUE, settings.dead_letter_queue or f"{destination.name}{SUFFIX}")
            )
            if queue is not None and queue is not destination and sees(identity, queue):
                users = found.setdefault(queue, [])
                if sees(identity, destination) and len(users) < MOST_REASONS:
                    users.append(printable(str(destination.address)))
            if not place & 63 and slices.due:
                await slices.rest()
        return found

    async def _count(self, queue: Destination, most: int, slices: TimeSlices) -> CountedReasons:
        statistics = queue.statistics
        stamp = (
            most,
            queue.waiting,
            statistics.published,
            statistics.acknowledged,
            queue.queue.ready,
            queue.unacked,
        )
        known = self._known.get(queue)
        if known is not None and known.stamp == stamp:
            return known
        reasons: Counter[str] = Counter()
        counted = 0
        cursor = queue.queue.cursor()
        while counted < most and cursor.priority >= 0:
            for delivery in cursor.look(min(STEP, most - counted)):
                counted += 1
                reasons[self._reason_of(delivery)] += 1
                if slices.due:
                    cursor.back_to(delivery)
                    break
            if slices.due:
                await slices.rest()
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        known = self._known[queue] = CountedReasons(stamp, _first(reasons), counted)
        return known

    def _reason_of(self, delivery: Delivery) -> str:
        try:
            message = self._broker.glance(delivery)
        except JournalError:
            return "(damaged)"
        reason = (message.properties or {}).get(REASON)
        return "(none)" if reason is None else printable(str(reason))[:100]


def _first(reasons: Counter[str]) -> dict[str, int]:
    """Return the most frequent reasons with their counts, and the sum of the others."""
    found = dict(reasons.most_common(MOST_REASONS))
    others = reasons.total() - sum(found.values())
    if others:
        found[OTHERS] = found.get(OTHERS, 0) + others
    return found


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /dead-letters."""
    handlers = DeadLetterEndpoints(context)
    return [
        Endpoint(
            "GET",
            "/dead-letters",
            "listDeadLetterQueues",
            handlers.index,
            "List the dead-letter queues with the reasons of their messages",
            Need.VISIBLE,
            query=DeadLetterQuery,
            answer=Page[DeadLetterItem],
        )
    ]
