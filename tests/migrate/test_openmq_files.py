"""Formats of Open MQ's files."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest

from sluicemq.migrate.openmq import (
    UNRESTRICTED,
    AccessRules,
    OpenmqAccount,
    add_accounts,
    parse_properties,
    read_accounts,
)
from sluicemq.migrate.openmq.records import ParsedObject, read_objects, read_records
from sluicemq.migrate.openmq.transactions import LoggedAck, read_states
from sluicemq.migrate.plan import Plan
from sluicemq.migrate.source_files import Damage, SourceFile
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, DestinationSettings, Kind
from tests.cli.conftest import Run
from tests.migrate import openmq_store as store
from tests.migrate.conftest import Migrate, not_migrated
from tests.migrate.openmq_store import Instance, packet, record, stored

# --- property files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "key", "text"),
    [
        ("a=b", "a", "b"),
        ("a = b ", "a", "b "),
        ("a:b=c", "a", "b=c"),
        ("a b c", "a", "b c"),
        ("  a\t\f:  b", "a", "b"),
        ("a", "a", ""),
        ("a=", "a", ""),
        (r"a\ b\=c = d", "a b=c", "d"),
        ("a = one, \\\n    two", "a", "one, two"),
        ("a = one\\\\\nb=c", "a", "one\\"),
        (r"a = \u00fc\t\q", "a", "ü\tq"),
        (r"a = \ud83d\ude00", "a", "😀"),
        ("a=\\", "a", ""),
    ],
)
def test_property_lines_are_parsed(line: str, key: str, text: str) -> None:
    properties = parse_properties(line.encode("latin-1"), "file")
    assert properties[key].value == text
    assert properties[key].location == "file, line 1"


def test_comments_are_ignored_and_last_value_counts() -> None:
    properties = parse_properties(b"# a=1\r\n! a=2\n\n a=3\ra=\xfc\\\n# no comment", "file")
    assert {key: (value.value, value.location) for key, value in properties.items()} == {
        "a": ("ü# no comment", "file, line 5")
    }


def test_broken_escape_is_reported_with_its_line() -> None:
    with pytest.raises(Damage, match="file, line 2"):
        parse_properties(b"a=b\nc=\\u12", "file")


# --- Java objects --------------------------------------------------------------------------------


def test_object_is_read_with_its_fields() -> None:
    (key, value), end = read_objects(store.destination("orders") + b"rest", 2, "here")
    assert key == "Q:orders"
    assert isinstance(value, ParsedObject)
    assert value.name.endswith(".Queue")
    assert value["countLimit"] == 100_000
    assert value["memoryLimit"]["str"] == "10737418240b"
    assert end == len(store.destination("orders"))


def test_arrays_enums_and_references_are_read() -> None:
    header = b"\xac\xed\x00\x05"
    ints = b"\x75\x72\x00\x02[I" + pack(">QBH", 1, 2, 0) + b"\x78\x70" + pack(">iii", 2, 7, -8)
    enum = b"\x7e\x72\x00\x01E" + pack(">QBH", 0, 0x12, 0) + b"\x78\x70\x74\x00\x03RED"
    reference = b"\x71" + pack(">I", 0x7E0001)
    objects, _ = read_objects(header + ints + enum + reference + b"\x70", 4, "here")
    assert objects == [[7, -8], "RED", [7, -8], None]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xac\xed\x00\x05",
        b"\xac\xed\x00\x05\x99",
        b"\xac\xed\x00\x05\x71\x00\x7e\x00\x00",
        b"\xac\xed\x00\x05\x74\xff\xff",
        b"\xac\xed\x00\x05" + b"\x79" * 100_000,
        b"\xac\xed\x00\x05\x75\x72\x00\x02[B" + pack(">QBH", 1, 2, 0) + b"\x78\x70\x7f\xff\xff\xff",
        store.destination("orders")[:-3],
        # a class that is its own superclass
        b"\xac\xed\x00\x05"
        + b"\x73\x72\x00\x01A"
        + pack(">QBH", 1, 2, 0)
        + b"\x78\x71\x00\x7e\x00\x00"
        + b"\x99",
    ],
)
def test_invalid_stream_is_error(data: bytes) -> None:
    with pytest.raises(Damage, match="here, at"):
        read_objects(data, 2, "here")


# --- files of records ----------------------------------------------------------------------------


def spans(path: Path, damages: list[Damage]) -> list[bytes]:
    with SourceFile.open(path) as data:
        return [data.read(span.position, 3) for span in read_records(data, damages.append)]


@pytest.mark.parametrize("version", [1, 2])
def test_records_in_use_are_read(tmp_path: Path, version: int) -> None:
    file = tmp_path / "vrfile"
    parts = [record(b"one"), record(b"old", state=1), record(b"two")]
    file.write_bytes(store.record_file(*parts, version=version, length=4096))
    damages: list[Damage] = []
    assert spans(file, damages) == [b"one", b"two"]
    assert damages == []


@pytest.mark.parametrize("offset", [0, 4, 8])
def test_records_after_damaged_one_are_read(tmp_path: Path, offset: int) -> None:
    file = tmp_path / "vrfile"
    content = bytearray(store.record_file(record(b"one"), record(b"two"), record(b"six")))
    content[24 + 256 + offset : 24 + 256 + offset + 2] = b"\x7f\x7f"
    file.write_bytes(content)
    damages: list[Damage] = []
    assert spans(file, damages) == [b"one", b"six"]
    assert [str(error).split(":")[0] for error in damages] == [f"{file}, byte 280"]


def test_file_of_another_type_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "vrfile"
    damages: list[Damage] = []
    for content in (bytes(100), bytes(3)):
        file.write_bytes(content)
        assert spans(file, damages) == []
    assert [str(error).split(":")[0] for error in damages] == [f"{file}, byte 0"] * 2
    file.write_bytes(b"")
    assert spans(file, damages) == []
    assert len(damages) == 2


# --- damage in a store ---------------------------------------------------------------------------


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    instance = Instance(tmp_path / "var")
    instance.destinations(store.destination("orders"))
    return instance


def test_damage_stops_migration_unless_skipped(
    instance: Instance, migrate: Migrate, run: Run, tmp_path: Path
) -> None:
    intact = packet("orders", "good", 1)
    damaged = bytearray(packet("orders", "bad", 2))
    damaged[0] = 0
    instance.messages(
        "Qorders",
        record(stored(bytes(damaged), {0: 0})),
        record(stored(packet("orders", "half", 3), {0: 0}), cookie=-1),
        record(stored(intact, {0: 0})),
        record(pack(">i", 100_000)),
    )
    result = run("migrate", "openmq", str(instance.path), "--to", "data")
    assert result.code == 1
    assert "Qorders/vrfile, byte 40: there is no packet of that size" in result.err
    assert "--skip-damaged" in result.err
    assert not (tmp_path / "data").exists()
    report = migrate("openmq", instance.path, "--skip-damaged")
    assert report["messages"]["imported"] == 1
    assert [kind for kind, _ in not_migrated(report)] == ["damage"] * 3


def test_file_with_damaged_header_is_skipped_alone(instance: Instance, migrate: Migrate) -> None:
    instance.destinations(store.destination("orders"), store.destination("bills"))
    instance.messages("Qbills", record(stored(packet("bills", "kept", 2), {0: 0})))
    instance.write("fs370/message/Qorders/vrfile", bytes(100))
    report = migrate("openmq", instance.path, "--skip-damaged")
    assert report["messages"]["imported"] == 1
    assert not_migrated(report) == [("damage", "in the store")]


def test_entry_that_was_being_written_is_damage(
    instance: Instance, migrate: Migrate, run: Run
) -> None:
    entry = record(store.destination("orders"))
    incomplete_entry = record(store.destination("bills"), cookie=-1)
    instance.write("fs370/destination", store.record_file(entry, incomplete_entry))
    result = run("migrate", "openmq", str(instance.path), "--to", "data")
    assert result.code == 1
    assert "fs370/destination, byte" in result.err
    report = migrate("openmq", instance.path, "--skip-damaged")
    assert "orders" in {destination["name"] for destination in report["destinations"]}
    assert "bills" not in {destination["name"] for destination in report["destinations"]}


def test_entry_of_another_class_is_damage(instance: Instance, run: Run) -> None:
    instance.destinations(store.interest(1, "t", "c", "d"))
    result = run("migrate", "openmq", str(instance.path), "--to", "data")
    assert result.code == 1
    assert "fs370/destination, record at byte 36" in result.err


def test_invalid_account_is_reported_with_its_line(instance: Instance, run: Run) -> None:
    instance.write("etc/passwd", b"admin:-1:admin:1\nsomething\n")
    result = run("migrate", "openmq", str(instance.path), "--to", "data")
    assert (result.code, "passwd, line 2" in result.err) == (1, True)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("imq.portmapper.port=many", "line 1: imq.portmapper.port=many is not a number"),
        ("imq.message.max_size=12q", "is not a size"),
        ("imq.autocreate.destination.limitBehavior=PANIC", "is not a limit behavior"),
    ],
)
def test_invalid_setting_is_reported(instance: Instance, run: Run, line: str, place: str) -> None:
    instance.properties(line)
    result = run("migrate", "openmq", str(instance.path), "--to", "data")
    assert (result.code, place in result.err) == (1, True)


# --- users and rules -----------------------------------------------------------------------------

ANNA = OpenmqAccount("anna", "1", "sales", True)
DESTINATIONS = {
    Address(kind, name): DestinationSettings()
    for kind, name in ((Kind.QUEUE, "orders"), (Kind.QUEUE, "wages"), (Kind.TOPIC, "news"))
}


def permitted(rules: str, account: OpenmqAccount = ANNA) -> dict[str, set[str]]:
    """Return the permissions that the rules grant to a user, by pattern."""
    plan = Plan(kind="openmq", source_path=Path("/"), destinations=dict(DESTINATIONS))
    text = f"connection.NORMAL.allow.user=*\n{rules}"
    add_accounts(plan, [account], AccessRules(parse_properties(text.encode(), "rules")))
    permissions = plan.users[account.name].permissions
    return {p.pattern: {str(o) for o in p.operations} for p in permissions}


def test_general_rules_become_one_permission() -> None:
    assert permitted(store.ACCESS) == {"*": {"produce", "consume", "browse", "create"}}


def test_denied_operations_are_not_granted() -> None:
    rules = """
