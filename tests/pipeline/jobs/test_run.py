"""Runs of the pipeline from a journal into a lake, by command and supervisor."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from sluicemq.cli.main import main
from sluicemq.journal import Cause, FileJournal, Slots
from sluicemq.journal.segment import list_segments, segment_path
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConfigurationError, JournalError, SluiceError
from sluicemq.pipeline.jobs import run, silver
from sluicemq.pipeline.jobs.batch import BatchResult, LakeWriter
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.jobs.run import BatchProgress, PipelineJob, RunningQuery, Supervisor
from sluicemq.pipeline.schema import GOLD, GOLD_KEYS, SILVER, SILVER_KEYS
from sluicemq.pipeline.typed.definition import Definition, GoldTable, TypedTable
from tests.pipeline.jobs.events import gold, rows
from tests.pipeline.source.support import SMALL, complete, deliver, depth, message, put, redeliver
from tests.support.polling import wait_until

DEAD_LETTER_QUEUE = Address(Kind.QUEUE, "orders.dlq")
SEVERAL_BATCHES = 30
"""Rows of a batch that divide the events of `Traffic.write_more`."""
ONE_BATCH = 1000


class Traffic:
    """A journal with occasional writes, and a lake."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "data"
        self.directory.mkdir()
        self.journal = FileJournal.open(self.directory / "journal", SMALL)
        self.lake = Lake(directory / "lake", broker="b")

    def write_more(self) -> None:
        numbers = [put(self.journal, message(b"%d" % number)) for number in range(12)]
        deliver(self.journal, numbers[:10])
        redeliver(self.journal, numbers[:2], [2, 2])
        complete(self.journal, numbers[2:8])
        history = {"deadLetterReason": "overflow", "originalQueue": "orders"}
        put(self.journal, message(b"0", DEAD_LETTER_QUEUE, properties=history))
        complete(self.journal, numbers[:1], Cause.DEAD_LETTERED)
        depth(self.journal, 4)
        self.journal.sync()

    def job(self, max_rows: int = ONE_BATCH, **options: Any) -> PipelineJob:
        source = {"path": str(self.directory)}
        return PipelineJob(source=source, lake=self.lake, max_rows=max_rows, **options)

    def check(self, spark: SparkSession) -> None:
        """Check that the lake equals one batch over the complete journal."""
        source = (
            spark.read.format("sluicemq").option("events", "*").option("includeHeaders", "true")
        )
        events = source.load(str(self.directory))
        actual = rows(self.lake.silver.read(spark), SILVER, SILVER_KEYS)
        assert actual == rows(silver.silver(events, "b"), SILVER, SILVER_KEYS)
        actual = rows(self.lake.gold.read(spark), GOLD, GOLD_KEYS)
        assert actual == rows(gold(events, "b"), GOLD, GOLD_KEYS)
        assert self.lake.bronze.read(spark).count() == events.count()


@pytest.fixture
def traffic(tmp_path: Path) -> Iterator[Traffic]:
    traffic = Traffic(tmp_path)
    traffic.write_more()
    yield traffic
    traffic.journal.close()


