"""Upserts give what a dictionary would, and rewrite only the files they have to."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.pipeline.tables import Table, table
from sluicemq.pipeline.tables.errors import SchemaMismatch, TableError
from tests.pipeline.tables.rows import events

Made = Callable[..., Table]

SCHEMA = pa.schema([("minute", pa.int64()), ("name", pa.string()), ("count", pa.int64())])
KEYS = ["minute", "name"]

Key = tuple[int | None, str | None]
BATCH = st.dictionaries(
    st.tuples(
        st.none() | st.integers(-3, 12), st.sampled_from(["a", "b", "", "a" * 80, "é"]) | st.none()
    ),
    st.integers(1, 9),
    max_size=8,
)


def counted(batch: dict[Key, int]) -> pa.Table:
    rows = [{"minute": m, "name": n, "count": c} for (m, n), c in batch.items()]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def added(old: pa.Table, new: pa.Table) -> pa.Table:
    """The sum of both, as gold tables want it."""
    both = pa.concat_tables([old, new]).group_by(KEYS).aggregate([("count", "sum")])
    return both.rename_columns([*KEYS, "count"])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), BATCH), max_size=6))
def test_upserts_equal_a_dictionary(steps: list[tuple[bool, bool, dict[Key, int]]]) -> None:
    for kind in ("delta", "parquet"):
        with tempfile.TemporaryDirectory() as directory:
            model: dict[Key, int] = {}
            lake = table(kind, directory + "/t", sort=("minute",))
            lake.create(SCHEMA)
            for version, (adding, compacting, batch) in enumerate(steps):
                for key, count in batch.items():
                    model[key] = count + (model.get(key, 0) if adding else 0)
                lake.upsert(counted(batch), KEYS, "run", version, added if adding else None)
                assert not lake.upsert(counted(batch), KEYS, "run", version, added)
                if compacting:
                    lake.compact()
            found = lake.read().to_pylist()
            assert len(found) == len(model)
            assert {(row["minute"], row["name"]): row["count"] for row in found} == model


def test_only_files_with_a_key_are_rewritten(made: Made) -> None:
    lake = made()
    for batch in range(4):
        lake.append(events(batch * 10, 10))
    before = {file.path: file for file in lake.files()}
    # 15 exists; 45 is new; 7.. is within the bounds of the first file but was never there.
    lake.upsert(events(15, 1), ["sequence"])
    after = {file.path: file for file in lake.files()}
    gone = [before[path] for path in before.keys() - after.keys()]
    assert [file.low["sequence"] for file in gone] == [10]
    lake.upsert(events(45, 1), ["sequence"])
    now = {file.path for file in lake.files()}
    assert after.keys() < now  # a new key rewrites nothing
    # One of the newest file: new keys join it.
    lake.upsert(events(45, 3), ["sequence"])
    assert sorted(file.low["sequence"] for file in lake.files()) == [0, 10, 20, 30, 45]
    assert sorted(lake.read(["sequence"])["sequence"].to_pylist()) == [*range(40), 45, 46, 47]


def test_within_the_bounds_is_not_in_the_file(made: Made) -> None:
    lake = made()
    lake.append(events(0, 1))
    lake.append(pa.concat_tables([events(1, 1), events(9, 1)]))
    before = {file.path for file in lake.files()}
    lake.upsert(events(5, 1), ["sequence"])
    assert before < {file.path for file in lake.files()}


def test_rows_may_move_to_another_partition(made: Made) -> None:
    lake = made(partitions=("day",))
    lake.append(events(0, 4))
    moved = events(0, 1).set_column(
        events(0, 1).schema.get_field_index("day"), "day", events(1, 1)["day"]
    )
    lake.upsert(moved, ["sequence"])
    assert sorted(lake.read(["sequence"])["sequence"].to_pylist()) == [0, 1, 2, 3]
    other = lake.read(["sequence"], pc.field("day") == moved["day"][0].as_py())
    assert sorted(other["sequence"].to_pylist()) == [0, 1, 3]


def test_the_combination_sees_each_key_once(made: Made) -> None:
    lake = made()
    lake.append(events(0, 5))
    lake.append(events(5, 5))
    seen: list[tuple[list[int], list[int]]] = []

    def combine(old: pa.Table, new: pa.Table) -> pa.Table:
        assert old.schema == new.schema
        seen.append((sorted(old["sequence"].to_pylist()), sorted(new["sequence"].to_pylist())))
        return new

    wanted = pa.concat_tables([events(3, 4), events(20, 2)])
    lake.upsert(wanted.select(["sequence", "event"]), ["sequence"], combine=combine)
    assert seen == [([3, 4], [3, 4]), ([5, 6], [5, 6]), ([], [20, 21])]


@pytest.mark.parametrize("tag", ["same", "other"])
def test_a_lost_race_is_computed_again(made: Made, tag: str) -> None:
    lake = made()
    lake.upsert(pa.table({"sequence": [1], "size": [1]}), ["sequence"])
    meanwhile = pa.table({"sequence": [1, 2], "size": [10, 10]})
    calls = 0

    def summed(old: pa.Table, new: pa.Table) -> pa.Table:
        nonlocal calls
        calls += 1
        if calls == 1:
            made().upsert(meanwhile, ["sequence"], tag, 0)
        both = pa.concat_tables([old, new]).group_by("sequence").aggregate([("size", "sum")])
        return both.rename_columns(["sequence", "size"])

    rows = pa.table({"sequence": [1, 2], "size": [100, 100]})
    assert lake.upsert(rows, ["sequence"], "same", 0, summed) is (tag == "other")
    found = made().read().sort_by("sequence").to_pydict()
    assert found == {"sequence": [1, 2], "size": [10, 10] if tag == "same" else [110, 110]}
    # What the first attempt wrote is gone without a vacuum: before it one file, and one meanwhile.
    written = {path.name for path in Path(lake.storage.root).rglob("*.parquet")}
    assert len(written) == (2 if tag == "same" else 3)


def test_two_rows_of_one_key_are_refused(made: Made) -> None:
    lake = made()
    lake.append(events(0, 2))
    twice = pa.concat_tables([events(1, 1), events(1, 1)])
    with pytest.raises(TableError, match="several rows of one key"):
        lake.upsert(twice, ["sequence"], "run", 0, lambda old, new: new)
    assert lake.committed("run") is None
    # Without a combination the last one counts.
    assert lake.upsert(twice, ["sequence"], "run", 0)
    assert lake.read().num_rows == 2
    with pytest.raises(SchemaMismatch, match="key columns: nothing"):
        lake.upsert(events(1, 1), ["nothing"])
