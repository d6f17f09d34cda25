"""Delta tables of a lake: created, appended to and merged into by Spark, at a location.

Every write is tagged with an application and a version (Delta's `txn` action), so that a repeated
one has no effect, and the table itself stores the progress of each application.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.schema import quoted
from sluicemq.pipeline.session import is_local

_PROPERTIES: Final = {
    "delta.autoOptimize.autoCompact": "true",
    "delta.autoOptimize.optimizeWrite": "true",
}
"""Properties of every table."""
MANY_ROWS: Final = 100_000
"""Rows that an append on one machine writes without an exchange."""
INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for few rows: each task generates code again, even if that is compiled already.

That is half of the processor time of computing a table's state (with 8,000 files still a part), and
a third of that of the tasks of a merge of a few hundred rows. With 8,000 rows a merge takes as long
without it, and with 50,000 an eighth longer."""
CHANGE_DATA_FEED: Final = {"delta.enableChangeDataFeed": "true"}
"""Property of a table that keeps the rows that `LakeTable.changes` returns."""
RANDOM_FILE_PREFIXES: Final = {"delta.randomizeFilePrefixes": "true"}
"""Property of a table whose partitions may have any values, so that these name no directories."""
KEYS: Final = "sluicemq.keys"
"""Name in the metadata of a column that has the keys with which the table was created, as text."""
_NTZ: Final = "timestamp_ntz"
_FEED_COLUMNS: Final = ("_change_type", "_commit_version", "_commit_timestamp")
NO_COLUMNS: Final = StructType()


def skipping_statistics(*columns: str) -> dict[str, str]:
    """Return the property of a table that rows are selected from by these columns.

    Delta keeps their smallest and greatest values for each file, instead of those of the first 32
    columns, which costs a sixth of the time of a write.
    """
    return {"delta.dataSkippingStatsColumns": ",".join(columns)}


class Tag(NamedTuple):
    """Identity of a write: repeated writes with the same or a lower version have no effect."""

    application: str
    version: int


class TagState(NamedTuple):
    """Version of an application's last write, and its time."""

    version: int
    written: datetime


