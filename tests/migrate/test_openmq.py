"""JMS clients find the messages of a migrated Open MQ instance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import Blocking, BlockingClient
from sluicemq.clients.jmq import JmqClient, Topic
from sluicemq.model.destination import DestinationSettings, Overflow
from sluicemq.model.errors import ClientError
from sluicemq.protocols.jmq.fields import Xid
from tests.cli.conftest import Run
from tests.migrate import openmq_store as store
from tests.migrate.conftest import Migrate, journaled_messages, not_migrated, restored_broker
from tests.migrate.openmq_store import Instance, packet, record, stored, sysid

FAR_FUTURE_MS = 4_000_000_000_000
"""ms since the epoch; in a hundred years."""
ROUTED, DELIVERED, ACKNOWLEDGED = 0, 1, 2
XID = store.xid(b"global", b"branch")


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    instance = Instance(tmp_path / "var")
    instance.destinations(
        store.destination("orders"), store.destination("prices", False), dmq_entry()
    )
    return instance


def dmq_entry() -> bytes:
    return store.destination(
        "mq.sys.dmq", type=0x1000, messages=1000, limit=1, dmq=False, largest=None, producers=0
    )


@contextmanager
def run_broker_and_connect(
    data: Path, user: str = "admin", password: str = "admin"
) -> Iterator[BlockingClient]:
    """Run a broker on the imported data, and connect with the client id `desk`."""
    with LocalBroker(data, ["jmq://127.0.0.1:0"]) as broker:
        port = broker.port("jmq")
        with BlockingClient(
            JmqClient.connect, port=port, username=user, password=password, client_id="desk"
        ) as client:
            yield client


def receive_exactly(consumer: Blocking, count: int) -> list[Blocking]:
    """Receive exactly `count` messages."""
    messages = [consumer.receive(20) for _ in range(count)]
    with pytest.raises(ClientError):
        consumer.receive(0.2)
    return messages


def bodies(consumer: Blocking, count: int) -> list[object]:
    return [message.body for message in receive_exactly(consumer, count)]


# --- messages ------------------------------------------------------------------------------------


def test_ready_messages_are_imported_unchanged(instance: Instance, migrate: Migrate) -> None:
    block = store.property_block({"city": "Zürich", "weight": 1 << 40})
    strings = {3: "corr-1", 4: "answers", 5: "order", 7: "com.sun.messaging.BasicTopic"}
    full = packet(
        "orders",
        "first é",
        1,
        strings=strings,
        properties=block,
        priority=9,
        expiration=FAR_FUTURE_MS,
    )
    instance.messages(
        "Qorders",
        record(stored(packet("orders", "third", 3), {0: ROUTED})),
        record(stored(full, {0: ROUTED}), block=1024),
        record(b"whatever was here before", state=1),
        record(stored(packet("orders", "second", 2), {0: DELIVERED})),
    )
    report = migrate("openmq", instance.path)
    assert report["messages"]["imported"] == 3
    with run_broker_and_connect(instance.path.parents[2] / "data") as client:
        messages = receive_exactly(client.session().consumer("orders"), 3)
    # by priority, then in the order in which they were sent, whatever place they have in the file
    assert [message.body for message in messages] == ["first é", "second", "third"]
    first = messages[0]
    assert first.id == f"ID:1-127.0.0.1-4711-{store.MS}"
    assert (first.priority, first.expiration, first.timestamp) == (9, FAR_FUTURE_MS, store.MS)
    assert (first.correlation_id, first.type) == ("corr-1", "order")
    assert first.reply_to == Topic("answers")
    assert dict(first.own_properties) == {"city": "Zürich", "weight": 1 << 40}
    assert [message.delivery_count for message in messages] == [1, 2, 1]
    assert [message.redelivered for message in messages] == [False, True, False]


def test_large_message_in_its_own_file_is_imported(instance: Instance, migrate: Migrate) -> None:
    raw = packet("orders", b"x" * 1_500_000, 1, type=store.BYTES)
    instance.write("fs370/message/Qorders/0", store.large_file(raw, {0: ROUTED}))
    instance.write("fs370/message/Qorders/1", store.large_file(raw, {0: ROUTED}, tag=b"FREE"))
    instance.write("fs370/message/Qorders/2", b"")
    migrate("openmq", instance.path)
    with run_broker_and_connect(instance.path.parents[2] / "data") as client:
        assert bodies(client.session().consumer("orders"), 1) == [b"x" * 1_500_000]


def test_durable_subscription_receives_its_unacked_messages(
    instance: Instance, migrate: Migrate
) -> None:
    instance.interests(
        store.interest(11, "prices", "desk", "all"),
        store.interest(12, "prices", "desk", "dear", "price > 10"),
        store.interest(13, "prices", "desk", "common", shared=True),
        store.interest(14, "prices", "desk", "others", no_local=True),
    )

    def price(number: int, **states: int) -> bytes:
        block = store.property_block({"price": number})
        raw = packet("prices", f"price {number}", number, queue=False, properties=block)
        return record(stored(raw, {int(k[1:]): v for k, v in states.items()}), block=512)

    instance.messages(
        "Tprices",
        price(5, c11=ROUTED, c13=ACKNOWLEDGED, c14=ROUTED),
        price(20, c11=ACKNOWLEDGED, c12=DELIVERED, c13=ROUTED, c14=ROUTED),
        price(30, c11=ACKNOWLEDGED, c12=ACKNOWLEDGED),
        price(40, c99=ROUTED),
    )
    report = migrate("openmq", instance.path)
    assert ("messages", "1 of topic:prices") in not_migrated(report)
    with run_broker_and_connect(instance.path.parents[2] / "data") as client:
        session = client.session()
        topic = Topic("prices")
        unfiltered = session.consumer(topic, name="all", durable=True)
        assert bodies(unfiltered, 1) == ["price 5"]
        filtered = session.consumer(topic, name="dear", durable=True, selector="price > 10")
        assert [(m.body, m.delivery_count) for m in receive_exactly(filtered, 1)] == [
            ("price 20", 2)
        ]
        common = session.consumer(topic, name="common", durable=True, shared=True)
        assert bodies(common, 1) == ["price 20"]
        # the terms are those of before, or the engine would have begun a new subscription
        no_local = session.consumer(topic, name="others", durable=True, no_local=True)
        assert bodies(no_local, 2) == ["price 5", "price 20"]


def test_wildcard_subscription_becomes_one_per_topic(instance: Instance, migrate: Migrate) -> None:
    instance.destinations(
        *(store.destination(name, False) for name in ("news.eu", "news.us", "prices"))
    )
    instance.interests(store.interest(11, "news.*", "desk", "all"))
    for name in ("news.eu", "news.us"):
        raw = packet(name, name, 1, queue=False)
        instance.messages(f"T{name}", record(stored(raw, {11: ROUTED})))
    report = migrate("openmq", instance.path)
    assert [subscription["topic"] for subscription in report["subscriptions"]] == [
        "mq.sys.wildcards",
        "news.eu",
        "news.us",
    ]
    with run_broker_and_connect(instance.path.parents[2] / "data") as client:
        session = client.session()
        session.producer(Topic("news.new")).send("news.new")
        consumer = session.consumer(Topic("news.*"), name="all", durable=True)
        assert sorted(map(str, bodies(consumer, 3))) == ["news.eu", "news.new", "news.us"]


def test_wildcard_subscription_without_topic_is_migrated(
    instance: Instance, migrate: Migrate
) -> None:
    instance.interests(store.interest(11, "news.*", "desk", "all"))
    report = migrate("openmq", instance.path)
    assert [item["topic"] for item in report["subscriptions"]] == ["mq.sys.wildcards"]
    with run_broker_and_connect(instance.path.parents[2] / "data") as client:
        session = client.session()
        session.producer(Topic("news.eu")).send("first")
        assert bodies(session.consumer(Topic("news.*"), name="all", durable=True), 1) == ["first"]


def test_dead_letter_stays_dead_letter(instance: Instance, migrate: Migrate, run: Run) -> None:
    block = store.property_block(
        {
            "JMS_SUN_DMQ_UNDELIVERED_REASON": "EXPIRED",
            "JMS_SUN_DMQ_UNDELIVERED_TIMESTAMP": store.MS,
            "JMS_SUN_DMQ_DELIVERY_COUNT": 3,
        }
    )
    raw = packet("orders", "late", 1, properties=block, expiration=store.MS + 5)
    instance.messages("Qmq.sys.dmq", record(stored(raw, {0: ROUTED}), block=512))
    report = migrate("openmq", instance.path)
    assert {"kind": "queue", "name": "mq.sys.dmq", "waiting": 1, "imported": 1}.items() <= next(
        destination.items()
        for destination in report["destinations"]
        if destination["name"] == "mq.sys.dmq"
    )
    with run_broker_and_connect(instance.path.parents[2] / "data") as client:
        (message,) = receive_exactly(client.session().consumer("mq.sys.dmq"), 1)
    assert message.body == "late"
    assert message.expiration == store.MS + 5  # it shows, and is of no effect
    assert message.properties["deadLetterReason"] == "expired"
    assert message.properties["originalQueue"] == "orders"
    assert message.properties["deliveryAttempts"] == 3


def test_delayed_message_stays_scheduled(instance: Instance, migrate: Migrate) -> None:
    instance.messages(
        "Qorders",
        record(stored(packet("orders", "later", 1, longs={10: FAR_FUTURE_MS}), {})),
        record(stored(packet("orders", "never routed", 2), {})),
        record(stored(packet("orders", "now", 3), {0: ROUTED})),
    )
    report = migrate("openmq", instance.path)
    assert report["messages"]["imported"] == 2
    assert not_migrated(report) == [("messages", "1 of orders")]
    with run_broker_and_connect(instance.path.parents[2] / "data") as client:
        assert bodies(client.session().consumer("orders"), 1) == ["now"]


# --- transactions --------------------------------------------------------------------------------


def write_queue_and_log(instance: Instance, *events: bytes, incomplete: bytes = b"") -> None:
    """Write a queue with two messages and a transaction log."""
    instance.destinations(store.destination("bank"))
    instance.messages(
        "Qbank",
        record(stored(packet("bank", "taken", 1), {0: DELIVERED})),
        record(stored(packet("bank", "left", 2), {0: ROUTED})),
    )
    instance.write("fs370/txnlog", store.log(*events))
    if incomplete:
        data = pack(">i", len(incomplete)) + incomplete
        instance.write(
            "fs370/incompleteTxnStore/vrfile", store.record_file(record(data, block=1024))
        )


def prepared_transaction() -> bytes:
    """Return a transaction that acks one message and sends another."""
    return store.details(77, 5, XID) + store.work(
        [packet("bank", "sent", 3)], [store.ack("Q:bank", sysid(1))]
    )


PREPARE = b"\x01\x01" + prepared_transaction() + bytes(8)


@pytest.mark.parametrize("put_aside", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_prepared_transaction_is_ended_by_its_manager(
    instance: Instance, migrate: Migrate, put_aside: bool, commit: bool
) -> None:
    if put_aside:
        write_queue_and_log(instance, incomplete=prepared_transaction())
    else:
        write_queue_and_log(instance, PREPARE)
    report = migrate("openmq", instance.path)
    assert report["transactions"] == [XID.hex()]
    with run_broker_and_connect(instance.path.parents[2] / "data") as client:
        session = client.session()
        consumer = session.consumer("bank")
        assert bodies(consumer, 1) == ["left"]
        xid = Xid(4711, b"global", b"branch")
        assert session.xa.recover() == [xid]
        if commit:
            session.xa.commit(xid)
            assert bodies(consumer, 1) == ["sent"]
        else:
            session.xa.rollback(xid)
            assert bodies(consumer, 1) == ["taken"]


def test_messages_of_damaged_transaction_are_ready(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    """The transaction acknowledges two messages, one of which cannot be decoded."""
    no_message = bytearray(packet("bank", "left", 2))
    no_message[6:8] = b"\x7f\x7f"  # type of the packet
    acks = [store.ack("Q:bank", sysid(1)), store.ack("Q:bank", sysid(2))]
    write_queue_and_log(
        instance, b"\x01\x01" + store.details(77, 5, XID) + store.work([], acks) + bytes(8)
    )
    instance.messages(
        "Qbank",
        record(stored(packet("bank", "taken", 1), {0: 1})),
        record(stored(bytes(no_message), {0: 0})),
    )
    report = migrate("openmq", instance.path, "--skip-damaged")
    assert report["transactions"] == []
    assert {message.body.decode() for message in journaled_messages(tmp_path / "data")} == {"taken"}


COMMITTED, ROLLED_BACK = 6, 7


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        # the log contains changes that the store may not contain yet
        (
            [b"\x04\x00" + packet("bank", "sent", 3) + pack(">iq", 1, 0)],
            {"taken", "left", "sent"},
        ),
        ([b"\x04\x00" + packet("bank", "left", 2) + pack(">iq", 1, 0)], {"taken", "left"}),
        ([b"\x05\x00" + store.ack("Q:bank", sysid(2), 55)], {"taken"}),
        ([b"\x06\x00" + pack(">H", 6) + b"Q:bank" + sysid(1)], {"left"}),
        ([b"\x01\x00" + prepared_transaction()], {"left", "sent"}),
        ([PREPARE, b"\x01\x02" + store.details(77, COMMITTED, XID)], {"left", "sent"}),
        ([PREPARE, b"\x01\x02" + store.details(77, ROLLED_BACK, XID)], {"taken", "left"}),
        ([b"\x03\x00" + bytes(40)], {"taken", "left"}),
    ],
)
def test_transaction_log_overrides_store(
    instance: Instance, migrate: Migrate, tmp_path: Path, events: list[bytes], expected: set[str]
) -> None:
    write_queue_and_log(instance, *events)
    report = migrate("openmq", instance.path)
    assert {message.body.decode() for message in journaled_messages(tmp_path / "data")} == expected
    assert report["transactions"] == []


def test_records_after_checkpoint_are_ignored(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    removal = b"\x06\x00" + pack(">H", 6) + b"Q:bank" + sysid(1)
    write_queue_and_log(instance)
    old_log = store.log(removal, removal, checkpoint=2)[48:]
    instance.write("fs370/txnlog", store.log(checkpoint=3)[:48] + old_log)
    migrate("openmq", instance.path)
    assert len(journaled_messages(tmp_path / "data")) == 2


def test_record_may_contain_several_events(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    write_queue_and_log(instance)
    events = [b"\x06\x00" + pack(">H", 6) + b"Q:bank" + sysid(n) for n in (1, 2)]
    instance.write("fs370/txnlog", store.log(*events, compound=True))
    migrate("openmq", instance.path)
    assert journaled_messages(tmp_path / "data") == []


# --- destinations, users, configuration ----------------------------------------------------------


def test_destinations_keep_their_settings(
    instance: Instance, migrate: Migrate, tmp_path: Path
) -> None:
    instance.destinations(
        store.destination("limited", messages=10, memory=2048, largest=512, limit=0, dmq=False),
        store.destination("failover", messages=-1, memory=None, largest=None, active=1, backup=2),
        store.destination("made", type=0x20, messages=5),
        store.destination("gone", type=0x10),
        store.destination("crowded", producers=5),
    )
    report = migrate("openmq", instance.path)
    assert not_migrated(report) == [
        ("destination", "gone"),
        ("setting", "crowded: maxNumProducers=5"),
    ]
    with restored_broker(tmp_path / "data") as broker:
        settings = {
            destination.name: destination.settings for destination in broker.destinations.values()
        }
    assert settings["limited"] == DestinationSettings(
        max_messages=10, max_bytes=2048, max_message_bytes=512, overflow=Overflow.BLOCK
    )
    assert settings["failover"] == DestinationSettings(
        active_consumers=1, max_consumers=3, dead_letter=True, dead_letter_queue="mq.sys.dmq"
    )
    assert not {"made", "gone"} & settings.keys()


def test_users_keep_their_passwords(instance: Instance, migrate: Migrate, tmp_path: Path) -> None:
    report = migrate("openmq", instance.path)
    assert [user["name"] for user in report["users"]] == ["admin", "guest"]
    with run_broker_and_connect(tmp_path / "data", "guest", "guest"):
        pass
    with pytest.raises(ClientError), run_broker_and_connect(tmp_path / "data", "guest", "wrong"):
        pass


def test_configuration_loads_and_lists_unsupported_settings(
    instance: Instance, migrate: Migrate, run: Run, tmp_path: Path
) -> None:
    instance.properties(
        "imq.portmapper.port=17676\nimq.jms.tcp.port=17677\nimq.message.max_size=5m\n"
        "imq.autocreate.topic=false\nimq.autocreate.destination.maxNumMsgs=50\n"
        "imq.service.activelist=jms,ssljms,admin\nimq.cluster.url=file:/x\n"
        "imq.ping.interval = 30\nimq.bridge.x.password=secret\nimq.log.level=WARNING\n"
        "imq.portmapper.sotimeout=500\nimq.authentication.type=basic\n"
    )
    report = migrate("openmq", instance.path)
    assert report["config"]["problems"] == []
    names = [name for _, name in not_migrated(report)]
    assert names == [
        "imq.authentication.type=basic",
        "ssljms",
        "imq.cluster.url=file:/x (line 7)",
        "imq.bridge.x.password (line 9)",
    ]
    effective = json.loads(run("config", "show", "--config", "data/sluicemq.toml", "--json").out)
    assert effective["broker"]["auto_create_topics"] is False
    assert effective["broker"]["default_destination"]["max_messages"] == 50
    assert effective["limits"]["max_frame_bytes"] == 5 * 1024**2
    assert effective["logging"]["level"] == "warning"
    assert effective["jmq"]["instance"] == "shop"
    assert [
        (
            listener["url"],
            listener["services"],
            listener["ping_interval"],
            listener["portmapper_timeout"],
        )
        for listener in effective["listeners"]
    ] == [
        ("jmq://0.0.0.0:17676", "portmapper", 30, 0.5),
        ("jmq://0.0.0.0:17677", "jms", 30, 0.5),
    ]
    config = (tmp_path / "data" / "sluicemq.toml").read_text()
    assert "imq.cluster.url" in config
    assert "secret" not in config


def test_long_timeout_of_port_mapper_is_limited(instance: Instance, migrate: Migrate) -> None:
    instance.properties("imq.portmapper.sotimeout=120000\n")
    config = migrate("openmq", instance.path, "--dry-run")["config"]
    assert config["problems"] == []
    assert 'portmapper_timeout = "60000ms"' in config["text"]


def test_without_users_listeners_stay_on_loopback(instance: Instance, migrate: Migrate) -> None:
    (instance.path / "etc" / "passwd").unlink()
    report = migrate("openmq", instance.path)
    assert 'url = "jmq://127.0.0.1:7676"' in report["config"]["text"]
    assert ("listener", "port 7676 on all addresses") in not_migrated(report)


# --- location and state of the instance ----------------------------------------------------------


def test_instance_is_found_below_directory(instance: Instance, migrate: Migrate) -> None:
    for path in (instance.path, instance.path.parent, instance.path.parents[1]):
        assert migrate("openmq", path, "--dry-run")["source"]["place"] == str(instance.path)
    file = instance.path / "props" / "config.properties"
    assert migrate("openmq", file, "--dry-run")["source"]["place"] == str(instance.path)


def test_several_instances_require_choice(instance: Instance, run: Run) -> None:
    Instance(instance.path.parents[1], "other")
    result = run("migrate", "openmq", str(instance.path.parents[1]), "--to", "data")
    assert (result.code, "other, shop" in result.err) == (1, True)


def test_running_broker_is_refused(instance: Instance, run: Run, tmp_path: Path) -> None:
    instance.write("lock", b"shop:localhost:7676")
    result = run("migrate", "openmq", str(instance.path), "--to", "data")
    assert result.code == 1
    assert "the broker is running" in result.err
    assert not (tmp_path / "data").exists()
    assert run("migrate", "openmq", str(instance.path), "--to", "data", "--ignore-lock").code == 0


def test_store_in_database_is_reported(instance: Instance, migrate: Migrate) -> None:
    instance.properties("imq.persist.store=jdbc\n")
    assert ("messages", "all") in not_migrated(migrate("openmq", instance.path))


def test_dry_run_changes_nothing(instance: Instance, migrate: Migrate, tmp_path: Path) -> None:
    instance.messages("Qorders", record(stored(packet("orders", "x", 1), {0: ROUTED})))
    report = migrate("openmq", instance.path, "--dry-run")
    assert report["messages"] == {
        "waiting": 1,
        "imported": 0,
        "imported_before": 0,
        "unwanted": 0,
        "older_than_ttl": 0,
    }
    assert report["config"]["problems"] == []
    assert not (tmp_path / "data").exists()
