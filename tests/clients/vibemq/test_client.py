from __future__ import annotations

import asyncio
import json
import random
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
import trustme

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.vibemq import (
    CommandRefused,
    Compression,
    Conflict,
    Declaration,
    Mode,
    QueueOptions,
    Strategy,
    VibeMQClient,
)
from sluicemq.model.errors import ClientError, ConnectionLost, RequestTimeout
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Frame
from tests.clients.vibemq.scripted_broker import (
    HELLO,
    ScriptedBroker,
    acknowledge,
    replying,
    run_scenario,
)
from tests.protocols.sockets import port_of, run_against, serve, unused_port
from tests.protocols.vibemq.harness import Harness


def run(scenario: Callable[[Harness, int], Coroutine[None, None, None]]) -> Harness:
    return run_against(Harness(), scenario)


# --- asyncio, against a broker -------------------------------------------------------------------


def test_publish_receive_acknowledge() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            identity = await client.publish("q", {"a": [1, "ü"]}, {"priority": "High", "x": "y"})
            await client.publish("q", msgspec.Raw(b' {"a":1e400} '), id="mine")
            await client.publish("q")
            await client.publish("q", None)
            subscription = await client.subscribe("q")
            first = await subscription.receive()
            assert (first.id, first.queue, first.json()) == (identity, "q", {"a": [1, "ü"]})
            assert first.headers == {"priority": "High", "x": "y", "deliveryAttempts": "1"}
            assert first.attempts == 1
            await first.ack()
            await first.ack()
            second = await subscription.receive()
            assert (second.id, second.payload) == ("mine", b' {"a":1e400} ')
            third, fourth = await subscription.receive(), await subscription.receive()
            assert (third.payload, third.json()) == (b"", None)
            assert (fourth.payload, fourth.json()) == (b"null", None)
            with pytest.raises(RequestTimeout):
                await subscription.receive(timeout=0.01)
            assert await client.ping() >= 0

    harness = run(scenario)
    assert harness.bodies("q") == [b' {"a":1e400} ', b"", b"null"]


def test_unacked_messages_are_redelivered_with_their_delivery_count() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            identity = await client.publish("q", 1)
            async with await client.subscribe("q") as subscription:
                assert (await subscription.receive()).attempts == 1
            async with await client.subscribe("q") as subscription:
                redelivered = await subscription.receive()
                assert (redelivered.id, redelivered.attempts) == (identity, 2)

    run(scenario)


def test_messages_behind_the_last_acknowledged_one_count_no_attempt() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            await client.publish_all("q", range(4))
            subscription = await client.subscribe("q")
            first, second = await subscription.receive(), await subscription.receive()
            await first.ack()
            await subscription.unsubscribe(first, second)
            assert second.acknowledged
            async with await client.subscribe("q") as subscription:
                messages = [await subscription.receive(), await subscription.receive()]
            assert [(message.json(), message.attempts) for message in messages] == [(2, 1), (3, 1)]

    run(scenario)


def test_client_with_full_prefetch_can_publish() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        # one message fills the client, which must read on for the answer all the same
        async with await VibeMQClient.connect(port=port, prefetch=1) as client:
            subscription = await client.subscribe("in")
            await client.publish_all("in", range(6))
            async for message in subscription:
                if message.json() != 2:
                    await client.publish("out", message.json())
                    await message.ack()
                if message.json() == 5:
                    break
            await client.ping()  # behind the last acknowledgement

    harness = run(scenario)
    assert harness.bodies("out") == [b"0", b"1", b"3", b"4", b"5"]
    assert harness.bodies("in") == [b"2"]


def test_client_with_more_messages_than_its_prefetch_closes() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        client = await VibeMQClient.connect(port=port, prefetch=3, timeout=2, compression=())
        await client.publish_all("q", ["x" * 20_000] * 50)
        subscription = await client.subscribe("q")
        await subscription.receive()
        await client.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await subscription.receive()

    harness = run(scenario)
    assert len(harness.bodies("q")) == 50


def test_many_messages_are_published_concurrently() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await VibeMQClient.connect(port=port, outstanding=7) as client:
            assert await client.publish_all("q", range(100), {"a": "b"}) == 100
            await asyncio.gather(*(client.publish("q", number) for number in range(100, 150)))
            assert await client.publish_all("q", []) == 0

    harness = run(scenario)
    assert sorted(map(int, harness.bodies("q"))) == list(range(150))


