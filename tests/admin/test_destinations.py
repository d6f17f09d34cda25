"""Queues and topics over HTTP."""

from __future__ import annotations

import asyncio
import base64
from typing import Any
from urllib.parse import quote

import pytest

from sluicemq.admin.destinations import SORT_VALUES
from sluicemq.broker import Broker, EngineSettings, ManualClock
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.journal import FileJournal
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    DestinationSettings,
    Kind,
    Provenance,
)
from sluicemq.model.message import Durability
from tests.admin.destinations import queue, queued_bodies, read, send, topic, unacked_numbers
from tests.support.api import ApiFixture, in_event_loop

SPECIAL_CHARACTERS = "a/b?c#d %<script>&é\n"


async def names(http_client: Any, query: str = "") -> list[str]:
    response = await http_client.request("GET", f"/destinations{query}")
    assert response.status == 200, response
    return [item["name"] for item in response.json()["items"]]


@in_event_loop
async def test_list_is_paged_filtered_and_sorted(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    for number in range(25):
        send(queue(broker, f"jobs.{number:02}"), *["x"] * (number % 5), broker=broker)
    send(topic(broker, "News"), "x", broker=broker)
    http_client = api_fixture.http_client(local=True)
    assert await names(http_client, "?limit=3") == ["News", "jobs.00", "jobs.01"]
    assert await names(http_client, "?limit=10&offset=20") == [f"jobs.{n}" for n in range(19, 25)]
    assert await names(http_client, "?order=desc&limit=1") == ["jobs.24"]
    assert await names(http_client, "?sort=ready&order=desc&limit=2") == [
        "jobs.24",
        "jobs.19",
    ]
    assert await names(http_client, "?filter=OBS.1") == [f"jobs.{n}" for n in range(10, 20)]
    assert await names(http_client, "?filter=*S.*4") == ["jobs.04", "jobs.14", "jobs.24"]
    assert await names(http_client, "?kind=topic") == ["News"]
    response = (await http_client.request("GET", "/destinations?kind=queue&limit=2")).json()
    assert (response["total"], response["next_cursor"]) == (25, "2")
    assert await names(http_client, "?offset=800") == []
    response = await http_client.request("GET", f"/destinations?filter={'*a' * 513}")
    assert (response.status, response.code) == (400, "bad-parameter")
    sizes, path = [], "/destinations?limit=10"
    while path:
        page = (await http_client.request("GET", path)).json()
        sizes.append(len(page["items"]))
        path = f"/destinations?limit=10&cursor={page['next_cursor']}" * bool(page["next_cursor"])
    assert sizes == [10, 10, 6]
    for query in ("offset=1&cursor=10", "cursor=x", "limit=0"):
        assert (await http_client.request("GET", f"/destinations?{query}")).code == "bad-parameter"


@in_event_loop
async def test_list_can_be_sorted_by_every_number(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    send(queue(broker, "b"), "x", broker=broker)
    topic(broker, "a")
    http_client = api_fixture.http_client(local=True)
    for sort_key in (*SORT_VALUES, "name"):
        assert sorted(await names(http_client, f"?sort={sort_key}")) == ["a", "b"]
    assert (await http_client.request("GET", "/destinations?sort=colour")).code == "bad-parameter"


@in_event_loop
async def test_destination_has_every_field(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, "jobs", dead_letter=True, max_messages=9)
    send(jobs, "held", "waits", broker=broker)
    api_fixture.clock.advance(1500)
    send(jobs, "later", broker=broker, deliver_at=broker.clock.wall + 5000)
    read(broker, jobs, 1)
    destination = (
        await api_fixture.http_client(local=True).request("GET", "/destinations/queue/jobs")
    ).json()
    expected = {
        "kind": "queue",
        "name": "jobs",
        "ready": 2,
        "scheduled": 1,
        "unacked": 1,
        "bytes": 14,
        "consumers": 1,
        "oldest_ms": 1500,
        "published": 3,
        "delivered": 1,
        "durable": True,
        "auto_created": False,
        "paused": False,
        "effective": {"dead_letter_queue": "jobs.dlq"},
        "configured": False,
    }
    assert {name: destination[name] for name in expected} == expected
    assert destination["settings"]["max_messages"] == 9
    assert destination["settings"]["overflow"] == "reject-new"


@in_event_loop
async def test_oldest_message_is_of_any_priority(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, "jobs")
    send(jobs, "old", broker=broker, priority=0)
    api_fixture.clock.advance(700)
    send(jobs, "new", broker=broker, priority=9)
    destination = (
        await api_fixture.http_client(local=True).request("GET", "/destinations/queue/jobs")
    ).json()
    assert destination["oldest_ms"] == 700


@in_event_loop
async def test_put_creates_updates_and_resets_settings(api_fixture: ApiFixture) -> None:
    http_client = api_fixture.http_client(local=True)
    path = "/destinations/queue/jobs"
    response = await http_client.request(
        "PUT", path, {"max_messages": 5, "overflow": "drop-oldest"}
    )
    assert response.status == 201
    response = await http_client.request("PUT", path, {"dead_letter": True, "overflow": None})
    assert response.status == 200
    settings = response.json()["settings"]
    assert (settings["max_messages"], settings["overflow"]) == (5, "reject-new")
    assert settings["dead_letter"] is True
    destination = api_fixture.broker.destinations[Address(Kind.QUEUE, "jobs")]
    assert destination.settings == DestinationSettings(max_messages=5, dead_letter=True)
    assert "change: (local) PUT /api/v1/destinations/queue/jobs" in api_fixture.audit_lines()[-1]
    assert "dead_letter=True" in api_fixture.audit_lines()[-1]


@in_event_loop
async def test_explicit_settings_are_kept(api_fixture: ApiFixture) -> None:
    http_client = api_fixture.http_client(local=True)
    path = "/destinations/queue/jobs"

    async def put_settings(**settings: Any) -> tuple[str, list[str]]:
        view = (await http_client.request("PUT", path, settings)).json()
        return view["created_by"], view["explicit"]

    assert await put_settings(max_messages=5, overflow="drop-oldest") == (
        "management",
        ["max_messages", "overflow"],
    )
    # including explicit settings that equal the default
    assert await put_settings(max_attempts=0, overflow=None) == (
        "management",
        ["max_attempts", "max_messages"],
    )
    api_fixture.broker.destinations.queue("php", by=CreatedBy.PHPMQ)
    path = "/destinations/queue/php"
    assert await put_settings() == ("phpmq", [])
    assert await put_settings(dead_letter=True) == ("phpmq", ["dead_letter"])


@in_event_loop
async def test_changed_setting_replaces_those_of_a_client(
    api_fixture: ApiFixture,
) -> None:
    jobs = Address(Kind.QUEUE, "jobs")
    written_values = (("max_messages", -1), ("max_attempts", 0), ("message_ttl", 5))
    explicit_names = frozenset({"max_messages", "max_attempts", "message_ttl"})
    api_fixture.broker.destinations.declare(
        jobs,
        DestinationSettings(max_messages=1, max_attempts=1, message_ttl=1),
        provenance=Provenance(CreatedBy.VIBEMQ, explicit_names, written_values, 7),
    )
    body = {"max_messages": 1, "max_attempts": None}
    await api_fixture.http_client(local=True).request("PUT", "/destinations/queue/jobs", body)
    assert api_fixture.broker.destinations[jobs].provenance == Provenance(
        CreatedBy.VIBEMQ, frozenset({"max_messages", "message_ttl"}), (("message_ttl", 5),), 7
    )


@in_event_loop
async def test_put_fails_unless_expect_is_met(api_fixture: ApiFixture) -> None:
    http_client = api_fixture.http_client(local=True)
    path = "/destinations/topic/news"
    response = await http_client.request("PUT", f"{path}?expect=existing", {})
    assert (response.status, response.code) == (404, "destination-not-found")
    assert (await http_client.request("PUT", f"{path}?expect=new", {})).status == 201
    response = await http_client.request(
        "PUT", f"{path}?expect=new", {"retain_without_subscriptions": True}
    )
    assert (response.status, response.code) == (409, "destination-exists")
    assert not api_fixture.broker.destinations[
        Address(Kind.TOPIC, "news")
    ].settings.retain_without_subscriptions


@pytest.mark.parametrize(
    "body",
    [
        {"max_messages": -1},
        {"max_messages": "many"},
        {"max_messages": 1 << 60},
        {"overflow": "explode"},
        {"colour": "red"},
        [1],
    ],
)
@in_event_loop
async def test_invalid_settings_are_rejected(api_fixture: ApiFixture, body: Any) -> None:
    response = await api_fixture.http_client(local=True).request(
        "PUT", "/destinations/queue/q", body
    )
    assert (response.status, response.code) == (400, "bad-body")
    assert not api_fixture.broker.destinations


@in_event_loop
async def test_too_long_or_empty_name_is_rejected(api_fixture: ApiFixture) -> None:
    http_client = api_fixture.http_client(local=True)
    response = await http_client.request("PUT", f"/destinations/queue/{'x' * 1025}", {})
    assert (response.status, response.code) == (400, "bad-name")
    response = await http_client.request("PUT", "/destinations/queue/~?name_base64=", {})
    assert (response.status, response.code) == (400, "bad-name")


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"max_messages": "many"}, "Expected `int | null`, got `str` in `max_messages`"),
        (
            {"overflow": "explode"},
            "Invalid enum value 'explode' in `overflow`; there are reject-new, drop-oldest, "
            "drop-lowest-priority, block-publisher, redirect-to-dead-letter",
        ),
        ({"colour": "red"}, "Object contains unknown field `colour`"),
    ],
)
@in_event_loop
async def test_error_names_the_field(
    api_fixture: ApiFixture, body: dict[str, Any], detail: str
) -> None:
    response = await api_fixture.http_client(local=True).request(
        "PUT", "/destinations/queue/q", body
    )
    assert response.json()["detail"] == f"the body is not valid: {detail}"


