"""DataFrames into tables and back, by Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from sluicemq.pipeline.tables import Table, table
from sluicemq.pipeline.tables.datasource import TableSource
from tests.pipeline.tables.rows import COLUMNS, events, sorted_rows

Made = Callable[..., Table]


@pytest.fixture
def spark_tables(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(TableSource)
    return spark


def written(frame: DataFrame, lake: Table, mode: str = "append", **options: object) -> None:
    writer = frame.write.format("sluicemq-table").mode(mode).option("format", lake.kind)
    writer.options(sortBy="sequence", **options).save(lake.storage.root)


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows)


def test_batches_once_all_types_and_back(spark_tables: SparkSession, made: Made) -> None:
    spark = spark_tables
    lake = made()
    tag = {"txnAppId": "job", "partitionBy": "day, destination_partition"}
    rows = frame_of(spark, events(0, 30)).repartition(2)
    written(rows, lake, txnVersion=1, **tag)
    written(frame_of(spark, events(70, 30)), lake, txnVersion=1, **tag)
    assert lake.committed("job") == 1
    assert lake.snapshot().partitions == ("day", "destination_partition")
    assert lake.snapshot().sort == ("sequence",)
    assert sorted_rows(lake.read()) == sorted_rows(events(0, 30))

    lake.append(events(30, 2).append_column("state", pa.array(["a", "b"])))
    found = lake.frame(spark)
    assert found.columns == [*COLUMNS.names, "state"]
    back = found.toArrow()
    assert sorted_rows(back.drop_columns("state").cast(COLUMNS)) == sorted_rows(events(0, 32))
    wanted = found.where("destination_partition = '007'")
    assert [wanted.count(), found.count()] == [6, 32]
    first = lake.history()[-1].version
    assert lake.frame(spark, version=first).columns == COLUMNS.names
    assert lake.frame(spark, version=0 if lake.kind == "iceberg" else first).isEmpty()
    some = lake.frame(spark, filter=pc.field("destination_partition") == "007")
    assert sorted(row.sequence for row in some.select("sequence").collect()) == [
        2,
        7,
        12,
        17,
        22,
        27,
    ]

    written(frame_of(spark, events(5, 1)), lake, mode="overwrite")
    assert [row.sequence for row in lake.frame(spark).collect()] == [5]


def test_what_is_wrong_is_told_before_any_row_is_written(
    spark_tables: SparkSession, tmp_path: Path
) -> None:
    spark = spark_tables
    lake = table("delta", tmp_path / "t")
    lake.append(pa.table({"sequence": [1]}))
    rows = spark.sql("select 2L as sequence")
    with pytest.raises(AnalysisException, match="'sequence' is int64 in the table and string"):
        written(spark.sql("select 'a' as sequence"), lake)
    with pytest.raises(AnalysisException, match="no option colour"):
        written(rows, lake, colour="red")
    with pytest.raises(AnalysisException, match="not 'one'"):
        written(rows, lake, txnAppId="job", txnVersion="one")


def test_streams_by_query_and_batch(spark_tables: SparkSession, made: Made, tmp_path: Path) -> None:
    spark = spark_tables
    landing = tmp_path / "landing"
    lake = made()
    schema = "sequence bigint, name string"

    def run() -> str:
        query = (
            spark.readStream.schema(schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(landing))
            .writeStream.format("sluicemq-table")
            .option("format", lake.kind)
            .option("sortBy", "sequence")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(lake.storage.root)
        )
        query.awaitTermination()
        return str(query.id)

    for part in range(2):
        rows = pa.table({"sequence": [part], "name": [f"{part}"]})
        (landing / f"{part}").parent.mkdir(exist_ok=True)
        pq.write_table(rows, landing / f"{part}.parquet")
    query = run()
    assert lake.committed(query) == 1
    # A crash after the table's commit and before Spark's: Spark runs the batch again.
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    assert run() == query
    assert sorted(lake.read()["sequence"].to_pylist()) == [0, 1]
    assert len(list(Path(lake.storage.root).rglob("part-*.parquet"))) == 2


def test_delta_tables_that_others_compacted(spark_tables: SparkSession, tmp_path: Path) -> None:
    lake = table("delta", tmp_path / "t", partitions=("day",), sort=("sequence",))
    for batch in range(3):
        lake.append(events(batch * 10, 10))
    DeltaTable(tmp_path / "t").optimize.compact()
    lake.append(events(30, 2))
    assert any("day=" in file.path for file in lake.files())
    found = lake.frame(spark_tables).toArrow().cast(COLUMNS)
    assert sorted_rows(found) == sorted_rows(events(0, 32)) == sorted_rows(lake.read())
    lake.upsert(events(5, 30), ["sequence"])
    assert sorted_rows(lake.read()) == sorted_rows(events(0, 35))
