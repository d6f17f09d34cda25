"""Span export to a collector, in a separate thread.

The thread converts span records of the event loop to spans and sends them in batches. If the
collector is slow or unavailable, records beyond MAX_WAITING are dropped and counted; messages are
not affected.

Names and attributes of the spans follow OpenTelemetry's conventions for messaging; attributes
without a convention begin with `sluicemq.`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

import structlog
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.util.types import AttributeValue

from sluicemq import __version__
from sluicemq.server.tracing.span_recorder import SpanRecord

MAX_WAITING: Final = 10_000
BATCH: Final = 512
BATCH_SECONDS: Final = 1.0
"""Maximum time for which spans wait until a batch is full."""
SHUTDOWN_SECONDS: Final = 5.0
"""Maximum time to send the remaining spans at shutdown."""

SYSTEM: Final = "sluicemq"
TEMPORARY: Final = "(temporary)"
"""Placeholder for the name of a temporary destination in span names."""

_KINDS: Final = {
    "publish": SpanKind.SERVER,
    "journal": SpanKind.INTERNAL,
    "deliver": SpanKind.PRODUCER,
    "ack": SpanKind.SERVER,
    "requeue": SpanKind.SERVER,
    "discard": SpanKind.INTERNAL,
}
_TYPES: Final = {
    "publish": "send",
    "deliver": "receive",
    "ack": "settle",
    "requeue": "settle",
    "discard": "settle",
}
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)

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
        self._is_healthy = True
        self._thread = Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def put(self, span_record: SpanRecord) -> None:
        """Queue a span record for export. Called on the event loop."""
        queue_length = len(self._waiting)
        if queue_length >= MAX_WAITING:
            self.counts["dropped"] += 1
            return
        self._waiting.append(span_record)
        if queue_length + 1 == BATCH:
            self._wakeup.set()

    def close(self) -> None:
        """Send the remaining spans within SHUTDOWN_SECONDS and stop the thread."""
        self._ending = True
        self._wakeup.set()
        self._thread.join(SHUTDOWN_SECONDS)
        self._exporter.shutdown()

    def _run(self) -> None:
        ending = False
        while not ending:
            self._wakeup.wait(BATCH_SECONDS)
            self._wakeup.clear()
            ending = self._ending  # records queued before the flag was set are still sent
            while self._waiting:
                self._send()

    def _send(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            result = self._exporter.export([self._make(span_record) for span_record in batch])
            reason = ""
        except Exception as error:
            result, reason = SpanExportResult.FAILURE, str(error)
        succeeded = result is SpanExportResult.SUCCESS
        self.counts["exported" if succeeded else "failed"] += len(batch)
        if self._is_healthy and not succeeded:
            log.warning("the collector does not accept traces", error=reason or "see its log")
        elif succeeded and not self._is_healthy:
            log.info("the collector accepts traces again")
        self._is_healthy = succeeded


# --- spans ---------------------------------------------------------------------------------------


def span_maker(service: str, instance: str) -> Callable[[SpanRecord], ReadableSpan]:
    """Return a function that makes the spans of one broker.

    `instance` is the identity of the broker's data.
    """
    resource = Resource.create(
        {
            "service.name": service,
            "service.version": __version__,
            "service.instance.id": instance,
        }
    )
    scope = InstrumentationScope("sluicemq", __version__)

    def make(span_record: SpanRecord) -> ReadableSpan:
        state = TraceState.from_header([span_record.state]) if span_record.state else None
        span_attributes = attributes(span_record)
        temporary = "messaging.destination.temporary" in span_attributes
        name = TEMPORARY if temporary else span_attributes.get("messaging.destination.name", "")
        return ReadableSpan(
            name=f"{span_record.operation} {name}",
            context=SpanContext(span_record.trace, span_record.span, False, _SAMPLED, state),
            parent=SpanContext(
                span_record.trace, span_record.parent, span_record.remote, _SAMPLED, state
            )
            if span_record.parent
            else None,
            resource=resource,
            attributes=span_attributes,
            kind=_KINDS[span_record.operation],
            instrumentation_scope=scope,
            start_time=span_record.begun,
            end_time=max(span_record.begun, span_record.ended),
        )

    return make


def attributes(span_record: SpanRecord) -> dict[str, AttributeValue]:
    """Return the attributes of the span, without the empty and false ones."""
    values: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": span_record.operation,
        "messaging.operation.type": _TYPES.get(span_record.operation, ""),
        "messaging.destination.subscription.name": span_record.subscription,
        "sluicemq.sequence": span_record.sequence,
        "sluicemq.delivery.attempt": span_record.attempts or "",
        "sluicemq.outcome": span_record.outcome,
        **span_record.of_message,
    }
    return {
        name: _printable(value) if isinstance(value, str) else value
        for name, value in values.items()
        if value != "" and value is not False
    }


def _printable(text: str) -> str:
    """Return the text with characters that UTF-8 cannot encode as backslash escapes.

    Clients choose the names, so these can contain such characters.
    """
    return text.encode("utf-8", "backslashreplace").decode()
