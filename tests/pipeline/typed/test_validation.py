"""Checks of a definition with Spark: all errors at once, with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluicemq.pipeline.typed.definition import DefinitionError, parse_definition
from sluicemq.pipeline.typed.rows import declared_columns
from sluicemq.pipeline.typed.validation import check
from tests.pipeline.typed.test_definition import COMPLETE

TABLE = """\
[[table]]
name = "orders"
destination = "orders"
schema = "id BIGINT, amount DECIMAL(10,2), customer STRING, tags ARRAY<STRING>"
"""


def problems(spark: SparkSession, text: str) -> list[str]:
    with pytest.raises(DefinitionError) as raised:
        check(spark, parse_definition(text))
    return str(raised.value).split("\n")


def test_complete_definition_is_accepted(spark: SparkSession) -> None:
    check(spark, parse_definition(COMPLETE))


def test_columns_of_json_schema_are_accepted(spark: SparkSession, tmp_path: Path) -> None:
    schema = '{"properties": {"id": {"type": "integer"}, "a`b": {"type": "string"}}}'
    (tmp_path / "orders.json").write_text(schema)
    text = '[[table]]\nname = "orders"\ndestination = "orders"\nschema_file = "orders.json"\n'
    definition = parse_definition(text, tmp_path / "pipeline.toml")
    check(spark, definition)
    (table,) = definition.tables
    assert declared_columns(table).simpleString() == "struct<id:bigint,a`b:string>"


def test_all_errors_of_tables_are_reported_at_once(spark: SparkSession) -> None:
    text = f"""{TABLE}
key = ["number", "tags"]
delete = "amount +"
[[table.expect]]
name = "a"
check = "amont > 0"
[[table.expect]]
name = "b"
check = "amount"
[[table.expect]]
name = "c"
check = "sum(amount) > 0"

[[table]]
name = "inferred"
destination = "x"
schema = "infer"

[[table]]
name = "unparsed"
destination = "x"
schema = "id BIGIN"

[[table]]
name = "note"
destination = "x"
format = "text"
schema = "_a STRING, A INT, a INT"
"""
    reported = problems(spark, text)
    starts = [
        "pipeline.toml:1: table 'orders', delete: [PARSE_SYNTAX_ERROR]",
        "pipeline.toml:1: table 'orders': key 'number' is not among the columns "
        "id, amount, customer, tags",
        "pipeline.toml:1: table 'orders': key 'tags' is nested, which cannot be compared",
        "pipeline.toml:8: table 'orders', expectation 'a': [UNRESOLVED_COLUMN",
        "pipeline.toml:11: table 'orders', expectation 'b': the condition is DECIMAL(10,2), not",
        "pipeline.toml:14: table 'orders', expectation 'c': [INVALID_WHERE_CONDITION]",
        "pipeline.toml:18: table 'inferred': the schema is not inferred yet: run sluicemq pipeline",
        "pipeline.toml:23: table 'unparsed': schema is not DDL",
        "pipeline.toml:28: table 'note': format text has one column of type STRING",
        "pipeline.toml:28: table 'note': the column _a has a name that begins with _, as only",
        "pipeline.toml:28: table 'note': the column a is declared twice",
    ]
    assert len(reported) == len(starts), reported
    for problem, start in zip(reported, starts, strict=True):
        assert problem.startswith(start)


def test_partitions_are_of_no_binary_column(spark: SparkSession) -> None:
    text = '[[table]]\nname = "a"\ndestination = "a"\nschema = "id BINARY"\npartition_by = ["id"]\n'
    (problem,) = problems(spark, text)
    assert problem.startswith("pipeline.toml:1: table 'a': partition_by 'id' is BINARY")


def test_table_with_key_has_no_backtick_in_name_of_column(spark: SparkSession) -> None:
    text = '[[table]]\nname = "a"\ndestination = "a"\nschema = "id INT, `a``b` INT"\n'
    check(spark, parse_definition(text))
    (problem,) = problems(spark, text + 'key = ["id"]\n')
    assert problem.startswith("pipeline.toml:1: table 'a': the column a`b: with a key, Delta")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("`order id` BIGINT", "order id: the name 'order id' has a blank or one of ,;{}()=, which"),
        ("tags ARRAY<STRUCT<`a=b`: INT>>", "tags: the name 'a=b' has a blank or one of"),
        ("s ARRAY<STRUCT<x: INT, X: INT>>", "s: the field X is declared twice"),
        ("code VARCHAR(20)", "code: tables have no type VARCHAR(20)"),
        ("code MAP<STRING, CHAR(3)>", "code: tables have no type CHAR(3)"),
        ("code STRING COLLATE UNICODE_CI", "code: tables have no type STRING COLLATE UNICODE_CI"),
        ("code VOID", "code: tables have no type VOID"),
        ("place ARRAY<GEOMETRY(4326)>", "place: tables have no type GEOMETRY(4326)"),
        ("codes MAP<INT, STRING>", "codes: the keys of a MAP are of type STRING"),
        ("id BIGINT NOT NULL", "id: NOT NULL is not checked: declare an expectation instead"),
    ],
)
def test_columns_that_no_table_can_have(spark: SparkSession, columns: str, expected: str) -> None:
    text = f'[[table]]\nname = "orders"\ndestination = "orders"\nschema = "{columns}"\n'
    (problem,) = problems(spark, text)
    assert problem.startswith(f"pipeline.toml:1: table 'orders': the column {expected}")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT customer FROM silver.orders GROUP BY customer HAVING sum(amount) > 1", "the form"),
        ("SELECT DISTINCT customer FROM silver.orders", "Distinct"),
        ("SELECT customer, amount FROM silver.orders", "without Project"),
        ("SELECT customer, amount FROM silver.orders GROUP BY customer, amount", "keys must name"),
        ("SELECT max(customer) AS customer FROM silver.orders GROUP BY id", "keys must name"),
        (
            "SELECT customer, max(current_date()) AS d FROM silver.orders GROUP BY customer",
            "change",
        ),
        (
            "SELECT customer, count(*) AS n FROM silver.orders "
            "WHERE unix_timestamp(_time) > unix_timestamp() - 3600 GROUP BY customer",
            "the result changes",
        ),
        (
            "SELECT customer, count(*) AS n FROM silver.orders WHERE _time > TIMESTAMP 'today' "
            "GROUP BY customer",
            "the result changes",
        ),
        (
            "SELECT customer, count(*) AS n FROM silver.orders WHERE shuffle(tags)[0] = 'a' "
            "GROUP BY customer",
            "the result changes",
        ),
        (
            "SELECT a.customer, count(*) AS n FROM silver.orders a JOIN silver.orders b USING (id) "
            "GROUP BY a.customer",
            "exactly one table",
        ),
        (
            "SELECT customer, count(*) AS n FROM (SELECT * FROM silver.orders LIMIT 5) "
            "GROUP BY customer",
            "no subquery",
        ),
        (
            "SELECT customer, count(*) AS n FROM silver.orders JOIN range(3) GROUP BY customer",
            "Join",
        ),
        (
            "SELECT customer, count(*) AS n FROM bronze.events GROUP BY customer "
            "HAVING count(*) > 1",
            "exactly one table, silver.NAME",
        ),
        (
            "SELECT o.customer, count(*) AS n FROM silver.orders o JOIN silver.messages m "
            "ON m.message_sequence = o._sequence GROUP BY o.customer",
            "exactly one table, silver.NAME",
        ),
        ("SELECT id FROM silver.orders GROUP BY id", "'customer' is not among the columns id"),
        ("SELECT customer FROM silver.other GROUP BY customer", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT customer FROM (", "PARSE_SYNTAX_ERROR"),
    ],
)
def test_query_that_cannot_be_refreshed_incrementally(
    spark: SparkSession, sql: str, expected: str
) -> None:
    text = f"""{TABLE}
