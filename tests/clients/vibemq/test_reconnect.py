from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from msgspec.structs import replace

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.vibemq import (
    Backoff,
    Declaration,
    Mode,
    QueueOptions,
    Subscription,
    VibeMQClient,
)
from sluicemq.clients.vibemq.connection import ClientConnection
from sluicemq.model.errors import ConfigurationError, ConnectionLost, RequestTimeout
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Frame
from tests.clients.vibemq.scripted_broker import (
    SHORT_BACKOFF,
    ScriptedBroker,
    acknowledge,
    replying,
    run_scenario,
)
from tests.protocols.sockets import unused_port


def test_state_is_restored_after_reconnect() -> None:
    queues = [Declaration("d", QueueOptions(Mode.PRIORITY_BASED))]
    info = Frame(wire.QUEUE_INFO, "")  # there is none

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, reconnect=SHORT_BACKOFF, queues=queues)
        subscription = await client.subscribe("q")
        ended_subscription = await client.subscribe("gone")
        await ended_subscription.unsubscribe()
        broker.send(Frame(wire.DELIVER, "m1", "q", b"1"), Frame(wire.DELIVER, "m2", "q", b"2"))
        old_message = await subscription.receive()
        broker.received.clear()
        broker.connections[-1].close()
        await broker.wait_until(lambda: wire.SUBSCRIBE in broker.types())
        assert [(frame.type, frame.queue) for frame in broker.received] == [
            (wire.CONNECT, ""),
            (wire.QUEUE_INFO, "d"),
            (wire.CREATE_QUEUE, "d"),
            (wire.SUBSCRIBE, "q"),
        ]
        broker.send(Frame(wire.DELIVER, "m1", "q", b"1", {"deliveryAttempts": "2"}))
        redelivered = await subscription.receive()
        assert (redelivered.id, redelivered.attempts) == ("m1", 2)
        with pytest.raises(ConnectionLost):
            await old_message.ack()
        await redelivered.ack()
        await redelivered.ack()
        await client.publish("q", 1)
        assert broker.types()[-3:] == [wire.SUBSCRIBE, wire.ACK, wire.PUBLISH]
        await client.close()

    run_scenario(scenario, replying(wire.QUEUE_INFO, info))


def test_unanswered_requests_fail_and_requests_while_disconnected_wait() -> None:
    published = []

    def answer(frame: Frame) -> list[Frame]:
        if frame.type == wire.PUBLISH:
            published.append(frame.payload)
        return [] if frame.payload == b'"lost"' else acknowledge(frame)

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, reconnect=SHORT_BACKOFF)
        publish_task = asyncio.create_task(client.publish("q", "lost"))
        batch_task = asyncio.create_task(client.publish_all("q", ["lost", "lost"]))
        await broker.wait_until(lambda: len(published) == 3)
        broker.send(Frame(wire.DISCONNECT, "bye", headers={"reason": "server_shutdown"}))
        for call in (publish_task, batch_task):
            with pytest.raises(ConnectionLost, match="server_shutdown"):
                await call
        await client.publish("q", "waits")
        assert published == [b'"lost"'] * 3 + [b'"waits"']
        await client.close()

    run_scenario(scenario, answer)


def test_subscription_continues_after_reconnect() -> None:
    handled_messages = []

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, reconnect=SHORT_BACKOFF)
        started = asyncio.Event()
        broken = asyncio.Event()

        async def receive(subscription: Subscription) -> None:
            async for message in subscription:
                handled_messages.append((message.id, message.attempts))
                started.set()
                await broken.wait()
                with suppress(ConnectionLost):
                    await message.ack()

        receiving = asyncio.create_task(receive(await client.subscribe("q")))
        broker.send(Frame(wire.DELIVER, "m", "q", b"1", {"deliveryAttempts": "1"}))
        await started.wait()
        broker.connections[-1].close()
        await broker.wait_until(lambda: broker.types().count(wire.SUBSCRIBE) == 2)
        assert wire.ACK not in broker.types()
        broken.set()
        broker.send(Frame(wire.DELIVER, "m", "q", b"1", {"deliveryAttempts": "2"}))
        await broker.wait_until(lambda: wire.ACK in broker.types())
        await client.close()
        with pytest.raises(ConnectionLost):
            await receiving

    broker = run_scenario(scenario)
    assert handled_messages == [("m", 1), ("m", 2)]
    assert [frame.id for frame in broker.received if frame.type == wire.ACK] == ["m"]