def test_messages_of_cancelled_subscribe_go_to_others() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            subscribing = asyncio.create_task(client.subscribe("q"))
            await asyncio.sleep(0)  # the request is sent
            subscribing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await subscribing
            await client.publish("q", 1)
            async with await client.subscribe("q") as subscription:
                assert (await subscription.receive(5)).attempts == 1

    run(scenario)


def test_subscriptions_of_several_queues() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            await client.publish("a", 1)
            await client.publish("b", 2)
            a, b = await client.subscribe("a"), await client.subscribe("b")
            assert (await b.receive()).json() == 2
            async for message in a:
                assert message.json() == 1
                break
            with pytest.raises(ValueError, match="already"):
                await client.subscribe("a")
            await a.unsubscribe()
            await a.unsubscribe()
            with pytest.raises(ConnectionLost, match="ended"):
                await a.receive()
            assert (await (await client.subscribe("a")).receive()).json() == 1

    run(scenario)


@pytest.mark.parametrize("how", [Compression.GZIP, Compression.BROTLI])
def test_compression_in_both_directions(how: Compression) -> None:
    async def scenario(harness: Harness, port: int) -> None:
        text = "the same " * 2000
        async with await VibeMQClient.connect(port=port, compression=[how]) as client:
            assert client._connection is not None
            assert client._connection.compression is how
            await client.publish("q", text)
            await client.publish("q", "small")
            subscription = await client.subscribe("q")
            assert (await subscription.receive()).json() == text
            assert (await subscription.receive()).json() == "small"

    run(scenario)


def test_bytes_are_sent_in_base64() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            await client.publish("q", b"\xff\0", {"content-encoding": "base64"})
            for payload in ("=", 1):
                await client.publish("q", payload, {"content-encoding": "base64"})
            await client.publish("q", "x")
            subscription = await client.subscribe("q")
            bodies = [(await subscription.receive()).body for _ in range(4)]
            assert bodies == [b"\xff\0", b'"="', b"1", b'"x"']

    harness = run(scenario)
    assert harness.bodies("q")[0] == b"\xff\0"


def test_queue_operations() -> None:
    options = QueueOptions(
        Mode.PRIORITY_BASED, 5, 90_061_001, True, "dead", Strategy.DROP_NEWEST, 7
    )

    async def scenario(harness: Harness, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            assert await client.queue_info("q") is None
            assert await client.list_queues() == []
            await client.create_queue("q", options)
            await client.create_queue("plain")
            await client.create_queue("q", options)
            await client.create_queue("q")
            await client.publish("q", 1)
            info = await client.queue_info("q")
            assert info is not None
            assert info[:4] == ("q", 1, 0, options)
            assert info.created is not None
            assert await client.list_queues() == ["q", "dead", "plain"]
            await client.delete_queue("q")
            await client.delete_queue("q")
            assert await client.list_queues() == ["dead", "plain"]

    run(scenario)


def test_declare_reports_conflicting_options() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await VibeMQClient.connect(port=port, queues=[Declaration("q")]) as client:
            await client.publish("q", 1)
            equal_options = QueueOptions(max_queue_size=5, max_retry_attempts=9)
            other_options = QueueOptions(
                Mode.PRIORITY_BASED, dead_letter=True, dead_letter_queue="d"
            )
            await client.declare(
                Declaration("q", equal_options), Declaration("q", other_options, Conflict.IGNORE)
            )
            with pytest.raises(ClientError, match="mode is RoundRobin, not PriorityBased"):
                await client.declare(Declaration("q", other_options))
            assert harness.bodies("q") == [b"1"]
            await client.declare(Declaration("q", other_options, Conflict.OVERRIDE))
            info = await client.queue_info("q")
            assert info is not None
            assert (info.messages, info.options) == (0, other_options)
        with pytest.raises(ClientError, match="q is not as declared"):
            await VibeMQClient.connect(port=port, queues=[Declaration("q")])
        long_options, short_options = (
            QueueOptions(message_ttl=10_000),
            QueueOptions(message_ttl=9_999),
        )
        async with await VibeMQClient.connect(port=port) as client:
            await client.declare(Declaration("t", long_options))
            with pytest.raises(ClientError, match=r"for 00:00:10, not 00:00:09\.9990000"):
                await client.declare(Declaration("t", short_options))
            await client.delete_queue("t")
            await client.declare(Declaration("t", short_options), Declaration("t", long_options))

    run(scenario)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.BROTLI])
