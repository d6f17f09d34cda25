"""Gold tables from the user's SQL: full and incremental refresh.

In a query `silver.NAME` means the table of this lake, whatever the session's catalog has by that
name: each such name is replaced by a parameter, a DataFrame of one version of the table.

Incremental refresh of a query of the form SELECT ... FROM silver.NAME WHERE ... GROUP BY keys:

    1. the change data feed since the last refresh gives all rows before and after their changes;
    2. the query itself, over these rows, gives the keys of the groups that may have changed;
    3. the query over the whole table, limited to these keys, gives their new values;
    4. one merge updates and inserts them, and deletes those that are gone.

A refresh is tagged with the version of the source that it has processed, so a repeated one has no
effect. The tag also names the query: another query starts with a full refresh.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Set
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.delta import Tag, scala_items
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.schema import quoted
from sluicemq.pipeline.session import cached
from sluicemq.pipeline.typed.definition import RESERVED_GOLD, Definition, GoldTable, Refresh

_REFERENCES: Final = re.compile(
    r"""
      '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*"       # texts
    | --[^\n]* | /\*.*?\*/                        # comments
    | (?<![\w.`])(?P<tick>`?)(?P<layer>bronze|silver|gold)(?P=tick)
      \s*\.\s*(?P<name>`\w+`|\w+)                 # a table of the lake, perhaps
    | `(?:[^`]|``)*`                              # other quoted names
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_TIME_WORDS: Final = re.compile(
    r"\b(?:date|timestamp\w*)\s*'\s*(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE
)
"""Literals that Spark replaces by the present time before its analysis."""
_ROW_BY_ROW: Final = frozenset({"Project", "Filter", "SubqueryAlias", "View", "Generate"})
"""Operators below the aggregation that treat each row by itself."""
_PRESENT: Final = "_present"
_PIPELINE_TABLES: Final = frozenset({"bronze.events", *(f"gold.{name}" for name in RESERVED_GOLD)})
"""Tables besides silver's that the pipeline itself writes, perhaps after the first refresh."""

_log: Final = logging.getLogger(__name__)


def refresh_gold(spark: SparkSession, definition: Definition, lake: Lake) -> None:
    """Bring all gold tables of the definition up to date, each after those that it reads.

    A table whose sources do not exist yet is left out. Raises ConfigurationError for a query that
    Spark rejects, and for tables that read each other.
    """
    tables = {f"gold.{gold.name}": gold for gold in definition.gold}
    dependencies = {
        name: tables.keys() & {*references(gold.sql)} - {name} for name, gold in tables.items()
    }
    try:
        order = tuple(TopologicalSorter(dependencies).static_order())
    except CycleError as error:
        raise ConfigurationError(
            f"{definition.path}: gold tables read each other: {', '.join(error.args[1])}"
        ) from None
    for name in order:
        gold = tables[name]
        try:
            _GoldWriter(spark, gold, lake, {*_PIPELINE_TABLES, *dependencies[name]}).refresh()
        except PySparkException as error:
            if not error.getCondition():
                raise  # a conflict with another commit, after which the batch is repeated
            raise ConfigurationError(
                f"{definition.location(gold.line)}: gold table {gold.name!r}: {first_line(error)}"
            ) from error


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def references(sql: str) -> list[str]:
    """Return the names of the lake's tables that a query may refer to, such as "silver.orders", in
    their order; a name that occurs twice is in the list twice."""
    return [_name(match) for match in _REFERENCES.finditer(sql) if match["layer"]]


def _name(match: re.Match[str]) -> str:
    return f"{match['layer']}.{match['name'].strip('`')}".lower()


