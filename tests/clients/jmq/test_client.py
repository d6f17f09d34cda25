"""The client for asyncio against a broker in memory, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from sluicemq.clients.jmq import (
    AckMode,
    Byte,
    Char,
    Consumer,
    Float,
    JavaObject,
    JmqClient,
    JmqMessage,
    Long,
    Queue,
    Short,
    Status,
    StatusError,
    Topic,
    XaFlag,
    Xid,
)
from sluicemq.clients.jmq.messages import now_ms
from sluicemq.model.errors import ConnectionLost, RequestTimeout
from tests.protocols.jmq.harness import Harness
from tests.protocols.sockets import run_against

Scenario = Callable[[Harness, JmqClient], Coroutine[None, None, None]]


def run(scenario: Scenario, **options: Any) -> Harness:
    """Run a scenario with a connected client."""

    async def main(harness: Harness, port: int) -> None:
        options.setdefault("reconnect", None)
        async with await JmqClient.connect(port=port, direct=True, **options) as client:
            await scenario(harness, client)

    return run_against(Harness(), main)


async def texts(consumer: Consumer, number: int) -> list[object]:
    return [(await consumer.receive(5)).body for _ in range(number)]


async def expect_no_message(consumer: Consumer) -> None:
    with pytest.raises(RequestTimeout):
        await consumer.receive(0.05)


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "",
        "Grüße 🍕\0",
        b"",
        b"\0\xff",
        {},
        {
            "null": None, "yes": True, "byte": Byte(-1), "short": Short(300), "int": -5,
            "long": Long(1), "big": 1 << 40, "float": Float(0.5), "double": 0.1, "char": Char("ü"),
            "text": "🍕", "bytes": b"\0\1",
        },
        [],
        [1, None, "a", b"b", True, 2.5, Char("c")],
        None,
    ],
)  # fmt: skip
def test_sent_messages_are_received(body: object) -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        producer, consumer = await session.producer("q"), await session.consumer("q")
        for compress in (False, True):
            await producer.send(body, compress=compress)
            received_body = (await consumer.receive(5)).body
            assert received_body == body
            assert type(received_body) is type(body)

    run(scenario)


def test_only_known_classes_of_object_messages_are_decoded() -> None:
    foreign_object = bytes.fromhex("aced0005") + b"sr\0\x01X" + bytes(8) + b"\x02\0\0xp"

    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        producer, consumer = await session.producer("q"), await session.consumer("q")
        await producer.send(JavaObject(foreign_object))
        await producer.send(JavaObject.of({"a": 1}))
        first, second = [await consumer.receive(5) for _ in range(2)]
        assert first.body == JavaObject(foreign_object)
        assert isinstance(first.body, JavaObject)
        assert isinstance(second.body, JavaObject)
        assert second.body.value == {"a": 1}
        with pytest.raises(ValueError, match="X"):
            assert first.body.value

    run(scenario)


def test_message_has_its_headers_and_properties() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        producer = await session.producer(Queue("q"), priority=7)
        consumer = await session.consumer("q")
        properties = {"i": 1, "l": 1 << 40, "b": True, "f": 0.5, "s": "ü", "t": Long(1)}
        identity = await producer.send(
            "x", properties=properties, correlation_id="c", reply_to=Topic("back"), type="kind"
        )
        message = await consumer.receive(5)
        assert message.id == identity
        assert message.properties == properties
        assert (message.correlation_id, message.type, message.priority) == ("c", "kind", 7)
        assert (message.destination, message.reply_to) == (Queue("q"), Topic("back"))
        assert (message.persistent, message.redelivered, message.delivery_count) == (True, False, 1)
        assert (message.expiration, message.delivery_time) == (0, 0)
        # a forwarded message keeps its properties
        await producer.send(message, priority=1)
        second_message = await consumer.receive(5)
        assert (second_message.body, second_message.properties, second_message.priority) == (
            "x",
            properties,
            1,
        )
        assert (second_message.correlation_id, second_message.type, second_message.reply_to) == (
            "c",
            "kind",
            Topic("back"),
        )
        assert second_message.id != identity

    run(scenario)


def test_names_that_java_does_not_allow_are_left_to_broker() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        producer, consumer = await session.producer("a-b"), await session.consumer("a-b")
        for name in ("a-b", "a_HYPHEN_b"):
            await producer.send("x", reply_to=name)
            message = await consumer.receive(5)
            assert message.destination == message.reply_to == Queue("a-b")
        assert harness.find("a-b") is not None

    run(scenario)


def test_producer_without_destination_sends_many_messages() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        producer = await session.producer(persistent=False)
        await producer.send("1", to="a")
        await producer.send("2", to=Queue("b"))
        await producer.send("3", to="a")
        await client.ping()
        assert (harness.bodies("a"), harness.bodies("b")) == ([b"1", b"3"], [b"2"])
        with pytest.raises(ValueError, match="`to` is missing"):
            await producer.send("4")
        bulk_producer = await session.producer("many")
        assert await bulk_producer.send_all(map(str, range(1000))) == 1000
        assert len(harness.bodies("many")) == 1000
        await bulk_producer.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await bulk_producer.send("x")

    run(scenario, outstanding=7)


def test_messages_are_received_by_priority_and_in_order() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        producer = await session.producer("q")
        for number in range(6):
            await producer.send(f"{number}", priority=number % 3)
        consumer = await session.consumer("q")
        assert await texts(consumer, 6) == ["2", "5", "1", "4", "0", "3"]

    run(scenario)


def test_delayed_message_is_received_when_due() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        producer, consumer = await session.producer("q"), await session.consumer("q")
        harness.clock.wall = now_ms()
        await producer.send("later", delay=100)
        await producer.send("now")
        assert await texts(consumer, 1) == ["now"]
        await expect_no_message(consumer)
        harness.run_event_loop(200_000)
        message = await consumer.receive(5)
        assert (message.body, message.delivery_time - message.timestamp) == ("later", 100_000)

    run(scenario)


# --- receiving -----------------------------------------------------------------------------------


def test_flow_control_of_slow_consumer() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session(AckMode.DUPS_OK)
        producer = await session.producer("q")
        await producer.send_all(map(str, range(1000)))
        consumer = await session.consumer("q", prefetch=3)
        assert await texts(consumer, 1000) == [str(number) for number in range(1000)]

    run(scenario, flow=2)


def test_iteration_over_consumer() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        await (await session.producer("q")).send_all("abc")
        bodies = []
        async with await session.consumer("q") as consumer:
            async for message in consumer:
                bodies.append(message.body)
                if len(bodies) == 3:
                    break
        assert bodies == ["a", "b", "c"]
        with pytest.raises(ConnectionLost, match="closed"):
            await consumer.receive()
        task = asyncio.create_task((await session.consumer("q")).receive())
        await asyncio.sleep(0)
        await session.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await task

    harness = run(scenario)
    assert harness.bodies("q") == []


def test_undelivered_messages_of_closed_consumer_are_redelivered_in_order() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session(AckMode.CLIENT)
        await (await session.producer("q")).send_all("abcd")
        consumer = await session.consumer("q")
        first = await consumer.receive(5)
        await consumer.close()
        other_consumer = await session.consumer("q")
        second = await other_consumer.receive(60)
        assert (second.body, second.redelivered, second.delivery_count) == ("b", False, 1)
        await first.acknowledge()
        await session.recover()
        await expect_only(other_consumer, "cd")

    harness = run(scenario)
    assert harness.bodies("q") == [b"c", b"d"]


async def expect_only(consumer: Consumer, bodies: str) -> None:
    assert await texts(consumer, len(bodies)) == list(bodies)
    await expect_no_message(consumer)


@pytest.mark.parametrize("iterations", range(2, 12))
def test_messages_of_cancelled_consumer_go_to_others(iterations: int) -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        await (await session.producer("q")).send("x")
        creating = asyncio.create_task(session.consumer("q"))
        for _ in range(iterations):
            await asyncio.sleep(0)
        if not creating.cancel():
            await (await creating).close()
        with suppress(asyncio.CancelledError):
            await creating
        consumer = await (await client.session()).consumer("q")
        assert (await consumer.receive(5)).body == "x"

    run(scenario)


def test_stop_and_start() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        producer, consumer = await session.producer("q"), await session.consumer("q")
        await client.stop()
        await producer.send("x")
        await expect_no_message(consumer)
        await client.start()
        assert await texts(consumer, 1) == ["x"]

    run(scenario)


def test_selectors_and_their_errors() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        producer = await session.producer("q")
        consumer = await session.consumer("q", selector="color = 'red' AND n > 1")
        for number, color in enumerate(("red", "red", "blue", "red")):
            await producer.send(f"{number}", properties={"color": color, "n": number})
        await expect_only(consumer, "3")
        with pytest.raises(StatusError) as error:
            await session.consumer("q", selector="color = ")
        assert error.value.status == Status.BAD_REQUEST
        assert error.value.reason

    run(scenario)


def test_recover_in_client_acknowledge_mode() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session(AckMode.CLIENT)
        await (await session.producer("q")).send_all("abcde")
        consumer = await session.consumer("q", prefetch=2)
        received_messages = [await consumer.receive(5) for _ in range(3)]
        await received_messages[1].acknowledge(only=True)
        await session.recover()
        messages = [await consumer.receive(5) for _ in range(4)]
        assert [(item.body, item.redelivered, item.delivery_count) for item in messages] == [
            ("a", True, 2), ("c", True, 2), ("d", False, 1), ("e", False, 1),
        ]  # fmt: skip
        await messages[0].acknowledge()

    harness = run(scenario)
    assert harness.bodies("q") == []


def test_cancelled_recover_does_not_stop_session() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session(AckMode.CLIENT)
        consumer, producer = await session.consumer("q"), await session.producer("q")
        recovery = asyncio.create_task(session.recover())
        await asyncio.sleep(0)  # STOP is sent
        recovery.cancel()
        with pytest.raises(asyncio.CancelledError):
            await recovery
        await producer.send("x")
        assert (await consumer.receive(5)).body == "x"

    run(scenario)


def test_returned_messages_are_not_acknowledged_with_redelivered_ones() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session(AckMode.CLIENT)
        await (await session.producer("q")).send_all("ab")
        consumer = await session.consumer("q")
        await texts(consumer, 2)
        await session.recover()
        await (await consumer.receive(5)).acknowledge()

    harness = run(scenario)
    assert harness.bodies("q") == [b"b"]


def test_every_subscriber_of_topic_receives_its_messages() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        topic = Topic("t")
        producer = await session.producer(topic)
        await producer.send("without subscribers")
        first, second = await session.consumer(topic), await session.consumer(topic)
        no_local_consumer = await session.consumer(topic, no_local=True)
        await producer.send("x")
        await expect_only(first, "x")
        await expect_only(second, "x")
        await expect_no_message(no_local_consumer)

    run(scenario)


def test_durable_subscriptions() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        topic = Topic("t")
        producer = await session.producer(topic)
        consumer = await session.consumer(topic, name="d", durable=True)
        with pytest.raises(StatusError) as error:
            await session.consumer(topic, name="d", durable=True)
        assert error.value.status == Status.CONFLICT
        await consumer.close()
        await producer.send("x")
        async with await session.consumer(topic, name="d", durable=True) as consumer:
            await expect_only(consumer, "x")
        await session.unsubscribe("d")
        with pytest.raises(StatusError) as error:
            await session.unsubscribe("d")
        assert error.value.status == Status.NOT_FOUND

    run(scenario, client_id="me")


def test_shared_subscriptions() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        topic = Topic("t")
        members = [await session.consumer(topic, name="s", shared=True) for _ in range(2)]
        await (await session.producer(topic)).send_all(map(str, range(10)))
        texts_by_member = [await texts(member, 5) for member in members]
        assert sorted(map(str, texts_by_member[0] + texts_by_member[1])) == [
            str(n) for n in range(10)
        ]

    run(scenario)


def test_wildcards() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        consumer = await session.consumer(Topic("a.*"))
        for name in ("a.b", "a.c", "b.a"):
            await (await session.producer(Topic(name))).send(name)
        assert await texts(consumer, 2) == ["a.b", "a.c"]
        await expect_no_message(consumer)

    run(scenario)


# --- transactions --------------------------------------------------------------------------------


def test_commit_and_rollback() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        plain_session = await client.session()
        await (await plain_session.producer("in")).send_all("abc")
        session = await client.session(transacted=True)
        consumer = await session.consumer("in", prefetch=2)
        producer = await session.producer("out")
        await producer.send((await consumer.receive(5)).body)
        await consumer.receive(5)
        assert harness.bodies("out") == []
        await session.rollback()
        messages = [await consumer.receive(5) for _ in range(2)]
        assert [(message.body, message.delivery_count) for message in messages] == [
            ("a", 2),
            ("b", 2),
        ]
        for message in messages:
            await producer.send(message, wait=False)
        await session.commit()
        assert harness.bodies("out") == [b"a", b"b"]
        assert (await consumer.receive(5)).body == "c"
        with pytest.raises(ValueError, match="not transacted"):
            await plain_session.commit()

    harness = run(scenario)
    # the session was closed with an open transaction
    assert harness.bodies("in") == [b"c"]


def test_cancelled_rollback_leaves_session_transacted() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session(transacted=True)
        producer = await session.producer("q")
        for iterations in range(12):
            await producer.send("rolled back")
            rollback = asyncio.create_task(session.rollback())
            for _ in range(iterations):
                await asyncio.sleep(0)
            rollback.cancel()
            with suppress(asyncio.CancelledError):
                await rollback
            with suppress(StatusError):
                await producer.send("not committed")
            await client.ping()
            assert harness.bodies("q") == []
            await session.rollback()
        await producer.send("committed")
        await session.commit()
        assert harness.bodies("q") == [b"committed"]

    run(scenario)


def test_xa() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        await (await session.producer("in")).send("x")
        consumer, producer = await session.consumer("in"), await session.producer("out")
        first, second, third = (Xid(7, b"t", bytes([number])) for number in range(3))
        await session.xa.start(first)
        with pytest.raises(ValueError, match="not ended"):
            await session.xa.start(second)
        await producer.send((await consumer.receive(5)).body, wait=False)
        await session.xa.end(first)
        await session.xa.prepare(first)
        assert harness.bodies("out") == []
        other_session = await client.session()
        assert await other_session.xa.recover() == [first]
        await other_session.xa.commit(first)
        assert (harness.bodies("out"), harness.bodies("in")) == ([b"x"], [])
        await session.xa.start(second)
        await producer.send("y")
        await session.xa.end(second, XaFlag.SUSPEND)
        await producer.send("outside")
        await session.xa.start(second, XaFlag.RESUME)
        await session.xa.end(second)
        await session.xa.commit(second, one_phase=True)
        assert harness.bodies("out") == [b"x", b"outside", b"y"]
        await session.xa.start(third)
        await producer.send("z")
        assert (await (await client.session()).xa.recover()) == []
        await session.xa.end(third, XaFlag.FAIL)
        await session.xa.rollback(third)
        assert len(harness.bodies("out")) == 3
        with pytest.raises(StatusError) as error:
            await session.xa.commit(Xid(7, b"never", b""))
        assert error.value.status == Status.NOT_FOUND
        transacted = await client.session(transacted=True)
        with pytest.raises(ValueError, match="of its own"):
            await transacted.xa.start(first)

    run(scenario)


def test_closing_session_rolls_back_transaction_that_it_has_not_ended() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        await (await session.producer("in")).send("x")
        consumer, producer = await session.consumer("in"), await session.producer("out")
        ended, started = Xid(1, b"t", b"ended"), Xid(1, b"t", b"started")
        await session.xa.start(ended)
        await producer.send("kept")
        await session.xa.end(ended)
        await session.xa.start(started)
        await producer.send((await consumer.receive(5)).body)
        await session.close()
        other = await client.session()
        redelivered = await (await other.consumer("in")).receive(5)
        assert (redelivered.body, redelivered.redelivered) == ("x", True)
        await other.xa.start(started)  # the Xid is free again
        await other.xa.end(started)
        await other.xa.commit(ended, one_phase=True)
        assert harness.bodies("out") == [b"kept"]

    run(scenario)


def test_xa_rollback_requeues_messages() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        await (await session.producer("in")).send("x")
        consumer = await session.consumer("in")
        xid = Xid(1, b"t", b"b")
        await session.xa.start(xid)
        await consumer.receive(5)
        await session.xa.end(xid)
        await session.xa.rollback(xid)
        redelivered = await consumer.receive(5)
        assert (redelivered.body, redelivered.redelivered) == ("x", True)

    harness = run(scenario)
    assert harness.bodies("in") == []


# --- browsing, temporary destinations, requests --------------------------------------------------


def test_browsing_removes_no_messages() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session(AckMode.CLIENT)
        producer = await session.producer("q")
        for number in range(2500):
            await producer.send(f"{number}", properties={"n": number}, wait=False)
        await producer.confirm()
        browser = session.browser("q")
        for _ in range(2):
            bodies = [message.body async for message in browser]
            assert bodies == [str(number) for number in range(2500)]
        matches = [message.body async for message in session.browser("q", "n >= 2498")]
        assert matches == ["2498", "2499"]
        assert [message async for message in session.browser("empty")] == []
        async for message in browser:
            assert message.body == "0"
            break
        with pytest.raises(StatusError) as error:
            assert [message async for message in session.browser("q", "n >=")]
        assert error.value.status == Status.BAD_REQUEST

    assert len(run(scenario).bodies("q")) == 2500


def test_temporary_destinations() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        session = await client.session()
        queue, topic = await session.temporary_queue(), await session.temporary_topic()
        for destination in (queue, topic):
            consumer = await session.consumer(destination)
            await (await session.producer(destination)).send("x")
            message = await consumer.receive(5)
            assert message.destination == destination
            assert type(message.destination) is type(destination)
        with pytest.raises(StatusError):
            await session.delete(topic)
        await consumer.close()
        await session.delete(topic)
        with pytest.raises(StatusError):
            await session.producer(topic)

    run(scenario)


def test_requests_and_replies() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        worker = await client.session()
        consumer = await worker.consumer("work")

        async def work() -> None:
            async for request in consumer:
                if request.body != "silence":
                    await worker.reply(request, f"{request.body}!", properties={"a": 1})

        working = asyncio.create_task(work())
        replies: list[JmqMessage] = await asyncio.gather(
            *(client.request("work", f"{number}", timeout=60) for number in range(20))
        )
        assert [reply.body for reply in replies] == [f"{number}!" for number in range(20)]
        assert replies[0].properties == {"a": 1}
        with pytest.raises(RequestTimeout, match="no reply"):
            await client.request("work", "silence", timeout=0.5)
        working.cancel()
        by_id = asyncio.create_task(client.request("other", "x", persistent=True))
        other_consumer = await worker.consumer("other")
        request = await other_consumer.receive(60)
        assert request.reply_to is not None
        answer_producer = await worker.producer(request.reply_to)
        await answer_producer.send("by id", correlation_id=request.id)
        assert (await by_id).body == "by id"
        await (await worker.producer("other")).send("no reply wanted")
        message = await other_consumer.receive(60)
        with pytest.raises(ValueError, match="has no reply destination"):
            await worker.reply(message, "x")
        task = asyncio.create_task(client.request("unanswered", "x"))
        await client.ping()
        await client.close()
        with pytest.raises(ConnectionLost):
            await task

    run(scenario)


def test_ping_and_close() -> None:
    async def scenario(harness: Harness, client: JmqClient) -> None:
        assert await client.ping() >= 0
        session = await client.session()
        producer, consumer = await session.producer("q"), await session.consumer("q")
        await client.close()
        await client.close()
        for call in (
            client.ping(), client.session(), producer.send("x"), consumer.receive(),
            session.consumer("q"),
        ):  # fmt: skip
            with pytest.raises(ConnectionLost, match="closed"):
                await call

    run(scenario)


def test_client_id_is_used_by_one_connection() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await JmqClient.connect(port=port, direct=True, client_id="me"):
            with pytest.raises(StatusError) as error:
                await JmqClient.connect(port=port, direct=True, client_id="me")
            assert error.value.status == Status.CONFLICT
            with pytest.raises(ValueError, match="at least 1"):
                await JmqClient.connect(port=port, direct=True, outstanding=0)

    run_against(Harness(), scenario)
