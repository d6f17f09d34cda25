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
from tests.pipeline.decode.proxy import Heard, Proxy
from tests.pipeline.decode.wires import ACK, FIN, PSH, SERVER, SYN, Segment, Talk

PORTS: Final = {"phpmq": 9100, "msglite": 9813, "vibemq": 2925, "jmq": 7676}
PATIENCE: Final = 60
BODIES: Final = [b"%d " % number + b"\xc3\xa9" * (number * 37 % 3000) for number in range(40)]


@pytest.fixture(scope="package", autouse=True)
def reject_unknown_columns() -> Iterator[None]:
    """Fail at a row with a misspelt column, which the table would leave out."""
    add = RowBuffer.add

    def check(rows: RowBuffer, row: Row) -> None:
        assert row.keys() <= set(FRAMES.names)
        add(rows, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowBuffer, "add", check)
        yield


class Recorded(NamedTuple):
    """What was heard on each listener, and the same as segments of TCP, in time."""

    heard: dict[str, list[Heard]]
    segments: list[Segment]

    def sent(self, protocol: str, side: int) -> list[bytes]:
        """All bytes of each connection's side."""
        by_connection: dict[int, bytes] = {}
        for each in self.heard[protocol]:
            if each.side == side:
                by_connection[each.connection] = by_connection.get(each.connection, b"") + each.data
        return [by_connection[number] for number in sorted(by_connection)]


def phpmq(port: int) -> None:
    client = BlockingClient(PhpmqClient.connect, port=port)
    for body in BODIES:
        client.send("orders", body, 60)
    client.subscribe("orders", 5)
    for _ in BODIES:
        client.receive(PATIENCE).ack()
    client.close()


def msglite(port: int) -> None:
    client = BlockingClient(MsgliteClient.connect, port=port)
    for body in BODIES:
        client.send("letters", body, 60, "answers")
        assert client.ready("letters", timeout=PATIENCE) is not None
    client.close()


def vibemq(port: int) -> None:
    client = BlockingClient(VibeMQClient.connect, port=port, threshold=500)
    client.create_queue("events")
    for number, body in enumerate(BODIES):
        client.publish("events", body.decode(), {"n": str(number), "correlationId": "c"})
    subscription = client.subscribe("events")
    for _ in BODIES:
        subscription.receive(PATIENCE).ack()
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
        consumer.receive(PATIENCE).acknowledge()
    client.close()


def segments_of(heard: dict[str, list[Heard]]) -> list[Segment]:
    """Each read of the proxy as one or more packets."""
    made: list[Segment] = []
    for protocol, all_heard in heard.items():
        talks: dict[int, Talk] = {}
        for each in all_heard:
            talk = talks.get(each.connection)
            if talk is None:
                ends = ("10.0.0.1", 50_000 + each.connection), (SERVER[0], PORTS[protocol])
                talk = talks[each.connection] = Talk(*ends, time=each.time - 3000).open()
            talk.time = each.time
            if each.data:
                for start in range(0, len(each.data), 1460):
                    talk.say(each.side, each.data[start : start + 1460])
                    talk.time = each.time
            else:
                talk.say(each.side, b"")
        for talk in talks.values():
            made += talk.close().segments
    made.sort(key=lambda each: each.time)
    assert {SYN, ACK | PSH, FIN | ACK} <= {each.flags for each in made}
    return made


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    directory = tmp_path_factory.mktemp("recorded")
    heard: dict[str, list[Heard]] = {}
    with LocalBroker(directory, [f"{name}://127.0.0.1:0" for name in PORTS]) as broker:
        for name, use in (("phpmq", phpmq), ("msglite", msglite), ("vibemq", vibemq), ("jmq", jmq)):
            with ExitStack() as stack:
                proxy = stack.enter_context(Proxy(broker.port(name)))
                use(proxy.port)
            heard[name] = proxy.heard
    return Recorded(heard, segments_of(heard))
