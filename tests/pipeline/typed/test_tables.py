"""Typed tables in Delta: appends, merges, tombstones, replays, evolving schemas."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.delta import KEYS, LakeTable, Tag
from sluicemq.pipeline.schema import Event
from sluicemq.pipeline.typed import tables
from sluicemq.pipeline.typed.definition import Action, Definition, Expectation, Format, TypedTable
from sluicemq.pipeline.typed.rows import METADATA, TableCounts, declared_columns
from sluicemq.pipeline.typed.tables import ExpectationFailed, process
from tests.pipeline.jobs.events import Journal, frame
from tests.pipeline.typed.lakes import LakeDirectory, batch, write

ORDER = "id BIGINT, amount DECIMAL(10,2), customer STRING"
POSITIVE = Expectation(name="positive", check="amount > 0", action=Action.QUARANTINE)


def table(**fields: Any) -> TypedTable:
    defaults = {"name": "orders", "destination": "orders*", "schema": ORDER}
    return TypedTable(**defaults | {"expectations": (POSITIVE,)} | fields)


def keyed(**fields: Any) -> TypedTable:
    delete = "amount IS NULL AND customer = '-'"
    return table(**{"key": ("id",), "delete": delete} | fields)


def with_and_without_key(**fields: Any) -> Definition:
    """Two tables, one of which has a key."""
    return Definition(tables=(table(**fields), table(name="keyed", key=("id",), **fields)))


def order(id: int, amount: float, customer: str = "a") -> bytes:
    return f'{{"id": {id}, "amount": {amount}, "customer": "{customer}"}}'.encode()


def deletion(id: int) -> bytes:
    return f'{{"id": {id}, "customer": "-"}}'.encode()


def test_append_is_idempotent_wherever_it_was_interrupted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeDirectory(tmp_path)
    events = batch(spark, [order(1, 5), order(2, -1), b"{", order(3, 7)], 10)
    expected = TableCounts(
        messages=4,
        written=2,
        quarantined=2,
        unparsed=1,
        first_quarantined=11,
        last_quarantined=12,
        failed={"positive": 1},
    )

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sluicemq.pipeline.typed.tables._TableWriter._write_quarantine", killed)
        with pytest.raises(KeyboardInterrupt):
            write(spark, events, table(), lake)
    assert not (tmp_path / "silver" / "orders_quarantine").exists()
    for _ in range(2):
        assert write(spark, events, table(), lake) == expected
    assert lake.rows(spark, "silver.orders", "id", "_sequence") == [(1, 10), (3, 13)]
    quarantine = lake.rows(
        spark, "silver.orders_quarantine", "broker", "sequence", "message_id", "reason", "body"
    )
    assert quarantine == [
        ("main", 11, "m1", "expectation failed: positive", bytearray(order(2, -1))),
        ("main", 12, "m2", "the body is not JSON", bytearray(b"{")),
    ]


def test_batch_that_overlaps_last_one_appends_rest(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeDirectory(tmp_path)
    bodies = [order(1, 1), order(2, -2), order(3, 3), order(4, -4)]
    write(spark, batch(spark, bodies[:2], 1), table(), lake)
    write(spark, batch(spark, bodies, 1), table(), lake)
    assert lake.rows(spark, "silver.orders", "id") == [(1,), (3,)]
    assert lake.rows(spark, "silver.orders_quarantine", "sequence") == [(2,), (4,)]


@pytest.mark.parametrize("key", [(), ("id",)])
def test_relocated_message_is_one_row(
    spark: SparkSession, tmp_path: Path, key: tuple[str, ...]
) -> None:
    lake = LakeDirectory(tmp_path)
    journal = Journal()
    for body in (order(1, 1), order(2, -2)):
        journal.message(0, body, "json")
    write(spark, frame(spark, journal.rows), table(key=key), lake)
    relocated = Journal(first=50)
    for original, body in ((1, order(1, 1)), (2, order(2, -2)), (7, order(7, 7))):
        relocated.message(100, body, "json")
        relocated.rows[-1] |= {"event": Event.RELOCATED, "message_sequence": original}
    relocated.rows.append({**relocated.rows[-1], "sequence": 60})
    write(spark, frame(spark, relocated.rows), table(key=key), lake)
    assert lake.rows(spark, "silver.orders", "id", "_sequence") == [(1, 1), (7, 7)]
    assert lake.rows(spark, "silver.orders_quarantine", "sequence") == [(2,)]


def test_newest_message_of_key_wins(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeDirectory(tmp_path)
    write(
        spark, batch(spark, [order(1, 1), order(2, 2), order(1, 11), order(3, 3)], 1), keyed(), lake
    )
    assert lake.rows(spark, "silver.orders", "id", "int(amount)") == [(1, 11), (2, 2), (3, 3)]
    second = batch(spark, [order(2, -1), deletion(1), order(4, 4), order(3, 33)], 5)
    for _ in range(2):
        counts = write(spark, second, keyed(), lake)
        assert counts is not None
        assert (counts.written, counts.deleted, counts.quarantined) == (3, 1, 1)
    # a quarantined message leaves the older row as it is
    assert lake.rows(spark, "silver.orders", "id", "int(amount)", "_sequence") == [
        (2, 2, 2),
        (3, 33, 8),
        (4, 4, 7),
    ]
    assert lake.rows(spark, "silver.orders_quarantine", "sequence") == [(5,)]
    write(spark, batch(spark, [order(1, 111)], 9), keyed(), lake)
    assert (1, 111) in lake.rows(spark, "silver.orders", "id", "int(amount)")


def test_replayed_older_batch_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeDirectory(tmp_path)
    old = batch(spark, [order(1, 1), order(2, 2)], 1)
    write(spark, old, keyed(), lake)
    write(spark, batch(spark, [order(1, 11), deletion(2)], 3), keyed(), lake)
    write(spark, old, keyed(), lake)
    assert lake.rows(spark, "silver.orders", "id", "int(amount)") == [(1, 11)]


def test_brokers_are_compared_by_time_and_tombstones_hold(
    spark: SparkSession, tmp_path: Path
) -> None:
    berlin, paris = LakeDirectory(tmp_path, "berlin"), LakeDirectory(tmp_path, "paris")
    write(spark, batch(spark, [order(1, 1), order(2, 2)], 500, seconds=100), keyed(), berlin)
    # older by time, although the sequence is higher; newer by time, although it is lower
    write(spark, batch(spark, [order(1, 0.5)], 900, seconds=50), keyed(), paris)
    write(spark, batch(spark, [order(2, 22)], 901, seconds=200), keyed(), paris)
    assert lake_rows(spark, berlin) == [(1, 1, "berlin"), (2, 22, "paris")]
    write(spark, batch(spark, [deletion(1)], 600, seconds=300), keyed(), berlin)
    write(spark, batch(spark, [order(1, 9), order(1, 10)], 902, seconds=250), keyed(), paris)
    assert lake_rows(spark, berlin) == [(2, 22, "paris")]
    write(spark, batch(spark, [order(1, 11)], 904, seconds=400), keyed(), paris)
    assert lake_rows(spark, berlin) == [(1, 11, "paris"), (2, 22, "paris")]


def lake_rows(spark: SparkSession, lake: LakeDirectory) -> list[tuple[Any, ...]]:
    return lake.rows(spark, "silver.orders", "id", "int(amount)", "_broker")


def test_kill_between_tombstone_and_merge_is_repaired(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeDirectory(tmp_path)
    write(spark, batch(spark, [order(1, 1), order(2, 2)], 1), keyed(), lake)
    second = batch(spark, [deletion(1)], 3)
    merge = LakeTable.merge

    def killed(table: LakeTable, *arguments: Any, **options: Any) -> None:
        if table.name == "silver.orders":
            raise KeyboardInterrupt
        merge(table, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "merge", killed)
        with pytest.raises(KeyboardInterrupt):
            write(spark, second, keyed(), lake)
    assert lake.rows(spark, "silver.orders_tombstones", "id", "_sequence") == [(1, 3)]
    assert len(lake.rows(spark, "silver.orders", "id")) == 2
    write(spark, second, keyed(), lake)
    assert lake.rows(spark, "silver.orders", "id") == [(2,)]


def test_columns_are_added_and_never_change_their_type(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeDirectory(tmp_path)
    write(spark, batch(spark, [order(1, 1)], 1), table(), lake)
    wider = table(schema=f"{ORDER}, note STRING")
    body = b'{"id": 2, "amount": 1, "note": "x"}'
    write(spark, batch(spark, [body], 2), wider, lake)
    assert lake.rows(spark, "silver.orders", "id", "note") == [(1, None), (2, "x")]
    # a column that is no longer declared stays
    write(spark, batch(spark, [order(3, 3)], 3), table(), lake)
    assert lake.rows(spark, "silver.orders", "id", "note")[2] == (3, None)
    other = table(schema="id STRING, amount DECIMAL(10,2)", line=4)
    with pytest.raises(ConfigurationError) as raised:
        write(spark, batch(spark, [order(4, 4)], 4), other, lake)
    assert str(raised.value) == (
        "pipeline.toml:4: table 'orders': the column id is BIGINT in silver.orders and STRING in "
        "the definition. A column cannot change its type: give it another name, or the table"
    )
    with pytest.raises(
        ConfigurationError, match=r"partition_by is none in silver\.orders and cust"
    ):
        write(spark, batch(spark, [order(4, 4)], 4), table(partition_by=("customer",)), lake)
    parted = table(name="parted", partition_by=("customer",), key=("id", "customer"))
    write(spark, batch(spark, [order(1, 1)], 1), parted, lake)
    with pytest.raises(ConfigurationError, match=r"by is customer in silver\.parted and none in"):
        write(spark, batch(spark, [order(4, 4)], 4), table(name="parted"), lake)


def test_row_that_is_replaced_has_no_value_of_a_column_that_is_no_longer_declared(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = LakeDirectory(tmp_path)
    wider = keyed(schema=f"{ORDER}, note STRING")
    body = b'{"id": 1, "amount": 1, "note": "x"}'
    write(spark, batch(spark, [body, body.replace(b"1", b"2")], 1), wider, lake)
    write(spark, batch(spark, [order(1, 11)], 3), keyed(), lake)
    assert lake.rows(spark, "silver.orders", "id", "note") == [(1, None), (2, "x")]


def test_column_without_a_time_zone_is_added(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeDirectory(tmp_path)
    write(spark, batch(spark, [order(1, 1)], 1), table(), lake)
    wider = table(schema=f"{ORDER}, place STRUCT<at: TIMESTAMP_NTZ>")
    body = b'{"id": 2, "amount": 1, "place": {"at": "2026-01-31T12:00:00"}}'
    write(spark, batch(spark, [body], 2), wider, lake)
    expected = [(1, None), (2, "2026-01-31 12:00:00")]
    assert lake.rows(spark, "silver.orders", "id", "string(place.at)") == expected
    # also by another query of a gold table
    result = lake.table("gold.times")
    result.overwrite(spark.sql("SELECT 1 AS n"), Tag("a", 1))
    result.overwrite(spark.sql("SELECT TIMESTAMP_NTZ '2026-01-31' AS at"), Tag("a", 2))
    assert lake.rows(spark, "gold.times", "string(at)") == [("2026-01-31 00:00:00",)]


@pytest.mark.parametrize("key", [(), ("id", "customer")])
def test_key_of_table_never_changes(
    spark: SparkSession, tmp_path: Path, key: tuple[str, ...]
) -> None:
    lake = LakeDirectory(tmp_path)
    write(spark, batch(spark, [order(1, 1)], 1), table(key=key), lake)
    write(spark, batch(spark, [order(1, 2)], 2), table(key=key), lake)
    with pytest.raises(ConfigurationError) as raised:
        write(spark, batch(spark, [order(1, 3)], 3), table(key=("id",), line=4), lake)
    assert str(raised.value) == (
        f"pipeline.toml:4: table 'orders': key is {', '.join(key) or 'none'} in silver.orders and "
        "id in the definition. It cannot change: give the table another name, or remove it"
    )


@pytest.mark.parametrize("kind", ["json", "csv", "text"])
@pytest.mark.parametrize("key", [(), ("note",)])
def test_first_batch_creates_declared_columns(
    spark: SparkSession, tmp_path: Path, kind: str, key: tuple[str, ...]
) -> None:
    """Even if no message of it is good."""
    lake = LakeDirectory(tmp_path)
    definition = table(
        schema="note STRING COMMENT 'as typed'", format=Format(kind), key=key, expectations=()
    )
    write(spark, batch(spark, [b"\xff"], 1), definition, lake)
    columns = lake.read(spark, "silver.orders").schema
    assert columns["_broker"].metadata == {KEYS: ", ".join(key)}
    columns["_broker"].metadata = {}
    assert columns == StructType([*declared_columns(definition), *METADATA])
    assert lake.read(spark, "silver.orders").count() == 0


def test_usual_and_other_fields_give_same_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large batch is parsed with the lists of field names that its first messages have."""
    bodies = [
        b'{"id": 1, "amount": 1.5, "customer": "a", "more": 1}',
        b'{"amount": 2, "id": 2, "customer": "b"}',
        b'{"id": 3, "id": 4, "amount": 1, "customer": "twice"}',
        b"{}",
        b"no JSON",
        b'{"id": 5, "amount": 1, "customer": "and another"} {"id": 6}',
        *(b'{"id": %d, "amount": 1, "customer": "a", "more": []}' % id for id in range(6, 40)),
        b'{"id": 40, "amount": 1, "customer": "new field", "other": 1, "more": []}',
        b'{"id": 41, "amount": 1, "customer": "a", "more": [], "more": []}',
        b'{"id": 42, "amount": 1, "customer": "a", "more": []} {}',
        b'{"id": "x", "amount": 1, "customer": "a", "more": []}',
    ]
    results = []
    for threshold in (len(bodies) + 1, len(bodies)):
        monkeypatch.setattr(tables, "LARGE_BATCH", threshold)
        lake = LakeDirectory(tmp_path / str(threshold))
        counts = write(spark, batch(spark, bodies, 1), table(), lake)
        rows = lake.rows(spark, "silver.orders", "*")
        quarantined = lake.rows(spark, "silver.orders_quarantine", "sequence", "reason")
        results.append((counts, rows, quarantined))
    assert results[0] == results[1]
    counts, rows, quarantined = results[0]
    assert counts is not None
    assert counts.unknown_fields == 1 + 34 + 2 + 2 + 1
    assert len(rows) == 37
    assert [sequence for sequence, _ in quarantined] == [3, 4, 42, 43, 44, 5, 6]


