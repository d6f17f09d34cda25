"""Cell of a benchmark: a flood for the throughput, then a steady rate for the latency."""

from __future__ import annotations

from typing import NamedTuple

from .load import Load
from .msglite import query
from .result import Cell, QueryMeasurement
from .server import BenchmarkBroker, dialect


class Spec(NamedTuple):
    """Parameters of a cell. See `result.LoadSettings` and `result.Cell` for the fields."""

    protocol: str
    transport: str = "tcp"
    durability: str = "sync"
    size: int = 1024
    producers: int = 1
    consumers: int = 1
    window: int = 1000

    def __str__(self) -> str:
        return (
            f"{self.protocol} over {self.transport}, {self.durability or 'durability as it is'}, "
            f"{self.size:,} bytes, {self.producers} to {self.consumers}"
        )


def measure(
    server: BenchmarkBroker, spec: Spec, *, seconds: float, rate: int, repetition: int
) -> Cell:
    """Measure one cell, `seconds` each for the flood and the steady rate; `rate` 0 = half of the
    flood's.

    Raises ConnectionLost, OSError.
    """
    client_dialect = dialect(spec.protocol, spec.size, queue=server.queue, window=spec.window)
    with Load(
        server.target,
        client_dialect,
        producers=spec.producers,
        consumers=spec.consumers,
        pid=server.pid,
    ) as load:
        flood = load.flood(seconds=seconds)
        steady = load.steady(rate or max(1, flood.rate // 2), seconds)
    return Cell(**spec._asdict(), repetition=repetition, flood=flood, steady=steady)


def measure_queries(
    server: BenchmarkBroker, spec: Spec, *, seconds: float, repetition: int
) -> QueryMeasurement:
    """Measure queries and replies through one broker. Raises ConnectionLost, OSError."""
    run = query(server.target, seconds=seconds, size=spec.size, queue=server.queue, pid=server.pid)
    return QueryMeasurement(
        protocol=spec.protocol,
        transport=spec.transport,
        durability=spec.durability,
        size=spec.size,
        repetition=repetition,
        run=run,
    )