[[gold]]
name = "turnover"
sql = "{sql}"
keys = ["customer"]
refresh = "incremental"
"""
    (problem,) = problems(spark, text)
    assert problem.startswith("pipeline.toml:6: gold table 'turnover': ")
    assert expected in problem


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("sum(amount)", "the column sum(amount): the name 'sum(amount)' has a blank or one of"),
        ("sum(amount) AS n, count(*) AS N", "two columns of the result are named N (case"),
        ("max(_time) - min(_time) AS age", "the column age: tables have no type INTERVAL DAY"),
        ("struct(count(*) AS n, max(id) AS N) AS s", "the column s: the field N is declared"),
    ],
)
def test_result_that_no_table_can_have(spark: SparkSession, columns: str, expected: str) -> None:
    sql = f"SELECT customer, {columns} FROM silver.orders GROUP BY customer"
    (problem,) = problems(spark, f'{TABLE}[[gold]]\nname = "n"\nsql = "{sql}"\n')
    assert problem.startswith(f"pipeline.toml:5: gold table 'n': {expected}")


def test_names_and_texts_do_not_make_a_query_depend_on_the_time(spark: SparkSession) -> None:
    text = """
[[table]]
name = "accounts"
destination = "accounts"
schema = "id BIGINT, current_balance DECIMAL(10,2)"
[[gold]]
name = "balances"
sql = "SELECT id, sum(current_balance) AS b, 'now()' AS t FROM silver.accounts GROUP BY id"
keys = ["id"]
refresh = "incremental"
"""
    check(spark, parse_definition(text))


def test_incremental_query_without_groups(spark: SparkSession) -> None:
    gold = '[[gold]]\nname = "n"\nsql = "SELECT count(*) AS n FROM silver.orders"\nkeys = []\n'
    check(spark, parse_definition(TABLE + gold))
    (problem,) = problems(spark, TABLE + gold + 'refresh = "incremental"\n')
    assert problem.startswith("pipeline.toml:5: gold table 'n': an incremental query has GROUP BY")


@pytest.mark.parametrize("alias", ["silver", "`silver`"])
def test_alias_that_is_name_of_layer(spark: SparkSession, alias: str) -> None:
    sql = f"SELECT silver.customer, count(*) AS n FROM silver.orders AS {alias} GROUP BY customer"
    (problem,) = problems(spark, f'{TABLE}[[gold]]\nname = "n"\nsql = "{sql}"\n')
    assert problem.startswith("pipeline.toml:5: gold table 'n': silver.NAME means a table of")


def test_query_over_other_tables_of_lake_is_checked_when_it_is_refreshed(
    spark: SparkSession,
) -> None:
    gold = '[[gold]]\nname = "x"\nsql = "SELECT * FROM silver.messages"\n'
    check(spark, parse_definition(TABLE + gold))