def query(spark: SparkSession, sql: str, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return the result of a query in which the names of `tables` mean these DataFrames."""

    def parameter(match: re.Match[str]) -> str:
        if not match["layer"] or _name(match) not in tables:
            return match[0]
        return f"{{{_name(match).replace('.', '_')}}}"

    text = _REFERENCES.sub(parameter, sql.replace("{", "{{").replace("}", "}}"))
    frames: dict[str, Any] = {name.replace(".", "_"): frame for name, frame in tables.items()}
    # Spark replaces no braces if there are no parameters.
    return spark.sql(text if frames else sql, **frames)


def incremental_problem(gold: GoldTable, result: DataFrame | None) -> str | None:
    """Return the reason why a query cannot be refreshed incrementally; None if it can.

    `result` is the query's DataFrame; None if it cannot be computed yet.
    """
    advice = 'use refresh = "full"'
    if not gold.keys:
        return f"an incremental query has GROUP BY, and keys names its columns: {advice}"
    names = references(gold.sql)
    if len(names) != 1 or not names[0].startswith("silver."):
        return f"an incremental query reads exactly one table, silver.NAME: {advice}"
    if result is None:
        return None
    if re.search(r"\(\s*select\b", gold.sql, re.IGNORECASE):
        return f"an incremental query has no subquery: {advice}"
    java: Any = result
    plan = java._jdf.queryExecution().analyzed()
    patterns = java.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    depends_on_time = plan.containsPattern(patterns.CURRENT_LIKE()) or _TIME_WORDS.search(gold.sql)
    if depends_on_time or not plan.deterministic():
        return (
            "the result changes without a change of the table, because it depends on the present "
            f"time, the session or random numbers: {advice}"
        )
    if plan.nodeName() != "Aggregate":
        return (
            "an incremental query has the form SELECT ... FROM ... WHERE ... GROUP BY ..., without "
            f"{plan.nodeName()}: {advice}"
        )
    node = plan.child()
    while children := scala_items(node.children()):
        if node.nodeName() not in _ROW_BY_ROW or len(children) > 1:
            return f"an incremental query has no {node.nodeName()} below GROUP BY: {advice}"
        (node,) = children
    return _key_problem(gold, plan)


def _key_problem(gold: GoldTable, plan: Any) -> str | None:
    """Return the reason why `keys` are not the grouping columns; None if they are."""
    grouping = scala_items(plan.groupingExpressions())
    outputs = {
        output.name().lower(): output.child() if output.nodeName() == "Alias" else output
        for output in scala_items(plan.aggregateExpressions())
    }
    keys = [outputs.get(key.lower()) for key in gold.keys]
    is_same = len(keys) == len(grouping) and all(
        any(key is not None and group.semanticEquals(key) for key in keys) for group in grouping
    )
    return None if is_same else "keys must name the columns of GROUP BY, all of them and no others"


class _GoldWriter:
    def __init__(self, spark: SparkSession, gold: GoldTable, lake: Lake, awaited: Set[str]) -> None:
        """`awaited` are tables, besides silver's, that the query waits for."""
        self._spark = spark
        self._gold = gold
        self._table = lake.table(f"gold.{gold.name}", keys=gold.keys)
        tables = {name: lake.table(name) for name in references(gold.sql)}
        self._sources = {name: table for name, table in tables.items() if table.exists(spark)}
        missing = tables.keys() - self._sources
        self._must_wait = any(name.startswith("silver.") or name in awaited for name in missing)

    def refresh(self) -> None:
        """Bring the table up to date, by its changed groups or by the query's whole result."""
        if self._must_wait:
            return
        versions = {name: table.version(self._spark) for name, table in self._sources.items()}
        version_sum = sum(versions.values())
        application, last = self._application()
        if last is not None and last >= version_sum:
            return
        if last is not None and self._gold.refresh is Refresh.INCREMENTAL:
            ((name, version),) = versions.items()
            try:
                self._increment(name, last, Tag(application, version))
                return
            except PySparkException as error:
                if not (error.getCondition() or "").startswith(("DELTA_", "FAILED_READ_FILE")):
                    raise
                _log.warning(
                    "gold table %s is recomputed, because the change data feed of %s cannot be "
                    "read: %s",
                    self._gold.name,
                    name,
                    first_line(error),
                )
        sources = {
            name: self._sources[name].read(self._spark, version)
            for name, version in versions.items()
        }
        self._table.overwrite(self._result(sources), Tag(application, version_sum))

    def _application(self) -> tuple[str, int | None]:
        """Return the query's application, and the version it has reached; None for a new one.

        The application's name has the number of the queries that the table has had, and the digest
        of the latest."""
        ids = [f"{name}={table.identity(self._spark)}" for name, table in self._sources.items()]
        identity = [self._gold.sql, *self._gold.keys, *ids]
        digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
        prefix = f"sluicemq/{self._table.name}/"
        tags = self._table.tags(self._spark)
        queries = (application for application in tags if application.startswith(prefix))
        latest = max(queries, key=_number, default=f"{prefix}0/")
        if latest.endswith(f"/{digest}"):
            return latest, tags[latest].version
        return f"{prefix}{_number(latest) + 1}/{digest}", None

    def _result(self, tables: Mapping[str, DataFrame]) -> DataFrame:
        return query(self._spark, self._gold.sql, tables)

    def _increment(self, name: str, last: int, tag: Tag) -> None:
        """Recompute the groups that have changed since the version `last` of the source."""
        source = self._sources[name]
        changes = source.changes(self._spark, last + 1, tag.version)
        keys = [quoted(key) for key in self._gold.keys]
        with cached(self._result({name: changes}).select(*keys).distinct()) as affected:
            affected.count()  # reads the change data feed, which may be gone
            current = self._result({name: source.read(self._spark, tag.version)})
            columns = [quoted(column) for column in current.columns]
            # NULL is equal to NULL, as in GROUP BY.
            condition = " AND ".join(f"affected.{key} <=> groups.{key}" for key in keys)
            groups = current.withColumn(_PRESENT, f.lit(True)).alias("groups")
            updates = affected.alias("affected").join(groups, f.expr(condition), "left")
            others = [column for column in columns if column not in keys]
            updates = updates.selectExpr(
                *(f"affected.{key} AS {key}" for key in keys),
                *(f"groups.{column} AS {column}" for column in others),
                f"coalesce(groups.{_PRESENT}, false) AS {_PRESENT}",
            )
            table = replace(self._table, schema=current.schema)
            table.merge(updates, tag=tag, delete_condition=f"NOT new.{_PRESENT}", null_keys=True)


def _number(application: str) -> int:
    return int(application.split("/")[2])