@in_event_loop
async def test_unknown_field_is_rejected_where_no_body_is_expected(api_fixture: ApiFixture) -> None:
    queue(api_fixture.broker)
    http_client = api_fixture.http_client(local=True)
    for method, path in (
        ("PUT", "/roles/readers"),
        ("POST", "/destinations/queue/q/pause"),
        ("DELETE", "/destinations/queue/q"),
    ):
        response = await http_client.request(method, path, {"force": True})
        assert (response.status, response.code) == (400, "bad-body")
        assert "unknown field `force`" in response.json()["detail"]
        assert (await http_client.request(method, path, {})).status < 300


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        (
            "/destinations/queue/q/messages",
            {"properties": {"p": {"type": "date", "value": 1}}},
            "in `properties[...].type`; there are boolean, bytes, float, int, null, string",
        ),
        (
            "/destinations/queue/q/messages",
            {"reply_to": {"kind": "line", "name": "q"}},
            "in `reply_to.kind`; there are queue, topic",
        ),
        (
            "/users/anna/permissions",
            {"pattern": "*", "operations": ["browse", "fly"]},
            "in `operations[1]`; there are produce, consume, browse, create, delete, manage, list",
        ),
    ],
)
@in_event_loop
async def test_an_error_names_the_permitted_values_at_any_depth(
    api_fixture: ApiFixture, path: str, body: dict[str, Any], end: str
) -> None:
    method = "PUT" if path.startswith("/users") else "POST"
    response = await api_fixture.http_client(local=True).request(method, path, body)
    assert response.json()["detail"].endswith(end)


