"""Endpoints for the overview of the broker and its history of the last hour.

Every user sees the totals of the broker. Only superusers see its listeners and alarms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from sluicemq.admin.alarms import AlarmView, alarms
from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.destinations import sees
from sluicemq.admin.errors import ApiError
from sluicemq.admin.history import STEP, TOTAL_STEPS
from sluicemq.admin.routing import KINDS, Call, Endpoint, Need, from_base64
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address, decode_name
from sluicemq.model.histogram import Distribution

FRESH_MS: Final = 900
"""Age in ms up to which an overview is reused for other requests."""
STEPS_OF_A_MINUTE: Final = 60 // STEP
MINUTES: Final = 10
"""Length of the history in an overview."""
_RATE_DIGITS: Final = 3
_TIME_DIGITS: Final = 3


class OverviewQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Options of the overview."""

    fresh: Annotated[
        bool,
        Meta(description="Compute current totals instead of the last sample; superusers only."),
    ] = False


class HistoryQuery(msgspec.Struct, kw_only=True, frozen=True):
    """Destination and period of the history."""

    destination: Annotated[
        str, Meta(description="Name of the destination; without it, totals.")
    ] = ""
    name_base64: Annotated[str, Meta(description="The same name in base64.")] = ""
    kind: Literal["queue", "topic"] = "queue"
    minutes: Annotated[
        int, Meta(ge=1, le=60, description="Up to 60 for totals, up to 10 for a destination.")
    ] = MINUTES


class HistoryView(msgspec.Struct, kw_only=True, frozen=True):
    """Samples in ascending order of time; the last one was taken at `end` (ms since the epoch).

    publish_rate, deliver_rate  messages/s
    ready, unacked              number of messages
    loop_lag_ms, fdatasync_ms   p99 of event loop lag and fdatasync; empty for a destination
    """

    step_ms: int
    end: int
    publish_rate: list[float]
    deliver_rate: list[float]
    ready: list[int]
    unacked: list[int]
    loop_lag_ms: list[float]
    fdatasync_ms: list[float]


class QuantilesView(msgspec.Struct, frozen=True):
    """Quantiles of durations in about the last minute, in ms."""

    p50: float
    p99: float
    max: float


class TotalsView(msgspec.Struct, kw_only=True, frozen=True):
    """Totals of all destinations and connections. Counters since the start, rates in messages/s,
    bytes of bodies."""

    destinations: int
    queues: int
    topics: int
    temporary: int
    connections: int
    consumers: int
    transactions: int
    ready: int
    unacked: int
    bytes: int
    publish_rate: float
    deliver_rate: float
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


class ProtocolView(msgspec.Struct, frozen=True):
    """Clients of one protocol."""

    connections: int
    publish_rate: float
    deliver_rate: float
    published: int
    delivered: int


class ListenerItem(msgspec.Struct, kw_only=True, frozen=True):
    """An open listener; bytes of all its connections so far. `closed`: connections closed because
    of a limit or a deadline, by its name."""

    url: str
    protocol: str
    tls: bool
    connections: int
    max_connections: int
    accepted: int
    refused: int
    received_bytes: int
    sent_bytes: int
    closed: dict[str, int]


class InputItem(msgspec.Struct, kw_only=True, frozen=True):
    """Unfinished input of all connections.

    buffered_bytes  size of the input
    limit_bytes     maximum size
    connections     number of connections with unfinished input
    paused          number of those whose reading is paused
    """

    buffered_bytes: int
    limit_bytes: int
    connections: int
    paused: int


class JournalStatsView(msgspec.Struct, kw_only=True, frozen=True):
    """The journal; `enabled` is false of a broker without one. Of the last few seconds."""

    enabled: bool
    segments: int
    bytes: int
    durable_sequence: int
    live_records: int
    relocated_records: int
    group_commits: int
    records_written: int
    written_bytes: int
    fdatasync_ms: QuantilesView


class OverviewView(msgspec.Struct, kw_only=True, frozen=True):
    """The broker as a whole."""

    version: str
    compiled: bool
    broker_id: str
    state: str
    time: int
    uptime_ms: int
    resident_memory_bytes: int
    message_memory_bytes: int
    message_memory_budget_bytes: int
    message_memory_limit_bytes: int
    input: InputItem
    totals: TotalsView
    protocols: dict[str, ProtocolView]
    listeners: list[ListenerItem]
    journal: JournalStatsView
    loop_lag_ms: QuantilesView
    alarms: list[AlarmView]
    history: HistoryView | UnsetType = UNSET


