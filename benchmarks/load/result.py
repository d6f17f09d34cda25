"""Results of the benchmarks, and the JSON document that they print.

The document is stable: new fields do not change `schema`; a removed field or a changed meaning
increments it. `benchmarks/README.md` documents it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

SCHEMA = 1


class ResultPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all parts of the document."""


class Latency(ResultPart, frozen=True, kw_only=True):
    """Milliseconds from the moment when a message *should* have been sent to its receipt, so that a
    broker that stalls the sender gains no advantage (coordinated omission)."""

    p50: float
    p99: float
    p999: float
    maximum: float

    @classmethod
    def of(cls, nanoseconds: list[int]) -> Latency:
        """Compute percentiles by nearest rank. `nanoseconds` must not be empty; it is sorted in
        place."""
        nanoseconds.sort()
        last = len(nanoseconds) - 1

        def at(share: float) -> float:
            return round(nanoseconds[min(last, int(share * len(nanoseconds)))] / 1e6, 3)

        return cls(
            p50=at(0.5), p99=at(0.99), p999=at(0.999), maximum=round(nanoseconds[last] / 1e6, 3)
        )


class TransferResult(ResultPart, frozen=True, kw_only=True):
    """One measurement of message transfer.

    messages         sent and received (or sent without consumers; or round trips)
    seconds          from the first send to the last receipt
    rate             messages / seconds
    broker_us        processor time of the broker's process per message, user and system,
                     microseconds; 0 = unknown
    generator_us     the same of the load generator
    resident_bytes   memory of the broker in RAM at the end; 0 = unknown
    peak_bytes       maximum since the broker was started; 0 = unknown
    target_rate      target rate of a steady run, messages/s; 0 = as fast as possible
    late_ms          steady: p99 of the generator's own lateness
    latency          steady runs and round trips
    """

    messages: int
    seconds: float
    rate: int
    broker_us: float
    generator_us: float
    resident_bytes: int
    peak_bytes: int
    target_rate: int = 0
    late_ms: float = 0.0
    latency: Latency | None = None


class LoadSettings(ResultPart, frozen=True, kw_only=True):
    """Load of a measurement.

    protocol     phpmq, msglite, vibemq or jmq
    transport    tcp or unix
    durability   sync, lazy or none; "" = what the broker at --url does
    size         bytes of a body
    """

    protocol: str
    transport: str
    durability: str
    size: int


class Cell(LoadSettings, frozen=True, kw_only=True, tag_field="scenario", tag="cell"):
    """One cell of the matrix: a flood, then a steady rate, on one fresh broker.

    producers    connections that send
    consumers    connections that receive, all from one queue
    window       maximum number of unacked messages of each consumer: the count of PHPMQ's
                 consume request, the outstanding ready commands of a msglite client. VibeMQ and
                 JMQ: messages of a producer that wait for their PublishAck or SEND_REPLY
    repetition   from 1
    """

    producers: int
    consumers: int
    window: int
    repetition: int
    flood: TransferResult
    steady: TransferResult


class QueryMeasurement(LoadSettings, frozen=True, kw_only=True, tag_field="scenario", tag="query"):
    """msglite queries, one after the other: `run` counts round trips; its latency is from the query
    to its reply."""

    repetition: int
    run: TransferResult


Result = Cell | QueryMeasurement
AnyResult = TypeVar("AnyResult", bound=LoadSettings)


class Machine(ResultPart, frozen=True, kw_only=True):
    """Machine of the measurement. `cores` are those this process may use; `memory_bytes` is the
    total.

    `libraries` are the versions of the event loop and the codecs.
    """

    python: str
    kernel: str
    processor: str
    cores: int
    memory_bytes: int
    libraries: dict[str, str]


class Document(ResultPart, Generic[AnyResult], frozen=True, kw_only=True):
    """Document that the scenarios in `benchmarks/` print.

    schema    SCHEMA
    version   of SluiceMQ
    started   ISO 8601, UTC
    command   such as `benchmarks.scenarios quick`
    options   of the command, defaults included
    """

    schema: int
    version: str
    started: str
    command: str
    machine: Machine
    options: dict[str, str | int | float]
    results: list[AnyResult]
