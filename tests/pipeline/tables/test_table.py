"""What tables of all kinds have in common: batches once, versions, columns that are added."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.tables import Table, table
from sluicemq.pipeline.tables.errors import (
    SchemaMismatch,
    TableConflict,
    TableError,
    TableNotFound,
)
from sluicemq.pipeline.tables.snapshot import Change, Outrun, TableSnapshot
from tests.pipeline.tables.rows import COLUMNS, NAMES, events, sorted_rows

Made = Callable[..., Table]
PARTITIONS = ("day", "destination_partition")


def test_a_batch_is_written_once(made: Made) -> None:
    assert made().committed("run") is None
    assert made().append(events(0, 20), "run", 3)
    # Again, with other rows, by another process.
    assert not made().append(events(50, 20), "run", 3)
    assert not made().append(events(50, 20), "run", 2)
    assert not made().upsert(events(50, 20), ["sequence"], "run", 3)
    assert sorted_rows(made().read()) == sorted_rows(events(0, 20))
    assert made().append(events(20, 5), "other", 0)
    assert made().append(events(25, 5), "run", 4)
    # Without a tag rows are what they are.
    assert made().append(events(30, 1))
    assert made().append(events(30, 1))
    assert made().committed("run") == 4
    assert made().committed("other") == 0
    assert made().read().num_rows == 32
    assert [commit.tags for commit in made().history() if commit.operation == "append"] == [
        {}, {}, {"run": 4}, {"other": 0}, {"run": 3},
    ]  # fmt: skip


def test_a_dropped_batch_leaves_no_files(made: Made, tmp_path: Path) -> None:
    late = made()
    files = set(tmp_path.rglob("*.parquet"))
    made().append(events(0, 5), "run", 0)
    written = set(tmp_path.rglob("*.parquet")) - files
    # As a sink has it, whose tasks have written before the tag is looked at.
    from sluicemq.pipeline.tables import Tag
    from sluicemq.pipeline.tables.files import write_table

    again = write_table(late.storage, late.layout(), events(0, 5))
    assert not late.add(again, COLUMNS, Tag("run", 0))
    assert set(tmp_path.rglob("*.parquet")) == written


def test_an_empty_batch_is_remembered(made: Made) -> None:
    assert made().append(COLUMNS.empty_table(), "run", 0)
    assert made().committed("run") == 0
    assert made().schema() == COLUMNS.with_metadata(None) or made().schema().names == COLUMNS.names
    assert made().read().num_rows == 0
    with pytest.raises(ValueError, match="go together"):
        made().append(events(0, 1), "run")


def test_all_types_partitions_and_hostile_values(made: Made, kind: str, tmp_path: Path) -> None:
    lake = made(partitions=PARTITIONS)
    lake.append(events(0, 40), "run", 0)
    lake.append(events(40, 40), "run", 1)
    expected = sorted_rows(events(0, 80))
    assert sorted_rows(made().read()) == expected
    files = made().files()
    assert len(files) == 2 * 2 * len(NAMES)
    assert sum(file.rows for file in files) == 80
    assert {file.partition["destination_partition"] for file in files} == set(NAMES)
    # Written before this object was told about partitions: the table knows.
    made().append(events(80, 1))
    with pytest.raises(TableError, match="partitioned by"):
        made(partitions=("day",)).append(events(81, 1))

    day = pc.field("destination_partition") == NAMES[0]
    some = made().read(["sequence"], day & (pc.field("sequence") < 40))
    assert sorted(some["sequence"].to_pylist()) == [0, 5, 10, 15, 20, 25, 30, 35]

    # Readers that know nothing of us.
    root = str(tmp_path / "a table [1]")
    if kind == "delta":
        others = [DeltaTable(root).to_pyarrow_table()]
        # delta-rs' engine rather than Arrow's
        others.append(pa.table(DeltaTable(root).scan().read_all()))
    elif kind == "iceberg":
        number = (tmp_path / "a table [1]/metadata/version-hint.text").read_text()
        metadata = f"{root}/metadata/v{number}.metadata.json"
        others = [StaticTable.from_metadata(metadata).scan().to_arrow()]
    else:
        others = []
    names = [f"{root}/{file.path}" for file in made().files()]
    others.append(pa.concat_tables([pq.ParquetFile(name).read() for name in names]))
    for other in others:
        assert sorted_rows(other.cast(COLUMNS)) == sorted_rows(events(0, 81))


def test_empty_text_is_null_in_a_partition(made: Made) -> None:
    rows = events(0, 4).set_column(
        COLUMNS.get_field_index("destination_partition"),
        COLUMNS.field("destination_partition"),
        pa.array(["", None, "~ü", "_a"]),
    )
    made(partitions=("destination_partition",)).append(rows)
    found = made().read(["sequence", "destination_partition"]).sort_by("sequence")
    assert found["destination_partition"].to_pylist() == [None, None, "~ü", "_a"]


def test_rows_without_the_partition_columns(made: Made) -> None:
    made(partitions=("day",)).append(events(0, 2))
    made().append(pa.table({"record_index": pa.array([7], pa.int32())}))
    assert made().read(["record_index"], pc.field("day").is_null())["record_index"].to_pylist() == [
        7
    ]
    assert made().read().num_rows == 3


def test_earlier_versions_can_be_read(made: Made) -> None:
    made().append(events(0, 3), "run", 0)
    first = made().snapshot().version
    time.sleep(0.002)  # the clock of a commit counts milliseconds
    between = datetime.now(UTC)
    time.sleep(0.002)
    made().upsert(events(2, 3), ["sequence"], "run", 1)
    assert made().read().num_rows == 5
    assert sorted_rows(made().read(version=first)) == sorted_rows(events(0, 3))
    assert sorted_rows(made().read(timestamp=between)) == sorted_rows(events(0, 3))
    assert sum(file.rows for file in made().files(version=first)) == 3
    with pytest.raises(TableNotFound, match="has no version"):
        made().read(version=99)
    with pytest.raises(TableNotFound):
        made("another").read()
    upsert, append, *_ = made().history()
    assert (upsert.operation, upsert.added, upsert.removed) == ("upsert", 1, 1)
    assert (append.operation, append.version) == ("append", first)
    assert append.time <= between <= upsert.time


def test_columns_are_added_and_never_change(made: Made) -> None:
    made().append(events(0, 3), "run", 0)
    before = made().snapshot().version
    wider = events(3, 2).append_column("state", pa.array(["a", None]))
    made().append(wider, "run", 1)
    made().upsert(pa.table({"sequence": [1, 9], "added": [1.5, 2.5]}), ["sequence"], "run", 2)
    assert made().schema().names == [*COLUMNS.names, "state", "added"]
    found = made().read(["sequence", "state", "added", "event"]).sort_by("sequence").to_pydict()
    assert found["sequence"] == [0, 1, 2, 3, 4, 9]
    assert found["state"] == [None, None, None, "a", None, None]
    assert found["added"] == [None, 1.5, None, None, None, 2.5]
    assert found["event"] == ["published", None, "published", "published", "published", None]
    assert made().read(version=before).column_names == COLUMNS.names
    with pytest.raises(SchemaMismatch, match="'sequence' is int64 in the table and string"):
        made().append(pa.table({"sequence": ["1"]}), "run", 3)
    with pytest.raises(SchemaMismatch, match="'nothing' has type null"):
        made().append(pa.table({"nothing": [None]}), "run", 3)
    assert made().committed("run") == 2


def test_compaction_keeps_rows_and_sorts_them(made: Made) -> None:
    lake = made(partitions=("day",))
    for version, batch in enumerate((3, 0, 2, 1)):
        lake.append(events(batch * 10, 10), "run", version)
    before = made().snapshot().version
    assert made().compact() == 6  # two partitions of four files
    assert sorted_rows(made().read()) == sorted_rows(events(0, 40))
    for file in made().files():
        rows = made().read(["sequence"], pc.field("day") == file.partition["day"])
        assert rows["sequence"].to_pylist() == sorted(rows["sequence"].to_pylist())
        assert (file.low["sequence"], file.high["sequence"]) in ((0, 38), (1, 39))
    assert made().compact() == 0
    assert made().read(version=before).num_rows == 40
    assert made().committed("run") == 3
    # Files of the target's size stay as they are.
    made().append(events(40, 10))
    largest = max(file.size for file in made().files())
    assert made().compact(target_bytes=largest) == 0


def test_appends_during_compaction_survive(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(3):
        made().append(events(batch * 10, 10))
    busy = made()
    commit = type(busy)._commit

    def slow(self: Table, base: TableSnapshot, change: Change) -> None:
        if self is busy and made().committed("meanwhile") is None:
            made().append(events(30, 5), "meanwhile", 0)
        commit(self, base, change)

    monkeypatch.setattr(type(busy), "_commit", slow)
    assert busy.compact() == 2
    assert sorted_rows(made().read()) == sorted_rows(events(0, 35))


def test_compaction_leaves_alone_what_was_rewritten(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for batch in range(3):
        made().append(events(batch * 10, 10))
    busy = made()
    commit = type(busy)._commit
    newer = events(5, 1).set_column(
        COLUMNS.get_field_index("event"), COLUMNS.field("event"), pa.array(["changed"])
    )

    def slow(self: Table, base: TableSnapshot, change: Change) -> None:
        if self is busy and made().committed("meanwhile") is None:
            made().upsert(newer, ["sequence"], "meanwhile", 0)
        commit(self, base, change)

    monkeypatch.setattr(type(busy), "_commit", slow)
    assert busy.compact() == 0
    assert made().read(filter=pc.field("event") == "changed")["sequence"].to_pylist() == [5]
    assert made().read().num_rows == 30
    # Three appends and the upsert: what the compaction wrote is gone.
    assert len(list(tmp_path.rglob("*.parquet"))) == 4


def test_vacuum_removes_what_no_kept_version_needs(made: Made, kind: str, tmp_path: Path) -> None:
    made().append(events(0, 10), "run", 0)
    made().upsert(events(5, 10), ["sequence"], "run", 1)
    orphan = tmp_path / "a table [1]" / "part-orphan.parquet"
    pq.write_table(events(90, 1), orphan)
    directory = {"delta": "_delta_log", "iceberg": "metadata", "parquet": "_sluicemq"}[kind]
    draft = orphan.parent / directory / ".draft"
    draft.touch()
    assert made().vacuum() == []
    assert orphan.exists()
    first = made().snapshot().version - 1
    assert made().read(version=first).num_rows == 10
    gone = made().vacuum(timedelta(0))
    assert orphan.name in gone
    assert kind == "delta" or not draft.exists()
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    assert sorted_rows(made().read()) == sorted_rows(events(0, 15))
    assert made().append(events(20, 1), "run", 2)
    assert made().vacuum(timedelta(0)) == [] or made().read().num_rows == 16


def test_a_writer_that_always_loses_says_so(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made().append(events(0, 1))
    loser = made()

    def lost(self: Table, base: TableSnapshot, change: Change) -> None:
        raise Outrun

    monkeypatch.setattr(type(loser), "_commit", lost)
    with pytest.raises(TableConflict, match="came first"):
        loser.append(events(1, 1))


def test_table_by_name() -> None:
    with pytest.raises(ConfigurationError, match="delta, iceberg, parquet"):
        table("hudi", "nowhere")
