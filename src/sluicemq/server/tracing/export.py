"""Span export to a collector, in a separate thread.

The thread converts span records of the event loop to spans and sends them in batches. If the
collector is slow or unavailable, records beyond MOST_WAITING are dropped and counted; messages are
not affected.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from sluicemq.server.tracing.span_recorder import SpanRecord

MOST_WAITING: Final = 10_000
BATCH: Final = 512
PATIENCE_SECONDS: Final = 1.0
"""Maximum time for which spans wait until a batch is full."""
FAREWELL_SECONDS: Final = 5.0
"""Maximum time to send the remaining spans at shutdown."""

log = structlog.get_logger("sluicemq.tracing")


class Export:
    """Exporter thread with its queue of span records.

    counts  spans `exported`, `failed` (not accepted by the collector) and `dropped`
    """

    def __init__(self, exporter: SpanExporter, make: Callable[[SpanRecord], ReadableSpan]) -> None:
        # this class logs export failures itself, once
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False
        self.counts = {"exported": 0, "failed": 0, "dropped": 0}
        self._exporter = exporter
        self._make = make
        self._waiting: deque[SpanRecord] = deque()
        self._wakeup = Event()
        self._ending = False
        self._well = True
        self._thread = Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def put(self, span_record: SpanRecord) -> None:
        """Queue a span record for export. Called on the event loop."""
        waiting = len(self._waiting)
        if waiting >= MOST_WAITING:
            self.counts["dropped"] += 1
            return
        self._waiting.append(span_record)
        if waiting + 1 == BATCH:
            self._wakeup.set()

    def close(self) -> None:
        """Send the remaining spans within FAREWELL_SECONDS and stop the thread."""
        self._ending = True
        self._wakeup.set()
        self._thread.join(FAREWELL_SECONDS)
        self._exporter.shutdown()

    def _run(self) -> None:
        ending = False
        while not ending:
            self._wakeup.wait(PATIENCE_SECONDS)
            self._wakeup.clear()
            ending = self._ending  # records queued before the flag was set are still sent
            while self._waiting:
                self._send()

    def _send(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            result = self._exporter.export([self._make(span_record) for span_record in batch])
            why = ""
        except Exception as error:
            result, why = SpanExportResult.FAILURE, str(error)
        well = result is SpanExportResult.SUCCESS
        self.counts["exported" if well else "failed"] += len(batch)
        if self._well and not well:
            log.warning("the collector does not take traces", error=why or "see its log")
        elif well and not self._well:
            log.info("the collector takes traces again")
        self._well = well
