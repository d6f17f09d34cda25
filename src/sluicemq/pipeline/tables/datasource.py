"""`format("sluicemq-table")`: DataFrames into tables, exactly once per batch.

    executors   write_rows -> data files -> Written(files)
    driver      commit: all files of all tasks in one transaction, tagged (application, version)

What a lost task, a second attempt or a speculative copy has written is named by no message, so it
is never part of the table; `vacuum` deletes it.

Options, besides `path`:

    format          delta (default), iceberg or parquet
    partitionBy     partition columns of a new table, comma-separated
    sortBy          columns by which the files of a new table are sorted, comma-separated
    txnAppId        application id of the write; default for a stream: its query id
    txnVersion      version of a batch write, >= 0; each version of an application is written once.
                    Streams use the batch id
    storage.NAME    credentials and the like for object storage
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.tables import Table, Tag, table
from sluicemq.pipeline.tables.columns import added, fitted, plain
from sluicemq.pipeline.tables.files import DataFile, write_rows
from sluicemq.pipeline.tables.table import tagged

_QUERY = "sql.streaming.queryId"
_OPTIONS = {
    name.lower(): name
    for name in ("path", "format", "partitionBy", "sortBy", "txnAppId", "txnVersion")
}
"""Names of the options; Spark compares them in lower case."""
_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Spark hands these of its own on."""


@dataclass
class TableCommitMessage(WriterCommitMessage):
    """What one task has written. query: id of the streaming query that it belongs to."""

    files: list[DataFile]
    query: str | None


class _Job:
    """What both writers share; travels to the executors."""

    def __init__(self, options: dict[str, str], schema: StructType, overwrite: bool) -> None:
        given = {name.lower(): value for name, value in options.items()}
        storage = {
            name.removeprefix("storage."): value
            for name, value in given.items()
            if name.startswith("storage.")
        }
        unknown = {name for name in given if not name.startswith("storage.")} - {*_OPTIONS} - _SPARK
        if unknown:
            raise ConfigurationError(
                f'format("sluicemq-table") has no option {", ".join(sorted(unknown))}; '
                f"it has {', '.join(_OPTIONS.values())} and storage.NAME"
            )
        if "path" not in given:
            raise ConfigurationError(
                'format("sluicemq-table") needs the option "path": the directory of the table'
            )
        self.table: Table = table(
            given.get("format", "delta"),
            given["path"],
            partitions=_names(given.get("partitionby")),
            sort=_names(given.get("sortby")),
            storage_options=storage,
        )
        self.application = given.get("txnappid")
        self.version = _number(given.get("txnversion"))
        self.schema = plain(to_arrow_schema(schema, timezone="UTC"))
        self.overwrite = overwrite
        self.layout = self.table.layout()
        if self.table.exists():
            # Before any row is written rather than after all of them.
            added(self.table.schema(), self.schema)
        self.table.close()

    def write(self, batches: Iterator[pa.RecordBatch], query: str | None) -> TableCommitMessage:
        rows = (fitted(pa.Table.from_batches([batch]), self.schema) for batch in batches)
        return TableCommitMessage(write_rows(self.table.storage, self.layout, rows), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], tag: Tag | None) -> None:
        self.table.add(_files(messages), self.schema, tag, overwrite=self.overwrite)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        for file in _files(messages):
            self.table.storage.remove(file.path)


class TableBatchWriter(DataSourceArrowWriter):
    """df.write"""

    def __init__(self, options: dict[str, str], schema: StructType, overwrite: bool) -> None:
        self.job = _Job(options, schema, overwrite)
        self.tag = tagged(self.job.application, self.job.version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TableCommitMessage:
        return self.job.write(iterator, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.job.commit(messages, self.tag)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.job.abort(messages)


class TableStreamWriter(DataSourceStreamArrowWriter):
    """df.writeStream"""

    def __init__(self, options: dict[str, str], schema: StructType, overwrite: bool) -> None:
        self.job = _Job(options, schema, overwrite)
        if self.job.version is not None:
            raise ConfigurationError(
                'the option "txnVersion" is for batch writes: a stream numbers its batches itself'
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TableCommitMessage:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY)
        return self.job.write(iterator, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        queries = {message.query for message in messages if isinstance(message, TableCommitMessage)}
        application = self.job.application or next(iter(queries - {None}), None)
        if application is None:
            if not _files(messages):
                return
            raise ConfigurationError(
                'Spark does not tell which streaming query this is; set the option "txnAppId" '
                "to a name of the query that no other writer of the table has"
            )
        self.job.commit(messages, Tag(application, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.job.abort(messages)


class TableSource(DataSource):
    """Found by Spark under the name "sluicemq-table"."""

    @classmethod
    def name(cls) -> str:
        return "sluicemq-table"

    def writer(self, schema: StructType, overwrite: bool) -> TableBatchWriter:
        return TableBatchWriter(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:  # noqa: N802
        return TableStreamWriter(dict(self.options), schema, overwrite)

    def schema(self) -> StructType:
        raise ConfigurationError(_READ)

    def reader(self, schema: StructType) -> DataSourceReader:
        raise ConfigurationError(_READ)


_READ = (
    'format("sluicemq-table") writes only. Read with table(kind, path).frame(spark), which uses '
    "Spark's own Parquet reader"
)


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[DataFile]:
    return [
        file
        for message in messages
        if isinstance(message, TableCommitMessage)
        for file in message.files
    ]


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(
            f'the option "txnVersion" is a whole number from 0, not {text!r}'
        ) from None