def test_backfill_continues_where_tables_end(
    spark: SparkSession, traffic: Traffic, capfd: pytest.CaptureFixture[str]
) -> None:
    def backfill(*options: str) -> list[dict[str, Any]]:
        arguments = ["backfill", "--lake", str(traffic.lake.directory), "--broker", "b", "--json"]
        capfd.readouterr()
        assert main(["pipeline", *arguments, *options]) == 0
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    journal_options = ("--journal", str(traffic.directory), "--slot", "lake")
    reports = backfill(*journal_options, "--max-rows", str(SEVERAL_BATCHES))
    assert len(reports) > 2  # several batches
    assert reports[-1]["rows"] == 33
    assert reports[-2]["lag"] == 0
    slot = Slots(traffic.directory / "journal").get("lake")
    assert slot.position == reports[-2]["batch"]["last"]

    (row,) = (
        row for row in rows(traffic.lake.gold.read(spark), GOLD, GOLD_KEYS) if row["dead_lettered"]
    )
    assert row["dead_letter_reasons"] == {"overflow": 1}
    dead_letters = traffic.lake.silver.read(spark).where("dead_lettered IS NOT NULL").collect()
    assert [row["reason"] for row in dead_letters] == ["overflow"]

    shutil.rmtree(f"{traffic.lake.location}/_checkpoints")
    traffic.write_more()
    assert backfill(*journal_options)[-1]["rows"] == 33
    traffic.check(spark)

    assert backfill("--from-bronze")[-1]["rows"] == 66
    traffic.check(spark)

    # the checkpoint remains, the tables do not
    for table in (traffic.lake.bronze, traffic.lake.silver, traffic.lake.gold):
        shutil.rmtree(table.location)
    assert backfill(*journal_options)[-1]["rows"] == 66
    traffic.check(spark)


def test_backfill_continues_behind_removed_records_on_request(
    spark: SparkSession, traffic: Traffic, capfd: pytest.CaptureFixture[str]
) -> None:
    def backfill(*options: str) -> int:
        arguments = ["--lake", str(traffic.lake.directory), "--broker", "b"]
        journal_options = ["--journal", str(traffic.directory), "--tables", "bronze"]
        return main(["pipeline", "backfill", *arguments, *journal_options, *options])

    assert backfill() == 0
    rows_before = traffic.lake.bronze.read(spark).count()
    for _ in range(4):
        traffic.write_more()
        traffic.journal.seal()
    journal_directory = traffic.directory / "journal"
    segments = list_segments(journal_directory)
    for first in segments[:-2]:
        segment_path(journal_directory, first).unlink()
    capfd.readouterr()

    assert backfill() != 0
    assert "are gone" in capfd.readouterr().err
    assert traffic.lake.bronze.read(spark).count() == rows_before
    assert backfill("--no-fail-on-data-loss") == 0
    events = traffic.lake.bronze.read(spark)
    remaining_events = events.where(f"sequence >= {segments[-2]}")
    assert 0 < remaining_events.count() == events.count() - rows_before


@pytest.mark.parametrize(("log", "after"), [("offsets", 0), ("offsets", 1), ("commits", 0)])
def test_damaged_checkpoint_is_replaced(
    spark: SparkSession, traffic: Traffic, log: str, after: int
) -> None:
    """The newest files may be empty after a power failure; the tables have the progress."""
    job = traffic.job(SEVERAL_BATCHES, tables=("bronze",))
    Supervisor(spark, job).run(None)
    directory = Path(traffic.lake.checkpoint("tables"), log)
    last = max(int(file.name) for file in directory.glob("[0-9]*"))
    (directory / str(last + after)).write_bytes(b"")
    traffic.write_more()
    reports: list[BatchProgress] = []
    assert Supervisor(spark, job, reports.append).run(None) == 33
    assert not any(step.problem for step in reports)
    assert traffic.lake.bronze.read(spark).count() == 66