@in_event_loop
async def test_error_names_the_permitted_values_of_a_parameter(api_fixture: ApiFixture) -> None:
    path = "/destinations/queue/q/messages?state=delayed"
    response = await api_fixture.http_client(local=True).request("GET", path)
    assert response.json()["detail"] == (
        "in the parameters: Invalid enum value 'delayed' in `state`; "
        "there are ready, scheduled, unacked"
    )


@in_event_loop
async def test_topic_cannot_have_the_name_of_a_wildcard(api_fixture: ApiFixture) -> None:
    http_client = api_fixture.http_client(local=True)
    for name in ("news.*", "news.%3E"):
        response = await http_client.request("PUT", f"/destinations/topic/{name}", {})
        assert (response.status, response.code) == (400, "bad-name")
        response = await http_client.request("POST", f"/destinations/topic/{name}/messages", {})
        assert (response.status, response.code) == (404, "destination-not-found")
    assert (await http_client.request("PUT", "/destinations/queue/news.*", {})).status == 201


@in_event_loop
async def test_names_may_have_any_characters_and_bytes(api_fixture: ApiFixture) -> None:
    http_client = api_fixture.http_client(local=True)
    path = f"/destinations/queue/{quote(SPECIAL_CHARACTERS, safe='')}"
    assert (await http_client.request("PUT", path, {})).status == 201
    assert Address(Kind.QUEUE, SPECIAL_CHARACTERS) in api_fixture.broker.destinations
    encoded_name = base64.b64encode(b"\xff\xfe/..").decode()
    by_bytes = f"/destinations/queue/~?name_base64={quote(encoded_name)}"
    response = await http_client.request("PUT", by_bytes, {})
    assert response.status == 201
    view = response.json()
    assert view["name_base64"] == encoded_name
    assert view["name"].isprintable()
    for item in (await http_client.request("GET", "/destinations")).json()["items"]:
        item_path = f"/destinations/queue/~?name_base64={quote(item['name_base64'])}"
        assert (await http_client.request("DELETE", item_path)).status == 204
    assert not api_fixture.broker.destinations


