"""Closed connections are freed without the garbage collector: they are in no reference cycle."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import pytest

from sluicemq.admin.http_session import HttpService, HttpSession
from sluicemq.broker import Broker, ManualClock
from sluicemq.journal.interface import MemoryJournal
from sluicemq.model.access import EVERYBODY
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.connection import PortMapperSession
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.packets import DestType, PacketType
from sluicemq.protocols.jmq.session import Coordinator, JmqSession
from sluicemq.protocols.jmq.wire import encode_packet
from sluicemq.protocols.msglite.gateway import GatewaySession
from sluicemq.protocols.msglite.session import MsgliteSession, ReplyAddresses
from sluicemq.protocols.phpmq.maintenance import MaintenanceSession, QueueLists
from sluicemq.protocols.phpmq.session import PhpmqSession
from sluicemq.protocols.phpmq.wire import encode_consume, encode_send
from sluicemq.protocols.transport import Session, Transport
from sluicemq.protocols.vibemq import wire as vibemq
from sluicemq.protocols.vibemq.session import VibemqSession
from sluicemq.security.access import Access
from sluicemq.server.connection import Connection
from sluicemq.server.input_budget import InputBudget
from sluicemq.server.session_factories import AutoSession
from tests.protocols.jmq.raw import basic
from tests.server.test_connection import FakeEventLoopBatch, SocketTransport
from tests.support.offload import idle_large_deliveries, idle_offload

ACCESS: Final = Access(EVERYBODY)
REPLIES: Final = ReplyAddresses(1)
LARGE: Final = idle_large_deliveries()
HELLO: Final = encode_packet(
    PacketType.HELLO, packets.A, 1, {"JMQProtocolLevel": 500}
) + encode_packet(
    PacketType.AUTHENTICATE, packets.A, 2, {"JMQAuthType": "digest"}, body=basic("guest", "guest")
)
QUEUE: Final = {"JMQDestination": "q", "JMQDestType": DestType.QUEUE}
CONSUMER: Final = (
    encode_packet(PacketType.CREATE_SESSION, packets.A, 3, {"JMQAckMode": 1})
    + encode_packet(PacketType.START)
    + encode_packet(PacketType.ADD_CONSUMER, packets.A, 4, QUEUE)
)
PRODUCER: Final = encode_packet(PacketType.START_TRANSACTION, packets.A, 5) + encode_packet(
    PacketType.TEXT_MESSAGE, packets.A | packets.P, 6, None, encode_header("q")
)
VIBEMQ_CONNECT: Final = vibemq.encode(vibemq.Frame(vibemq.CONNECT, "c"))
VIBEMQ_WORK: Final = b"".join(
    vibemq.encode(vibemq.Frame(kind, str(kind), "q", payload))
    for kind, payload in (
        (vibemq.SUBSCRIBE, b""),
        (vibemq.PUBLISH, b'"x"'),
        (vibemq.PING, b""),
        (vibemq.UNSUBSCRIBE, b""),
        (vibemq.SUBSCRIBE, b""),
    )
)


class Timer:
    """A timer that drops its callback when it is cancelled, like those of asyncio."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None

    def fire_timers(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            call()


class FakeLoop:
    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any) -> Timer:
        timer = Timer(lambda: callback(*arguments))
        self.timers.append(timer)
        return timer

    def fire_timers(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            timer.fire_timers()


class ServerFixture:
    """A broker that accepts one connection at a time."""

    def __init__(self, make: Callable[[Transport, ServerFixture], Session]) -> None:
        self.batch = FakeEventLoopBatch()
        broker = Broker(MemoryJournal(), ManualClock())
        batch: Any = self.batch
        batch.broker = broker
        batch.loop = FakeLoop()
        self.broker = broker
        self.coordinator = Coordinator(broker)
        self.budget = InputBudget(1 << 30, 30.0)
        listener: Any = SimpleNamespace(
            budget=self.budget,
            closed=Counter(),
            logging_in=set(),
            batch=self.batch,
            admit=lambda *_: True,
            refusals=set(),
            session_factory=lambda transport, _: make(transport, self),
            remove=lambda connection: self.listener.logging_in.discard(connection),
            claim_user=lambda *_: None,
            options=SimpleNamespace(
                output_timeout=0,
                output_high_watermark=1 << 20,
                max_login_bytes=1 << 16,
                frame_timeout=60,
                login_timeout=10,
                client_user="cn",
            ),
            url="test",
            reading_paused=set(),
        )
        self.listener = listener

    def serve_connection(self, reads: tuple[bytes, ...], disconnect: bool) -> None:
        """Open a connection, receive `reads`, and close it."""
        connection = Connection(self.listener)
        transport: Any = SocketTransport()
        connection.connection_made(transport)
        for data in reads:
            connection.data_received(data)
            self.run_iteration()
        if disconnect:
            connection.disconnect("enough")
            self.run_iteration()
        connection.connection_lost(None)
        self.run_iteration()

    def run_iteration(self) -> None:
        self.broker.flush()
        self.batch.end()
        self.batch.loop.fire_timers()
        self.broker.flush()
        self.batch.end()


def _http(transport: Transport, server: ServerFixture) -> Session:
    async def application(scope: Any, receive: Any, send: Any) -> None: ...

    return HttpSession(transport, HttpService(application, 65536), ACCESS, host="", tls=False)  # type: ignore[arg-type]


def _broker_info() -> Any:
    return SimpleNamespace(version="0", uptime=lambda: 0.0, memory=lambda: 0, clients=lambda: 0)


MODULES: Final = ("sluicemq.server", "sluicemq.protocols", "sluicemq.admin", "uvicorn", "h11")

CASES: Final[dict[str, tuple[Callable[[Transport, ServerFixture], Session], tuple[bytes, ...]]]] = {
    "phpmq": (
        lambda transport, server: PhpmqSession(transport, server.broker, idle_offload()),
        (encode_consume(b"q", 3) + encode_send(b"q", b"x"), encode_send(b"q", bytes(9999))[:-1]),
    ),
    "maintenance": (
        lambda transport, server: MaintenanceSession(
            transport, server.broker, _broker_info(), QueueLists(server.broker)
        ),
        (b"monitor\n", b"help\n", b"sho"),
    ),
    "msglite": (
        lambda transport, server: MsgliteSession(transport, server.broker, REPLIES, idle_offload()),
        (b"? 1 5 q\r\nx\r\n", b"< 5 a b\r\n", b"> 9999 1 q\r\nxxx"),
    ),
    "gateway": (
        lambda transport, server: GatewaySession(transport, server.broker, REPLIES, idle_offload()),
        (b"POST / HTTP/1.0\r\nContent-Length: 9999\r\n\r\n", b"xxx"),
    ),
    "gateway, waiting": (
        lambda transport, server: GatewaySession(transport, server.broker, REPLIES, idle_offload()),
        (b"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nxxx",),
    ),
    "vibemq": (
        lambda transport, server: VibemqSession(transport, server.broker, ACCESS, LARGE),
        (VIBEMQ_CONNECT, VIBEMQ_WORK, b"\0\x0f\0\0\0\1\x14"),
    ),
    "vibemq, not logged in": (
        lambda transport, server: VibemqSession(transport, server.broker, ACCESS, LARGE),
        (b"\0\0\xff\0\0\1\x14" + bytes(5000),),
    ),
    "jmq": (
        lambda transport, server: JmqSession(transport, server.broker, server.coordinator),
        (HELLO, CONSUMER, PRODUCER, HELLO[:80]),
    ),
    "portmapper": (
        lambda transport, server: PortMapperSession(transport, lambda: b"", 1.0),
        (b"10",),
    ),
    "auto": (
        lambda transport, server: AutoSession(
            transport, lambda _: VibemqSession(transport, server.broker, ACCESS, LARGE)
        ),
        (VIBEMQ_CONNECT, VIBEMQ_WORK, b"\0\x0f\0\0\0\1\x14"),
    ),
    "auto, nothing recognised": (
        lambda transport, server: AutoSession(
            transport, lambda _: VibemqSession(transport, server.broker, ACCESS, LARGE)
        ),
        (b"\0",),
    ),
    "phpmq, bad input": (
        lambda transport, server: PhpmqSession(transport, server.broker, idle_offload()),
        (encode_send(b"q", b"x"), b"H0100102P01x" + bytes(5000)),
    ),
    "msglite, bad input": (
        lambda transport, server: MsgliteSession(transport, server.broker, REPLIES, idle_offload()),
        (b"> x y z\r\n" + bytes(5000),),
    ),
    "gateway, bad input": (
        lambda transport, server: GatewaySession(transport, server.broker, REPLIES, idle_offload()),
        (b"x\r\n" + bytes(5000),),
    ),
    "vibemq, bad input": (
        lambda transport, server: VibemqSession(transport, server.broker, ACCESS, LARGE),
        (VIBEMQ_CONNECT, b"\0\0\1\0\1" + b"\x1f\x8b" + bytes(5000)),
    ),
    "vibemq, too large": (
        lambda transport, server: VibemqSession(transport, server.broker, ACCESS, LARGE),
        (b"\0\x0f\0\0\0" + bytes(5000),),
    ),
    "jmq, bad input": (
        lambda transport, server: JmqSession(transport, server.broker, server.coordinator),
        (HELLO, bytes(5000)),
    ),
    "http, bad input": (_http, (b"x\r\n" + bytes(5000),)),
    "http": (_http, (b"GET / HTTP/1.1\r\nHost: x\r\n",)),
}


@pytest.fixture
def garbage_collector_disabled() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def count_objects() -> Counter[str]:
    """Count the objects of the server and its protocols by class."""
    return Counter(
        f"{type(item).__module__}.{type(item).__qualname__}"
        for item in gc.get_objects()
        if isinstance(type(item).__module__, str) and type(item).__module__.startswith(MODULES)
    )


@pytest.fixture
def event_loop_of_uvicorn() -> Iterator[None]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ending", ["lost", "closed"])
@pytest.mark.usefixtures("event_loop_of_uvicorn", "garbage_collector_disabled")
def test_closed_connection_leaves_no_objects(case: str, ending: str) -> None:
    make, reads = CASES[case]
    server = ServerFixture(make)
    server.serve_connection(reads, ending == "closed")  # fills caches
    before = count_objects()
    server.serve_connection(reads, ending == "closed")
    remaining = count_objects() - before
    assert not remaining
    assert server.budget.used == 0
