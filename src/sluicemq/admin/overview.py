"""Endpoints for the state of the broker: overview, history of the last hour, health and events.

Every user sees the totals of the broker. Only superusers see its listeners and alarms.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse

from sluicemq import __version__
from sluicemq.admin.destinations import find_destination
from sluicemq.admin.endpoints import (
    ApiContext,
    Call,
    Service,
    count_by_protocol,
    destination_name,
    handles,
)
from sluicemq.admin.errors import RETRY_SECONDS, ApiError
from sluicemq.admin.history import STEP, TOTAL_STEPS
from sluicemq.broker import COMPILED, Destination, Traffic
from sluicemq.journal.space import SpaceLevel
from sluicemq.management.broker import (
    EVENT_STREAM,
    GET_HISTORY,
    GET_LIVENESS,
    GET_OVERVIEW,
    GET_READINESS,
    GET_STATUS,
    LIST_AUDIT_ENTRIES,
    LIST_SETTINGS,
    MINUTES,
    STREAM_EVENTS,
    AlarmView,
    AuditEntry,
    ConfigurationQuery,
    HealthView,
    HistoryQuery,
    HistoryView,
    JournalStatsView,
    ListenerItem,
    OverviewQuery,
    OverviewView,
    ProtocolView,
    QuantilesView,
    SettingView,
    StatusView,
    TotalsView,
)
from sluicemq.management.operation import KINDS, NoParameters, Page, PageQuery
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address
from sluicemq.model.histogram import Distribution

# --- Alarms ---------------------------------------------------------------------------------------
#
# Alarms of the overview: conditions that need an operator, for installations without alerts.
#
# | code              | when                                                                  |
# |-------------------|-----------------------------------------------------------------------|
# | not-serving       | the broker starts, stops or has failed                                |
# | memory            | messages that are not journaled are about to be refused               |
# | disk-space        | persistent messages are refused: the journal's disk is nearly full    |
# | disk-full         | nothing is delivered: not even the reserve has space for acks         |
# | destinations-full | the limit of destinations is nearly reached                           |
# | connections-full  | a listener is about to refuse connections                             |
# | disk-slow         | the p99 of fdatasync durations is above SLOW_SYNC_SECONDS             |
# | loop-slow         | the p99 of the event loop lag is above SLOW_LOOP_SECONDS              |
# | prepared          | a prepared transaction has waited for longer than MAX_PREPARED_MS         |

ALARM_FRACTION: Final = 0.9
"""Fraction of a limit above which an alarm is raised."""
SLOW_SYNC_SECONDS: Final = 0.5
SLOW_LOOP_SECONDS: Final = 0.1
MIN_MEASUREMENTS: Final = 20
"""Minimum number of measurements for a p99."""
MAX_PREPARED_MS: Final = 3_600_000


def _space_alarms(context: ApiContext) -> Iterator[AlarmView]:
    """Yield the alarms for the free space of the journal's disk."""
    journal = context.broker.journal
    space = journal.space_state()
    if space.level == SpaceLevel.ENOUGH:
        return
    slot_details = "".join(
        f" The slot {name} holds {size} bytes of the journal that nothing else needs."
        for name, size in journal.bytes_held_by_slots().items()
    )
    if space.level == SpaceLevel.EXHAUSTED:
        yield AlarmView(
            "disk-full",
            f"The disk of the journal has {space.free} bytes left and the reserve is used up: "
            f"nothing is delivered or accepted until space is freed.{slot_details}",
        )
    else:
        yield AlarmView(
            "disk-space",
            f"The disk of the journal has {space.free} bytes left: persistent messages are "
            f"refused until there are {space.resume}. Of the reserve, {space.reserve} of "
            f"{space.reserve_size} bytes are left.{slot_details}",
        )


def alarms(
    context: ApiContext, listeners: Sequence[ListenerItem], lag: Distribution, syncs: Distribution
) -> Iterator[AlarmView]:
    """Yield the present alarms. `lag` and `syncs` are the durations of the last minute."""
    broker = context.broker
    settings = broker.settings
    state = context.process.state()
    if state != "serving":
        yield AlarmView("not-serving", f"The broker is {state}.")
    if broker.memory > ALARM_FRACTION * settings.memory_limit:
        fraction = broker.memory / settings.memory_limit
        yield AlarmView(
            "memory",
            f"Messages take {fraction:.0%} of broker.memory_limit. At 100 % those that are not "
            "journaled are refused.",
        )
    yield from _space_alarms(context)
    limit = settings.max_destinations
    if limit and len(broker.destinations) > ALARM_FRACTION * limit:
        yield AlarmView(
            "destinations-full",
            f"There are {len(broker.destinations)} destinations, and broker.max_destinations "
            f"is {limit}.",
        )
    for listener in listeners:
        if listener.connections > ALARM_FRACTION * listener.max_connections:
            yield AlarmView(
                "connections-full",
                f"{listener.url} has {listener.connections} connections, and its "
                f"max_connections is {listener.max_connections}.",
            )
    sync_p99 = syncs.quantile(0.99)
    if syncs.count >= MIN_MEASUREMENTS and sync_p99 > SLOW_SYNC_SECONDS:
        yield AlarmView(
            "disk-slow", f"One fdatasync in a hundred takes {sync_p99:.1f} s or longer."
        )
    lag_p99 = lag.quantile(0.99)
    if lag.count >= MIN_MEASUREMENTS and lag_p99 > SLOW_LOOP_SECONDS:
        yield AlarmView("loop-slow", f"The p99 of the event loop's lag is {lag_p99 * 1000:.0f} ms.")
    overdue = [
        transaction
        for transaction in broker.transactions.prepared.values()
        if broker.clock.wall - transaction.created > MAX_PREPARED_MS
    ]
    if overdue:
        yield AlarmView(
            "prepared",
            f"{len(overdue)} prepared transactions have waited more than an hour for the decision "
            "of their transaction manager. Their messages stay unacked until then.",
        )


