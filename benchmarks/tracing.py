"""Cost of tracing in the engine, disabled and enabled.

    python -m benchmarks.tracing [--messages N] [--rounds N] [--json]

Messages go through an engine in memory: published a hundred at a time, delivered, acknowledged.
Processor time is what counts, of rounds that alternate between these, so that what else the machine
does hits all of them alike; the figures are medians, in µs a message:

    plain     tracing is off
    none      it is on, and no message is sampled
    hundredth it is on, and one in a hundred is (the default)
    all       each of them, without a limit to a second

Without the package that traces (an older version), only `plain` is measured.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from time import process_time
from typing import Any

from sluicemq.broker import Broker, Consumer, Delivery, ManualClock, Window
from sluicemq.journal.interface import MemoryJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Message

ADDRESS = Address(Kind.QUEUE, "orders")
BODY = b"x" * 100
TURN = 100


class AckingConsumer:
    """Consumer that acknowledges at the end of the batch."""

    def __init__(self) -> None:
        self.unacked: list[int] = []

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.unacked.append(delivery.sequence)

    def detached(self, consumer: Consumer) -> None:
        raise AssertionError


def brokers() -> dict[str, Any]:
    """Return factories of a broker of each kind, with the objects to close afterwards."""
    factories: dict[str, Any] = {
        "plain": lambda: (Broker(MemoryJournal(), ManualClock()), None),
    }
    try:
        from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

        from sluicemq.server.tracing.export import Export, span_maker
        from sluicemq.server.tracing.span_recorder import SpanRecorder
    except ImportError:
        return factories

    class DiscardingExporter(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    def traced(ratio: float) -> Any:
        export = Export(DiscardingExporter(), span_maker("bench", "0"))
        recorder = SpanRecorder(export.put, ratio, 0)
        return Broker(MemoryJournal(), ManualClock(), observer=recorder), export

    factories["none"] = lambda: traced(0.0)
    factories["hundredth"] = lambda: traced(0.01)
    factories["all"] = lambda: traced(1.0)
    return factories


def measure(broker: Broker, messages: int) -> float:
    """Return the processor time in µs per message."""
    queue = broker.destinations.declare(ADDRESS, DestinationSettings())
    taker = AckingConsumer()
    consumer = broker.attach(queue.queue, taker, Window(10 * TURN, True))
    wall = broker.clock.wall
    before = process_time()
    for _ in range(messages // TURN):
        for _ in range(TURN):
            broker.publish(queue, Message(ADDRESS, BODY, timestamp=wall))
        broker.flush()
        sequences, taker.unacked = taker.unacked, []
        for sequence in sequences:
            broker.acknowledge(consumer, sequence)
        broker.flush()
    return (process_time() - before) / messages * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="What tracing costs the engine.")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = brokers()
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, make in kinds.items():
            broker, export = make()
            times[name].append(measure(broker, options.messages))
            if export is not None:
                export.close()
    figures = {name: round(median(samples), 3) for name, samples in times.items()}
    if options.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:10} {figure:7.3f} µs a message   {figure / figures['plain']:.3f}")


if __name__ == "__main__":
    main()
