"""OpenTelemetry: the ways of messages through the broker as traces. See docs/tracing.md."""
