"""Conversion of a `SpanRecord` to an exported span.

Names and attributes follow OpenTelemetry's conventions for messaging; attributes without a
convention begin with `sluicemq.`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.util.types import AttributeValue

from sluicemq import __version__
from sluicemq.model.message import Durability, Origin
from sluicemq.server.tracing.span_recorder import SpanRecord

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


def maker(service: str, instance: str) -> Callable[[SpanRecord], ReadableSpan]:
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
        facts = span_record.facts
        name = TEMPORARY if facts.temporary else _printable(facts.destination)
        return ReadableSpan(
            name=f"{span_record.operation} {name}",
            context=SpanContext(span_record.trace, span_record.span, False, _SAMPLED, state),
            parent=SpanContext(
                span_record.trace, span_record.parent, span_record.remote, _SAMPLED, state
            )
            if span_record.parent
            else None,
            resource=resource,
            attributes=attributes(span_record),
            kind=_KINDS[span_record.operation],
            instrumentation_scope=scope,
            start_time=span_record.begun,
            end_time=max(span_record.begun, span_record.ended),
        )

    return make


def attributes(span_record: SpanRecord) -> dict[str, AttributeValue]:
    """Return the attributes of the span."""
    facts = span_record.facts
    result: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": span_record.operation,
        "messaging.destination.name": _printable(facts.destination),
        "messaging.message.body.size": facts.size,
        "sluicemq.destination.kind": "topic" if facts.topic else "queue",
        "sluicemq.sequence": facts.sequence,
        "sluicemq.protocol": Origin(facts.origin).name.lower(),
        "sluicemq.durability": Durability(facts.durability).name.lower(),
    }
    if span_record.operation in _TYPES:
        result["messaging.operation.type"] = _TYPES[span_record.operation]
    if facts.temporary:
        result["messaging.destination.temporary"] = True
    if facts.message_id:
        result["messaging.message.id"] = _printable(facts.message_id)
    if facts.correlation_id:
        result["messaging.message.conversation_id"] = _printable(facts.correlation_id)
    if span_record.subscription:
        result["messaging.destination.subscription.name"] = _printable(span_record.subscription)
    if span_record.attempts:
        result["sluicemq.delivery.attempt"] = span_record.attempts
    if span_record.outcome:
        result["sluicemq.outcome"] = span_record.outcome
    return result


def _printable(text: str) -> str:
    """Return the text with characters that UTF-8 cannot encode as backslash escapes.

    Clients choose the names, so these can contain such characters.
    """
    return text.encode("utf-8", "backslashreplace").decode()
