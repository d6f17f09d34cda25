"""Iceberg tables (format version 2), by `pyiceberg`: no JVM jar.

A commit is one metadata file. New and removed data files and the tag are in it together: the tag
as a property of the table (`sluicemq.committed.APPLICATION`, so that it is found without a walk
through the history and outlives expired snapshots) and in the summary of the snapshot.

Version numbers are Iceberg's sequence numbers: 0 is the empty table, each commit of rows adds one.
Every metadata file repeats the list of all snapshots, so only the latest SNAPSHOTS are kept.

Iceberg writes absolute locations into its metadata: a table cannot be moved to another directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.exceptions import NoSuchTableError, ValidationException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from sluicemq.pipeline.tables.columns import plain
from sluicemq.pipeline.tables.errors import TableError, TableNotFound
from sluicemq.pipeline.tables.files import SHORT, DataFile
from sluicemq.pipeline.tables.iceberg_catalog import DirectoryCatalog, Late
from sluicemq.pipeline.tables.snapshot import Change, Commit, Outrun, TableSnapshot
from sluicemq.pipeline.tables.table import Table

SNAPSHOTS: Final = 200
"""How many versions back a table can be read, at least; up to twice as many."""
SORT: Final = "sluicemq.sort"
COMMITTED: Final = "sluicemq.committed."
OPERATION: Final = "sluicemq.operation"
TAGGED: Final = "sluicemq.tag."


class Iceberg(Table):
    """kind="iceberg"."""

    kind = "iceberg"
    data = "data/"
    _open: IcebergTable | None = None
    _held: tuple[int, dict[str, IcebergFile]] = (0, {})

    def close(self) -> None:
        self._open = None
        self._held = (0, {})

    def _load(self) -> IcebergTable:
        try:
            self._open = DirectoryCatalog(self.storage).load_table()
        except NoSuchTableError as error:
            raise TableNotFound(f"there is no Iceberg table in {self.storage.root}") from error
        return self._open

    def exists(self) -> bool:
        return self._open is not None or DirectoryCatalog(self.storage).latest() > 0

    def snapshot(
        self, version: int | None = None, timestamp: datetime | None = None
    ) -> TableSnapshot:
        found = self._load()
        chosen = self._chosen(found, version, timestamp)
        schema = found.schema()
        if chosen is not None and chosen.schema_id is not None and (version or timestamp):
            schema = found.schemas()[chosen.schema_id]
        arrow = plain(schema_to_pyarrow(schema))
        names = {field.field_id: field.name for field in schema.fields}
        partitions = tuple(names[field.source_id] for field in found.spec().fields)
        number = 0 if chosen is None else chosen.sequence_number or 0
        if self._held[0] != number:
            self._held = (number, _entries(found, chosen))
        types = {field.field_id: field.field_type for field in schema.fields}
        files = [
            _told(file, self.storage.root, arrow, partitions, names, types)
            for file in self._held[1].values()
        ]
        sort = found.properties.get(SORT, "")
        return TableSnapshot(
            number, arrow, partitions, tuple(name for name in sort.split(",") if name), files
        )

    def _chosen(
        self, table: IcebergTable, version: int | None, timestamp: datetime | None
    ) -> IcebergSnapshot | None:
        if version is None and timestamp is None:
            return table.current_snapshot()
        if version == 0:
            return None
        if version is not None:
            for snapshot in table.metadata.snapshots:
                if snapshot.sequence_number == version:
                    return snapshot
            raise TableNotFound(
                f"the Iceberg table in {self.storage.root} has no version {version}; it keeps "
                + ", ".join(str(snapshot.sequence_number) for snapshot in table.metadata.snapshots)
            )
        assert timestamp is not None
        limit = int(timestamp.timestamp() * 1000)
        found = table.snapshot_as_of_timestamp(limit)
        if found is None and table.metadata.snapshots:
            raise TableNotFound(
                f"the Iceberg table in {self.storage.root} has no version as old as {timestamp}"
            )
        return found

    def committed(self, application: str) -> int | None:
        if not self.exists():
            return None
        found = self._load().properties.get(COMMITTED + application)
        return None if found is None else int(found)

    def history(self) -> list[Commit]:
        commits = []
        for snapshot in self._load().metadata.snapshots:
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            commits.append(
                Commit(
                    snapshot.sequence_number or 0,
                    datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
                    summary.get(OPERATION, "unknown"),
                    int(summary.get("added-data-files", 0)),
                    int(summary.get("deleted-data-files", 0)),
                    {
                        name.removeprefix(TAGGED): int(value)
                        for name, value in summary.items()
                        if name.startswith(TAGGED)
                    },
                )
            )
        return sorted(commits, key=lambda commit: -commit.version)

    def _create(self, schema: pa.Schema) -> None:
        fresh = assign_fresh_schema_ids(Catalog._convert_schema_if_needed(schema))
        spec = PartitionSpec(
            *(
                PartitionField(
                    source_id=fresh.find_field(name).field_id,
                    field_id=1000 + place,
                    transform=IdentityTransform(),
                    name=name,
                )
                for place, name in enumerate(self.partitions)
            )
        )
        metadata = new_table_metadata(
            fresh,
            spec,
            UNSORTED_SORT_ORDER,
            self.storage.root,
            {
                SORT: ",".join(self.sort),
                "schema.name-mapping.default": fresh.name_mapping.model_dump_json(),
                "write.metadata.delete-after-commit.enabled": "true",
                "write.metadata.previous-versions-max": "20",
                "write.parquet.compression-codec": "zstd",
            },
        )
        try:
            DirectoryCatalog(self.storage).create(metadata)
        except Late as error:
            raise Outrun from error

    def _widen(self, base: TableSnapshot, fields: Sequence[pa.Field]) -> None:
        found = self._load()
        try:
            with found.update_schema() as update:
                update.union_by_name(pa.schema(fields))
        except ValidationException as error:
            raise Outrun from error

    def _commit(self, base: TableSnapshot, change: Change) -> None:
        found = self._open or self._load()
        current = found.current_snapshot()
        if (0 if current is None else current.sequence_number) != base.version:
            raise Outrun
        tag = change.tag
        summary = {OPERATION: change.operation}
        if tag is not None:
            summary[TAGGED + tag.application] = str(tag.version)
        adds = [_described(found, self.storage.root, file) for file in change.adds]
        removes = [self._held[1][file.path] for file in change.removes]
        try:
            with found.transaction() as transaction:
                if tag is not None:
                    transaction.set_properties({COMMITTED + tag.application: str(tag.version)})
                if removes:
                    with transaction.update_snapshot(summary).overwrite() as overwrite:
                        for file in adds:
                            overwrite.append_data_file(file)
                        for file in removes:
                            overwrite.delete_data_file(file)
                elif adds:
                    with transaction.update_snapshot(summary).merge_append() as append:
                        for file in adds:
                            append.append_data_file(file)
        except ValidationException as error:
            raise Outrun from error
        finally:
            self._open = None
        if len(found.metadata.snapshots) > 2 * SNAPSHOTS:
            self._expire(found, found.metadata.snapshots[:-SNAPSHOTS])

    def _expire(self, table: IcebergTable, snapshots: Sequence[IcebergSnapshot]) -> None:
        ids = [snapshot.snapshot_id for snapshot in snapshots]
        try:
            table.maintenance.expire_snapshots().by_ids(ids).commit()
        except ValidationException:
            return  # another commit came between: the next one will do it

    def _unused(self, since: datetime) -> set[str]:
        found = self._load()
        limit = int(since.timestamp() * 1000)
        ordered = sorted(found.metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)
        last = max((s.timestamp_ms for s in ordered if s.timestamp_ms <= limit), default=0)
        gone = [s for s in ordered if s.timestamp_ms < last]
        if gone:
            self._expire(found, gone)
            found = self._load()
        kept = set()
        for snapshot in found.metadata.snapshots:
            kept.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(found.io):
                kept.add(manifest.manifest_path)
            kept |= {self.storage.location(path) for path in _entries(found, snapshot)}
        return DirectoryCatalog(self.storage).versions.drafts() | {
            file.path
            for file in self.storage.listed()
            if file.path.endswith((".parquet", ".avro"))
            and self.storage.location(file.path) not in kept
        }


def _entries(table: IcebergTable, snapshot: IcebergSnapshot | None) -> dict[str, IcebergFile]:
    """The data files of a version, by their path in the table."""
    if snapshot is None:
        return {}
    root = table.location()
    found = {}
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.content != DataFileContent.DATA:
                raise TableError(
                    f"the Iceberg table in {root} has delete files, which another engine wrote; "
                    "rewrite its data files there first"
                )
            path = entry.data_file.file_path
            if not path.startswith(root + "/"):
                raise TableError(f"the Iceberg table in {root} has a file elsewhere: {path}")
            found[path.removeprefix(root + "/")] = entry.data_file
    return found


def _told(
    file: IcebergFile,
    root: str,
    schema: pa.Schema,
    partitions: Sequence[str],
    names: dict[int, str],
    types: dict[int, Any],
) -> DataFile:
    def bounds(given: dict[int, bytes] | None) -> dict[str, Any]:
        return {
            names[number]: _python(from_bytes(types[number], value), schema, names[number])
            for number, value in (given or {}).items()
            if number in names and isinstance(types[number], PrimitiveType)
        }

    partition = {
        name: _python(file.partition[place], schema, name) for place, name in enumerate(partitions)
    }
    nulls = {
        names[number]: count
        for number, count in (file.null_value_counts or {}).items()
        if number in names
    }
    return DataFile(
        file.file_path.removeprefix(root + "/"),
        file.record_count,
        file.file_size_in_bytes,
        partition,
        bounds(file.lower_bounds),
        bounds(file.upper_bounds),
        nulls,
    )


def _python(value: Any, schema: pa.Schema, name: str) -> Any:
    """Iceberg counts dates and times from 1970; Arrow takes those numbers."""
    kind = schema.field(name).type
    if value is None or not isinstance(value, int) or pa.types.is_boolean(kind):
        return value
    return pa.scalar(value, kind).as_py()


def _number(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        scalar = pa.scalar(value, kind)
        return scalar.cast(pa.int32() if pa.types.is_date(kind) else pa.int64()).as_py()
    return value


def _described(table: IcebergTable, root: str, file: DataFile) -> IcebergFile:
    """As Iceberg describes a data file."""
    schema = table.schema()
    ids = {field.name: field.field_id for field in schema.fields}
    types = {
        field.name: field.field_type
        for field in schema.fields
        if isinstance(field.field_type, PrimitiveType)
    }
    arrow = schema_to_pyarrow(schema)

    def bounds(given: dict[str, Any]) -> dict[int, bytes]:
        return {
            ids[name]: to_bytes(types[name], _number(value, arrow.field(name).type))
            for name, value in given.items()
        }

    low = {
        name: value[:SHORT] if isinstance(value, str) else value for name, value in file.low.items()
    }
    high = {
        name: value
        for name, value in file.high.items()
        if not isinstance(value, str) or len(value) <= SHORT
    }
    return IcebergFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{root}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(
            *(
                None if value is None else _number(value, arrow.field(name).type)
                for name, value in file.partition.items()
            )
        ),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        value_counts={ids[name]: file.rows for name in file.nulls},
        null_value_counts={ids[name]: count for name, count in file.nulls.items()},
        nan_value_counts={},
        column_sizes={},
        lower_bounds=bounds(low),
        upper_bounds=bounds(high),
        split_offsets=None,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
    )