def test_queries_add_no_variable_to_environment_that_they_share(
    spark: SparkSession, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark adds them without a lock, which could end all queries (run._prepare_source)."""
    java: Any = spark
    sources = java._jsparkSession.sessionState().dataSourceManager()
    environment = sources.lookupDataSource("sluicemq").dataSourceCls().envVars()
    for name in set(environment) - {"PYTHONPATH"}:  # of queries of other tests
        environment.remove(name)
    prepared: list[set[str]] = []
    begin = Supervisor._start_query

    def observed(self: Supervisor, *rest: Any) -> None:
        prepared.append(set(environment))
        begin(self, *rest)

    monkeypatch.setattr(Supervisor, "_start_query", observed)
    Supervisor(spark, traffic.job()).run(None)
    assert set(environment) == prepared[0]
    assert all(environment.values())
    traffic.check(spark)


def test_typed_tables_are_written_by_their_own_query(
    spark: SparkSession, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The definition is in the working directory; an added table receives all existing messages."""
    monkeypatch.chdir(traffic.directory)
    definition = traffic.directory / "pipeline.toml"
    table = '[[table]]\nname = "{}"\ndestination = "{}"\nformat = "text"\nschema = "body STRING"\n'
    gold = '[[gold]]\nname = "bodies"\nkeys = ["body"]\nsql = "{}"\nrefresh = "incremental"\n'
    sql = "SELECT body, count(*) AS messages FROM silver.letters GROUP BY body"
    command = ["pipeline", "backfill", "--lake", traffic.lake.location, "--broker", "b", "--json"]
    command += ["--journal", str(traffic.directory)]

    def read(name: str) -> list[tuple[Any, ...]]:
        rows = spark.read.format("delta").load(traffic.lake.table(name).location)
        columns = [column for column in rows.columns if not column.startswith("_")]
        return sorted(map(tuple, rows.select(*columns).collect()))

    definition.write_text(table.format("letters", "orders") + gold.format(sql))
    assert main(command) == 0
    bodies = [(str(number),) for number in range(12)]
    assert read("silver.letters") == sorted(bodies)
    traffic.write_more()
    definition.write_text(
        table.format("letters", "orders") + table.format("dead", "orders.dlq") + gold.format(sql)
    )
    assert main(command) == 0
    assert read("silver.letters") == sorted(bodies * 2)
    assert read("silver.dead") == [("0",), ("0",)]
    assert read("gold.bodies") == sorted((body, 2) for (body,) in bodies)
    traffic.check(spark)


def test_gold_tables_need_no_typed_table(spark: SparkSession, traffic: Traffic) -> None:
    sql = "SELECT state, count(*) AS messages FROM silver.messages GROUP BY state"
    definition = Definition(gold=(GoldTable(name="states", sql=sql),))
    for _ in range(2):
        job = traffic.job(tables=("silver",), definition=definition)
        Supervisor(spark, job).run(None)
        states = traffic.lake.table("gold.states").read(spark)
        expected = traffic.lake.silver.read(spark).groupBy("state").count()
        assert sorted(map(tuple, states.collect())) == sorted(map(tuple, expected.collect()))
        traffic.write_more()


def test_gold_table_of_new_column_needs_no_message(
    spark: SparkSession, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "_start_query", lambda *_: None)
    traffic.lake.table("silver.orders").append(spark.sql("SELECT 1L AS id"), None)
    wider = TypedTable(name="orders", destination="orders", schema="id BIGINT, note STRING")
    notes = GoldTable(
        name="notes", sql="SELECT note, count(*) AS orders FROM silver.orders GROUP BY 1"
    )
    job = traffic.job(definition=Definition(tables=(wider,), gold=(notes,)))
    Supervisor(spark, job).run(None)
    (row,) = traffic.lake.table("gold.notes").read(spark).collect()
    assert tuple(row) == (None, 1)


def test_transient_errors_are_retried(
    spark: SparkSession, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MAX_PAUSE", 0.01)
    calls: list[int] = []
    reports: list[BatchProgress] = []
    write = LakeWriter._silver

    def in_gold() -> int:
        batches = [step.batch for step in reports if step.batch is not None]
        return sum(batch.rows for batch in batches if "gold" in batch.seconds)

    def fail_once(self: LakeWriter, *rest: Any) -> None:
        calls.append(1)
        if len(calls) in (1, 2):
            # the failure interrupts the other query, maybe between a commit and its report
            wait_until(lambda: in_gold() == 33, "gold lacks events", seconds=60)
            raise PySparkRuntimeError("a worker has died")
        write(self, *rest)

    monkeypatch.setattr(LakeWriter, "_silver", fail_once)
    stop = threading.Event()

    def report(step: BatchProgress) -> None:
        reports.append(step)
        if step.lag == 0:
            stop.set()

    row_count = Supervisor(spark, traffic.job(), report, stop).run(0.05)
    assert row_count == 33
    problems = [step.problem for step in reports if step.problem]
    assert problems == ["a worker has died; again in 0.01 s"] * 2
    traffic.check(spark)


def test_end_of_java_process_is_not_retried(
    traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No query can run again: without an error, a service would not be restarted for minutes."""

    def fail(*_: object) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    process = subprocess.Popen(["sleep", "60"])
    process.kill()
    process.wait()
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    monkeypatch.setattr(Supervisor, "_run_queries", fail)
    monkeypatch.setattr(run, "MAX_PAUSE", 0.0)
    reports: list[BatchProgress] = []
    with pytest.raises(SluiceError, match="Java process was killed by signal 9"):
        Supervisor(cast(SparkSession, None), traffic.job(), reports.append)._run(1.0)
    assert reports == []


def test_error_in_task_is_explained_by_its_cause(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(1).selectExpr("1 DIV id AS quotient")
    with pytest.raises(Py4JJavaError) as raised:
        rows.write.format("delta").save(str(tmp_path / "table"))
    kind, error = run.cause_of(raised.value)
    assert kind == ""
    assert str(error).startswith("[DIVIDE_BY_ZERO] Division by zero.")


def test_other_tables_wait_for_their_interval_or_full_batch(
    spark: SparkSession, traffic: Traffic
) -> None:
    stop = threading.Event()
    batches: list[tuple[set[str], int]] = []

    def report(step: BatchProgress) -> None:
        if step.batch is None:
            return
        batches.append((set(step.batch.seconds), step.batch.rows))
        gold_rows = sum(rows for names, rows in batches if "gold" in names)
        other = [rows for names, rows in batches if "gold" not in names]
        if len(batches) == 1:
            traffic.write_more()  # 66 events in all
        if gold_rows == 66 and len(other) == 2:
            stop.set()

    job = traffic.job(SEVERAL_BATCHES, tables_interval=3600)
    row_count = Supervisor(spark, job, report, stop).run(0.05)
    # the first batch does not wait, and the second is full; the rest waits
    assert row_count == sum(rows for names, rows in batches if "gold" not in names)
    assert 50 <= row_count < 66


def test_permanent_errors_are_raised_at_once(
    spark: SparkSession, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(self: LakeWriter, *_: object) -> BatchResult:
        raise JournalError("segment 7 is damaged")

    monkeypatch.setattr(LakeWriter, "write", damaged)
    reports: list[BatchProgress] = []
    with pytest.raises(JournalError, match="segment 7 is damaged"):
        Supervisor(spark, traffic.job(), reports.append).run(None)
    assert reports == []

    def wrong(self: LakeWriter, events: DataFrame, *_: object) -> BatchResult:
        events.select("nothing")
        return BatchResult(0)

    monkeypatch.setattr(LakeWriter, "write", wrong)
    with pytest.raises(SluiceError, match=r"column, variable, or function .* `nothing`"):
        Supervisor(spark, traffic.job(), reports.append).run(None)
    assert reports == []

    monkeypatch.undo()
    begin = Supervisor._start_query

    def refused(self: Supervisor, query: RunningQuery, *rest: Any) -> None:
        if query.name == "tables":
            raise JournalError("segment 7 is damaged")
        begin(self, query, *rest)

    monkeypatch.setattr(Supervisor, "_start_query", refused)
    with pytest.raises(JournalError, match="segment 7 is damaged"):
        Supervisor(spark, traffic.job()).run(1.0)
    assert not spark.streams.active, "the query for gold goes on"

    monkeypatch.undo()
    Supervisor(spark, traffic.job()).run(None)
    shutil.rmtree(traffic.lake.silver.location)
    with pytest.raises(ConfigurationError, match=r"silver in .* lack events that other tables"):
        Supervisor(spark, traffic.job()).run(None)
    with pytest.raises(ConfigurationError, match="/nowhere is not a directory"):
        Supervisor(spark, PipelineJob(source={"path": "/nowhere"}, lake=traffic.lake)).run(None)
