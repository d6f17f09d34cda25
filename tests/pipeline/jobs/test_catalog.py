"""Tables of a lake by their names in a Spark catalog."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.jobs.lake import LAYERS, Lake
from sluicemq.pipeline.typed.definition import Definition, GoldTable, TypedTable
from sluicemq.pipeline.typed.tables import process
from tests.pipeline.typed.lakes import LakeDirectory, batch

ORDERS = TypedTable(name="orders", destination="orders", schema="id BIGINT", key=("id",))
IDS = GoldTable(name="ids", sql="SELECT count(*) AS ids FROM silver.orders", keys=())
DEFINITION = Definition(tables=(ORDERS,), gold=(IDS,))


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """The catalog of the session, which is empty before and afterwards."""
    for layer in LAYERS:
        spark.sql(f"CREATE SCHEMA {layer} LOCATION '{tmp_path}/warehouse/{layer}'")
    yield "spark_catalog"
    for layer in LAYERS:
        spark.sql(f"DROP SCHEMA {layer} CASCADE")


def names(spark: SparkSession) -> list[str]:
    """Return the tables of the layers; Spark lists the session's temporary views with each."""
    tables = [(layer, spark.sql(f"SHOW TABLES IN {layer}").collect()) for layer in LAYERS]
    return sorted(
        f"{layer}.{row['tableName']}"
        for layer, rows in tables
        for row in rows
        if not row["isTemporary"]
    )


def test_all_tables_are_found_by_name(spark: SparkSession, tmp_path: Path, catalog: str) -> None:
    lake = LakeDirectory(tmp_path / "lake's", catalog=catalog)
    process(batch(spark, [b'{"id": 1}', b"{"], 1), DEFINITION, lake)
    assert names(spark) == [
        "gold.ids",
        "gold.typed_counts",
        "silver.orders",
        "silver.orders_quarantine",
    ]
    wider = replace(DEFINITION, tables=(replace(ORDERS, schema="id BIGINT, note STRING"),))
    process(batch(spark, [b'{"id": 2, "note": "n"}'], 3), wider, lake)
    table_rows = spark.table("spark_catalog.silver.orders").select("id", "note").collect()
    assert sorted(map(tuple, table_rows)) == [(1, None), (2, "n")]
    assert spark.table("gold.ids").collect() == lake.read(spark, "gold.ids").collect()


def test_catalog_has_tables_of_one_lake(spark: SparkSession, tmp_path: Path, catalog: str) -> None:
    first, second = (LakeDirectory(tmp_path / name, catalog=catalog) for name in "12")
    process(batch(spark, [b'{"id": 1}'], 1), DEFINITION, first)
    location = first.table("silver.orders").location
    text = f"silver.orders is file:{location} already, not {second.location}"
    with pytest.raises(ConfigurationError, match=text):
        process(batch(spark, [b'{"id": 2}'], 1), DEFINITION, second)
    assert not second.table("silver.orders").exists(spark)
    # without a catalog, any number of lakes
    process(batch(spark, [b'{"id": 2}'], 1), DEFINITION, LakeDirectory(tmp_path / "2"))
    assert spark.table("silver.orders").select("id").collect()[0]["id"] == 1
    # before a lake has any table, those that the pipeline will create are checked
    first.anomalies.append(spark.createDataFrame([], first.anomalies.schema), None)
    with pytest.raises(ConfigurationError, match=r"gold\.anomalies is"):
        Lake(tmp_path / "3", catalog=catalog).register(spark)
