"""Speed of a typed table without key, compared with Spark's bare `from_json` and append.

    python -m benchmarks.typed_tables [DIRECTORY]

1 million JSON bodies of 930 bytes, 3 columns and 3 expectations. Prints the medians of 5
alternating runs after two warm-up runs, the first of which creates the tables. Compare the
processor time of the executors on a machine with other load. Both read the same Parquet files and
append the same columns to a Delta table.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.session import session
from sluicemq.pipeline.typed.definition import Action, Definition, Expectation, TypedTable
from sluicemq.pipeline.typed.tables import batch_summary, write_typed

MESSAGES: Final = 1_000_000
RUNS: Final = 5
WARM_UP: Final = 2
SCHEMA: Final = "id BIGINT, amount DECIMAL(10,2), customer STRING"
BODY: Final = """encode(concat('{"id":', id,
    ',"amount":', cast((id % 10000) / 100 AS DECIMAL(10,2)),
    ',"customer":"c', id % 100, '","a":"', repeat(md5(string(id)), 14), '","b":', id * 7,
    ',"c":[1,2,3,', id, '],"d":{"e":"', md5(string(id + 1)), '","f":null},"g":"',
    repeat('lorem ipsum ', 28), '"}'), 'utf-8') AS body"""


def events(spark: SparkSession, directory: Path) -> DataFrame:
    """Write the messages once, as the source returns them, and read them."""
    path = str(directory / "events")
    spark.range(1, MESSAGES + 1).selectExpr(
        *("id AS sequence", "now() AS time", "'published' AS event", "'orders' AS destination"),
        *("'queue' AS destination_kind", "id AS message_sequence", "now() AS published"),
        *("'phpmq' AS protocol", "'json' AS body_kind", BODY, "string(NULL) AS message_id"),
        "CAST(NULL AS MAP<STRING, STRING>) AS properties",
    ).write.parquet(path)
    return spark.read.parquet(path)


def cpu_seconds(spark: SparkSession) -> float:
    """Return the CPU time of all tasks so far."""
    context: Any = spark.sparkContext
    store = context._jsc.sc().statusStore()
    empty = context._gateway.new_array(context._jvm.double, 0)
    stages = store.stageList(None, False, False, empty, None)
    nanoseconds = sum(int(stages.apply(i).executorCpuTime()) for i in range(stages.size()))
    return nanoseconds / 1e9


def measure(spark: SparkSession, runs: dict[str, Callable[[int], None]]) -> list[list[float]]:
    """Run each in turn, and return the medians of wall and CPU seconds of each."""
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(WARM_UP + RUNS):
        for name, run in runs.items():
            cpu, started = cpu_seconds(spark), time.perf_counter()
            run(number)
            figures[name].append((time.perf_counter() - started, cpu_seconds(spark) - cpu))
    medians = []
    for name, values in figures.items():
        columns = zip(*values[WARM_UP:], strict=True)
        wall, cpu = (statistics.median(column) for column in columns)
        print(
            f"{name:<12}{wall:7.2f} s wall {cpu:7.2f} s CPU {MESSAGES / wall / 1000:7.0f} krows/s"
        )
        medians.append([wall, cpu])
    return medians


def main(directory: Path, settings: dict[str, str]) -> None:
    spark = session("benchmark", settings)
    spark.sparkContext.setLogLevel("ERROR")
    messages = events(spark, directory)

    def bare(number: int) -> None:
        rows = messages.selectExpr(
            f"from_json(string(body), '{SCHEMA}') AS row",
            *("'main' AS _broker", "message_sequence AS _sequence", "destination AS _destination"),
            *("published AS _time", "message_id AS _message_id"),
        ).select("row.*", "_broker", "_sequence", "_destination", "_time", "_message_id")
        rows.write.format("delta").mode("append").save(str(directory / "bare"))

    table = TypedTable(
        name="orders",
        destination="orders",
        schema=SCHEMA,
        expectations=(
            Expectation(name="positive", check="amount >= 0", action=Action.QUARANTINE),
            Expectation(name="has an id", check="id IS NOT NULL", action=Action.DROP),
            Expectation(name="customer", check="customer LIKE 'c%'"),
        ),
    )

    def typed(number: int) -> None:
        # a batch that a broker has written already is not written again
        lake = Lake(directory / "typed", broker=f"broker{number}")
        definition = Definition(tables=(table,))
        summary = batch_summary(messages, definition)
        (counts,) = write_typed(messages, definition, lake, summary).values()
        assert counts.written == MESSAGES

    (bare_wall, bare_cpu), (wall, cpu) = measure(spark, {"from_json": bare, "typed table": typed})
    print(f"{bare_wall / wall:.0%} of the speed by wall, {bare_cpu / cpu:.0%} by CPU")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as temporary:
        main(Path(temporary), {})
