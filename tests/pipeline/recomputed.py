"""Comparison of every table of a lake with a recomputation from the journal.

    python -m tests.pipeline.recomputed LAKE DATA [DEFINITION]

DATA is the broker's data directory. Bronze, silver and gold are computed from all events at once by
the jobs' functions, typed tables by one batch into an empty lake, and gold tables of SQL from their
typed tables.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from sluicemq.pipeline.jobs.batch import bronze
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.jobs.run import identity
from sluicemq.pipeline.jobs.silver import silver
from sluicemq.pipeline.schema import BRONZE, GOLD, GOLD_KEYS, SILVER, SILVER_KEYS
from sluicemq.pipeline.session import SHORT_JOB, session
from sluicemq.pipeline.typed.definition import Definition, load_definition
from sluicemq.pipeline.typed.gold import query
from sluicemq.pipeline.typed.tables import process
from tests.pipeline.jobs.events import gold, rows
from tests.pipeline.typed.lakes import LakeDirectory

BRONZE_KEYS = ("sequence", "record_index")


def compare(spark: SparkSession, lake: Lake, data: Path, definition: Definition) -> dict[str, int]:
    """Compare all tables, and return the number of rows of each.

    Each layer is compared up to the record that it has reached: a running broker writes more.
    """
    journal = identity({"path": str(data)})

    def events(layer: str) -> DataFrame:
        end = lake.layer(layer).tagged_version(spark, lake.application(journal))
        assert end >= 0, f"{layer} is empty"
        source = spark.read.format("sluicemq").option("includeHeaders", "true")
        return source.option("events", "*").option("endingOffsets", str(end + 1)).load(str(data))

    counts = {}
    for layer, expected, schema, keys in (
        ("bronze", bronze(events("bronze"), lake.broker), BRONZE, BRONZE_KEYS),
        ("silver", silver(events("silver"), lake.broker), SILVER, SILVER_KEYS),
        ("gold", gold(events("gold"), lake.broker), GOLD, GOLD_KEYS),
    ):
        actual = rows(lake.layer(layer).read(spark), schema, keys)
        assert actual == rows(expected, schema, keys), layer
        counts[layer] = len(actual)
    if definition.tables:
        assert lake.directory is not None
        lake_directory = LakeDirectory(lake.directory, lake.broker)
        counts |= compare_typed(spark, lake_directory, events("bronze"), definition)
    return counts


def compare_typed(
    spark: SparkSession, lake: LakeDirectory, events: DataFrame, definition: Definition
) -> dict[str, int]:
    """Compare typed tables, their quarantines and the gold tables of the definition."""
    counts = {}
    with tempfile.TemporaryDirectory() as directory:
        recomputed_lake = LakeDirectory(Path(directory), lake.broker)
        process(events.persist(), definition, recomputed_lake)
        for table in definition.tables:
            for name in (f"silver.{table.name}", f"silver.{table.name}_quarantine"):
                if (
                    Path(recomputed_lake.table(name).location).exists()
                    or Path(lake.table(name).location).exists()
                ):
                    actual = lake.rows(spark, name, "*")
                    assert actual == recomputed_lake.rows(spark, name, "*"), name
                    counts[name] = len(actual)
        events.unpersist()
    tables = [f"silver.{typed_table.name}" for typed_table in definition.tables]
    for gold_table in definition.gold:
        sources = {name: lake.read(spark, name) for name in tables}
        expected = query(spark, gold_table.sql, sources)
        columns = [f"`{name}`" for name in expected.columns]
        actual = lake.rows(spark, f"gold.{gold_table.name}", *columns)
        assert actual == sorted((tuple(row) for row in expected.collect()), key=str), (
            gold_table.name
        )
        counts[f"gold.{gold_table.name}"] = len(actual)
    return counts


def main(lake: str, data: str, definition: str = "") -> None:
    declared = load_definition(Path(definition)) if definition else Definition()
    spark = session("comparison", {"spark.driver.extraJavaOptions": SHORT_JOB})
    spark.sparkContext.setLogLevel("ERROR")
    print(compare(spark, Lake(lake), Path(data), declared))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