class Overview:
    """Source of `/overview` and of the event stream's overview, one per application."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._made: OverviewView | None = None
        self._made_at = 0

    def forget(self) -> None:
        """Discard the cached overview."""
        self._made = None

    def now(self, identity: Identity) -> OverviewView:
        """Return the overview that the user may see, without history."""
        now = self._context.clock.steady
        made = self._made
        if made is None or now - self._made_at > FRESH_MS:
            self._made = made = self._make()
            self._made_at = now
        return made if identity.superuser else replace(made, listeners=[], alarms=[])

    def _make(self) -> OverviewView:
        context = self._context
        broker, vitals, history = context.broker, context.vitals, context.history
        lag, syncs = history.recent_lag(), history.recent_syncs()
        stats = history.journal
        listeners = context.connections.listeners()
        return OverviewView(
            version=vitals.version,
            compiled=vitals.compiled,
            broker_id=broker.identity.hex(),
            state=vitals.state(),
            time=broker.clock.wall,
            uptime_ms=round(vitals.uptime() * 1000),
            resident_memory_bytes=vitals.memory(),
            message_memory_bytes=broker.memory,
            message_memory_budget_bytes=broker.settings.memory_budget,
            message_memory_limit_bytes=broker.settings.memory_limit,
            input=InputItem(**context.connections.input()._asdict()),
            totals=self._totals(),
            protocols=dict(self._protocols()),
            listeners=[ListenerItem(**each._asdict()) for each in listeners],
            journal=JournalStatsView(
                enabled=stats.segments > 0,
                segments=stats.segments,
                bytes=stats.bytes,
                durable_sequence=broker.journal.durable,
                live_records=stats.live,
                relocated_records=stats.relocated,
                group_commits=stats.groups,
                records_written=stats.records,
                written_bytes=stats.written_bytes,
                fdatasync_ms=_quantiles(syncs),
            ),
            loop_lag_ms=_quantiles(lag),
            alarms=alarms(context, listeners, lag, syncs),
        )

    def _totals(self) -> TotalsView:
        broker = self._context.broker
        totals = broker.stats_sampler.totals
        counted = totals.statistics
        transactions = broker.transactions
        return TotalsView(
            destinations=totals.destinations,
            queues=totals.queues,
            topics=totals.topics,
            temporary=totals.temporary,
            connections=len(self._context.connections),
            consumers=totals.consumers,
            transactions=len(transactions.open) + len(transactions.prepared),
            ready=totals.waiting,
            unacked=totals.unacked,
            bytes=totals.bytes,
            publish_rate=round(counted.publish_rate, _RATE_DIGITS),
            deliver_rate=round(counted.deliver_rate, _RATE_DIGITS),
            published=counted.published,
            delivered=counted.delivered,
            redelivered=counted.redelivered,
            acknowledged=counted.acknowledged,
            expired=counted.expired,
            dropped=counted.dropped,
            rejected=counted.rejected,
            dead_lettered=counted.dead_lettered,
            published_bytes=counted.published_bytes,
            delivered_bytes=counted.delivered_bytes,
        )

    def _protocols(self) -> Iterator[tuple[str, ProtocolView]]:
        connections = self._context.connections.by_protocol()
        traffic = self._context.broker.traffic
        for protocol in sorted({*connections, *traffic}):
            seen = traffic.get(protocol)
            count = connections.get(protocol, 0)
            if seen is None:
                yield protocol, ProtocolView(count, 0.0, 0.0, 0, 0)
            else:
                yield (
                    protocol,
                    ProtocolView(
                        count,
                        round(seen.publish_rate, _RATE_DIGITS),
                        round(seen.deliver_rate, _RATE_DIGITS),
                        seen.published,
                        seen.delivered,
                    ),
                )

    def past(self, steps: int) -> HistoryView:
        """Return up to `steps` samples of the totals."""
        history = self._context.history
        samples = history.totals(steps)
        return HistoryView(
            step_ms=STEP * 1000,
            end=history.end,
            publish_rate=[round(each.publish_rate, _RATE_DIGITS) for each in samples],
            deliver_rate=[round(each.deliver_rate, _RATE_DIGITS) for each in samples],
            ready=[each.ready for each in samples],
            unacked=[each.unacked for each in samples],
            loop_lag_ms=[round(each.lag, _TIME_DIGITS) for each in samples],
            fdatasync_ms=[round(each.sync, _TIME_DIGITS) for each in samples],
        )


class OverviewEndpoints:
    """Handlers of `/overview` and `/history`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._overview = Overview(context)

    async def show(self, call: Call) -> OverviewView:
        """GET /overview"""
        past = self._overview.past(MINUTES * STEPS_OF_A_MINUTE)
        if call.query.fresh and call.identity.superuser:
            self._overview.forget()
        return replace(self._overview.now(call.identity), history=past)

    async def history(self, call: Call) -> HistoryView:
        """GET /history"""
        query: HistoryQuery = call.query
        steps = min(TOTAL_STEPS, query.minutes * STEPS_OF_A_MINUTE)
        name = query.destination
        if query.name_base64:
            name = decode_name(from_base64("name_base64", query.name_base64))
        if not name:
            return self._overview.past(steps)
        call.demand(Operation.BROWSE, name)
        destination = self._context.broker.destinations.find(Address(KINDS[query.kind], name))
        if destination is None or not sees(call.identity, destination):
            raise ApiError(404, "destination-not-found", f"there is no such {query.kind}")
        history = self._context.history
        series = history.of(destination, steps)
        return HistoryView(
            step_ms=STEP * 1000,
            end=history.end,
            publish_rate=[round(each, _RATE_DIGITS) for each in series.rates_in],
            deliver_rate=[round(each, _RATE_DIGITS) for each in series.rates_out],
            ready=list(series.ready),
            unacked=list(series.unacked),
            loop_lag_ms=[],
            fdatasync_ms=[],
        )


def _quantiles(found: Distribution) -> QuantilesView:
    return QuantilesView(
        round(1000 * found.quantile(0.5), _TIME_DIGITS),
        round(1000 * found.quantile(0.99), _TIME_DIGITS),
        round(1000 * found.longest, _TIME_DIGITS),
    )


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /overview and /history."""
    handlers = OverviewEndpoints(context)
    return [
        Endpoint(
            "GET",
            "/overview",
            "getOverview",
            handlers.show,
            "Overview of the broker",
            Need.USER,
            query=OverviewQuery,
            answer=OverviewView,
        ),
        Endpoint(
            "GET",
            "/history",
            "getHistory",
            handlers.history,
            "History of the last hour",
            Need.USER,
            query=HistoryQuery,
            answer=HistoryView,
        ),
    ]