def test_client_gives_up_after_max_attempts() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        for reconnect, reason in (
            (None, "closed"),
            (Backoff(0.01, attempts=2), "after 2 attempts"),
        ):
            hosts = [("127.0.0.1", port)]
            client = await VibeMQClient.connect(hosts=hosts, reconnect=reconnect)
            subscription = await client.subscribe("q")
            receiving = asyncio.create_task(subscription.receive())
            await asyncio.sleep(0)
            client.target = replace(client.target, hosts=(("127.0.0.1", unused_port()),))
            broker.connections[-1].close()
            with pytest.raises(ConnectionLost, match=reason):
                await receiving
            with pytest.raises(ConnectionLost, match=reason):
                await client.publish("q", 1)
            with pytest.raises(ConnectionLost, match=reason):
                await client.subscribe("other")
            await client.close()

    run_scenario(scenario)


def test_invalid_configuration_is_retried_on_reconnect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a CA file that is missing while it is replaced; JMQ reads it when it connects."""

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, reconnect=SHORT_BACKOFF)
        connect = client._open

        async def fail(host: str, port: int) -> ClientConnection:
            monkeypatch.setattr(client, "_open", connect)
            raise ConfigurationError("ca.pem: no such file")

        monkeypatch.setattr(client, "_open", fail)
        broker.connections[-1].close()
        await broker.wait_until(lambda: broker.types().count(wire.CONNECT) == 2)
        await client.publish("q", 1)
        await client.close()

    run_scenario(scenario)


def test_refused_login_is_retried_on_reconnect() -> None:
    refusals = 2

    def answer(frame: Frame) -> list[Frame]:
        nonlocal refusals
        if frame.type == wire.CONNECT and len(broker_of[0].connections) > 1 and refusals:
            refusals -= 1
            return [Frame(wire.ERROR, frame.id, error_code="AUTH_FAILED")]
        return acknowledge(frame)

    broker_of: list[ScriptedBroker] = []

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        broker_of.append(broker)
        client = await VibeMQClient.connect(port=port, reconnect=SHORT_BACKOFF)
        broker.connections[-1].close()
        await broker.wait_until(lambda: broker.types().count(wire.CONNECT) == 4)
        await client.ping()
        await client.close()

    run_scenario(scenario, answer)


def test_request_waits_for_the_next_connection_if_the_new_one_breaks_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, reconnect=SHORT_BACKOFF)
        broker.connections[-1].close()
        while client._connected.is_set():
            await asyncio.sleep(0)
        pinging = asyncio.create_task(client.ping())
        adopt = client._adopt

        def adopt_and_lose(connection: ClientConnection) -> None:
            monkeypatch.setattr(client, "_adopt", adopt)
            adopt(connection)
            connection.mark_lost(ConnectionLost("the broker closed the connection"))
            connection.abort()

        monkeypatch.setattr(client, "_adopt", adopt_and_lose)
        await pinging
        assert broker.types().count(wire.CONNECT) == 3
        await client.close()

    run_scenario(scenario)


def test_request_while_disconnected_reports_why_there_is_no_connection() -> None:
    def answer(frame: Frame) -> list[Frame]:
        if frame.type == wire.CONNECT and len(brokers[0].connections) > 1:
            return [Frame(wire.ERROR, frame.id, error_code="AUTH_FAILED")]
        return acknowledge(frame)

    brokers: list[ScriptedBroker] = []

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        brokers.append(broker)
        client = await VibeMQClient.connect(port=port, reconnect=SHORT_BACKOFF, timeout=0.2)
        broker.connections[-1].close()
        while client._connected.is_set():
            await asyncio.sleep(0)
        with pytest.raises(RequestTimeout, match=r"no connection in 0\.2 s: AUTH_FAILED"):
            await client.ping()
        await client.close()

    run_scenario(scenario, answer)


def test_messages_of_failed_attempt_are_dropped() -> None:
    attempts = 0

    def answer(frame: Frame) -> list[Frame]:
        nonlocal attempts
        if frame.type != wire.SUBSCRIBE:
            return acknowledge(frame)
        if frame.queue == "a":
            attempts += 1
            return [*acknowledge(frame), Frame(wire.DELIVER, f"m{attempts}", "a", b"1")]
        return [Frame(wire.ERROR, frame.id)] if attempts == 2 else acknowledge(frame)

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, reconnect=SHORT_BACKOFF)
        a = await client.subscribe("a")
        await client.subscribe("b")
        broker.connections[-1].close()
        await broker.wait_until(lambda: attempts == 3)
        message = await a.receive()
        assert message.id == "m3"
        await message.ack()
        await client.close()

    run_scenario(scenario, answer)


@pytest.mark.parametrize("code", ["INVALID_MESSAGE", "NOT_AUTHORIZED", "QUEUE_NOT_FOUND"])
def test_client_reconnects_without_refused_subscription(code: str) -> None:
    connects = 0

    def answer(frame: Frame) -> list[Frame]:
        nonlocal connects
        connects += frame.type == wire.CONNECT
        if connects > 1 and (frame.type, frame.queue) == (wire.SUBSCRIBE, "refused"):
            return [Frame(wire.ERROR, frame.id, error_code=code, error_message="no more")]
        return acknowledge(frame)

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, reconnect=SHORT_BACKOFF)
        refused_subscription = await client.subscribe("refused")
        subscription = await client.subscribe("q")
        broker.connections[-1].close()
        with pytest.raises(ConnectionLost, match=r"refused on reconnect: .*no more"):
            await refused_subscription.receive()
        await broker.wait_until(lambda: broker.types().count(wire.SUBSCRIBE) == 4)
        broker.send(Frame(wire.DELIVER, "m", "q", b"1"))
        assert (await subscription.receive()).id == "m"
        await refused_subscription.close()
        assert wire.UNSUBSCRIBE not in broker.types()
        assert connects == 2
        await client.close()

    run_scenario(scenario, answer)


def test_changed_queue_does_not_prevent_reconnect() -> None:
    changed_queue = (
        b'{"name":"q","messageCount":0,"subscriberCount":0,"deliveryMode":1,"maxSize":1}'
    )
    answers = iter([b"", changed_queue])

    def answer(frame: Frame) -> list[Frame]:
        payload = next(answers) if frame.type == wire.QUEUE_INFO else b""
        return [reply._replace(payload=payload) for reply in acknowledge(frame)]

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(
            port=port, reconnect=SHORT_BACKOFF, queues=[Declaration("q")]
        )
        broker.connections[-1].close()
        await broker.wait_until(lambda: broker.types().count(wire.QUEUE_INFO) == 2)
        await client.ping()
        await client.close()
        assert wire.DELETE_QUEUE not in broker.types()

    run_scenario(scenario, answer)


def test_number_of_unconfirmed_messages_is_limited() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        async with await VibeMQClient.connect(port=port, outstanding=3) as client:
            publishing = asyncio.create_task(client.publish_all("q", range(5)))
            publish_task = asyncio.create_task(client.publish("q", 5))
            await broker.wait_until(lambda: broker.types().count(wire.PUBLISH) == 3)
            await asyncio.sleep(0.02)
            published = [frame.id for frame in broker.received if frame.type == wire.PUBLISH]
            assert len(published) == 3
            broker.send(Frame(wire.PUBLISH_ACK, published[0]))
            await broker.wait_until(lambda: broker.types().count(wire.PUBLISH) == 4)
            publishing.cancel()
            publish_task.cancel()
            await asyncio.wait([publishing, publish_task])
            assert client._connection is not None
            assert not client._connection.pending

    run_scenario(scenario, replying(wire.PUBLISH))


def test_backoff_delays() -> None:
    assert [Backoff().delay(n) for n in (1, 2, 3, 9, 10, 5000)] == [1, 2, 4, 256, 300, 300]


def test_close_ends_pending_calls() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, reconnect=SHORT_BACKOFF)
        subscription = await client.subscribe("q")
        receiving = asyncio.create_task(subscription.receive())
        await asyncio.sleep(0)
        await client.close()
        await client.close()
        for call in (receiving, client.publish("q", 1), client.ping()):
            with pytest.raises(ConnectionLost, match="closed"):
                await call
        await asyncio.sleep(0)
        assert not any("VibeMQClient" in repr(task.get_coro()) for task in asyncio.all_tasks())

    broker = run_scenario(scenario)
    assert broker.types().count(wire.CONNECT) == 1


def test_close_during_reconnect() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, reconnect=Backoff(60))
        broker.connections[-1].close()
        task = asyncio.create_task(client.publish("q", 1))
        await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await task

    run_scenario(scenario)


def test_close_reports_posts_lost_with_connection() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        def user() -> None:
            client = BlockingClient(VibeMQClient.connect, port=port, reconnect=Backoff(60))
            client.post("q", 1)
            with pytest.raises(ConnectionLost):
                client.publish("q", 2)
            with pytest.raises(ConnectionLost, match="the broker closed the connection"):
                client.close()
            client.close()

        task = asyncio.create_task(asyncio.to_thread(user))
        await broker.wait_until(lambda: broker.types().count(wire.PUBLISH) == 2)
        broker.connections[-1].close()
        await task

    run_scenario(scenario, replying(wire.PUBLISH))
