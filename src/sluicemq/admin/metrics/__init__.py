"""Metrics in the formats of Prometheus and OpenMetrics: `GET /metrics`."""
