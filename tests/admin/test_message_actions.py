"""Actions on messages over HTTP: by id, by selector, all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluicemq.broker import ManualClock, Window
from sluicemq.management.settings import HttpSettings
from sluicemq.model.dead_letters import dead_letter_of
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Durability, Message
from tests.admin.destinations import queue, queued_bodies, read, send, topic, unacked_numbers
from tests.support.api import ApiFixture, HttpClient, in_event_loop
from tests.support.broker import DAY, Reader

ACTIONS = "/destinations/queue/q/messages/actions"
TARGET = {"kind": "queue", "name": "target"}


async def apply_action(http_client: HttpClient, path: str = ACTIONS, **body: Any) -> Any:
    response = await http_client.request("POST", path, body)
    assert response.status == 200, response
    return response.json()


def ids(numbers: list[int]) -> list[str]:
    return [str(number) for number in numbers]


@pytest.mark.parametrize("durability", [Durability.LAZY, Durability.SYNC, Durability.NONE])
@in_event_loop
async def test_messages_are_moved_by_id(api_fixture: ApiFixture, durability: Durability) -> None:
    broker = api_fixture.broker
    numbers = send(queue(broker), "a", "b", "c", broker=broker, durability=durability)
    prefix = "" if durability else "m"
    requested_ids = [
        f"{prefix}{numbers[2]}",
        f"{prefix}{numbers[0]}",
        f"{prefix}{numbers[0]}",
        "77",
    ]
    http_client = api_fixture.http_client(local=True)
    done = await apply_action(http_client, action="move", ids=requested_ids, target=TARGET)
    assert (done["processed"], done["next_cursor"]) == (2, None)
    assert done["failed"] == [{"id": "77", "reason": "not-found"}]
    assert queued_bodies(broker) == ["b"]
    assert queued_bodies(broker, "target") == ["c", "a"]
    assert broker.journal.stats().live == (3 if durability else 0)
    assert api_fixture.audit_lines()[-1].endswith("move to target: done 2, failed 1 done")
    repetition = await apply_action(http_client, action="move", ids=requested_ids, target=TARGET)
    assert (repetition["processed"], len(repetition["failed"])) == (0, 3)
    assert queued_bodies(broker, "target") == ["c", "a"]


@in_event_loop
async def test_moved_message_keeps_its_expiration_and_timestamp(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker)
    queue(broker, "short", message_ttl=100)
    wall = broker.clock.wall
    [first] = send(jobs, "ends", broker=broker, expiration=wall + 9000)
    [second] = send(jobs, "later", broker=broker, deliver_at=wall + 5000)
    [third] = send(jobs, "old", broker=broker, timestamp=wall - DAY)
    http_client = api_fixture.http_client(local=True)
    await apply_action(http_client, action="move", ids=ids([first, second]), target=TARGET)
    target = broker.destinations[Address(Kind.QUEUE, "target")].queue
    [expiring_message] = target.cursor()
    assert expiring_message.expiration == wall + 9000
    [scheduled_message] = target.scheduled.values()
    assert scheduled_message.delivered == broker.clock.steady + 5000
    done = await apply_action(
        http_client, action="move", ids=ids([third]), target={"kind": "queue", "name": "short"}
    )
    assert done["processed"] == 1
    assert queued_bodies(broker, "short") == ["old"]  # its time to live there begins now


@in_event_loop
async def test_move_all_keeps_the_order_and_skips_later_messages(
    api_fixture: ApiFixture,
) -> None:
    broker = api_fixture.broker
    jobs = queue(broker)
    send(jobs, *[str(number) for number in range(500)], broker=broker)
    send(jobs, "urgent", broker=broker, priority=9)
    send(jobs, "delayed", broker=broker, deliver_at=broker.clock.wall + 1000)
    object.__setattr__(api_fixture.context, "http", HttpSettings(max_action_time=1e-9))
    http_client = api_fixture.http_client(local=True)
    done = await apply_action(http_client, action="move", all=True, target=TARGET)
    total = done["processed"]
    send(jobs, "new", broker=broker)
    requests = 1
    object.__setattr__(api_fixture.context, "http", HttpSettings(max_action_time=0.001))
    while done["next_cursor"] is not None:
        done = await apply_action(
            http_client, action="move", all=True, target=TARGET, cursor=done["next_cursor"]
        )
        total += done["processed"]
        requests += 1
    assert (total, done["failed"]) == (501, [])
    assert requests > 1
    assert queued_bodies(broker) == ["new", "delayed"]
    assert queued_bodies(broker, "target") == ["urgent", *[str(number) for number in range(500)]]
    done = await apply_action(
        http_client, action="move", all=True, state="scheduled", target=TARGET
    )
    assert done["processed"] == 1
    assert queued_bodies(broker) == ["new"]


@in_event_loop
async def test_time_limit_of_zero_is_unlimited(api_fixture: ApiFixture) -> None:
    jobs = queue(api_fixture.broker)
    send(jobs, "a", "b", broker=api_fixture.broker)
    settings = HttpSettings(max_action_time=0.0, max_scan_time=0.0)
    object.__setattr__(api_fixture.context, "http", settings)
    http_client = api_fixture.http_client(local=True)
    page = (await http_client.request("GET", "/destinations/queue/q/messages")).json()
    assert (len(page["items"]), page["next_cursor"]) == (2, None)
    done = await apply_action(http_client, action="move", all=True, target=TARGET)
    assert (done["processed"], done["next_cursor"]) == (2, None)


@in_event_loop
async def test_moving_and_copying_a_queue_onto_itself_ends(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker)
    send(jobs, "a", "b", broker=broker)
    http_client = api_fixture.http_client(local=True)
    own_address = {"kind": "queue", "name": "q"}
    assert (await apply_action(http_client, action="move", all=True, target=own_address))[
        "processed"
    ] == 2
    assert (await apply_action(http_client, action="copy", all=True, target=own_address))[
        "processed"
    ] == 2
    assert queued_bodies(broker) == ["a", "b", "a", "b"]


@in_event_loop
async def test_limit_applies_to_selected_messages(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker)
    for number in range(30):
        send(jobs, str(number), broker=broker, properties={"n": number})
    http_client = api_fixture.http_client(local=True)
    done = await apply_action(http_client, action="delete", selector="n >= 10", limit=5)
    assert done["processed"] == 5
    done = await apply_action(
        http_client, action="delete", selector="n >= 10", limit=5, cursor=done["next_cursor"]
    )
    assert done["processed"] == 5
    assert queued_bodies(broker) == [str(number) for number in (*range(10), *range(20, 30))]
    done = await apply_action(http_client, action="copy", selector="n = 3", target=TARGET)
    assert (done["processed"], done["next_cursor"]) == (1, None)
    assert queued_bodies(broker, "target") == ["3"]
    assert len(queued_bodies(broker)) == 20


@in_event_loop
async def test_unacked_messages_may_be_deleted_copied_and_requeued_but_not_moved(
    api_fixture: ApiFixture,
) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, max_attempts=1)
    send(jobs, "a", "b", "c", broker=broker)
    reader = read(broker, jobs, 3)
    first, second, third = unacked_numbers(reader.consumer)
    http_client = api_fixture.http_client(local=True)
    done = await apply_action(http_client, action="move", ids=ids([first]), target=TARGET)
    assert done["failed"] == [{"id": str(first), "reason": "in-flight"}]
    assert (await apply_action(http_client, action="delete", ids=ids([first])))["processed"] == 1
    assert (await apply_action(http_client, action="copy", ids=ids([second]), target=TARGET))[
        "processed"
    ] == 1
    assert not broker.acknowledge(reader.consumer, first)
    assert queued_bodies(broker, "target") == ["b"]
    broker.revoke(reader.consumer.window)
    broker.suspend(reader.consumer)
    # max_attempts is 1, but requeueing by an administrator is no failed attempt
    assert (await apply_action(http_client, action="redeliver", ids=ids([third])))["processed"] == 1
    assert queued_bodies(broker) == ["c"]
    assert unacked_numbers(reader.consumer) == [second]


@in_event_loop
async def test_messages_of_a_transaction_are_not_changed(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker)
    send(jobs, "a", broker=broker)
    reader = read(broker, jobs)
    [number] = unacked_numbers(reader.consumer)
    transaction = broker.transactions.begin()
    broker.transactions.acknowledge(transaction, reader.consumer, number)
    http_client = api_fixture.http_client(local=True)
    for action in ("delete", "redeliver", "redrive"):
        done = await apply_action(http_client, action=action, ids=ids([number]))
        reason = "no-origin" if action == "redrive" else "in-transaction"
        assert done["failed"] == [{"id": str(number), "reason": reason}]
    broker.transactions.rollback(transaction)
    broker.flush()
    assert jobs.unacked == 1


@in_event_loop
async def test_scheduled_messages_are_made_ready(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, retry_delay=5000)
    [failed_sequence] = send(jobs, "failed", broker=broker)
    reader = read(broker, jobs)
    broker.release(reader.consumer, [failed_sequence], timed_out=True)
    reader.detach()
    [scheduled] = send(jobs, "scheduled", broker=broker, deliver_at=broker.clock.wall + 9000)
    send(jobs, "waits", broker=broker)
    http_client = api_fixture.http_client(local=True)
    done = await apply_action(
        http_client, action="redeliver", ids=ids([failed_sequence, scheduled])
    )
    assert done["processed"] == 2
    assert queued_bodies(broker) == ["failed", "waits", "scheduled"]
    assert not jobs.queue.scheduled
    assert isinstance(broker.clock, ManualClock)
    broker.clock.advance(20_000)
    broker.tick()
    broker.flush()
    assert queued_bodies(broker) == ["failed", "waits", "scheduled"]


@in_event_loop
async def test_full_target_ends_a_move(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    send(queue(broker), "a", "b", "c", "d", broker=broker)
    queue(broker, "target", max_messages=2)
    http_client = api_fixture.http_client(local=True)
    done = await apply_action(http_client, action="move", all=True, target=TARGET)
    assert done["processed"] == 2
    assert [failure["reason"] for failure in done["failed"]] == ["target-full"]
    assert done["next_cursor"] is None
    assert queued_bodies(broker) == ["c", "d"]
    assert queued_bodies(broker, "target") == ["a", "b"]


@in_event_loop
async def test_redriven_dead_letter_is_the_original_message(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, dead_letter=True)
    send(jobs, "a", "b", broker=broker, properties={"mine": 1})
    reader = read(broker, jobs)
    for number in unacked_numbers(reader.consumer):
        broker.dead_letter(jobs.queue, number, "rejected")
    reader.detach()
    send(broker.destinations.queue("q.dlq"), "never dead", broker=broker)
    http_client = api_fixture.http_client(local=True)
    path = "/destinations/queue/q.dlq/messages"
    [first, _, other] = (await http_client.request("GET", path)).json()["items"]
    assert other["dead_letter"] is None
    details = (await http_client.request("GET", f"{path}/{first['id']}")).json()["dead_letter"]
    assert details == first["dead_letter"]
    assert (details["reason"], details["attempts"], details["subscription"]) == ("rejected", 1, "")
    assert details["original_destination"] == {"kind": "queue", "name": "q"}
    done = await apply_action(http_client, f"{path}/actions", action="redrive", all=True)
    assert done["processed"] == 2
    assert [failure["reason"] for failure in done["failed"]] == ["no-origin"]
    assert queued_bodies(broker) == ["a", "b"]
    assert queued_bodies(broker, "q.dlq") == ["never dead"]
    for delivery in jobs.queue.cursor():
        assert broker.core.read(delivery).properties == {"mine": 1}
        assert delivery.attempts == 0


@in_event_loop
async def test_dead_letter_redriven_to_another_queue_can_become_one_again(
    api_fixture: ApiFixture,
) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, dead_letter=True)
    [number] = send(jobs, "a", broker=broker, properties={"mine": 1})
    read(broker, jobs)
    broker.dead_letter(jobs.queue, number, "rejected")
    target = queue(broker, "target", dead_letter=True, max_attempts=1)
    http_client = api_fixture.http_client(local=True)
    path = "/destinations/queue/q.dlq/messages/actions"
    done = await apply_action(http_client, path, action="redrive", all=True, target=TARGET)
    assert (done["processed"], done["failed"]) == (1, [])
    [delivery] = target.queue.browse()
    assert broker.core.read(delivery).properties == {"mine": 1}
    read(broker, target).detach()
    assert queued_bodies(broker, "target.dlq") == ["a"]


@in_event_loop
async def test_dead_letter_of_a_deleted_temporary_destination_stays(
    api_fixture: ApiFixture,
) -> None:
    broker = api_fixture.broker
    dead_letter_queue = queue(broker, "q.dlq")
    origin = Address(Kind.QUEUE, "temporary_destination://queue/x/1/1")
    message = Message(origin, b"a", durability=Durability.LAZY)
    dead_letter = dead_letter_of(message, origin.name, "rejected", 1, broker.clock.wall)
    dead_letter.destination = dead_letter_queue.address
    broker.publish(dead_letter_queue, dead_letter)
    broker.flush()
    http_client = api_fixture.http_client(local=True)
    path = "/destinations/queue/q.dlq/messages/actions"
    done = await apply_action(http_client, path, action="redrive", all=True)
    assert [failure["reason"] for failure in done["failed"]] == ["origin-gone"]
    assert dead_letter_queue.waiting == 1


@in_event_loop
async def test_redrive_creates_no_queue_whose_name_is_too_long(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    dead_letter_queue = queue(broker, "q.dlq")
    max_bytes = api_fixture.context.limits.name
    names = ["ä" * (max_bytes // 2), "ä" * (max_bytes // 2) + "x"]
    for name in names:
        properties = {"deadLetterReason": "rejected", "originalQueue": name}
        send(dead_letter_queue, "a", broker=broker, properties=properties)
    http_client = api_fixture.http_client(local=True)
    path = "/destinations/queue/q.dlq/messages/actions"
    done = await apply_action(http_client, path, action="redrive", all=True)
    assert done["processed"] == 1
    assert [failure["reason"] for failure in done["failed"]] == ["origin-gone"]
    assert {address.name for address in broker.destinations} == {"q.dlq", names[0]}
    assert dead_letter_queue.waiting == 1


@in_event_loop
async def test_dead_letter_of_a_topic_is_redriven_to_its_subscription(
    api_fixture: ApiFixture,
) -> None:
    broker = api_fixture.broker
    news_topic = topic(broker, "news", dead_letter=True)
    first, second = (broker.subscribe(news_topic, name, durable=True) for name in ("one", "two"))
    send(news_topic, "a", broker=broker)
    for subscription in (first, second):
        reader = Reader(broker)
        reader.consumer = broker.attach(subscription, reader, Window(9, True))
        for number in unacked_numbers(reader.consumer):
            broker.dead_letter(subscription, number, "rejected")
        reader.detach()
    dead_letter_queue = broker.destinations.queue("news.dlq")
    dead_letters = [record.sequence for record in dead_letter_queue.queue.browse()]
    assert len(dead_letters) == 2
    http_client = api_fixture.http_client(local=True)
    path = "/destinations/queue/news.dlq/messages/actions"
    done = await apply_action(http_client, path, action="redrive", ids=ids(dead_letters[:1]))
    assert done["processed"] == 1
    assert (first.waiting, second.waiting) == (1, 0)
    broker.unsubscribe(second)
    done = await apply_action(http_client, path, action="redrive", ids=ids(dead_letters[1:]))
    assert [failure["reason"] for failure in done["failed"]] == ["origin-gone"]
    assert dead_letter_queue.waiting == 1


@in_event_loop
async def test_ambiguous_requests_are_rejected(api_fixture: ApiFixture) -> None:
    send(queue(api_fixture.broker), "a", broker=api_fixture.broker)
    http_client = api_fixture.http_client(local=True)
    for body in (
        {"action": "delete"},
        {"action": "delete", "all": True, "ids": ["1"]},
        {"action": "delete", "all": True, "selector": "n = 1"},
        {"action": "delete", "selector": "   "},
        {"action": "move", "all": True},
        {"action": "delete", "all": True, "target": TARGET},
        {"action": "redeliver", "all": True, "target": TARGET},
        {"action": "move", "all": True, "target": {"kind": "queue"}},
        {"action": "move", "all": True, "target": {"kind": "queue", "name": "x" * 1025}},
        {"action": "explode", "all": True},
        {"action": "delete", "all": True, "cursor": "x"},
        {"action": "delete", "ids": ["1"] * 1001},
        {"action": "delete", "selector": "n ="},
        {"action": "delete", "all": True, "limit": -1},
        [],
    ):
        response = await http_client.request("POST", ACTIONS, body)
        assert response.status == 400, body
    assert queued_bodies(api_fixture.broker) == ["a"]
    assert Address(Kind.QUEUE, "target") not in api_fixture.broker.destinations


@in_event_loop
async def test_each_action_requires_its_permissions(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker)
    [number] = send(jobs, "a", broker=broker)
    queue(broker, "target")
    api_fixture.add("root", superuser=True)
    api_fixture.add("browser", "*: browse produce")
    api_fixture.add("consumer", "q: consume browse", "hidden: browse")
    browsing_client, consuming_client = api_fixture.http_client(), api_fixture.http_client()
    await browsing_client.login("browser")
    await consuming_client.login("consumer")
    message_ids = ids([number])
    refused_actions = (
        (browsing_client, {"action": "delete", "ids": message_ids}),
        (browsing_client, {"action": "move", "ids": message_ids, "target": TARGET}),
        (browsing_client, {"action": "redeliver", "ids": message_ids}),
        (browsing_client, {"action": "redrive", "ids": message_ids}),
        (consuming_client, {"action": "move", "ids": message_ids, "target": TARGET}),
        (consuming_client, {"action": "copy", "ids": message_ids, "target": TARGET}),
        (consuming_client, {"action": "delete", "all": True}),
    )
    for http_client, body in refused_actions:
        response = await http_client.request("POST", ACTIONS, body)
        assert (response.status, response.code) == (403, "forbidden"), body
        requested = f"{body['action']} to target" if "target" in body else body["action"]
        assert api_fixture.audit_lines()[-1].endswith(f"{requested} 403")
    assert queued_bodies(broker) == ["a"]
    assert (await apply_action(browsing_client, action="copy", ids=message_ids, target=TARGET))[
        "processed"
    ] == 1
    assert (await apply_action(consuming_client, action="delete", ids=message_ids))[
        "processed"
    ] == 1


@in_event_loop
async def test_redrive_requires_permission_to_produce(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, dead_letter=True)
    send(jobs, "a", broker=broker)
    reader = read(broker, jobs)
    broker.dead_letter(jobs.queue, unacked_numbers(reader.consumer)[0], "rejected")
    reader.detach()
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna", "*.dlq: consume browse")
    http_client = api_fixture.http_client()
    await http_client.login("anna")
    path = "/destinations/queue/q.dlq/messages/actions"
    done = await apply_action(http_client, path, action="redrive", all=True)
    assert [failure["reason"] for failure in done["failed"]] == ["forbidden"]
    assert queued_bodies(broker) == []
    assert queued_bodies(broker, "q.dlq") == ["a"]


@in_event_loop
async def test_other_clients_are_served_during_a_large_move(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    send(queue(broker), *["x"] * 3000, broker=broker)
    http_client = api_fixture.http_client(local=True)
    api_fixture.scan_time.limit = 200
    move = asyncio.ensure_future(apply_action(http_client, action="move", all=True, target=TARGET))
    iterations = 0
    while not move.done():
        await asyncio.sleep(0)
        iterations += 1
    assert move.result()["processed"] == 3000
    assert iterations > 5


@pytest.mark.parametrize("action", ["delete", "redeliver"])
@in_event_loop
async def test_unacked_message_of_a_queue_requires_manage(
    api_fixture: ApiFixture, action: str
) -> None:
    broker = api_fixture.broker
    jobs = queue(broker)
    [number] = send(jobs, "a", broker=broker)
    api_fixture.add("root", superuser=True)
    api_fixture.add("consumer", "q: consume browse")
    api_fixture.add("manager", "q: consume manage")
    consuming_client, managing_client = api_fixture.http_client(), api_fixture.http_client()
    await consuming_client.login("consumer")
    await managing_client.login("manager")
    reader = read(broker, jobs)
    done = await apply_action(consuming_client, action=action, ids=ids([number]))
    assert done["failed"] == [{"id": str(number), "reason": "forbidden"}]
    assert "manage q" in api_fixture.audit_lines()[-2]
    assert unacked_numbers(reader.consumer) == [number]
    broker.revoke(reader.consumer.window)
    broker.suspend(reader.consumer)
    assert (await apply_action(managing_client, action=action, ids=ids([number])))["processed"] == 1
    assert unacked_numbers(reader.consumer) == []


@pytest.mark.parametrize("action", ["delete", "move", "redeliver"])
@in_event_loop
async def test_action_on_scheduled_messages_ends_with_their_subscription(
    api_fixture: ApiFixture, action: str
) -> None:
    broker = api_fixture.broker
    news_topic = topic(broker, "news", retry_delay=60_000)
    first, second = (broker.subscribe(news_topic, name, durable=True) for name in ("one", "two"))
    bodies = [str(number) for number in range(1000)]
    send(news_topic, *bodies, broker=broker)
    reader = Reader(broker)
    reader.consumer = broker.attach(first, reader, Window(1000, True))
    # the subscription discards its messages in this order, the action handles them in the other
    broker.release(reader.consumer, unacked_numbers(reader.consumer)[::-1], timed_out=True)
    reader.detach()
    http_client = api_fixture.http_client(local=True)
    api_fixture.scan_time.limit = 2
    body: dict[str, Any] = {"target": TARGET} if action == "move" else {}
    request = asyncio.ensure_future(
        apply_action(
            http_client,
            "/destinations/topic/news/messages/actions",
            action=action,
            all=True,
            state="scheduled",
            subscription="one",
            **body,
        )
    )
    while len(first.scheduled) == 1000 or not broker.scans.waiting:
        await asyncio.sleep(0)
    handled = 1000 - len(first.scheduled)
    broker.unsubscribe(first)
    done = await request
    api_fixture.scan_time.limit = 0
    broker.flush()
    assert (first.waiting, first.waiting_bytes, first.scheduled) == (0, 0, {})
    # each has ended once for this subscription, so that the other one still has it
    sequences = [delivery.sequence for delivery in second.browse()]
    assert [broker.journal.fetch(sequence).body.decode() for sequence in sequences] == bodies
    assert (done["processed"], done["failed"], done["next_cursor"]) == (handled, [], None)
