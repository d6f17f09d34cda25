"""Spans of messages of a broker in memory: names, parents, attributes and limits."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from sluicemq.broker import Broker
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConfigurationError
from sluicemq.model.message import Durability, Origin
from sluicemq.protocols.phpmq.session import to_message
from sluicemq.protocols.phpmq.wire import WITHOUT_TTL
from sluicemq.server.config import TracingSettings
from sluicemq.server.tracing import export as exporting
from sluicemq.server.tracing import span_recorder, start_tracing
from sluicemq.server.tracing.export import Export, span_maker
from sluicemq.server.tracing.span_recorder import SpanRecord, SpanRecorder, parse_traceparent
from tests.support.broker import BrokerFixture

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
MAKE_SPAN = span_maker("shop", "instance")


class TracedFixture(BrokerFixture):
    def __init__(self, ratio: float = 1.0, limit: int = 0) -> None:
        super().__init__()
        self.recorded: list[SpanRecord] = []
        self.span_recorder = SpanRecorder(self.recorded.append, ratio, limit)
        self.broker = Broker(self.journal, self.clock, observer=self.span_recorder)

    def spans(self) -> dict[str, ReadableSpan]:
        """Return the spans recorded since the last call, by name."""
        recorded = [MAKE_SPAN(span_record) for span_record in self.recorded]
        self.recorded.clear()
        assert len({span.name for span in recorded}) == len(recorded), [
            span.name for span in recorded
        ]
        return {span.name: span for span in recorded}


def parent_of(span: ReadableSpan) -> str:
    return f"{span.parent.span_id:016x}" if span.parent else ""


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def test_spans_of_message_with_trace_context() -> None:
    fixture = TracedFixture(ratio=0.0)
    queue = fixture.queue("orders")
    reader = fixture.read(queue)
    [sequence] = fixture.send(
        queue,
        "hello",
        properties={"traceparent": PARENT, "tracestate": "vendor=1", "colour": "red"},
        message_id="m1",
        correlation_id="c1",
        origin=Origin.JMQ,
    )
    reader.acknowledge("hello")
    spans = fixture.spans()
    assert set(spans) == {"publish orders", "journal orders", "deliver orders", "ack orders"}
    for span in spans.values():
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        assert span.context.trace_flags.sampled
        assert span.context.trace_state.to_header() == "vendor=1"
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
        assert span.resource.attributes["service.name"] == "shop"
        assert (
            dict(span.attributes or {}).items()
            >= {
                "messaging.system": "sluicemq",
                "messaging.destination.name": "orders",
                "messaging.message.id": "m1",
                "messaging.message.conversation_id": "c1",
                "messaging.message.body.size": 5,
                "sluicemq.destination.kind": "queue",
                "sluicemq.sequence": sequence,
                "sluicemq.protocol": "jmq",
                "sluicemq.durability": "sync",
            }.items()
        )
    published, written = spans["publish orders"], spans["journal orders"]
    delivered, acknowledged = spans["deliver orders"], spans["ack orders"]
    # the sender's span is the parent of the broker's spans; its properties are unchanged
    assert parent_of(published) == parent_of(delivered) == SPAN
    assert parent_of(written) == id_of(published)
    assert parent_of(acknowledged) == id_of(delivered)
    assert published.parent is not None
    assert published.parent.is_remote
    assert len({id_of(span) for span in spans.values()}) == 4
    kinds = [span.kind for span in (published, written, delivered, acknowledged)]
    assert kinds == [SpanKind.SERVER, SpanKind.INTERNAL, SpanKind.PRODUCER, SpanKind.SERVER]
    operations = [
        ((span.attributes or {})["messaging.operation.name"],
         (span.attributes or {}).get("messaging.operation.type"))
        for span in (published, written, delivered, acknowledged)
    ]  # fmt: skip
    assert operations == [
        ("publish", "send"),
        ("journal", None),
        ("deliver", "receive"),
        ("ack", "settle"),
    ]
    assert (delivered.attributes or {})["sluicemq.delivery.attempt"] == 1
    assert (acknowledged.attributes or {})["sluicemq.outcome"] == "acknowledged"
    # how long it waited begins where it could be delivered
    assert delivered.start_time == published.end_time
    assert acknowledged.start_time == delivered.end_time


def test_message_without_trace_context_starts_trace() -> None:
    fixture = TracedFixture(ratio=1.0)
    queue = fixture.queue("q")
    reader = fixture.read(queue)
    message = fixture.message(queue, "a", properties={"colour": "red"})
    fixture.broker.publish(queue, message)
    fixture.broker.flush()
    reader.acknowledge()
    spans = fixture.spans()
    published = spans["publish q"]
    assert published.parent is None
    properties = message.properties or {}
    assert properties["colour"] == "red"
    context = parse_traceparent(properties["traceparent"])
    assert context is not None
    assert f"{context.span:016x}" == id_of(published)
    assert parent_of(spans["deliver q"]) == id_of(published)


def test_phpmq_message_carries_trace_context() -> None:
    fixture = TracedFixture(ratio=1.0)
    queue = fixture.queue("q")
    message = to_message(queue.address, b"a", -1, Durability.SYNC, fixture.clock.wall)
    fixture.broker.publish(queue, message)
    assert "traceparent" in (message.properties or {})
    assert message.native == WITHOUT_TTL


def test_sample_ratio_applies_to_messages_without_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = TracedFixture(ratio=0.25)
    queue = fixture.queue("q")
    for random_value, is_traced in ((0.24, True), (0.25, False), (0.9, False)):
        monkeypatch.setattr(span_recorder, "random", lambda random_value=random_value: random_value)
        fixture.send(queue, "a")
        assert bool(fixture.spans()) is is_traced


@pytest.mark.parametrize("traceparent", [f"00-{TRACE}-{SPAN}-00", "something else", 17])
def test_messages_without_a_sampled_trace_are_unchanged(traceparent: str | int) -> None:
    fixture = TracedFixture()
    queue = fixture.queue("q")
    message = fixture.message(queue, "a", properties={"traceparent": traceparent})
    fixture.broker.publish(queue, message)
    fixture.broker.flush()
    fixture.read(queue)
    fixture.broker.flush()
    assert not fixture.spans()
    assert message.properties == {"traceparent": traceparent}


@pytest.mark.parametrize("durability", [Durability.LAZY, Durability.NONE])
def test_spans_of_messages_that_are_not_synced(durability: Durability) -> None:
    """The journal span ends with the commit; messages that are not journaled have none."""
    fixture = TracedFixture()
    queue = fixture.queue("q")
    reader = fixture.read(queue, credit=1)
    fixture.send(queue, "a", durability=durability)
    reader.acknowledge()
    fixture.broker.flush()
    fixture.journal.commit(True)
    spans = fixture.spans()
    expected = {"publish q", "deliver q", "ack q"}
    assert set(spans) == (expected | {"journal q"} if durability else expected)
    # delivered within publish, before any sync
    delivered = spans["deliver q"]
    assert delivered.start_time == delivered.end_time


def test_each_delivery_of_requeued_message_has_span() -> None:
    fixture = TracedFixture()
    queue = fixture.queue("q")
    reader = fixture.read(queue)
    fixture.send(queue, "a")
    first = fixture.spans()["deliver q"]
    reader.release()
    spans = fixture.spans()
    assert set(spans) == {"requeue q", "deliver q"}
    assert parent_of(spans["requeue q"]) == id_of(first)
    assert (spans["requeue q"].attributes or {})["sluicemq.outcome"] == "released"
    assert (spans["deliver q"].attributes or {})["sluicemq.delivery.attempt"] == 2
    assert spans["deliver q"].start_time == spans["requeue q"].end_time


def test_dead_letter_stays_in_trace() -> None:
    fixture = TracedFixture(ratio=0.0)
    queue = fixture.queue("q", max_attempts=1, dead_letter=True)
    reader = fixture.read(queue)
    fixture.send(queue, "a", properties={"traceparent": PARENT})
    fixture.spans()
    reader.release()
    spans = fixture.spans()
    assert set(spans) == {"discard q", "publish q.dlq", "journal q.dlq"}
    assert parent_of(spans["publish q.dlq"]) == SPAN
    assert (spans["discard q"].attributes or {})["sluicemq.outcome"] == "dead-lettered or moved"


def test_each_subscription_has_delivery_span() -> None:
    fixture = TracedFixture()
    topic = fixture.topic("t")
    for name in ("one", "two"):
        fixture.read(fixture.broker.subscribe(topic, name))
    fixture.send(topic, "a")
    delivered = [
        MAKE_SPAN(span_record)
        for span_record in fixture.recorded
        if span_record.operation == "deliver"
    ]
    names = {
        (span.attributes or {})["messaging.destination.subscription.name"] for span in delivered
    }
    assert names == {"one", "two"}
    assert {(span.attributes or {})["sluicemq.destination.kind"] for span in delivered} == {"topic"}


def test_span_name_omits_name_of_temporary_destination() -> None:
    fixture = TracedFixture()
    reply = fixture.broker.destinations.declare(Address(Kind.QUEUE, "reply-17"), owner=object())
    fixture.send(reply, "a", durability=Durability.NONE)
    [span] = fixture.spans().values()
    assert span.name == "publish (temporary)"
    assert (
        dict(span.attributes or {}).items()
        >= {
            "messaging.destination.temporary": True,
            "messaging.destination.name": "reply-17",
        }.items()
    )


def test_invalid_unicode_in_name_is_escaped() -> None:
    fixture = TracedFixture()
    fixture.send(fixture.queue("a\udcff"), "a", durability=Durability.NONE)
    assert set(fixture.spans()) == {"publish a\\udcff"}


def test_spans_per_second_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = TracedFixture(limit=3)
    now = 1_000_000_000
    monkeypatch.setattr(span_recorder, "time_ns", lambda: now)
    queue = fixture.queue("q")
    for _ in range(5):
        fixture.send(queue, "a", durability=Durability.NONE)
    assert len(fixture.recorded) == 3
    now = 2_000_000_000
    fixture.send(queue, "a", durability=Durability.NONE)
    assert len(fixture.recorded) == 4


def test_remembered_spans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_recorder, "MAX_REMEMBERED", 2)
    fixture = TracedFixture()
    queue = fixture.queue("q")
    reader = fixture.read(queue)
    fixture.send(queue, "a", "b", "c", durability=Durability.NONE)
    assert [span_record.operation for span_record in fixture.recorded].count("deliver") == 3
    reader.acknowledge()
    assert [span_record.operation for span_record in fixture.recorded].count("ack") == 2
    fixture.send(queue, "d", durability=Durability.NONE)
    reader.acknowledge()
    assert [span_record.operation for span_record in fixture.recorded].count("ack") == 3


def test_texts_of_clients_in_spans_are_bounded() -> None:
    fixture = TracedFixture(ratio=0.0)
    queue = fixture.queue("q")
    state = "vendor=" + "x" * (1 << 16)
    message = fixture.message(
        queue,
        "a",
        properties={"traceparent": PARENT, "tracestate": state},
        message_id="m" * 10_000,
        correlation_id="c" * 10_000,
    )
    reader = fixture.read(queue)
    fixture.broker.publish(queue, message)
    fixture.broker.flush()
    reader.acknowledge()
    assert {span_record.state for span_record in fixture.recorded} == {""}
    for span_record in fixture.recorded:
        assert span_record.of_message["messaging.message.id"] == "m" * 512
        assert span_record.of_message["messaging.message.conversation_id"] == "c" * 512
    assert (message.properties or {})["tracestate"] == state
    assert len(message.message_id) == len(message.correlation_id) == 10_000


class FakeExporter(SpanExporter):
    """An exporter that counts spans, or fails while it is `unavailable`."""

    def __init__(self) -> None:
        self.unavailable = False
        self.batches: list[int] = []

    def export(self, spans: object) -> SpanExportResult:
        assert isinstance(spans, list)
        if self.unavailable:
            raise ConnectionError("connection refused")
        self.batches.append(len(spans))
        return SpanExportResult.SUCCESS


def make_span_record() -> SpanRecord:
    fixture = TracedFixture()
    fixture.send(fixture.queue("q"), "a", durability=Durability.NONE)
    return fixture.recorded[0]


def test_spans_are_exported_in_batches_and_on_close() -> None:
    exporter = FakeExporter()
    export = Export(exporter, MAKE_SPAN)
    for _ in range(exporting.BATCH + 10):
        export.put(make_span_record())
    export.close()
    assert sum(exporter.batches) == exporting.BATCH + 10
    assert export.counts == {"exported": exporting.BATCH + 10, "failed": 0, "dropped": 0}


def test_unavailable_collector_fails_only_spans() -> None:
    exporter = FakeExporter()
    exporter.unavailable = True
    export = Export(exporter, MAKE_SPAN)
    export.put(make_span_record())
    export.close()
    assert export.counts == {"exported": 0, "failed": 1, "dropped": 0}


def test_slow_collector_drops_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "MAX_WAITING", 2)
    monkeypatch.setattr(Export, "_run", lambda self: None)
    export = Export(FakeExporter(), MAKE_SPAN)
    for _ in range(5):
        export.put(make_span_record())
    assert export.counts["dropped"] == 3
    export.close()


def test_tracing_is_off_without_endpoint() -> None:
    assert start_tracing(TracingSettings(), b"identity") is None


def test_missing_libraries_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'sluicemq\[tracing\]'"):
        start_tracing(TracingSettings(endpoint="http://127.0.0.1:4318/v1/traces"), b"identity")


def test_configured_tracing_exports_spans() -> None:
    memory = InMemorySpanExporter()
    tracing = start_tracing(TracingSettings(endpoint="http://x", sample_ratio=1.0), b"\1\2", memory)
    assert tracing is not None
    fixture = BrokerFixture()
    fixture.broker = Broker(fixture.journal, fixture.clock, observer=tracing.span_recorder)
    fixture.send(fixture.queue("q"), "a")
    tracing.export.close()
    finished = memory.get_finished_spans()
    assert {span.name for span in finished} == {"publish q", "journal q"}
    assert {span.resource.attributes["service.instance.id"] for span in finished} == {"0102"}