def test_large_payloads_are_sent_and_received_compressed(compression: Compression) -> None:
    orders = [{"id": n, "name": f"order {n}"} for n in range(60_000)]

    async def scenario(harness: Harness, port: int) -> None:
        connect = VibeMQClient.connect(port=port, compression=(compression,))
        async with await connect as client, await client.subscribe("q") as messages:
            await client.publish("q", orders)
            message = await messages.receive()
            assert message.json() == orders
            await message.ack()
            await client.publish_all("q", [orders, 1])
            for expected in (orders, 1):
                message = await messages.receive()
                assert message.json() == expected
                await message.ack()

        def user() -> None:
            with BlockingClient(
                VibeMQClient.connect, port=port, compression=(compression,)
            ) as client:
                client.publish("other", orders)

        await asyncio.to_thread(user)
        assert len(harness.bodies("other")[0]) > 1_048_576

    run(scenario)


def test_large_payload_without_compression_is_refused_by_client() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await VibeMQClient.connect(port=port, compression=()) as client:
            with pytest.raises(ValueError, match="1048576, and compression has not been agreed"):
                await client.publish("q", "x" * 1_048_576)
            assert await client.publish("q", 1)
        assert harness.bodies("q") == [b"1"]

    run(scenario)


def test_messages_that_cannot_be_encoded_are_refused() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            nested: list[object] = []
            for _ in range(100):
                nested = [nested]
            for payload in (
                object(),
                nested,
                "\ud800",
                msgspec.Raw(b"[1,]"),
                random.Random(1).randbytes(1_200_000).hex(),  # too long even compressed
            ):
                with pytest.raises(ValueError, match=r"."):
                    await client.publish("q", payload)
            with pytest.raises(ValueError, match="name"):
                await client.publish("", 1)
            with pytest.raises(ValueError, match="65536"):
                await client.publish("q", 1, {"a": "x" * 65_536})
            with pytest.raises(CommandRefused, match="INVALID_MESSAGE"):
                await client.publish("no such name!", 1)
            with pytest.raises(CommandRefused, match="INVALID_MESSAGE"):
                await client.publish_all("q", range(5), {str(n): "x" for n in range(51)})
            assert await client.publish("q", 1)

    assert run(scenario).bodies("q") == [b"1"]


def test_close_waits_for_published_messages() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        client = await VibeMQClient.connect(port=port)
        calls = [asyncio.create_task(client.publish("q", number)) for number in range(20)]
        await asyncio.sleep(0)
        await client.close()
        await asyncio.gather(*calls)

    assert len(run(scenario).bodies("q")) == 20


def test_tls_and_unix_socket(tmp_path: Any) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    path = str(tmp_path / "socket")

    async def main() -> None:
        tls, port = await serve(Harness(), ssl_context=context)
        local, _ = await serve(Harness(), path)
        async with asyncio.timeout(30), tls, local:
            for where in (
                f"vibemq+tls://localhost:{port}?ca={ca}",
                f"Host=127.0.0.1:{port};UseTls=true;SkipCertificateValidation=true",
                f"vibemq+unix://{path}",
            ):
                async with await VibeMQClient.open(where) as client:
                    await client.publish("q", 1)

                def blocking(where: str = where) -> None:
                    with BlockingClient(VibeMQClient.open, where) as client:
                        client.publish("q", 1)

                await asyncio.to_thread(blocking)
            with pytest.raises(ConnectionLost, match="certificate"):
                await VibeMQClient.open(f"vibemq+tls://localhost:{port}")

    asyncio.run(main())


# --- asyncio, against a script -------------------------------------------------------------------


def test_cancelled_confirm_keeps_messages_unconfirmed() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            identity = await client.post("q", 1)
            confirming = asyncio.create_task(client.confirm())
            await broker.wait_until(lambda: wire.PUBLISH in broker.types())
            confirming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await confirming
            broker.send(Frame(wire.ERROR, identity, error_code="QUEUE_FULL"))
            with pytest.raises(CommandRefused, match="QUEUE_FULL"):
                await client.confirm()

    run_scenario(scenario, replying(wire.PUBLISH))


