"""What Prometheus and its like are told: `GET /metrics`."""