@in_event_loop
async def test_temporary_destination_is_not_updated(api_fixture: ApiFixture) -> None:
    api_fixture.broker.destinations.declare(Address(Kind.QUEUE, "reply"), owner="anna")
    http_client = api_fixture.http_client(local=True)
    response = await http_client.request("PUT", "/destinations/queue/reply", {"max_messages": 1})
    assert (response.status, response.code) == (409, "destination-temporary")
    assert await names(http_client, "?temporary=true") == ["reply"]
    assert await names(http_client, "?temporary=false") == []


@in_event_loop
async def test_destination_in_use_is_deleted_only_if_forced(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, "jobs")
    send(jobs, *["x"] * 1000, broker=broker)
    reader = read(broker, jobs, 10)
    http_client = api_fixture.http_client(local=True)
    response = await http_client.request("DELETE", "/destinations/queue/jobs")
    assert (response.status, response.code) == (409, "destination-in-use")
    assert jobs.waiting == 990
    assert (
        await http_client.request("DELETE", "/destinations/queue/jobs?force=true")
    ).status == 204
    assert reader.detachments == 1
    assert not broker.destinations
    assert broker.journal.stats().live == 0
    response = await http_client.request("DELETE", "/destinations/queue/jobs")
    assert (response.status, response.code) == (404, "destination-not-found")


@pytest.mark.parametrize("unacked", [False, True])
@in_event_loop
async def test_purge_deletes_ready_messages(api_fixture: ApiFixture, unacked: bool) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, "jobs")
    send(jobs, *["x"] * 700, broker=broker)
    send(jobs, *["y"] * 300, broker=broker, durability=Durability.NONE, priority=7)
    send(jobs, "later", broker=broker, deliver_at=broker.clock.wall + 5000)
    read(broker, jobs, 250)
    body = {"unacked": unacked}
    response = await api_fixture.http_client(local=True).request(
        "POST", "/destinations/queue/jobs/purge", body
    )
    assert response.json() == {"purged": 1001 if unacked else 751}
    broker.flush()
    assert (jobs.waiting, jobs.unacked) == (0, 0 if unacked else 250)
    assert jobs.queue.scheduled == {}
    assert broker.journal.stats().live == 0
    assert "purged" in api_fixture.audit_lines()[-1]


@in_event_loop
async def test_purge_does_not_affect_messages_that_arrive_meanwhile(
    api_fixture: ApiFixture,
) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, "jobs")
    send(jobs, *["x"] * 700, broker=broker)
    api_fixture.scan_time.limit = 1
    purge = asyncio.create_task(
        api_fixture.http_client(local=True).request(
            "POST", "/destinations/queue/jobs/purge", {"unacked": True}
        )
    )
    while jobs.waiting == 700:
        await asyncio.sleep(0)
    assert jobs.waiting > 0
    send(jobs, "scheduled", broker=broker, deliver_at=broker.clock.wall + 5000)
    send(jobs, "unacked", broker=broker, priority=9)
    reader = read(broker, jobs, 1)
    assert (await purge).json() == {"purged": 700}
    assert len(unacked_numbers(reader.consumer)) == 1
    assert len(jobs.queue.scheduled) == 1


@pytest.mark.parametrize(
    ("name", "path", "audited"),
    [
        ("a\nb", "a%0Ab", r"/queue/a\nb/purge"),
        ("caf\udce9", "caf%e9", r"/queue/caf\udce9/purge"),
        ("orders", "~?name_base64=b3JkZXJz", "/queue/~/purge?name_base64=b3JkZXJz"),
    ],
)
@in_event_loop
async def test_audit_log_identifies_the_destination(
    api_fixture: ApiFixture, name: str, path: str, audited: str
) -> None:
    queue(api_fixture.broker, name)
    path, _, query = path.partition("?")
    path = f"/destinations/queue/{path}/purge?{query}"
    assert (await api_fixture.http_client(local=True).request("POST", path, {})).status == 200
    line = f"change: (local) POST /api/v1/destinations{audited} purged 0 done"
    assert api_fixture.audit_lines()[-1] == line


