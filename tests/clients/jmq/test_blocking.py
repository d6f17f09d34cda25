"""The blocking client, against a broker in another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.jmq import AckMode, JmqClient, Queue, StatusError, Topic, Xid
from sluicemq.model.errors import ConnectionLost, RequestTimeout
from tests.protocols.jmq.harness import Harness
from tests.protocols.sockets import serve, unused_port


class BrokerThread:
    """A broker in a thread."""

    def __init__(self) -> None:
        self.port = 0
        self.harness = Harness()
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._thread.start()
        assert self._ready.wait(10)

    async def _serve(self) -> None:
        server, self.port = await serve(self.harness)
        async with server:
            self._ready.set()
            await self._end.wait()

    def bodies(self, queue: str) -> list[bytes]:
        async def read_bodies() -> list[bytes]:
            return self.harness.bodies(queue)

        return asyncio.run_coroutine_threadsafe(read_bodies(), self._loop).result(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def broker_thread() -> Iterator[BrokerThread]:
    broker_thread = BrokerThread()
    yield broker_thread
    broker_thread.stop()


def connect(broker_thread: BrokerThread, **options: Any) -> BlockingClient:
    return BlockingClient(JmqClient.connect, port=broker_thread.port, direct=True, **options)


def test_send_receive_acknowledge(broker_thread: BrokerThread) -> None:
    with connect(broker_thread) as client:
        session = client.session(AckMode.CLIENT)
        with session.producer("q1") as producer, session.consumer(Queue("q1")) as consumer:
            assert producer.destination == Queue("q1")
            identity = producer.send({"a": 1}, properties={"b": 2})
            assert producer.send_all(["x", "y"]) == 2
            producer.send("z", wait=False)
            producer.confirm()
            first = consumer.receive(60)
            assert (first.id, first.body, first.properties) == (identity, {"a": 1}, {"b": 2})
            assert consumer.receive(60).body == "x"
            first.acknowledge(only=True)
            session.recover()
            redelivered = consumer.receive(60)
            assert (redelivered.body, redelivered.redelivered) == ("x", True)
            for message in consumer:
                if message.body == "z":
                    break
            message.acknowledge()
            with pytest.raises(RequestTimeout):
                consumer.receive(0.05)
        assert client.ping() >= 0
    assert broker_thread.bodies("q1") == []


def test_transactions(broker_thread: BrokerThread) -> None:
    with connect(broker_thread) as client:
        with client.session(transacted=True) as session:
            producer = session.producer("q2")
            producer.send("a")
            session.rollback()
            producer.send("b")
            session.commit()
        assert broker_thread.bodies("q2") == [b"b"]
        plain_session = client.session()
        xid = Xid(1, b"g", b"b")
        plain_session.xa.start(xid)
        plain_session.producer("q2").send("c")
        plain_session.xa.end(xid)
        plain_session.xa.prepare(xid)
        assert plain_session.xa.recover() == [xid]
        plain_session.xa.commit(xid)
        plain_session.xa.start(xid._replace(bqual=b"c"))
        plain_session.xa.end(xid._replace(bqual=b"c"))
        plain_session.xa.rollback(xid._replace(bqual=b"c"))
        assert [message.body for message in plain_session.browser("q2")] == ["b", "c"]
        assert next(iter(plain_session.browser("q2", "JMSPriority < 5"))).body == "b"


def test_durable_subscriptions_and_temporary_destinations(broker_thread: BrokerThread) -> None:
    with connect(broker_thread, client_id="me") as client:
        session = client.session()
        consumer = session.consumer(Topic("t3"), name="d", durable=True)
        client.stop()
        session.producer(Topic("t3")).send("x")
        with pytest.raises(RequestTimeout):
            consumer.receive(0.05)
        client.start()
        assert consumer.receive(60).body == "x"
        consumer.close()
        session.unsubscribe("d")
        with pytest.raises(StatusError):
            session.unsubscribe("d")
        session.delete(session.temporary_queue())
        session.delete(session.temporary_topic())


def test_requests_are_answered(broker_thread: BrokerThread) -> None:
    with connect(broker_thread) as client:

        def work() -> None:
            session = client.session()
            session.reply(session.consumer("q4").receive(60), "pong")

        worker = threading.Thread(target=work)
        worker.start()
        assert client.request("q4", "ping", timeout=60).body == "pong"
        worker.join()


def test_close_ends_calls_of_other_threads(broker_thread: BrokerThread) -> None:
    client = connect(broker_thread)
    consumer = client.session().consumer("q5")
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            consumer.receive()
        except ConnectionLost as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    client.close()
    thread.join(60)
    assert len(failures) == 1
    client.close()
    with pytest.raises(ConnectionLost, match="closed"):
        client.ping()
    before = threading.active_count()
    with pytest.raises(ConnectionLost, match="cannot connect"):
        BlockingClient(JmqClient.connect, port=unused_port())
    assert threading.active_count() == before
