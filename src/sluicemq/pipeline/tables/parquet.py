"""Tables of plain Parquet files, for those who want neither Delta nor Iceberg.

    2026-11-21/orders/part-….parquet     data files, as in every kind of table
    _sluicemq/v1.json, v2.json, …        one per commit: the columns, the tags, and the list of all
                                         files of that version (`files[].path`)
    _sluicemq/version-hint.text          the number of a late one

A commit is the creation of the next number. What readers must know: the table is the files that
the *highest* number lists. A reader that takes whatever lies in the directory also sees files of
batches that are being written or were given up, and rows twice while replaced files wait for
`vacuum`.

The latest VERSIONS can be read; each repeats the list of files, so tables of more than some ten
thousand files want Delta.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, Final

import msgspec
import pyarrow as pa

from sluicemq.pipeline.tables.errors import TableError, TableNotFound
from sluicemq.pipeline.tables.files import DataFile
from sluicemq.pipeline.tables.numbered import Numbered
from sluicemq.pipeline.tables.snapshot import Change, Commit, Outrun, TableSnapshot
from sluicemq.pipeline.tables.table import Table

FORMAT: Final = 1
VERSIONS: Final = 200
"""How many versions back a table can be read, at least; up to twice as many."""


class TableManifest(msgspec.Struct):
    """One version.

    time     microseconds since 1970, by the writer's clock
    columns  name and type, for people; `schema` is the same as a serialised Arrow schema in base64
    tags     the highest version of each application
    tag      of this commit
    """

    format: int
    version: int
    time: int
    operation: str
    added: int
    removed: int
    columns: list[tuple[str, str]]
    schema: str
    partitions: list[str]
    sort: list[str]
    tags: dict[str, int]
    tag: dict[str, int]
    files: list[DataFile]


class Parquet(Table):
    """kind="parquet"."""

    kind = "parquet"
    _latest: TableManifest | None = None

    @cached_property
    def _versions(self) -> Numbered:
        return Numbered(self.storage, "_sluicemq", "v", ".json")

    def close(self) -> None:
        self._latest = None

    def exists(self) -> bool:
        return self._latest is not None or self._versions.latest() > 0

    def _now(self) -> TableManifest:
        number = self._versions.latest()
        if not number:
            raise TableNotFound(f"there is no Parquet table in {self.storage.root}")
        if self._latest is None or self._latest.version != number:
            self._latest = self._at(number)
        return self._latest

    def _at(self, number: int) -> TableManifest:
        content = self._versions.read(number)
        if content is None:
            raise TableNotFound(
                f"the Parquet table in {self.storage.root} has no version {number} (any more)"
            )
        try:
            found = msgspec.json.decode(content, type=TableManifest)
        except msgspec.DecodeError as error:
            raise TableError(
                f"{self.storage.location(self._versions.path(number))} is damaged: {error}"
            ) from error
        if found.format != FORMAT:
            raise TableError(
                f"the Parquet table in {self.storage.root} has format {found.format}; this version "
                f"of SluiceMQ reads {FORMAT}: upgrade it"
            )
        schema = _schema(found)
        found.files = [_typed(file, schema) for file in found.files]
        return found

    def snapshot(
        self, version: int | None = None, timestamp: datetime | None = None
    ) -> TableSnapshot:
        if version is not None:
            found = self._at(version)
        elif timestamp is not None:
            found = self._as_of(timestamp)
        else:
            found = self._now()
        return TableSnapshot(
            found.version,
            _schema(found),
            tuple(found.partitions),
            tuple(found.sort),
            list(found.files),
        )

    def _as_of(self, timestamp: datetime) -> TableManifest:
        limit = int(timestamp.timestamp() * 1_000_000)
        for number in reversed(self._versions.numbers()):
            found = self._at(number)
            if found.time <= limit:
                return found
        raise TableNotFound(
            f"the Parquet table in {self.storage.root} has no version as old as {timestamp}"
        )

    def committed(self, application: str) -> int | None:
        return self._now().tags.get(application) if self.exists() else None

    def history(self) -> list[Commit]:
        commits = []
        for number in reversed(self._versions.numbers()):
            found = self._at(number)
            commits.append(
                Commit(
                    number,
                    datetime.fromtimestamp(found.time / 1_000_000, UTC),
                    found.operation,
                    found.added,
                    found.removed,
                    found.tag,
                )
            )
        return commits

    def _create(self, schema: pa.Schema) -> None:
        self._put(
            TableManifest(
                FORMAT, 1, 0, "create table", 0, 0, [], "", [*self.partitions], [*self.sort], {},
                {}, [],
            ),
            schema,
        )  # fmt: skip

    def _widen(self, base: TableSnapshot, fields: Sequence[pa.Field]) -> None:
        found = self._based(base)
        wider = pa.schema([*base.schema, *fields])
        self._put(
            msgspec.structs.replace(
                found,
                version=base.version + 1,
                operation="add columns",
                added=0,
                removed=0,
                tag={},
            ),
            wider,
        )

    def _commit(self, base: TableSnapshot, change: Change) -> None:
        found = self._based(base)
        gone = {file.path for file in change.removes}
        tag = {} if change.tag is None else {change.tag.application: change.tag.version}
        self._put(
            msgspec.structs.replace(
                found,
                version=base.version + 1,
                operation=change.operation,
                added=len(change.adds),
                removed=len(gone),
                tags={**found.tags, **tag},
                tag=tag,
                files=[
                    *(file for file in found.files if file.path not in gone),
                    *(_brief(file, base) for file in change.adds),
                ],
            ),
            base.schema,
        )

    def _based(self, base: TableSnapshot) -> TableManifest:
        found = self._now()
        if found.version != base.version:
            raise Outrun
        return found

    def _put(self, manifest: TableManifest, schema: pa.Schema) -> None:
        made = msgspec.structs.replace(
            manifest,
            time=time.time_ns() // 1000,
            columns=[(field.name, str(field.type)) for field in schema],
            schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        )
        self._versions.put(made.version, msgspec.json.encode(made))
        if made.version % VERSIONS == 0:
            self._versions.remove_before(made.version - VERSIONS + 1)

    def _unused(self, since: datetime) -> set[str]:
        limit = int(since.timestamp() * 1_000_000)
        kept: set[str] = set()
        oldest = 0
        for number in reversed(self._versions.numbers()):
            found = self._at(number)
            kept.update(file.path for file in found.files)
            oldest = number
            if found.time <= limit:
                break  # it was still the table when that time began
        self._versions.remove_before(oldest)
        return self._versions.drafts() | {
            file.path
            for file in self.storage.listed()
            if file.path.endswith(".parquet") and file.path not in kept
        }


def _schema(manifest: TableManifest) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest.schema)))


def _brief(file: DataFile, base: TableSnapshot) -> DataFile:
    """Without the bounds of texts that nobody sorts by: the list is written at every commit."""
    known = {
        name
        for name in file.nulls
        if name in base.sort or not pa.types.is_string(base.schema.field(name).type)
    }

    def some(values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name in known}

    return replace(file, low=some(file.low), high=some(file.high), nulls=some(file.nulls))


def _typed(file: DataFile, schema: pa.Schema) -> DataFile:
    """JSON knows no times and dates."""

    def read(values: dict[str, Any]) -> dict[str, Any]:
        return {name: _value(value, schema.field(name).type) for name, value in values.items()}

    return replace(file, partition=read(file.partition), low=read(file.low), high=read(file.high))


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    return value
