"""Traces of a broker process across protocols, as a collector receives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.jmq import JmqClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.clients.vibemq import VibeMQClient
from sluicemq.server.tracing.span_recorder import parse_traceparent
from tests.server.conftest import Start

LISTEN = ("http://127.0.0.1:0", "phpmq://127.0.0.1:0", "vibemq://127.0.0.1:0", "jmq://127.0.0.1:0")
TIMEOUT = 30.0
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


class Collector(HTTPServer):
    """An OTLP collector over HTTP that keeps the received spans."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), OtlpHandler)
        self.spans: list[Any] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class OtlpHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = ExportTraceServiceRequest()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request.ParseFromString(body)
        assert isinstance(self.server, Collector)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Suppress the access log."""


@contextmanager
def run_collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with run_collector() as collector:
        yield collector


def start_traced_broker(start: Start, collector: Collector, ratio: float) -> LocalBroker:
    return start(
        *LISTEN,
        environment={
            "SLUICEMQ_TRACING__ENDPOINT": collector.endpoint,
            "SLUICEMQ_TRACING__SAMPLE_RATIO": str(ratio),
        },
    )


def spans_by_name(collector: Collector) -> dict[str, Any]:
    spans = {span.name: span for span in collector.spans}
    assert len(spans) == len(collector.spans), list(spans)
    return spans


def attribute(span: Any, name: str) -> str:
    return {attribute.key: str(attribute.value.string_value) for attribute in span.attributes}[name]


def test_trace_of_vibemq_message_consumed_by_jms_client(start: Start, collector: Collector) -> None:
    broker = start_traced_broker(start, collector, 0.0)
    with BlockingClient(VibeMQClient.connect, "127.0.0.1", broker.port("vibemq")) as sender:
        sender.publish("orders", {"n": 1}, {"traceparent": PARENT, "tracestate": "vendor=1"})
        sender.publish("orders", {"n": 2})  # belongs to no trace, and begins none
    with BlockingClient(JmqClient.connect, "127.0.0.1", broker.port("jmq")) as receiver:
        session = receiver.session()
        consumer = session.consumer("orders")
        first, second = (consumer.receive(TIMEOUT) for _ in range(2))
        assert first.properties["traceparent"] == PARENT
        assert first.properties["tracestate"] == "vendor=1"
        assert "traceparent" not in second.properties
        for message in (first, second):
            message.acknowledge()
    broker.stop()
    spans = spans_by_name(collector)
    assert set(spans) == {"publish orders", "journal orders", "deliver orders", "ack orders"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert spans["publish orders"].parent_span_id.hex() == SPAN
    assert spans["journal orders"].parent_span_id == spans["publish orders"].span_id
    assert spans["deliver orders"].parent_span_id.hex() == SPAN
    assert spans["ack orders"].parent_span_id == spans["deliver orders"].span_id
    assert attribute(spans["publish orders"], "sluicemq.protocol") == "vibemq"
    assert {span.trace_state for span in spans.values()} == {"vendor=1"}


def test_trace_of_jms_message_consumed_by_php_client(start: Start, collector: Collector) -> None:
    broker = start_traced_broker(start, collector, 0.0)
    with BlockingClient(JmqClient.connect, "127.0.0.1", broker.port("jmq")) as sender:
        producer = sender.session().producer("orders")
        producer.send("hello", properties={"traceparent": PARENT})
    with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as worker:
        worker.subscribe("orders")
        message = worker.receive(TIMEOUT)
        assert message.body == b"hello"
        message.ack()
    broker.stop()
    spans = spans_by_name(collector)
    assert set(spans) == {"publish orders", "journal orders", "deliver orders", "ack orders"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}


@pytest.mark.parametrize("sender", ["phpmq", "vibemq", "jmq"])
def test_broker_starts_trace_and_passes_it_to_consumer(
    start: Start, collector: Collector, sender: str
) -> None:
    """Covers messages with properties (JMS, VibeMQ) and without (PHPMQ)."""
    broker = start_traced_broker(start, collector, 1.0)
    if sender == "phpmq":
        with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as php:
            php.send("orders", b"{}")
    elif sender == "vibemq":
        with BlockingClient(VibeMQClient.connect, "127.0.0.1", broker.port("vibemq")) as vibemq:
            vibemq.publish("orders", {}, {"colour": "red"})
    else:
        with BlockingClient(JmqClient.connect, "127.0.0.1", broker.port("jmq")) as jms:
            jms.session().producer("orders").send("{}", properties={"colour": "red"})
    if sender == "jmq":
        with BlockingClient(JmqClient.connect, "127.0.0.1", broker.port("jmq")) as jms:
            received = jms.session().consumer("orders").receive(TIMEOUT)
            context = parse_traceparent(received.properties["traceparent"])
            assert received.properties["colour"] == "red"
            received.acknowledge()
    else:
        with BlockingClient(VibeMQClient.connect, "127.0.0.1", broker.port("vibemq")) as vibemq:
            subscription = vibemq.subscribe("orders")
            message = subscription.receive(TIMEOUT)
            context = parse_traceparent(message.headers["traceparent"])
            message.ack()
    broker.stop()
    spans = spans_by_name(collector)
    published = spans["publish orders"]
    assert not published.parent_span_id
    assert context is not None
    assert published.span_id == context.span.to_bytes(8, "big")
    assert published.trace_id == context.trace.to_bytes(16, "big")
    assert set(spans) == {"publish orders", "journal orders", "deliver orders", "ack orders"}


def test_metrics_count_exported_failed_and_dropped_spans(
    start: Start, collector: Collector
) -> None:
    from tests.admin.metrics.test_page import get_scrape

    broker = start_traced_broker(start, collector, 1.0)
    metrics = get_scrape(broker)
    for result in ("exported", "failed", "dropped"):
        assert metrics.value("sluicemq_tracing_spans_total", result=result) == 0