# --- Event stream ---------------------------------------------------------------------------------
#
# Stream of server-sent events (WHATWG HTML, section 9.2).
#
#     event: overview   every second; `/overview` without its history
#     event: logout     the login is no longer valid; the stream ends
#
# Events are not queued: each is built from the current state once the previous one has been sent. A
# slow reader misses events but gets no outdated ones, and its output buffer is bounded.

TICK_SECONDS: Final = 1.0
RETRY_MS: Final = 2000
"""Delay after which a browser reconnects when its stream has ended."""


def event(name: str, data: bytes) -> bytes:
    """Return an event in wire format. `data` is JSON, which contains no line ends."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


# --- Overview, history and events -----------------------------------------------------------------

FRESH_MS: Final = 900
"""Age in ms up to which an overview is reused for other requests."""
STEPS_OF_A_MINUTE: Final = 60 // STEP
_DIGITS: Final = 3
"""Decimal places of rates and of times in ms."""


class OverviewService(Service):
    """Handlers of `/overview`, `/history` and `/events`."""

    def __init__(self, context: ApiContext, tick: float = TICK_SECONDS) -> None:
        """Create the handlers; `tick` is the interval of the events in seconds."""
        super().__init__(context)
        self._cached: OverviewView | None = None
        self._cached_at = 0
        self._tick = tick
        self.streams: dict[Call, str] = {}
        """User of each open stream, the oldest first."""

    @handles(GET_OVERVIEW)
    async def show(self, call: Call, query: OverviewQuery) -> OverviewView:
        """Return the overview with the history of the last minutes."""
        history = self.history_view(MINUTES * STEPS_OF_A_MINUTE)
        return replace(self.current_view(call.identity, query.fresh), history=history)

    @handles(GET_HISTORY)
    async def history(self, call: Call, query: HistoryQuery) -> HistoryView:
        """Return the history of the totals, or of one destination."""
        steps = min(TOTAL_STEPS, query.minutes * STEPS_OF_A_MINUTE)
        name = destination_name(query.destination, "name_base64", query.name_base64)
        if not name:
            return self.history_view(steps)
        call.demand(Operation.BROWSE, name)
        return self.history_view(
            steps, find_destination(self._context, call, Address(KINDS[query.kind], name))
        )

    @handles(STREAM_EVENTS)
    async def stream(self, call: Call, parameters: NoParameters) -> Response:
        """Begin a stream of events. Above the limit, the newest stream of the user with the most
        streams ends, so that no user can exclude others."""
        streams, limit = self.streams, self._context.http.max_event_streams
        counts = Counter(streams.values())
        heaviest_user = max(counts, key=counts.__getitem__, default="")
        is_full = len(streams) >= limit
        if is_full and counts[heaviest_user] <= counts[call.identity.name] + 1:
            raise ApiError(
                503,
                "too-many-streams",
                f"{limit} streams of events are open, and http.max_event_streams allows no more",
                {"Retry-After": str(RETRY_SECONDS)},
            )
        if call.request.method == "HEAD":
            return Response(media_type=EVENT_STREAM)
        if is_full:
            del streams[next(key for key in reversed(streams) if streams[key] == heaviest_user)]
        events = self.events(call)
        await anext(events)  # before other requests are admitted
        return StreamingResponse(events, media_type=EVENT_STREAM)

    async def events(self, call: Call) -> AsyncIterator[bytes]:
        """Yield nothing, then the events of a stream, until the connection is about to close, the
        login is no longer valid or another user needs the stream. The stream counts as open from
        the first step on."""
        closing = call.caller.closing
        self.streams[call] = call.identity.name
        try:
            yield b""
            yield b"retry: %d\n\n" % RETRY_MS
            while call in self.streams and not closing.is_set():
                self._context.broker.schedule_flush()
                identity = call.sender.current()
                if identity is None:
                    yield event("logout", b"{}")
                    return
                yield event("overview", msgspec.json.encode(self.current_view(identity)))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._tick):
                        await closing.wait()
        finally:
            self.streams.pop(call, None)

    def current_view(self, identity: Identity, fresh: bool = False) -> OverviewView:
        """Return the overview that the user may see, without history; `fresh`: not a cached one,
        which only superusers may request."""
        now = self._context.broker.clock.steady
        overview = self._cached
        fresh = fresh and identity.superuser
        if overview is None or fresh or now - self._cached_at > FRESH_MS:
            self._cached = overview = self._build()
            self._cached_at = now
        return overview if identity.superuser else replace(overview, listeners=[], alarms=[])

    def _build(self) -> OverviewView:
        context = self._context
        broker, process, history = context.broker, context.process, context.history
        lag, syncs = history.recent_lag(), history.recent_syncs()
        stats = history.journal
        listeners = context.connections.listeners()
        return OverviewView(
            version=__version__,
            compiled=COMPILED,
            broker_id=broker.identity.hex(),
            state=process.state(),
            time=broker.clock.wall,
            uptime_ms=round(process.uptime() * 1000),
            resident_memory_bytes=process.memory(),
            message_memory_bytes=broker.memory,
            message_memory_budget_bytes=broker.settings.memory_budget,
            message_memory_limit_bytes=broker.settings.memory_limit,
            input=context.connections.input(),
            totals=self._totals(),
            protocols=dict(self._protocols()),
            listeners=listeners,
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
            alarms=list(alarms(context, listeners, lag, syncs)),
        )

    def _totals(self) -> TotalsView:
        broker = self._context.broker
        totals = broker.stats_sampler.totals
        statistics = totals.statistics
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
            publish_rate=round(statistics.publish_rate, _DIGITS),
            deliver_rate=round(statistics.deliver_rate, _DIGITS),
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
        )

    def _protocols(self) -> Iterator[tuple[str, ProtocolView]]:
        connections = count_by_protocol(self._context.connections)
        traffic = self._context.broker.traffic
        for protocol in sorted({*connections, *traffic}):
            counters = traffic.get(protocol, Traffic())
            view = ProtocolView(
                connections.get(protocol, 0),
                round(counters.publish_rate, _DIGITS),
                round(counters.deliver_rate, _DIGITS),
                counters.published,
                counters.delivered,
            )
            yield protocol, view

    def history_view(self, steps: int, destination: Destination | None = None) -> HistoryView:
        """Return up to `steps` samples of the totals, or of one destination."""
        history = self._context.history
        if destination is None:
            samples = totals = history.totals(steps)
        else:
            samples, totals = history.of(destination, steps), []
        return HistoryView(
            step_ms=STEP * 1000,
            end=history.end,
            publish_rate=[round(sample.publish_rate, _DIGITS) for sample in samples],
            deliver_rate=[round(sample.deliver_rate, _DIGITS) for sample in samples],
            ready=[sample.ready for sample in samples],
            unacked=[sample.unacked for sample in samples],
            loop_lag_ms=[round(sample.lag, _DIGITS) for sample in totals],
            fdatasync_ms=[round(sample.sync, _DIGITS) for sample in totals],
        )


def _quantiles(distribution: Distribution) -> QuantilesView:
    return QuantilesView(
        round(1000 * distribution.quantile(0.5), _DIGITS),
        round(1000 * distribution.quantile(0.99), _DIGITS),
        round(1000 * distribution.longest, _DIGITS),
    )


# --- Health checks, settings and the audit log ----------------------------------------------------
#
# Endpoints for health checks, which require no login, and for the effective settings and the audit
# log.


class StatusService(Service):
    """Handlers of `/health`, `/status`, `/configuration` and `/audit`."""

    @handles(GET_STATUS)
    async def status(self, call: Call, parameters: NoParameters) -> StatusView:
        """Return the identity of the broker."""
        return StatusView(__version__, self._context.broker.identity.hex(), os.getpid())

    @handles(GET_LIVENESS)
    @handles(dataclasses.replace(GET_LIVENESS, prefix=""))
    async def live(self, call: Call, parameters: NoParameters) -> HealthView:
        """Return the state of the broker; a response shows that the event loop runs."""
        return HealthView(self._context.process.state())

    @handles(GET_READINESS)
    @handles(dataclasses.replace(GET_READINESS, prefix=""))
    async def ready(self, call: Call, parameters: NoParameters) -> HealthView:
        """Return the state of the broker; 503 unless it serves clients. Low disk space and full
        memory do not matter: consumers, which free space, must still reach the broker."""
        state = self._context.process.state()
        if state != "serving":
            raise ApiError(
                503,
                "not-ready",
                f"the broker is not serving: {state}",
                {"Retry-After": str(RETRY_SECONDS)},
                {"state": state},
            )
        return HealthView(state)

    @handles(LIST_SETTINGS)
    async def settings(self, call: Call, query: ConfigurationQuery) -> Page[SettingView]:
        """Return a page of the effective settings, in the order of the documentation."""
        settings = self._context.configuration.settings()
        return query.page([setting for setting in settings if query.filter in setting.name])

    @handles(LIST_AUDIT_ENTRIES)
    async def audit_entries(self, call: Call, query: PageQuery) -> Page[AuditEntry]:
        """Return a page of the last entries of the audit log, latest first."""
        return query.page(self._context.audit.recent())