def test_requests_are_sent_in_order() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        async with await VibeMQClient.connect(
            port=port, username="me", password="secret", token="t"
        ) as client:
            await client.create_queue("q", QueueOptions(Mode.PRIORITY_BASED))
            await client.delete_queue("q")

    broker = run_scenario(scenario)
    hello, create, delete, goodbye = broker.received
    assert list(hello.headers.items()) == [
        ("authUsername", "me"),
        ("authPassword", "secret"),
        ("authToken", "t"),
        ("supported-compression", "brotli,gzip"),
    ]
    assert (create.type, create.queue) == (wire.CREATE_QUEUE, "q")
    assert json.loads(create.payload)["mode"] == Mode.PRIORITY_BASED
    assert (delete.type, delete.queue) == (wire.DELETE_QUEUE, "q")
    assert goodbye.type == wire.DISCONNECT
    assert len({frame.id for frame in broker.received}) == len(broker.received)


@pytest.mark.parametrize(
    "payload", [b"{", b"1", b"[1]", b'{"name":"q"}', b'{"name":"q","messageCount":"x"}']
)
def test_malformed_responses_are_errors(payload: bytes) -> None:
    def answer(frame: Frame) -> list[Frame]:
        if frame.type == wire.CONNECT:
            return [HELLO]
        return [reply._replace(payload=payload) for reply in acknowledge(frame)]

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            with pytest.raises(ConnectionLost, match="broke the protocol"):
                await client.queue_info("q")
            if payload[:1] != b"[":
                with pytest.raises(ConnectionLost, match="broke the protocol"):
                    await client.list_queues()

    run_scenario(scenario, answer)


def test_modes_of_protocol_page_are_accepted() -> None:
    seed = (
        b'{"name":"my-queue","messageCount":42,"subscriberCount":3,'
        b'"deliveryMode":"FanOutWithAck","maxSize":10000,"createdAt":"2026-02-18T10:00:00Z"}'
    )

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            info = await client.queue_info("my-queue")
            assert info is not None
            assert info[:4] == ("my-queue", 42, 3, QueueOptions(Mode.FAN_OUT_WITH_ACK))

    run_scenario(scenario, replying(wire.QUEUE_INFO, Frame(wire.QUEUE_INFO, "", "my-queue", seed)))


def test_wrong_credentials_are_error() -> None:
    error_frame = Frame(wire.ERROR, "foreign", error_code="AUTH_FAILED", error_message="Wrong.")

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        with pytest.raises(CommandRefused, match=r"AUTH_FAILED: Wrong\.") as error:
            await VibeMQClient.connect(port=port)
        assert error.value.code == "AUTH_FAILED"
        with pytest.raises(CommandRefused, match="AUTH_FAILED"):
            await asyncio.to_thread(BlockingClient, VibeMQClient.connect, port=port)

    run_scenario(scenario, replying(wire.CONNECT, error_frame))


def test_missing_response_times_out() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, timeout=1)
        for call in (client.publish("q", 1), client.publish_all("q", [1, 2]), client.ping()):
            with pytest.raises(RequestTimeout, match="no answer"):
                await call
        await client.create_queue("q")  # the connection goes on
        assert client._connection is not None
        assert not client._connection.pending
        await client.close()

    def answer(frame: Frame) -> list[Frame]:
        return [] if frame.type in (wire.PUBLISH, wire.PING) else acknowledge(frame)

    run_scenario(scenario, answer)


def test_missing_responses_to_connect_and_disconnect() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        with pytest.raises(RequestTimeout, match="no response to Connect"):
            await VibeMQClient.connect(port=port, timeout=1)

    run_scenario(scenario, lambda frame: [])

    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def stubborn() -> None:
            client = asyncio.create_task(VibeMQClient.connect(port=port_of(listener), timeout=2))
            peer, _ = await asyncio.to_thread(listener.accept)
            peer.send(wire.encode(HELLO))
            with pytest.raises(RequestTimeout, match="did not close"):
                await (await client).close()
            peer.close()

        asyncio.run(stubborn())


def test_silent_broker_is_detected_by_pings() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, timeout=1, keep_alive=0.01, reconnect=None)
        subscription = await client.subscribe("q")
        with pytest.raises(ConnectionLost, match="does not answer"):
            await subscription.receive()
        await client.close()

    broker = run_scenario(scenario, replying(wire.PING))
    assert wire.PING in broker.types()


