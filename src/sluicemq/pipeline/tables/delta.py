"""Delta tables, by `deltalake` (delta-rs): no JVM jar.

A commit is one file of the Delta log. Files that come and go, and the tag (Delta's own "txn"
action: application and version), are in it together or not at all. A commit is tried against
exactly the version it was computed from, never rebased by the library: after a lost race the tag
has to be looked at again, and an upsert has to be computed again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from sluicemq.pipeline.tables.columns import plain
from sluicemq.pipeline.tables.errors import TableError, TableNotFound
from sluicemq.pipeline.tables.files import SHORT, DataFile, spelled
from sluicemq.pipeline.tables.snapshot import Change, Commit, Outrun, TableSnapshot
from sluicemq.pipeline.tables.table import Table

SORTED: Final = "sorted by "
"""Begins the table's description, which remembers by which columns files are sorted: delta-rs takes
no properties of our own."""


class Delta(Table):
    """kind="delta"."""

    kind = "delta"
    _open: DeltaTable | None = None

    def _latest(self) -> DeltaTable:
        if self._open is None:
            self._open = self._at()
        else:
            self._open.update_incremental()
        return self._open

    def _at(self, version: int | datetime | None = None) -> DeltaTable:
        try:
            found = DeltaTable(
                self.storage.root,
                version=version if isinstance(version, int) else None,
                storage_options=dict(self.storage.options),
            )
            if isinstance(version, datetime):
                found.load_as_version(version)
        except TableNotFoundError as error:
            raise TableNotFound(f"there is no Delta table in {self.storage.root}") from error
        except DeltaError as error:
            if version is None:
                raise TableError(f"the Delta table in {self.storage.root}: {error}") from error
            raise TableNotFound(
                f"the Delta table in {self.storage.root} has no version {version}: {error}"
            ) from error
        return found

    def exists(self) -> bool:
        if self._open is not None:
            return True
        return DeltaTable.is_deltatable(self.storage.root, dict(self.storage.options))

    def snapshot(
        self, version: int | None = None, timestamp: datetime | None = None
    ) -> TableSnapshot:
        chosen = version if version is not None else timestamp
        found = self._latest() if chosen is None else self._at(chosen)
        metadata = found.metadata()
        schema = plain(pa.schema(found.schema().to_arrow()))
        described = metadata.description or ""
        sort = described.removeprefix(SORTED) if described.startswith(SORTED) else ""
        return TableSnapshot(
            found.version(),
            schema,
            tuple(metadata.partition_columns),
            tuple(name for name in sort.split(",") if name),
            _files(found, schema, metadata.partition_columns),
        )

    def committed(self, application: str) -> int | None:
        if not self.exists():
            return None
        return self._latest().transaction_version(application)

    def history(self) -> list[Commit]:
        found = []
        for entry in self._at().history():
            parameters = entry.get("operationParameters", {})
            told = entry.get("sluicemq")
            about = json.loads(told) if isinstance(told, str) else {}
            found.append(
                Commit(
                    entry["version"],
                    datetime.fromtimestamp(entry["timestamp"] / 1000, UTC),
                    about.get("operation") or _named(entry["operation"], parameters),
                    about.get("added", 0),
                    about.get("removed", 0),
                    about.get("tags", {}),
                )
            )
        return found

    def _create(self, schema: pa.Schema) -> None:
        try:
            DeltaTable.create(
                self.storage.root,
                Schema.from_arrow(schema),
                mode="error",
                partition_by=list(self.partitions),
                description=SORTED + ",".join(self.sort) if self.sort else None,
                configuration={"delta.checkpointInterval": "10"},
                storage_options=dict(self.storage.options),
            )
        except DeltaError as error:
            if not DeltaTable.is_deltatable(self.storage.root, dict(self.storage.options)):
                raise TableError(
                    f"a Delta table cannot be made in {self.storage.root}: {error}"
                ) from error
            raise Outrun from error

    def _widen(self, base: TableSnapshot, fields: Sequence[pa.Field]) -> None:
        found = self._at(base.version)
        try:
            found.alter.add_columns(
                list(Schema.from_arrow(pa.schema(fields)).fields),
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise Outrun from error

    def _commit(self, base: TableSnapshot, change: Change) -> None:
        now = int(time.time() * 1000)
        moved = change.operation != "compact"
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(
                file.path,
                moved,
                now,
                file.size,
                {name: spelled(value) for name, value in file.partition.items()},
            )
            for file in change.removes
        ]
        for file in change.adds:
            actions.append(
                AddAction(
                    file.path,
                    file.size,
                    {name: spelled(value) for name, value in file.partition.items()},
                    now,
                    moved,
                    _statistics(file),
                )
            )
        tag = change.tag
        about = {
            "operation": change.operation,
            "added": len(change.adds),
            "removed": len(change.removes),
            "tags": {} if tag is None else {tag.application: tag.version},
        }
        found = self._latest()
        if found.version() != base.version:
            raise Outrun
        try:
            found.create_write_transaction(
                actions,
                "append",
                found.schema(),
                list(base.partitions),
                commit_properties=CommitProperties(
                    custom_metadata={"sluicemq": json.dumps(about)},
                    max_commit_retries=0,
                    app_transactions=(
                        None if tag is None else [Transaction(tag.application, tag.version, now)]
                    ),
                ),
            )
        except CommitFailedError as error:
            self._open = None
            raise Outrun from error

    def _unused(self, since: datetime) -> set[str]:
        hours = max(math.ceil((datetime.now(UTC) - since).total_seconds() / 3600 - 0.001), 0)
        found = self._at().vacuum(
            retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True
        )
        return set(found)

    def close(self) -> None:
        self._open = None


def _named(operation: str, parameters: dict[str, Any]) -> str:
    if operation == "WRITE":
        return str(parameters.get("mode", operation)).lower()
    return operation.lower()


def _statistics(file: DataFile) -> str:
    def told(value: Any) -> Any:
        if isinstance(value, datetime):
            zone = "" if value.tzinfo is None else "Z"
            return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
        return value.isoformat() if isinstance(value, date) else value

    low = {
        name: told(value[:SHORT] if isinstance(value, str) else value)
        for name, value in file.low.items()
        if name not in file.partition
    }
    high = {
        name: told(value)
        for name, value in file.high.items()
        if name not in file.partition and (not isinstance(value, str) or len(value) <= SHORT)
    }
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": low,
            "maxValues": high,
            "nullCount": file.nulls,
        }
    )


def _files(table: DeltaTable, schema: pa.Schema, partitions: Sequence[str]) -> list[DataFile]:
    actions = pa.table(table.get_add_actions(flatten=True))
    if not actions.num_rows:
        return []
    columns = {name: actions.column(name).to_pylist() for name in actions.column_names}
    given = {
        what: [(name, found) for name in schema.names if (found := columns.get(f"{what}.{name}"))]
        for what in ("min", "max", "null_count")
    }

    def row(what: str, place: int) -> dict[str, Any]:
        return {name: values[place] for name, values in given[what] if values[place] is not None}

    return [
        DataFile(
            unquote(columns["path"][place]),
            columns["num_records"][place] or 0,
            columns["size_bytes"][place],
            {name: columns[f"partition.{name}"][place] for name in partitions},
            row("min", place),
            row("max", place),
            row("null_count", place),
        )
        for place in range(actions.num_rows)
    ]