def test_any_text_may_be_value_of_partition(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeDirectory(tmp_path)
    customers = ["x" * 300, "a/b=c", "NUL: \0", "é"]
    bodies = [
        json.dumps({"id": 1, "amount": 1, "customer": customer}).encode() for customer in customers
    ]
    write(spark, batch(spark, bodies, 1), table(partition_by=("customer",)), lake)
    written_customers = lake.rows(spark, "silver.orders", "customer")
    assert written_customers == sorted((customer,) for customer in customers)


def test_counts_when_journal_is_read_again_for_another_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = LakeDirectory(tmp_path)
    bodies = [order(1, 1), order(2, -1), order(3, 3), order(4, 4)]
    added = Definition(tables=(table(), table(name="copies", expectations=())))
    process(batch(spark, bodies[:2], 1), Definition(tables=(table(),)), lake)
    process(batch(spark, bodies[2:3], 3), Definition(tables=(table(),)), lake)
    for _ in range(2):
        process(batch(spark, bodies[:1], 1), added, lake)
    # the second of these batches has a new message, too
    process(batch(spark, bodies[1:], 2), added, lake)
    columns = ("table", "last_sequence", "messages", "written", "quarantined")
    assert lake.rows(spark, "gold.typed_counts", *columns) == [
        ("copies", 1, 1, 1, 0),
        ("copies", 4, 3, 3, 0),
        ("orders", 2, 2, 1, 1),
        ("orders", 3, 1, 1, 0),
        ("orders", 4, 1, 1, 0),
    ]
    assert lake.rows(spark, "silver.orders", "id") == [(1,), (3,), (4,)]
    assert lake.rows(spark, "silver.copies", "id") == [(1,), (2,), (3,), (4,)]


def test_relocated_message_is_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    """Also if its row is gone, because a newer message has the same key, or none was written."""
    lake = LakeDirectory(tmp_path)
    drop = Expectation(name="small", check="amount < 100", action=Action.DROP)
    definition = with_and_without_key(expectations=(drop,))
    bodies = [order(1, 1), order(2, 200), order(1, 11)]
    process(batch(spark, bodies, 5), definition, lake)
    relocated = Journal(first=50)
    for original, body in ((3, order(3, 3)), (5, order(1, 1)), (6, order(2, 200))):
        relocated.message(100, body, "json")
        relocated.rows[-1] |= {"event": Event.RELOCATED, "message_sequence": original}
    process(frame(spark, relocated.rows), definition, lake)
    columns = ("table", "first_sequence", "last_sequence", "messages", "written", "dropped")
    assert lake.rows(spark, "gold.typed_counts", *columns) == [
        (name, *counts)
        for name in ("keyed", "orders")
        for counts in ((5, 7, 3, 2, 1), (50, 52, 1, 1, 0))
    ]


def test_removed_table_is_written_again_from_first_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = LakeDirectory(tmp_path)
    definition = with_and_without_key()
    bodies = [order(1, 1), order(2, -1), order(3, 3)]
    process(batch(spark, bodies, 1), definition, lake)
    for item in definition.tables:
        shutil.rmtree(tmp_path / "silver" / item.name)
    for index in range(3):
        process(batch(spark, bodies[index : index + 1], index + 1), definition, lake)
    for item in definition.tables:
        assert lake.rows(spark, f"silver.{item.name}", "id") == [(1,), (3,)]
        assert lake.rows(spark, f"silver.{item.name}_quarantine", "sequence") == [(2,)]


def test_failing_batch_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeDirectory(tmp_path)
    stop = Expectation(name="has an id", check="id IS NOT NULL", action=Action.FAIL)
    for definition in (table(expectations=(stop,)), table(expectations=(stop,), key=("customer",))):
        with pytest.raises(ExpectationFailed) as raised:
            write(
                spark, batch(spark, [order(1, 1), b'{"customer": "a"}', b"{"], 1), definition, lake
            )
        assert str(raised.value).startswith(
            "pipeline.toml: table orders: has an id at message 2 of the destination orders: the "
            "batch is not written to silver.orders. The journal keeps the message: change the "
        )
        assert not lake.table("silver.orders").exists(spark)
        assert not (tmp_path / "silver" / "orders_quarantine").exists()


def test_two_lakes_and_several_tables_in_one_session(spark: SparkSession, tmp_path: Path) -> None:
    definition = Definition(
        tables=(
            table(partition_by=("customer",)),
            table(name="copies", schema="id BIGINT", expectations=()),
            table(name="others", destination="others"),
        )
    )
    first, second = LakeDirectory(tmp_path / "1"), LakeDirectory(tmp_path / "2")
    for lake, id in ((first, 1), (second, 2)):
        counts = process(batch(spark, [order(id, 1)], 1), definition, lake)
        assert sorted(counts) == ["copies", "orders"]
        assert counts["copies"].unknown_fields == 2
        assert lake.rows(spark, "silver.orders", "id") == [(id,)]
        assert lake.rows(spark, "silver.copies", "id") == [(id,)]
    detail = DeltaTable.forPath(spark, first.table("silver.orders").location).detail()
    assert detail.select("partitionColumns").collect() == [(["customer"],)]