@in_event_loop
async def test_topic_is_purged_in_all_its_subscriptions(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    news_topic = topic(broker, "news")
    for name in ("one", "two"):
        broker.subscribe(news_topic, name, durable=True)
    send(news_topic, "a", "b", broker=broker)
    response = await api_fixture.http_client(local=True).request(
        "POST", "/destinations/topic/news/purge"
    )
    assert response.json() == {"purged": 4}
    assert broker.journal.stats().live == 0


@in_event_loop
async def test_pause_stops_delivery_until_resume(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    jobs = queue(broker, "jobs")
    reader = read(broker, jobs)
    http_client = api_fixture.http_client(local=True)
    response = await http_client.request("POST", "/destinations/queue/jobs/pause")
    assert response.json()["paused"] is True
    send(jobs, "waits", broker=broker)
    assert reader.got() == []
    response = await http_client.request("POST", "/destinations/queue/jobs/resume")
    assert response.json()["paused"] is False
    assert reader.got() == ["waits"]


@in_event_loop
async def test_confirmed_changes_are_on_disk(api_fixture: ApiFixture) -> None:
    """The record is durable in the journal when the response arrives."""
    broker = api_fixture.broker
    http_client = api_fixture.http_client(local=True)
    await http_client.request("PUT", "/destinations/queue/jobs", {"max_messages": 5})
    await http_client.request("POST", "/destinations/queue/jobs/pause")
    assert broker.journal.durable >= 3


def test_settings_and_a_pause_survive_a_restart(tmp_path: Any) -> None:
    for _ in range(3):
        journal = FileJournal.open(tmp_path)
        broker = Broker(journal, ManualClock())
        journal.set_snapshot_source(lambda broker=broker: snapshot(broker))
        recover(broker, journal.recovery)
        if not broker.destinations:
            jobs = broker.destinations.declare(
                Address(Kind.QUEUE, "jobs"), DestinationSettings(max_messages=5)
            )
            broker.destinations.set_paused(jobs, True)
            broker.destinations.set_paused(broker.destinations.queue("automatic"), True)
            broker.destinations.set_paused(broker.destinations.queue("resumed"), True)
            broker.destinations.set_paused(broker.destinations.queue("resumed"), False)
            assert broker.destinations[Address(Kind.QUEUE, "automatic")].busy()
        broker.flush()
        journal.sync()
        destinations = {
            destination.name: destination for destination in broker.destinations.values()
        }
        assert destinations["jobs"].paused
        assert destinations["jobs"].settings.max_messages == 5
        assert destinations["automatic"].paused
        assert destinations["automatic"].automatic
        assert "resumed" not in destinations or not destinations["resumed"].paused
        journal.seal()
        journal.close()


@in_event_loop
async def test_each_operation_requires_its_permission(api_fixture: ApiFixture) -> None:
    broker = api_fixture.broker
    for name in ("mine", "seen", "hidden"):
        send(queue(broker, name), "x", broker=broker)
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna", "mine: create delete manage browse", "seen: browse")
    http_client = api_fixture.http_client()
    await http_client.login("anna")
    assert await names(http_client) == ["mine", "seen"]
    path_of_queues = "/destinations/queue"
    assert (await http_client.request("GET", f"{path_of_queues}/seen")).status == 200
    assert (await http_client.request("GET", f"{path_of_queues}/hidden")).status == 403
    assert (await http_client.request("GET", f"{path_of_queues}/not-there")).status == 403
    for method, path, body in (
        ("PUT", "", {"max_messages": 1}),
        ("DELETE", "", None),
        ("POST", "/purge", None),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
    ):
        for name in ("seen", "hidden", "new"):
            response = await http_client.request(method, f"{path_of_queues}/{name}{path}", body)
            assert (response.status, response.code) == (403, "forbidden"), (method, path)
        assert api_fixture.audit_lines()[-1].endswith("403")
    assert queued_bodies(broker, "seen") == ["x"]
    assert (
        await http_client.request("PUT", f"{path_of_queues}/mine", {"max_messages": 1})
    ).status == 200
    assert (await http_client.request("POST", f"{path_of_queues}/mine/purge")).json() == {
        "purged": 1
    }
    assert (await http_client.request("DELETE", f"{path_of_queues}/mine")).status == 204
    assert (await http_client.request("PUT", f"{path_of_queues}/mine", {})).status == 201


@in_event_loop
async def test_denial_does_not_tell_whether_a_destination_exists(api_fixture: ApiFixture) -> None:
    queue(api_fixture.broker, "a")
    api_fixture.add("anna", "other: create manage")
    http_client = api_fixture.http_client()
    await http_client.login("anna")
    for method, path, body in (
        ("GET", "", None),
        ("PUT", "", {}),
        ("DELETE", "", None),
        ("POST", "/messages", {"body": "x"}),
        ("POST", "/messages/actions", {"action": "copy", "all": True}),
    ):
        details = set()
        for name in ("a", "b"):
            target = f"/destinations/queue/{name}{path}"
            response = await http_client.request(method, target, body)
            assert (response.status, response.code) == (403, "forbidden")
            details.add(response.json()["detail"].replace(f"'{name}'", "it"))
        assert len(details) == 1, (method, path)


@in_event_loop
async def test_create_permission_does_not_allow_updates(api_fixture: ApiFixture) -> None:
    queue(api_fixture.broker, "a")
    api_fixture.add("root", superuser=True)
    api_fixture.add("creator", "*: create")
    api_fixture.add("manager", "*: manage")
    creator, updater = api_fixture.http_client(), api_fixture.http_client()
    await creator.login("creator")
    await updater.login("manager")
    assert (await creator.request("PUT", "/destinations/queue/a", {})).status == 403
    assert (await updater.request("PUT", "/destinations/queue/a", {})).status == 200
    assert (await updater.request("PUT", "/destinations/queue/b", {})).status == 403
    assert (await creator.request("PUT", "/destinations/queue/b", {})).status == 201


@in_event_loop
async def test_dead_letters_require_permission_for_default_queue_of_another_user(
    api_fixture: ApiFixture,
) -> None:
    declare = api_fixture.broker.destinations.declare
    for name, creator in (("a.dlq", "other"), ("b.dlq", "anna"), ("c.dlq", "other"), ("c", "anna")):
        declare(Address(Kind.QUEUE, name), creator=creator)
    declare(Address(Kind.QUEUE, "own"), DestinationSettings(dead_letter=True), creator="other")
    declare(Address(Kind.QUEUE, "own.dlq"), creator="other")
    api_fixture.add("root", superuser=True)
    operations = "create manage"
    api_fixture.add("anna", *(f"{name}: {operations}" for name in ("a", "b", "c", "new", "own")))
    http_client = api_fixture.http_client()
    await http_client.login("anna")
    enabled = {"dead_letter": True}
    for name, settings, status in (
        ("a", enabled, 403),
        ("a", {}, 201),
        ("a", enabled, 403),
        ("b", enabled, 201),
        ("c", {**enabled, "dead_letter_queue": None}, 403),
        ("c", {"dead_letter": False}, 200),
        ("new", enabled, 201),
        ("own", enabled, 200),
    ):
        response = await http_client.request("PUT", f"/destinations/queue/{name}", settings)
        assert response.status == status, (name, settings)


@in_event_loop
async def test_dead_letter_queue_counts_towards_limits(api_fixture: ApiFixture) -> None:
    api_fixture.broker.core.settings = EngineSettings(max_destinations=3)
    http_client = api_fixture.http_client(local=True)

    async def put(name: str, **settings: Any) -> int:
        return (await http_client.request("PUT", f"/destinations/queue/{name}", settings)).status

    assert await put("a", dead_letter=True, dead_letter_queue="dead") == 201
    api_fixture.broker.destinations.queue("dead")
    assert await put("b", dead_letter=True) == 409  # b and b.dlq
    assert api_fixture.audit_lines()[-1].endswith("queue/b dead_letter=True 409")
    assert await put("b") == 201
    assert await put("b", dead_letter=True) == 409
    assert await put("b", dead_letter=True, dead_letter_queue="dead") == 200
    assert await put("a", dead_letter_queue="another") == 409
    assert await put("a", dead_letter=False) == 200
