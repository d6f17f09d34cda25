"""Traffic of real clients with a real broker, in all four protocols."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.jmq import JmqClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.clients.vibemq import VibeMQClient
from sluicemq.pipeline.decode.codecs import FRAMES, Row
from sluicemq.pipeline.decode.streams import RowBuffer
from tests.pipeline.decode.packet_captures import ACK, FIN, PSH, SERVER, SYN, Segment, TcpConnection
from tests.pipeline.decode.recording_proxy import Proxy, RecordedChunk

PORTS: Final = {"phpmq": 9100, "msglite": 9813, "vibemq": 2925, "jmq": 7676}
TIMEOUT_SECONDS: Final = 60
BODIES: Final = [b"%d " % number + b"\xc3\xa9" * (number * 37 % 3000) for number in range(40)]


@pytest.fixture(scope="package", autouse=True)
def reject_unknown_columns() -> Iterator[None]:
    """Fail at a row with an unknown column, which the table would omit."""
    add = RowBuffer.add

    def check(rows: RowBuffer, row: Row) -> None:
        assert row.keys() <= set(FRAMES.names)
        add(rows, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowBuffer, "add", check)
        yield


class Recorded(NamedTuple):
    """Traffic recorded at each listener, and the same traffic as TCP segments in order of time."""

    chunks: dict[str, list[RecordedChunk]]
    segments: list[Segment]

    def sent(self, protocol: str, side: int) -> list[bytes]:
        """Return all bytes that a side sent, by connection."""
        by_connection: dict[int, bytes] = {}
        for chunk in self.chunks[protocol]:
            if chunk.side == side:
                by_connection[chunk.connection] = (
                    by_connection.get(chunk.connection, b"") + chunk.data
                )
        return [by_connection[number] for number in sorted(by_connection)]


def phpmq(port: int) -> None:
    client = BlockingClient(PhpmqClient.connect, port=port)
    for body in BODIES:
        client.send("orders", body, 60)
    client.subscribe("orders", 5)
    for _ in BODIES:
        client.receive(TIMEOUT_SECONDS).ack()
    client.close()


def msglite(port: int) -> None:
    client = BlockingClient(MsgliteClient.connect, port=port)
    for body in BODIES:
        client.send("letters", body, 60, "answers")
        assert client.ready("letters", timeout=TIMEOUT_SECONDS) is not None
    client.close()


def vibemq(port: int) -> None:
    client = BlockingClient(VibeMQClient.connect, port=port, threshold=500)
    client.create_queue("events")
    for number, body in enumerate(BODIES):
        client.publish("events", body.decode(), {"n": str(number), "correlationId": "c"})
    subscription = client.subscribe("events")
    for _ in BODIES:
        subscription.receive(TIMEOUT_SECONDS).ack()
    client.close()


def jmq(port: int) -> None:
    client = BlockingClient(JmqClient.open, f"jmq://127.0.0.1:{port}?direct=true")
    session = client.session()
    producer = session.producer("accounts")
    for number, body in enumerate(BODIES):
        producer.send(
            body.decode(),
            properties={"n": number, "ok": True},
            correlation_id=f"c{number}",
            compress=number % 3 == 0,
        )
    client.start()
    consumer = session.consumer("accounts")
    for _ in BODIES:
        consumer.receive(TIMEOUT_SECONDS).acknowledge()
    client.close()


def segments_of(chunks_by_protocol: dict[str, list[RecordedChunk]]) -> list[Segment]:
    """Return each read of the proxy as one or more packets."""
    segments: list[Segment] = []
    for protocol, chunks in chunks_by_protocol.items():
        connections: dict[int, TcpConnection] = {}
        for chunk in chunks:
            connection = connections.get(chunk.connection)
            if connection is None:
                ends = ("10.0.0.1", 50_000 + chunk.connection), (SERVER[0], PORTS[protocol])
                connection = connections[chunk.connection] = TcpConnection(
                    *ends, time=chunk.time - 3000
                ).open()
            connection.time = chunk.time
            if chunk.data:
                for start in range(0, len(chunk.data), 1460):
                    connection.send(chunk.side, chunk.data[start : start + 1460])
                    connection.time = chunk.time
            else:
                connection.send(chunk.side, b"")
        for connection in connections.values():
            segments += connection.close().segments
    segments.sort(key=lambda segment: segment.time)
    assert {SYN, ACK | PSH, FIN | ACK} <= {segment.flags for segment in segments}
    return segments


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    directory = tmp_path_factory.mktemp("recorded")
    chunks: dict[str, list[RecordedChunk]] = {}
    with LocalBroker(directory, [f"{name}://127.0.0.1:0" for name in PORTS]) as broker:
        for name, exchange in (
            ("phpmq", phpmq),
            ("msglite", msglite),
            ("vibemq", vibemq),
            ("jmq", jmq),
        ):
            with ExitStack() as stack:
                proxy = stack.enter_context(Proxy(broker.port(name)))
                exchange(proxy.port)
            chunks[name] = proxy.chunks
    return Recorded(chunks, segments_of(chunks))