queue.*.consume.allow.user=*
queue.wages.consume.deny.group=sales
topic.*.consume.allow.user=*
"""
    assert permitted(rules) == {"orders": {"consume"}, "news": {"consume"}}
    assert permitted(rules, ANNA._replace(group="wages")) == {"*": {"consume"}}


def test_specific_rules_override_general_ones() -> None:
    rules = """
queue.*.produce.deny.user=*
queue.orders.produce.allow.group=sales
queue.wages.produce.allow.group=sales
queue.wages.produce.deny.user=anna
"""
    assert permitted(rules) == {"orders": {"produce"}}


def test_queue_rules_grant_nothing_on_topics() -> None:
    assert permitted("queue.*.produce.allow.user=*\n") == {
        "orders": {"produce"},
        "wages": {"produce"},
    }


def test_right_to_create_only_queues_is_reported() -> None:
    plan = Plan(kind="openmq", source_path=Path("/"))
    text = b"connection.NORMAL.allow.user=*\nqueue.create.allow.user=*\n"
    add_accounts(plan, [ANNA], AccessRules(parse_properties(text, "rules")))
    assert plan.users["anna"].permissions == ()
    assert [item.name for item in plan.skipped] == ["queue.create of anna"]


def test_create_is_separate_operation() -> None:
    assert permitted("queue.create.allow.user=*\ntopic.create.allow.group=sales\n") == {
        "*": {"create"}
    }


def test_users_without_connect_get_no_permission() -> None:
    assert permitted(f"{store.ACCESS}connection.NORMAL.deny.user=anna\n") == {}


def test_administrators_are_superusers(instance: Instance, migrate: Migrate) -> None:
    plan = Plan(kind="openmq", source_path=instance.path)
    file = instance.write(
        "etc/passwd", b"root:-1:admin:1\nanna:a1:user:1\nold:b2::0\nb d:c3:user:1\n"
    )
    add_accounts(
        plan,
        read_accounts(file, plan),
        AccessRules(parse_properties(store.ACCESS.encode(), "rules")),
    )
    assert [(name, user.superuser) for name, user in plan.users.items()] == [
        ("root", True),
        ("anna", False),
    ]
    assert [(item.what, item.name) for item in plan.skipped] == [("user", "old"), ("user", "b d")]


def test_without_access_control_all_users_get_all_permissions(instance: Instance) -> None:
    plan = Plan(kind="openmq", source_path=instance.path)
    add_accounts(plan, [ANNA], AccessRules(parse_properties(UNRESTRICTED, "rules")))
    (permission,) = plan.users["anna"].permissions
    assert permission.pattern == "*"
    assert Operation.DELETE not in permission.operations
    assert not plan.users["anna"].superuser


# --- stores without the new transaction log ------------------------------------------------------


def old_transaction(number: int, state: int, xid: bytes, now: int | None = None) -> bytes:
    """Return an entry of `txn`."""
    stream = store.Stream()
    stream.begin()
    uid = (f"{store.UTIL}UID", 2, [("J", "id", "")])
    stream.describe("com.sun.messaging.jmq.jmsserver.data.TransactionUID", 0x0C, [], uid)
    stream.assign_handle()
    stream.data += b"\x77\x08" + pack(">q", number) + b"\x78"
    stream.begin()
    stream.describe("com.sun.messaging.jmq.jmsserver.persist.api.TransactionInfo", 0x0C, [])
    stream.assign_handle()
    stream.data += b"\x77\x04" + pack(">i", 1)
    stream.begin()
    stream.describe("com.sun.messaging.jmq.jmsserver.data.TransactionState", 0x0C, [])
    stream.assign_handle()
    stream.data += b"\x77\x8c" + xid + pack(">i", state) + b"\x70\x70\x70\x78"
    stream.data += b"\x70\x70\x78"
    return stream.data + (b"" if now is None else b"%CD" + bytes([now]) + bytes(16))


def old_acks(number: int, identity: bytes, consumer: int) -> bytes:
    """Return an entry of `txnack`."""
    stream = store.Stream()
    store.consumer_uid(stream, number)
    stream.begin()
    stream.describe("java.util.HashSet", 3, [])
    stream.assign_handle()
    stream.data += b"\x77\x0c" + pack(">ifi", 16, 0.75, 1)
    stream.begin()
    stream.describe("com.sun.messaging.jmq.jmsserver.data.TransactionAcknowledgement", 0x0C, [])
    stream.assign_handle()
    stream.data += b"\x77\x20" + identity
    store.consumer_uid(stream, 99)
    store.consumer_uid(stream, consumer)
    stream.data += b"\x78\x78"
    return stream.data


@pytest.mark.parametrize(
    ("state", "now", "waiting", "prepared"),
    [
        (5, None, 1, 1),
        (6, None, 2, 0),
        (5, 6, 2, 0),
        (1, None, 2, 0),
    ],
)
def test_old_transactions_are_migrated_by_state(
    instance: Instance, migrate: Migrate, state: int, now: int | None, waiting: int, prepared: int
) -> None:
    """The transaction acknowledges one message and sends one; another message is ready. If it is
    prepared, the first is unacked and the second not yet ready; if committed, the first is removed;
    otherwise the second is dropped."""
    instance.messages(
        "Qorders",
        record(stored(packet("orders", "acknowledged", 1), {0: 1})),
        record(stored(packet("orders", "sent", 2, longs={8: 500}), {0: 0})),
        record(stored(packet("orders", "another", 3), {0: 0})),
    )
    xid = store.xid(b"g", b"b")
    entry = record(old_transaction(500, state, xid, now), block=1024)
    instance.write("fs370/txn", store.record_file(entry))
    acks = record(old_acks(500, store.sysid(1), 0), block=1024)
    instance.write("fs370/txnack", store.record_file(acks))
    report = migrate("openmq", instance.path)
    assert report["messages"]["imported"] == waiting + prepared
    assert len(report["transactions"]) == prepared


def test_acknowledgement_uses_consumer_number_of_store(instance: Instance) -> None:
    acks = record(old_acks(500, store.sysid(1), 12), block=1024)
    instance.write("fs370/txnack", store.record_file(acks))
    entry = record(old_transaction(500, 5, store.xid(b"g", b"b")), block=1024)
    instance.write("fs370/txn", store.record_file(entry))
    damages: list[Damage] = []
    transaction = read_states(instance.store, damages.append)[500]
    assert transaction.acks == [LoggedAck("", store.sysid(1), 12)]
    assert damages == []