def test_pings_keep_connection() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        async with await VibeMQClient.connect(port=port, keep_alive=0.01):
            await broker.wait_until(lambda: broker.types().count(wire.PING) >= 3)

    run_scenario(scenario)


def test_connects_to_first_host_that_responds() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        hosts = [("127.0.0.1", unused_port()), ("127.0.0.1", port)]
        async with await VibeMQClient.connect(hosts=hosts) as client:
            await client.publish("q", 1)
        with pytest.raises(ConnectionLost, match="cannot connect"):
            await VibeMQClient.connect(hosts=hosts[:1])

        def blocking() -> None:
            with BlockingClient(VibeMQClient.connect, hosts=hosts) as client:
                client.publish("q", 1)
            with pytest.raises(ConnectionLost, match="cannot connect"):
                BlockingClient(VibeMQClient.connect, hosts=hosts[:1])

        await asyncio.to_thread(blocking)

    run_scenario(scenario)


# --- unusual brokers -----------------------------------------------------------------------------


def test_messages_with_response_or_without_subscription() -> None:
    early = Frame(wire.DELIVER, "m", "q", b"1")

    def answer(frame: Frame) -> list[Frame]:
        foreign_frames = [
            Frame(wire.DELIVER, "n", "r", b"1"),
            Frame(77, "x"),
            Frame(wire.PONG, "y"),
        ]
        return acknowledge(frame) + (
            [*foreign_frames, early] if frame.type == wire.SUBSCRIBE else []
        )

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            message = await (await client.subscribe("q")).receive()
            assert (message.id, message.attempts) == ("m", 0)

    run_scenario(scenario, answer)


def test_refused_subscription_leaves_no_state() -> None:
    error_frame = Frame(wire.ERROR, "", error_code="NOT_AUTHORIZED", error_message="no")

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        async with await VibeMQClient.connect(port=port) as client:
            for _ in range(2):
                with pytest.raises(CommandRefused, match="NOT_AUTHORIZED: no"):
                    await client.subscribe("q")

    run_scenario(scenario, replying(wire.SUBSCRIBE, error_frame))


def test_last_error_explains_closed_connection() -> None:
    error_frame = Frame(
        wire.ERROR, "foreign", error_code="INVALID_MESSAGE", error_message="bad frame"
    )

    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, reconnect=None)
        subscription = await client.subscribe("q")
        broker.send(error_frame)
        broker.connections[-1].close()
        with pytest.raises(ConnectionLost, match="INVALID_MESSAGE: bad frame"):
            await subscription.receive()

    run_scenario(scenario)


def test_protocol_violation_of_broker_closes_connection() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, reconnect=None)
        subscription = await client.subscribe("q")
        broker.connections[-1].write(b"\xff" * 5)
        with pytest.raises(ConnectionLost, match="broke the protocol: a frame of 4294967295 bytes"):
            await subscription.receive()

    run_scenario(scenario)


def test_acks_are_held_back_while_broker_does_not_read() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        async with await VibeMQClient.connect(port=port, prefetch=3, keep_alive=0) as client:
            subscription = await client.subscribe("q")
            transport = client._connection
            assert transport is not None
            assert transport._transport is not None
            payload = b"1" * 100_000
            for number in range(200):  # far more than the kernel keeps
                broker.send(Frame(wire.DELIVER, f"m{number}", "q", payload))
            while transport._transport.is_reading():
                await asyncio.sleep(0.001)
            count = len(subscription._inbox.messages)
            assert 3 <= count < 50
            await client.ping()  # answers are read all the same
            ids = [(await subscription.receive()).id for _ in range(200)]
            assert ids == [f"m{number}" for number in range(200)]

    run_scenario(scenario)


def test_same_id_may_be_delivered_twice() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        client = await VibeMQClient.connect(port=port, timeout=1)
        first = asyncio.create_task(client.publish("q", 1, id="same"))
        await broker.wait_until(lambda: wire.PUBLISH in broker.types())
        with pytest.raises(ValueError, match="'same' is already in use"):
            await client.publish("q", 1, id="same")
        with pytest.raises(RequestTimeout):
            await first
        await client.close()

    run_scenario(scenario, replying(wire.PUBLISH))
