"""OpenTelemetry: the path of messages through the broker as traces. See docs/tracing.md."""
