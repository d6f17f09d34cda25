"""Sends spans to a collector, from a thread of its own.

What the event loop puts here is made into spans and sent in batches. A collector that is slow or
gone costs spans, never messages: beyond MOST_WAITING they are dropped, and counted.
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
"""How long spans wait for a batch to be full."""
FAREWELL_SECONDS: Final = 5.0
"""How long the end waits for what is left to be sent."""

log = structlog.get_logger("sluicemq.tracing")


class Export:
    """See the module.

    counts  spans `exported`, `failed` (the collector did not take them) and `dropped`
    """

    def __init__(self, exporter: SpanExporter, make: Callable[[SpanRecord], ReadableSpan]) -> None:
        # what the exporter has to say goes where everything else does, and once
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False
        self.counts = {"exported": 0, "failed": 0, "dropped": 0}
        self._exporter = exporter
        self._make = make
        self._waiting: deque[SpanRecord] = deque()
        self._wanted = Event()
        self._ending = False
        self._well = True
        self._thread = Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def put(self, span_record: SpanRecord) -> None:
        """Send it soon. On the event loop."""
        waiting = len(self._waiting)
        if waiting >= MOST_WAITING:
            self.counts["dropped"] += 1
            return
        self._waiting.append(span_record)
        if waiting + 1 == BATCH:
            self._wanted.set()

    def close(self) -> None:
        """Send what is left, if that does not take long."""
        self._ending = True
        self._wanted.set()
        self._thread.join(FAREWELL_SECONDS)
        self._exporter.shutdown()

    def _run(self) -> None:
        ending = False
        while not ending:
            self._wanted.wait(PATIENCE_SECONDS)
            self._wanted.clear()
            ending = self._ending  # what has been put before that is still sent
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
