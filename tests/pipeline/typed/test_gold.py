"""Gold tables: every incremental refresh equals the full recomputation."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import ConcurrentAppendException
from pyspark.sql import SparkSession

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.delta import LakeTable
from sluicemq.pipeline.typed.definition import Definition, GoldTable, Refresh, TypedTable
from sluicemq.pipeline.typed.gold import query, references, refresh_gold
from sluicemq.pipeline.typed.tables import process
from tests.pipeline.typed.lakes import LakeDirectory, batch

ORDERS = TypedTable(
    name="orders",
    destination="orders",
    schema="id BIGINT, amount DECIMAL(10,2), customer STRING, country STRING",
    key=("id",),
    delete="amount IS NULL",
)
TURNOVER = GoldTable(
    name="turnover",
    sql="SELECT customer, sum(amount) AS amount, count(*) AS orders FROM silver.orders "
    "GROUP BY customer",
    keys=("customer",),
    refresh=Refresh.INCREMENTAL,
)
LARGE = GoldTable(
    name="large",
    sql="""
        -- silver.orders in a comment is no reference
        SELECT upper(o.country) AS country, o.customer, max(o.amount) AS amount,
            'silver.orders' AS t
        FROM silver.orders o WHERE o.amount > 20 GROUP BY upper(o.country), o.customer
    """,
    keys=("country", "customer"),
    refresh=Refresh.INCREMENTAL,
)
DEFINITION = Definition(tables=(ORDERS,), gold=(TURNOVER, LARGE))


def order(id: int, amount: int, customer: str | None, country: str = "de") -> bytes:
    name = "null" if customer is None else f'"{customer}"'
    return (
        f'{{"id": {id}, "amount": {amount}, "customer": {name}, "country": "{country}"}}'.encode()
    )


def deletion(id: int) -> bytes:
    return f'{{"id": {id}}}'.encode()


def recomputed(spark: SparkSession, lake: LakeDirectory, gold: GoldTable) -> list[tuple[Any, ...]]:
    result = query(spark, gold.sql, {"silver.orders": lake.read(spark, "silver.orders")})
    return sorted((tuple(row) for row in result.collect()), key=str)


def gold_versions(spark: SparkSession, lake: LakeDirectory, *names: str) -> list[int]:
    """The number of each table's current version, which a refresh increases."""
    return [lake.table(f"gold.{name}").version(spark) for name in names]


