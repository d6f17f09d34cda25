"""OpenTelemetry: the path of messages through the broker as traces. See docs/tracing.md.

`start_tracing` starts tracing according to the configuration, and loads OpenTelemetry only if it is
enabled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sluicemq.model.errors import ConfigurationError
from sluicemq.server.config import TracingSettings
from sluicemq.server.tracing.span_recorder import SpanRecorder

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from sluicemq.server.tracing.export import Export


class Tracing(NamedTuple):
    """Span recorder that observes the engine, and the export of its spans."""

    span_recorder: SpanRecorder
    export: Export


def installation_problem() -> str:
    """Return why OpenTelemetry cannot be loaded; "" if it can."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError as error:
        return (
            f"tracing.endpoint is set, but OpenTelemetry is not installed ({error}); install it "
            "with `pip install 'sluicemq[tracing]'`"
        )
    return ""


def start_tracing(
    options: TracingSettings, identity: bytes, exporter: SpanExporter | None = None
) -> Tracing | None:
    """Return the tracing of a broker, or None if tracing is disabled.

    `identity` is the journal's; `exporter` replaces the exporter for the endpoint.
    Raises ConfigurationError if OpenTelemetry is not installed.
    """
    if not options.endpoint:
        return None
    if problem := installation_problem():
        raise ConfigurationError(problem)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    from sluicemq.server.tracing.export import Export, span_maker

    if exporter is None:
        exporter = OTLPSpanExporter(options.endpoint)
    export = Export(exporter, span_maker(options.service_name, identity.hex()))
    return Tracing(SpanRecorder(export.put, options.sample_ratio, options.rate_limit), export)