@dataclass(frozen=True)
class LakeTable:
    """Table at a location, which may not exist yet.

    name        its name in the lake, such as "silver.messages"
    location    path or URI
    schema      columns that `append` and `merge` write
    keys        columns that identify a row; () = rows are only appended
    partitions  columns by whose values the files are divided
    catalog     Spark catalog that has the table as CATALOG.NAME; "" = none
    properties  properties of Delta with which the table is created, besides those of every table
    """

    name: str
    location: str
    schema: StructType = NO_COLUMNS
    keys: Sequence[str] = ()
    partitions: Sequence[str] = ()
    catalog: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    def exists(self, spark: SparkSession) -> bool:
        return DeltaTable.isDeltaTable(spark, self.location)

    def register(self, spark: SparkSession) -> None:
        """Add the table to its catalog, if it exists and is not there yet.

        Raises ConfigurationError if the catalog has another table by this name, or rejects it.
        """
        if not self.catalog:
            return
        schema, name = self.name.split(".")
        schema = f"{quoted(self.catalog)}.{quoted(schema)}"
        name = f"{schema}.{quoted(name)}"
        try:
            if not spark.catalog.tableExists(name):
                if self.exists(spark):
                    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                    spark.catalog.createTable(name, self.location, "delta")
                return
            details = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
        except AnalysisException as error:
            reason = str(error).partition("\n")[0]
            raise ConfigurationError(f"--catalog {self.catalog}: {self.name}: {reason}") from error
        actual = {row["col_name"]: row["data_type"] for row in details}.get("Location", "a view")
        if actual != HadoopPath(spark, self.location).qualified():
            raise ConfigurationError(
                f"--catalog {self.catalog}: {self.name} is {actual} already, not {self.location}. "
                "One catalog has the tables of one lake: use another catalog, or none"
            )

    def evolve(self, spark: SparkSession, error_prefix: str) -> None:
        """Add the columns that the table does not have, if it exists.

        `error_prefix` begins errors. Raises ConfigurationError if a column has another type, or the
        table other partitions or keys.
        """
        if not self.exists(spark):
            return
        present = {item.name.lower(): item for item in self.read(spark).schema}
        additions = StructType()
        for item in self.schema:
            column = present.get(item.name.lower())
            if column is None:
                additions.add(item)
            elif column.dataType.simpleString() != item.dataType.simpleString():
                raise ConfigurationError(
                    f"{error_prefix}: the column {item.name} is "
                    f"{column.dataType.simpleString().upper()} in {self.name} and "
                    f"{item.dataType.simpleString().upper()} in the definition. A column "
                    "cannot change its type: give it another name, or the table"
                )
        partitions = str(self._snapshot(spark).metadata().partitionColumns().mkString(", "))
        keys = [item.metadata[KEYS] for item in present.values() if KEYS in item.metadata]
        for title, actual, declared in (
            ("partition_by", [partitions], ", ".join(self.partitions)),
            ("key", keys, ", ".join(self.keys)),
        ):
            if actual not in ([], [declared]):
                raise ConfigurationError(
                    f"{error_prefix}: {title} is {actual[0] or 'none'} in {self.name} and "
                    f"{declared or 'none'} in the definition. It cannot change: give the table "
                    "another name, or remove it"
                )
        if additions.fields:
            self._allow_types(spark, additions)
            ddl = additions.toDDL()
            spark.sql(f"ALTER TABLE delta.{quoted(self.location)} ADD COLUMNS ({ddl})")

    def _allow_types(self, spark: SparkSession, columns: StructType) -> None:
        """Enable the feature of Delta that some types require.

        Delta enables it by itself only in new tables. TIMESTAMP_NTZ is the only such type."""
        if _NTZ in columns.simpleString() and _NTZ not in self.read(spark).schema.simpleString():
            feature = "'delta.feature.timestampNtz' = 'supported'"
            spark.sql(f"ALTER TABLE delta.{quoted(self.location)} SET TBLPROPERTIES ({feature})")

    def read(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """Return the rows of the current version, or of an earlier one."""
        options = {} if version is None else {"versionAsOf": str(version)}
        return spark.read.format("delta").options(**options).load(self.location)

    def changes(
        self, spark: SparkSession, first: int, last: int, *, inserts_only: bool = False
    ) -> DataFrame:
        """Return the rows before and after each change of these versions (change data feed).

        With `inserts_only`, only the new rows."""
        rows = (
            spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", first)
            .option("endingVersion", last)
            .load(self.location)
        )
        return (rows.where("_change_type = 'insert'") if inserts_only else rows).drop(
            *_FEED_COLUMNS
        )

    def append(self, rows: DataFrame, tag: Tag | None, *, size: int = 0) -> None:
        """Append rows, and create the table if it does not exist.

        size  approximate number of rows; 0 = unknown, or the tasks have rows of many partitions
        """
        options = {}
        if size >= MANY_ROWS and is_local(rows.sparkSession):
            # a few tasks have many rows each; an optimised write would exchange all of them first
            options["optimizeWrite"] = "false"
        self._save(rows, "append", tag, options)

    def overwrite(self, rows: DataFrame, tag: Tag) -> None:
        """Replace the table's rows and columns, and create it if it does not exist."""
        if self.exists(rows.sparkSession):
            self._allow_types(rows.sparkSession, rows.schema)
        self._save(rows, "overwrite", tag, {"overwriteSchema": "true"})

    def _save(self, rows: DataFrame, mode: str, tag: Tag | None, options: dict[str, str]) -> None:
        spark = rows.sparkSession
        if tag is not None:
            options |= {"txnAppId": tag.application, "txnVersion": str(tag.version)}
        writer = rows.write.format("delta").mode(mode).options(**options)
        if self.exists(spark):
            self._computed_snapshot(spark)
            writer.save(self.location)
            return
        # refuses another lake's table of this name before anything is written
        self.register(spark)
        # one commit, whose state Spark computes, and not two
        writer = writer.options(**_PROPERTIES, **self.properties)
        writer.partitionBy(*self.partitions).save(self.location)
        self.register(spark)

    def merge(
        self,
        rows: DataFrame,
        combined_columns: Mapping[str, str] | None = None,
        tag: Tag | None = None,
        *,
        old_condition: str = "true",
        update_condition: str | None = None,
        delete_condition: str = "",
        null_keys: bool = False,
    ) -> None:
        """Replace the rows with the same keys, and insert the others.

        Columns of the table that `schema` does not have become NULL.

        combined_columns  SQL expressions of columns that depend on both rows, `old` and `new`; the
                          others take the values of `new`
        old_condition     SQL condition on the row `old` that all existing rows with these keys
                          fulfil: files without such rows are not read
        update_condition  SQL condition on the rows `old` and `new`: others leave the existing row
                          as it is
        delete_condition  SQL condition on the row `new`: it deletes the existing row, and is not
                          inserted
        null_keys         True if NULL is a key like any other, as in GROUP BY
        """
        spark = rows.sparkSession
        insert_condition = f"NOT ({delete_condition})" if delete_condition else "true"
        names = {name: quoted(name) for name in self.schema.names}
        if not self.exists(spark):
            self.append(rows.alias("new").where(insert_condition).select(*names.values()), tag)
            return
        insert: dict[str, str | Column] = {name: f.col(f"new.{name}") for name in names.values()}
        update: dict[str, str | Column] = {
            column: (combined_columns or {}).get(name, insert[column])
            for name, column in names.items()
            if name not in self.keys
        }
        table = DeltaTable.forPath(spark, self.location).alias("old")
        declared = {name.lower() for name in names}
        others = (name for name in table.toDF().columns if name.lower() not in declared)
        update |= {quoted(name): "NULL" for name in others}
        equal = "<=>" if null_keys else "="
        same_key = " AND ".join(f"old.{key} {equal} new.{key}" for key in map(quoted, self.keys))
        merge = table.merge(rows.alias("new"), f"({old_condition}) AND {same_key}")
        if delete_condition:
            merge = merge.whenMatchedDelete(
                f"({update_condition or 'true'}) AND ({delete_condition})"
            )
        merge = merge.whenMatchedUpdate(update_condition, update)
        merge = merge.whenNotMatchedInsert(insert_condition, insert)
        # a merge has no options of its own
        settings = {}
        if tag:
            self._computed_snapshot(spark)
            settings = {
                "spark.databricks.delta.write.txnAppId": tag.application,
                "spark.databricks.delta.write.txnVersion": str(tag.version),
            }
        with temporary_settings(spark, settings):
            merge.execute()

    def tags(self, spark: SparkSession) -> dict[str, TagState]:
        """Return the last tag of each application that wrote to the table."""
        return {
            str(tag.appId()): TagState(
                int(tag.version()),
                datetime.fromtimestamp(int(tag.lastUpdated().get()) / 1000, UTC),
            )
            for tag in scala_items(self._computed_snapshot(spark).setTransactions())
        }

    def tagged_version(self, spark: SparkSession, application: str) -> int:
        """Return the version of an application's last tag; -1 if it has none."""
        tag = self.tags(spark).get(application)
        return -1 if tag is None else tag.version

    def details(self, spark: SparkSession) -> Row:
        """Return Delta's description of an existing table (DESCRIBE DETAIL)."""
        return DeltaTable.forPath(spark, self.location).detail().collect()[0]

    def version(self, spark: SparkSession) -> int:
        """Return the number of the current version; -1 if the table does not exist."""
        return int(self._snapshot(spark).version())

    def identity(self, spark: SparkSession) -> str:
        """Return an existing table's id, which a table that is created again does not have."""
        return str(self._snapshot(spark).metadata().id())

    def _snapshot(self, spark: SparkSession) -> Any:
        """Return Delta's current snapshot; the tags are in no public interface of Python."""
        java: Any = spark
        log = java._jvm.org.apache.spark.sql.delta.DeltaLog
        empty = java._jvm.scala.Option.empty()
        return log.forTable(java._jsparkSession, self.location).update(False, empty, empty)

    def _computed_snapshot(self, spark: SparkSession) -> Any:
        """Return Delta's current snapshot, its state computed without generated code.

        Delta keeps that state, and looks a tag up in it before it writes: so writes call this
        first, which computes it at a lower cost (INTERPRETED).
        """
        snapshot = self._snapshot(spark)
        with temporary_settings(spark, INTERPRETED):
            snapshot.setTransactions()
        return snapshot


def scala_items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


@contextmanager
def temporary_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session within this context."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, previous in before.items():
            if previous is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, previous)


class HadoopPath:
    """File or directory of a lake, whose file system need not be local."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        java: Any = spark
        self._jvm = java._jvm
        self._path = self._jvm.org.apache.hadoop.fs.Path(location)
        configuration = java._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path.getFileSystem(configuration)

    def exists(self) -> bool:
        return bool(self._files.exists(self._path))

    def names(self) -> list[str]:
        """Return the names in a directory; empty if there is none."""
        if not self.exists():
            return []
        return [status.getPath().getName() for status in self._files.listStatus(self._path)]

    def read_text(self) -> str:
        with closing(self._files.open(self._path)) as stream:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))

    def remove(self) -> None:
        """Remove a file, or a directory with everything in it."""
        self._files.delete(self._path, True)

    def qualified(self) -> str:
        """Return the location as a URI with its scheme, as catalogs show it."""
        return str(self._files.makeQualified(self._path).toString())