def test_incremental_refresh_equals_recomputation(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeDirectory(tmp_path)
    choose = random.Random(7)

    def random_order(id: int) -> bytes:
        return order(id, choose.randrange(50), choose.choice(["x", "y", "z", None]))

    batches = [
        [
            *(order(1, 10, "a"), order(2, 30, "b"), order(3, 40, None), order(4, 50, None, "fr")),
            *(order(id, 5 * id - 40, "xyz"[id % 3]) for id in range(10, 22)),
        ],
        # an update in a group, a row that moves to another group, one that falls below WHERE
        [order(1, 11, "a"), order(2, 30, "c"), order(4, 5, None, "fr")],
        # emptied groups, also that of NULL; a new group
        [deletion(1), deletion(3), deletion(4), order(5, 60, "d")],
        [order(1, 70, "a"), deletion(5)],
        [b"{"],
        # random changes of most rows, several of some
        [
            deletion(id) if choose.random() < 0.4 else random_order(id)
            for id in (choose.randrange(10, 22) for _ in range(20))
        ],
    ]
    first = 1
    for bodies in batches:
        process(batch(spark, bodies, first), DEFINITION, lake)
        first += len(bodies)
        for gold in DEFINITION.gold:
            assert lake.rows(spark, f"gold.{gold.name}", "*") == recomputed(spark, lake, gold)
    operations = spark.sql(f"DESCRIBE HISTORY delta.`{lake.table('gold.turnover').location}`")
    kinds = {row["operation"] for row in operations.collect() if row["version"] > 0}
    assert "MERGE" in kinds
    assert "WRITE" not in kinds


def test_interrupted_refresh_is_repeated_and_done_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeDirectory(tmp_path)
    process(batch(spark, [order(1, 10, "a"), order(2, 20, "b")], 1), DEFINITION, lake)
    second = batch(spark, [order(1, 11, "a"), deletion(2)], 3)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sluicemq.pipeline.typed.gold._GoldWriter.refresh", killed)
        with pytest.raises(KeyboardInterrupt):
            process(second, DEFINITION, lake)
    for _ in range(2):
        process(second, DEFINITION, lake)
        assert gold_versions(spark, lake, "turnover", "large") == [1, 1]
    assert lake.rows(spark, "gold.turnover", "*") == recomputed(spark, lake, TURNOVER)
    counts = lake.rows(spark, "gold.typed_counts", "table", "last_sequence", "messages", "deleted")
    assert counts == [("orders", 2, 2, 0), ("orders", 4, 2, 1)]


def test_another_query_is_recomputed_and_so_is_former_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = LakeDirectory(tmp_path)
    process(batch(spark, [order(1, 10, "a"), order(2, 20, "b")], 1), DEFINITION, lake)
    other = GoldTable(
        name="turnover",
        sql="SELECT country, count(*) AS orders FROM silver.orders GROUP BY country",
        keys=("country",),
        refresh=Refresh.INCREMENTAL,
    )
    for version, gold in ((1, other), (2, TURNOVER)):
        refresh_gold(spark, Definition(gold=(gold,)), lake)
        assert gold_versions(spark, lake, "turnover") == [version]
        assert lake.rows(spark, "gold.turnover", "*") == recomputed(spark, lake, gold)


def test_lost_change_data_feed_leads_to_full_refresh(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeDirectory(tmp_path)
    process(batch(spark, [order(1, 10, "a"), order(2, 20, "b")], 1), DEFINITION, lake)
    process(batch(spark, [order(1, 11, "a")], 3), Definition(tables=(ORDERS,)), lake)
    for name in ("false", "true"):
        spark.sql(
            f"ALTER TABLE delta.`{lake.table('silver.orders').location}` "
            f"SET TBLPROPERTIES (delta.enableChangeDataFeed = {name})"
        )
    refresh_gold(spark, DEFINITION, lake)
    assert gold_versions(spark, lake, "turnover", "large") == [1, 1]
    assert lake.rows(spark, "gold.turnover", "*") == recomputed(spark, lake, TURNOVER)


def test_full_refresh_reads_several_tables_of_its_own_lake(
    spark: SparkSession, tmp_path: Path
) -> None:
    joined = GoldTable(
        name="joined",
        sql="SELECT o.id, t.amount FROM silver.orders o JOIN gold.turnover t USING (customer)",
        keys=("id",),
    )
    definition = Definition(tables=(ORDERS,), gold=(TURNOVER, joined))
    for number in (1, 2):
        lake = LakeDirectory(tmp_path / str(number))
        assert process(batch(spark, [], 1), definition, lake) == {}
        assert not lake.table("gold.turnover").exists(spark)
        process(batch(spark, [order(number, 10, "a")], 1), definition, lake)
        assert lake.rows(spark, "gold.joined", "id") == [(number,)]
    refresh_gold(spark, definition, lake)
    assert gold_versions(spark, lake, "turnover", "joined") == [0, 0]


def test_gold_tables_wait_for_tables_that_they_read(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeDirectory(tmp_path)
    best = GoldTable(name="best", sql="SELECT max(amount) AS amount FROM gold.turnover")
    traffic = GoldTable(name="busy", sql="SELECT destination FROM gold.traffic")
    definition = Definition(tables=(ORDERS,), gold=(best, traffic, TURNOVER))
    process(batch(spark, [order(1, 10, "a")], 1), definition, lake)
    assert lake.rows(spark, "gold.best", "int(amount)") == [(10,)]
    assert not lake.table("gold.busy").exists(spark)
    spark.sql("SELECT 'orders' AS destination").write.format("delta").save(lake.gold.location)
    refresh_gold(spark, definition, lake)
    assert lake.rows(spark, "gold.busy", "*") == [("orders",)]


def test_gold_tables_that_read_each_other(spark: SparkSession, tmp_path: Path) -> None:
    gold = [GoldTable(name=a, sql=f"SELECT * FROM gold.{b}") for a, b in ("xy", "yx")]
    with pytest.raises(ConfigurationError, match=r"gold tables read each other: gold\.[xy], "):
        refresh_gold(spark, Definition(gold=tuple(gold)), LakeDirectory(tmp_path))


def test_query_that_spark_rejects_names_table(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeDirectory(tmp_path)
    invalid = GoldTable(name="wrong", sql="SELECT nothing FROM silver.orders", keys=(), line=9)
    definition = Definition(tables=(ORDERS,), gold=(invalid,))
    with pytest.raises(
        ConfigurationError, match=r"pipeline\.toml:9: gold table 'wrong': .*nothing"
    ):
        process(batch(spark, [order(1, 10, "a")], 1), definition, lake)


def test_conflict_with_another_commit_is_no_error_of_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conflict(*_: object) -> None:
        # as Delta raises it: without a condition of Spark's
        raise ConcurrentAppendException("[DELTA_CONCURRENT_APPEND] Transaction conflict detected.")

    lake = LakeDirectory(tmp_path)
    process(batch(spark, [order(1, 10, "a")], 1), Definition(tables=(ORDERS,)), lake)
    monkeypatch.setattr(LakeTable, "overwrite", conflict)
    with pytest.raises(ConcurrentAppendException):
        refresh_gold(spark, DEFINITION, lake)


def test_braces_of_query_stay_and_no_view_is_left(spark: SparkSession) -> None:
    orders = spark.createDataFrame([(1,)], "id BIGINT")
    sql = """SELECT o.id, '{"a": 1}' AS json, '{silver.orders}' AS t FROM silver.orders o"""
    expected = [(1, '{"a": 1}', "{silver.orders}")]
    assert query(spark, sql, {"silver.orders": orders}).collect() == expected
    assert query(spark, "SELECT '{}' AS json", {}).collect() == [("{}",)]
    assert spark.catalog.listTables(pattern="_pyspark_*") == []


def test_references_are_names_of_tables_only() -> None:
    sql = """
        SELECT 'silver.a', "silver.b", silver.orders.id, `silver.c` -- silver.d
        FROM silver.orders JOIN other.silver.e /* silver.f */ JOIN `Silver`.`Notes`
    """
    assert references(sql) == ["silver.orders", "silver.orders", "silver.notes"]
