"""`GET /metrics`.

Requests that arrive at the same time, or shortly after each other, share one response. Long parts
are built in slices (`time_slices`), so that a scrape does not block the event loop.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from typing import Final

from starlette.responses import Response

from sluicemq import __version__
from sluicemq.admin import metrics as f
from sluicemq.admin.collectors import FRESH_SECONDS, add_process
from sluicemq.admin.endpoints import Call, Service, count_by_protocol, handles
from sluicemq.admin.metrics import TEXT, Exposition
from sluicemq.broker import COMPILED
from sluicemq.journal import FileJournal, Slot
from sluicemq.journal.liveness import LiveSegment
from sluicemq.journal.reader import records_after
from sluicemq.journal.segment import sealed_time
from sluicemq.journal.slots import now_ms
from sluicemq.management.operation import ApiOperation, Need, NoParameters
from sluicemq.model.access import Operation

GET_METRICS: Final = ApiOperation(
    "getMetrics",
    "GET",
    "/metrics",
    Need.USER,
    "Show the metrics for Prometheus",
    NoParameters,
    bytes,
    media=TEXT,
    prefix="",
)
"""Needs no login if `http.public_metrics` is set, see `Application`."""


class MetricsPage(Service):
    """Handlers of `/metrics`."""

    @handles(GET_METRICS)
    async def show(self, call: Call, parameters: NoParameters) -> Response:
        """Return the metrics; a response of the last moments is reused."""
        scrape_state = self._context.scrape_state
        # metrics cover all destinations; only patterns that match every name match the empty one
        if not (self._context.http.public_metrics or call.identity.may(Operation.BROWSE, "")):
            raise call.denial("browse all destinations")
        request_time = time.monotonic()
        async with scrape_state.build_lock:
            if request_time - scrape_state.built_at >= FRESH_SECONDS:
                scrape_state.latest = await self._collect()
                scrape_state.built_at = time.monotonic()
        return Response(scrape_state.latest.text(), headers={"Content-Type": TEXT})

    async def _collect(self) -> Exposition:
        start = time.perf_counter()
        scrape_state = self._context.scrape_state
        scrape_state.pauses.begin()
        exposition = Exposition()
        self._add_broker(exposition)
        await scrape_state.destinations.collect(exposition, round(time.time() * 1000))
        self._add_traffic(exposition)
        scrape_state.requests.add_to(exposition)
        await self._add_journal(exposition)
        add_process(exposition, scrape_state.pauses)
        for result, count in (scrape_state.spans or {}).items():
            exposition.add(f.SPANS, count, result)
        exposition.add(f.SCRAPE, round(time.perf_counter() - start, 6))
        return exposition

    def _add_broker(self, exposition: Exposition) -> None:
        process = self._context.process
        broker = self._broker
        compiled = "true" if COMPILED else "false"
        exposition.add(f.BUILD, 1, __version__, platform.python_version(), compiled)
        exposition.add_all(
            {
                f.DESTINATIONS_LIMIT: broker.settings.max_destinations,
                f.SERIES_LIMIT: self._context.scrape_state.destinations.limit,
                f.MESSAGES["memory"]: broker.memory,
                f.MESSAGES["memory_budget"]: broker.settings.memory_budget,
                f.MESSAGES["memory_limit"]: broker.settings.memory_limit,
                f.ITERATIONS: broker.iterations,
            },
        )
        exposition.add_histogram(f.LOOP_LAG, process.lag.read())
        transactions = broker.transactions
        exposition.add(f.TRANSACTIONS, len(transactions.open), "open")
        exposition.add(f.TRANSACTIONS, len(transactions.prepared), "prepared")
        oldest = min(
            (transaction.created for transaction in transactions.prepared.values()), default=0
        )
        age = max(0.0, time.time() - oldest / 1000) if oldest else 0.0
        exposition.add(f.OLDEST_PREPARED, round(age, 3))

    def _add_traffic(self, exposition: Exposition) -> None:
        context = self._context
        for protocol, count in count_by_protocol(context.connections).items():
            exposition.add(f.PROTOCOL_CONNECTIONS, count, protocol)
        for protocol, traffic in context.broker.traffic.items():
            exposition.add_fields(f.TRAFFIC, traffic, protocol)
        for listener in context.connections.listeners():
            labels = listener.url, listener.protocol
            exposition.add_fields(f.LISTENER, listener, *labels)
            for reason, count in sorted(listener.closed.items()):
                exposition.add(f.LISTENER_CLOSED, count, *labels, reason)
        exposition.add_fields(f.INPUT, context.connections.input())
        for event, count in context.audit.counts.items():
            exposition.add(f.AUDIT, count, event)

    async def _add_journal(self, exposition: Exposition) -> None:
        journal = self._broker.journal
        stats = journal.stats()
        exposition.add_fields(f.JOURNAL, stats)
        exposition.add_histogram(f.JOURNAL_SYNC, journal.syncs.read())
        if not isinstance(journal, FileJournal):
            return
        # run on a thread: a hanging file system must not block the event loop
        segments = list(journal.segments)
        sealed = [segment for segment in segments if segment.sealed]
        disk, slots, idle, lags = await asyncio.to_thread(_on_disk, journal, segments)
        space = journal.space_state()
        exposition.add_all(
            {
                f.DISK["free"]: disk.f_bavail * disk.f_frsize,
                f.DISK["size"]: disk.f_blocks * disk.f_frsize,
                f.DISK["level"]: int(space.level),
                f.DISK["threshold"]: space.threshold,
                f.DISK["reserve"]: space.reserve,
            },
        )
        unsealed_bytes = stats.bytes - sum(segment.size for segment in sealed)
        for name, slot in slots.items():
            is_behind = stats.durable > slot.position
            lag = sum(segment.size for segment in sealed if segment.last > slot.position)
            exposition.add_all(
                {
                    f.SLOT["position"]: slot.position,
                    f.SLOT["lag"]: lags[name],
                    f.SLOT["bytes"]: lag + unsealed_bytes if is_behind else 0,
                    f.SLOT["limit_bytes"]: slot.limit_bytes,
                    f.SLOT["lost"]: int(slot.lost),
                    f.SLOT["idle"]: idle.get(name, 0) / 1000,
                },
                name,
            )
            if journal.options.slot_idle_timeout:
                exposition.add(
                    f.SLOT["idle_timeout"], journal.options.slot_idle_timeout / 1000, name
                )


def _on_disk(
    journal: FileJournal, segments: list[LiveSegment]
) -> tuple[os.statvfs_result, dict[str, Slot], dict[str, int], dict[str, int]]:
    """Return the file system's room, the slots, for how many ms each has been idle, and the number
    of records that its reader has not processed."""
    slots, _ = journal.slots.readable()
    now = now_ms()
    idle = {}
    lags = {}
    for name, slot in slots.items():
        lags[name] = records_after(journal.directory, segments, slot.position)
        held_segment = next(
            (segment for segment in segments if segment.sealed and segment.last > slot.position),
            None,
        )
        if held_segment is not None and not slot.lost:
            idle[name] = slot.idle_time(sealed_time(journal.directory, held_segment.first), now)
    return os.statvfs(journal.directory), slots, idle, lags
