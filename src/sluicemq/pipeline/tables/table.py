"""A table of the lakehouse: the same operations for Delta, Iceberg and plain Parquet.

    rows ──write_rows──> data files that nobody refers to yet
                             │
         snapshot ──plan──> Change(adds, removes, tag) ──_commit──> next version, or Outrun: again

A commit is all or nothing, and holds only against the version it was planned on. Everything follows
from that: a batch whose tag the table has already is dropped; a writer that dies before the commit
leaves files behind that nobody reads and `vacuum` deletes; of two writers the second plans again.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sluicemq.pipeline.tables import reading
from sluicemq.pipeline.tables.columns import added, fitted, plain
from sluicemq.pipeline.tables.compaction import TARGET_BYTES, joined, planned
from sluicemq.pipeline.tables.errors import TableConflict, TableError, TableNotFound
from sluicemq.pipeline.tables.files import DataFile, Layout, write_rows
from sluicemq.pipeline.tables.snapshot import Change, Commit, Outrun, TableSnapshot, Tag
from sluicemq.pipeline.tables.storage import Storage
from sluicemq.pipeline.tables.upsert import Combine, upserted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPTS: Final = 50
"""A commit takes milliseconds; only a crowd of writers on one table could lose so many races."""

Rows: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader"


class Table(ABC):
    """One table. Making the object touches no storage; the first write makes the table.

    partitions  columns by which files are separated; fixed when the table is made
    sort        columns by which the rows of each file ascend; remembered by the table
    """

    kind: ClassVar[str]
    data: ClassVar[str] = ""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        partitions: Sequence[str] = (),
        sort: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.storage = Storage.at(path, storage_options)
        self.partitions = tuple(partitions)
        self.sort = tuple(sort)

    # What each kind does its own way.

    @abstractmethod
    def exists(self) -> bool:
        """Whether the table has been made."""

    @abstractmethod
    def snapshot(
        self, version: int | None = None, timestamp: datetime | None = None
    ) -> TableSnapshot:
        """The table now, at that version, or as it was at that time. Raises TableNotFound."""

    @abstractmethod
    def committed(self, application: str) -> int | None:
        """The highest version that `application` has committed; None if none."""

    @abstractmethod
    def history(self) -> list[Commit]:
        """The commits that the table still knows, the latest first."""

    @abstractmethod
    def _create(self, schema: pa.Schema) -> None:
        """Makes the empty table; Outrun if there is one by now."""

    @abstractmethod
    def _widen(self, base: TableSnapshot, fields: Sequence[pa.Field]) -> None:
        """Adds columns at the end; may raise Outrun."""

    @abstractmethod
    def _commit(self, base: TableSnapshot, change: Change) -> None:
        """Makes the version after `base`; Outrun, and nothing changed, if that exists."""

    @abstractmethod
    def _unused(self, since: datetime) -> set[str]:
        """Paths of files that no version since then refers to, as far as the table knows; written
        files that are not yet part of a version may be among them."""

    def close(self) -> None:  # noqa: B027
        """Forgets what has been read; the object may be used on, or sent to another process."""

    # Reading.

    def schema(self) -> pa.Schema:
        """The columns now."""
        return self.snapshot().schema

    def files(
        self, version: int | None = None, timestamp: datetime | None = None
    ) -> list[DataFile]:
        """The data files of the table now, or as `snapshot`."""
        return self.snapshot(version, timestamp).files

    def read(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        version: int | None = None,
        timestamp: datetime | None = None,
    ) -> pa.Table:
        """The rows, as an Arrow table in memory; in no particular order."""
        return reading.dataset(self.storage, self.snapshot(version, timestamp)).to_table(
            columns=None if columns is None else list(columns), filter=filter
        )

    def frame(
        self,
        spark: SparkSession,
        version: int | None = None,
        timestamp: datetime | None = None,
        filter: pc.Expression | None = None,
    ) -> DataFrame:
        """The rows as a DataFrame, read by Spark's own Parquet reader.

        `filter` leaves out whole files that can hold no such row; it does not filter rows.
        """
        snapshot = self.snapshot(version, timestamp)
        if filter is not None:
            snapshot = replace(snapshot, files=reading.pruned(self.storage, snapshot, filter))
        return reading.frame(spark, self.storage, snapshot)

    # Writing.

    def create(self, schema: pa.Schema) -> None:
        """Makes the table if there is none."""
        if not self.exists():
            self._made(plain(schema))

    def append(
        self, rows: Rows, application: str | None = None, version: int | None = None
    ) -> bool:
        """Adds rows. False if the table has that version of the application already."""
        tag = tagged(application, version)
        if self._known(tag):
            return False
        batches: Iterable[pa.RecordBatch | pa.Table] = (
            [rows] if isinstance(rows, pa.Table | pa.RecordBatch) else rows
        )
        schema = plain(rows.schema)
        tables = (
            fitted(batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch]), schema)
            for batch in batches
        )
        return self.add(write_rows(self.storage, self.layout(), tables), schema, tag)

    def add(
        self,
        files: Sequence[DataFile],
        schema: pa.Schema,
        tag: Tag | None = None,
        *,
        overwrite: bool = False,
    ) -> bool:
        """Commits files that `write_rows` has written; deletes them if the tag is there already.

        `overwrite` removes all earlier rows in the same commit.
        """

        def plan(base: TableSnapshot) -> Change:
            if overwrite:
                return Change("overwrite", files, base.files, tag)
            return Change("append", files, (), tag)

        return self._transaction(schema, tag, plan, files)

    def upsert(
        self,
        rows: Rows,
        keys: Sequence[str],
        application: str | None = None,
        version: int | None = None,
        combine: Combine | None = None,
    ) -> bool:
        """Replaces the rows that have the same keys, and adds the others, in one commit.

        `combine(old, new)` makes the rows that take the place of both: `old` are rows of the table,
        `new` those of `rows` with the same keys, both with all columns of the table, in its order.
        It is called for parts of the rows that have no key in common, once for those that are new
        (`old` is empty then), and again from the start after a lost race. Without it the new row
        replaces the old, and of new ones with the same key the last stays.

        False if the table has that version of the application already.
        """
        tag = tagged(application, version)
        if self._known(tag):
            return False
        given = (
            rows
            if isinstance(rows, pa.Table)
            else pa.Table.from_batches([rows])
            if isinstance(rows, pa.RecordBatch)
            else rows.read_all()
        )
        given = fitted(given, plain(given.schema))

        def plan(base: TableSnapshot) -> Change:
            adds, removes = upserted(
                self.storage, self.layout(base), base, fitted(given, base.schema), keys, combine
            )
            return Change("upsert", adds, removes, tag)

        return self._transaction(given.schema, tag, plan)

    def layout(self, base: TableSnapshot | None = None) -> Layout:
        """How files are to be written: as the table says, before it exists as this object does."""
        if base is None and self.exists():
            base = self.snapshot()
            if self.partitions and self.partitions != base.partitions:
                raise TableError(
                    f"the table in {self.storage.root} is partitioned by "
                    f"({', '.join(base.partitions)}), not by ({', '.join(self.partitions)}); that "
                    "cannot change"
                )
        partitions, sort = (
            (self.partitions, self.sort) if base is None else (base.partitions, base.sort)
        )
        return Layout(partitions, sort, self.data)

    def _known(self, tag: Tag | None) -> bool:
        if tag is None:
            return False
        latest = self.committed(tag.application)
        return latest is not None and latest >= tag.version

    def _made(self, schema: pa.Schema) -> None:
        unknown = {*self.partitions, *self.sort} - set(schema.names)
        if unknown:
            raise TableError(
                f"the table in {self.storage.root} is to be partitioned or sorted by "
                f"{', '.join(sorted(unknown))}, which the rows do not have"
            )
        try:
            self._create(schema)
        except Outrun:
            return

    def _transaction(
        self,
        schema: pa.Schema,
        tag: Tag | None,
        plan: Callable[[TableSnapshot], Change],
        written: Sequence[DataFile] = (),
    ) -> bool:
        if not self.exists():
            self._made(schema)
        for _ in range(ATTEMPTS):
            base = self.snapshot()
            if self._known(tag):
                self._discard(written, base)
                return False
            if new := added(base.schema, schema):
                with suppress(Outrun):
                    self._widen(base, new)
                continue
            change = plan(base)
            if not change.adds and not change.removes and tag is None:
                return True
            try:
                self._commit(base, change)
            except Outrun:
                if not written:
                    self._discard(change.adds, self.snapshot())
                continue
            return True
        raise TableConflict(
            f"other writers of {self.storage.root} came first {ATTEMPTS} times; nothing was written"
        )

    def _discard(self, files: Sequence[DataFile], base: TableSnapshot) -> None:
        """Deletes files unless the table refers to them: a commit may have arrived although its
        writer was told otherwise."""
        known = {file.path for file in base.files}
        for file in files:
            if file.path not in known:
                self.storage.remove(file.path)

    # Keeping it small.

    def compact(self, target_bytes: int = TARGET_BYTES) -> int:
        """Joins small neighbouring files of each partition into sorted ones of about
        `target_bytes`; the number of files that went. What others append meanwhile stays; what they
        rewrite meanwhile is left alone.
        """
        if not self.exists():
            return 0
        gone = 0
        first = self.snapshot()
        for group in planned(self.storage, first, target_bytes):
            made = joined(self.storage, self.layout(first), first, group)
            for _ in range(ATTEMPTS):
                base = self.snapshot()
                present = {file.path for file in base.files}
                if not all(file.path in present for file in group):
                    self._discard(made, base)
                    break
                try:
                    self._commit(base, Change("compact", made, group))
                except Outrun:
                    continue
                gone += len(group) - len(made)
                break
            else:
                raise TableConflict(
                    f"other writers of {self.storage.root} came first {ATTEMPTS} times; compaction "
                    "stopped, and may be started again"
                )
        return gone

    def vacuum(self, older_than: timedelta = timedelta(days=7)) -> list[str]:
        """Deletes data files that no version of that time refers to; their paths.

        Versions before that can no longer be read. `older_than` must be longer than any write or
        read takes: files that a running task has written are no part of the table yet.
        """
        if not self.exists():
            raise TableNotFound(f"there is no table in {self.storage.root}")
        limit = datetime.now(UTC) - older_than
        # Listed first: what is committed after this line is younger than the list.
        old = [file.path for file in self.storage.listed() if file.modified <= limit]
        unused = self._unused(limit)
        gone = [path for path in old if path in unused]
        for path in gone:
            self.storage.remove(path)
        return gone


def tagged(application: str | None, version: int | None) -> Tag | None:
    """The tag of a batch; ValueError for half a tag."""
    if application is None and version is None:
        return None
    if application is None or version is None or version < 0:
        raise ValueError("application and version (>= 0) go together")
    return Tag(application, version)
