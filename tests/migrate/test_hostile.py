"""Damaged sources result in a plan, or in an error with a position.

There is no other exception, and no memory or time beyond the size of the input.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import pack

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicemq.migrate.openmq import inspect_source, parse_properties
from sluicemq.migrate.openmq.records import read_objects
from sluicemq.migrate.phpmq import inspect_source as inspect_phpmq
from sluicemq.migrate.phpmq import read_elements
from sluicemq.migrate.plan import SET_ASIDE, Plan
from sluicemq.migrate.source_files import SourceError
from sluicemq.migrate.transfer import write_set_aside
from sluicemq.migrate.vibemq import decode_json
from sluicemq.migrate.vibemq import inspect_source as inspect_vibemq
from tests.migrate import openmq_store as store
from tests.migrate import test_phpmq, vibemq_store
from tests.migrate.openmq_store import Instance, packet, record, stored

FEW_EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MANY_EXAMPLES = settings(max_examples=300, deadline=None)

MUTATIONS = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8)),
    min_size=1,
    max_size=4,
)
"""Places in a file, as a part of its length, and what is written over it there."""


def mutated(content: bytes, mutations: list[tuple[float, bytes]], cut: float = 1.0) -> bytes:
    changed = bytearray(content)
    for position, data in mutations:
        index = int(position * len(changed))
        changed[index : index + len(data)] = data
    return bytes(changed[: max(1, int(cut * len(changed)))])


def execute_plan(plan: Plan) -> None:
    """Read all data of the plan."""
    for waiting in plan.read_messages():
        assert waiting.key
    with tempfile.TemporaryDirectory() as directory:
        file = write_set_aside(plan, Path(directory), lambda: None)
        lines = file.read_bytes().splitlines() if file is not None else []
    assert len(lines) == sum(plan.set_aside.values())
    for line in lines:
        assert msgspec.json.decode(line)["sort"] in SET_ASIDE


def inspect_and_execute(inspect_source: Callable[[], Plan]) -> None:
    with suppress(SourceError):
        execute_plan(inspect_source())


@MANY_EXAMPLES
@given(st.binary(max_size=400))
def test_properties(content: bytes) -> None:
    with suppress(SourceError):
        parse_properties(content, "file")


@MANY_EXAMPLES
@given(st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_settings_in_json(content: bytes) -> None:
    with suppress(SourceError):
        decode_json(content, "file")


@MANY_EXAMPLES
@given(
    st.one_of(st.binary(max_size=300), st.text("<>/PHMQ ='\"a!&;[]", max_size=300).map(str.encode))
)
def test_settings_in_xml(content: bytes) -> None:
    with suppress(SourceError):
        read_elements(content, "file")


@MANY_EXAMPLES
@given(MUTATIONS, st.floats(0, 1))
def test_objects(mutations: list[tuple[float, bytes]], cut: float) -> None:
    for stream in (
        store.destination("orders"),
        store.interest(5, "prices", "desk", "all", "price > 10", shared=True),
    ):
        with suppress(SourceError):
            read_objects(mutated(stream, mutations, cut), 2, "file")


@MANY_EXAMPLES
@given(st.binary(max_size=300))
def test_any_objects(content: bytes) -> None:
    with suppress(SourceError):
        read_objects(b"\xac\xed\x00\x05" + content, 2, "file")


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Instance:
    instance = Instance(tmp_path_factory.mktemp("fuzz"))
    instance.destinations(store.destination("orders"), store.destination("prices", False))
    instance.interests(store.interest(11, "prices", "desk", "all", "a = 1"))
    block = store.property_block({"city": "x", "weight": 5})
    raw = packet("orders", "first", 1, strings={3: "c"}, properties=block)
    instance.messages("Qorders", record(stored(raw, {0: 1})), record(b"free", state=1))
    instance.messages("Tprices", record(stored(packet("prices", "p", 2, queue=False), {11: 0})))
    instance.write("fs370/message/Qorders/0", store.large_file(packet("orders", "big", 3), {0: 0}))
    work = store.work([packet("orders", "sent", 4)], [store.ack("Q:orders", store.sysid(1))])
    prepared = store.details(7, 5, store.xid(b"g", b"b")) + work
    instance.write("fs370/txnlog", store.log(b"\x01\x01" + prepared))
    size = pack(">i", len(prepared))
    instance.write("fs370/incompleteTxnStore/vrfile", store.record_file(record(size + prepared)))
    return instance


FILES = (
    "fs370/destination",
    "fs370/interest",
    "fs370/message/Qorders/vrfile",
    "fs370/message/Qorders/0",
    "fs370/message/Tprices/vrfile",
    "fs370/txnlog",
    "fs370/incompleteTxnStore/vrfile",
    "etc/passwd",
    "etc/accesscontrol.properties",
)


def test_what_is_mutated_is_read_at_all(instance: Instance) -> None:
    plan = inspect_source(instance.path, False, False)
    assert sum(plan.counts.values()) == 3
    assert len(plan.prepared_transactions) == 1


@settings(FEW_EXAMPLES, max_examples=300)
@given(st.sampled_from(FILES), MUTATIONS, st.sampled_from([1.0, 1.0, 0.5]), st.booleans())
def test_stores_of_open_mq(
    instance: Instance, name: str, mutations: list[tuple[float, bytes]], cut: float, skip: bool
) -> None:
    file = instance.path / name
    content = file.read_bytes()
    # the bytes after the last record are unused
    used = content.rstrip(b"\0")
    file.write_bytes(mutated(used, mutations, cut))
    try:
        inspect_and_execute(lambda: inspect_source(instance.path, False, skip))
    finally:
        file.write_bytes(content)


@FEW_EXAMPLES
@given(MUTATIONS, st.sampled_from([1.0, 0.7]))
def test_stores_of_phpmq(
    tmp_path_factory: pytest.TempPathFactory, mutations: list[tuple[float, bytes]], cut: float
) -> None:
    directory = tmp_path_factory.mktemp("phpmq")
    database = test_phpmq.Store(directory / "store.sqlite")
    database.add(1, b"orders", b"x" * 50, 1)
    database.path.write_bytes(mutated(database.path.read_bytes(), mutations, cut))
    inspect_and_execute(lambda: inspect_phpmq(database.path, None))


@FEW_EXAMPLES
@given(MUTATIONS, st.sampled_from([1.0, 0.7]))
def test_stores_of_vibemq(
    tmp_path_factory: pytest.TempPathFactory, mutations: list[tuple[float, bytes]], cut: float
) -> None:
    directory = tmp_path_factory.mktemp("vibemq")
    database = vibemq_store.Store(directory / "vibemq.db")
    database.queue("orders")
    database.message("a", "orders", '{"a": 1}', headers={"k": "v"})
    database.path.write_bytes(mutated(database.path.read_bytes(), mutations, cut))
    inspect_and_execute(lambda: inspect_vibemq(database.path, None))


TYPES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
)


@FEW_EXAMPLES
@given(st.tuples(TYPES, TYPES, TYPES, TYPES, TYPES))
def test_values_of_any_type(
    tmp_path_factory: pytest.TempPathFactory, values: tuple[object, ...]
) -> None:
    """SQLite stores values of any type in any column."""
    file = tmp_path_factory.mktemp("types") / "store.sqlite"
    connection = sqlite3.connect(file)
    with suppress(UnicodeEncodeError), connection:
        connection.executescript(test_phpmq.SCHEMA)
        connection.execute("INSERT INTO queue VALUES (?, ?, ?, ?, ?)", values)
    connection.close()
    inspect_and_execute(lambda: inspect_phpmq(file, None))
    connection = sqlite3.connect(file)
    with suppress(UnicodeEncodeError, sqlite3.IntegrityError), connection:
        connection.executescript(vibemq_store.SCHEMA)
        connection.execute("INSERT INTO queues VALUES (?, '{}', ?)", values[:2])
        connection.execute(
            "INSERT INTO messages (id, queue_name, payload_json, timestamp, headers_json, priority)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (*values, values[0]),
        )
    connection.close()
    inspect_and_execute(lambda: inspect_vibemq(file, None))
