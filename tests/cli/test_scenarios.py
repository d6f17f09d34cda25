"""The scenarios of `benchmarks/`, run for real and short: what they print is the documented
document."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from benchmarks import backlog, idle, quick, scenarios
from benchmarks.backlog import BacklogResult
from benchmarks.idle import Idle
from benchmarks.load import result
from benchmarks.load.result import Cell, Document, QueryMeasurement, TransferResult

from sluicemq.cli.main import run_app
from tests.cli.conftest import Result, RunningBroker
from tests.cli.conftest import Run as Call

README = Path(__file__).parents[2] / "benchmarks" / "README.md"
SHORT = ("--seconds", "0.05")
Results = Document[Cell | QueryMeasurement | BacklogResult | Idle]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the scenarios."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> Result:
        capfd.readouterr()
        code = run_app(scenarios.app, "benchmarks.scenarios", arguments)
        return Result(code, *capfd.readouterr())

    return call


def document(answer: Result) -> Results:
    """Decode the output; unknown, missing and mistyped fields are errors."""
    assert answer.code == 0, answer.err
    return msgspec.json.decode(answer.out, type=Results)


def check(run: TransferResult, *, steady: bool = False, watched: bool = True) -> None:
    assert run.messages > 0
    assert run.seconds > 0
    assert run.rate == pytest.approx(run.messages / run.seconds, rel=0.05, abs=1)
    assert run.generator_us > 0
    assert (run.resident_bytes > 1_000_000) is watched
    assert run.peak_bytes >= run.resident_bytes
    assert (run.target_rate > 0) is steady
    if steady:
        assert run.latency is not None
    if run.latency is not None:
        latency = run.latency
        assert 0 < latency.p50 <= latency.p99 <= latency.p999 <= latency.maximum


def test_quick_prints_tables(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "QUICK", quick.QUICK[-1:])
    monkeypatch.setattr(quick, "QUERIES", quick.QUERIES[-1:])
    answer = run("quick", *SHORT)
    assert answer.code == 0
    for text in ("Flood", "Steady rate", "msglite+unix", "1 → 16", "Queries and replies"):
        assert text in answer.out


def test_quick_with_a_running_broker(run: Call, broker: RunningBroker) -> None:
    report = document(run("quick", "--url", broker.msglite, *SHORT, "--json"))
    assert report.command == "benchmarks.scenarios quick"
    cell, query = report.results
    assert isinstance(cell, Cell)
    assert isinstance(query, QueryMeasurement)
    assert {(measurement.transport, measurement.durability) for measurement in report.results} == {
        ("unix", "")
    }
    assert min(cell.flood.messages, query.run.messages) > 0


def test_unreachable_broker_is_an_error(run: Call) -> None:
    answer = run("quick", "--url", "msglite://127.0.0.1:1", *SHORT)
    assert (answer.code, answer.out) == (1, "")
    assert "Connection refused" in answer.err


def test_matrix(run: Call) -> None:
    answer = run(
        *("matrix", "--protocol", "phpmq,msglite+unix,vibemq,jmq", "--durability", "lazy"),
        *("--size", "1KiB", "--producers", "2", "--consumers", "3", "--pipeline", "4"),
        *("--window", "50", "--confirms", "7", "--replies", "8", *SHORT, "--json"),
    )
    report = document(answer)
    assert report.schema == result.SCHEMA
    assert report.command == "benchmarks.scenarios matrix"
    assert report.options["producers"] == "2"
    assert report.machine.cores >= 1
    cells = [item for item in report.results if isinstance(item, Cell)]
    assert [(c.protocol, c.transport, c.durability, c.size, c.window) for c in cells] == [
        ("phpmq", "tcp", "lazy", 1024, 50),
        ("msglite", "unix", "lazy", 1024, 4),
        ("vibemq", "tcp", "lazy", 1024, 7),
        ("jmq", "tcp", "lazy", 1024, 8),
    ]
    assert {(c.producers, c.consumers, c.repetition) for c in cells} == {(2, 3, 1)}
    for cell in cells:
        check(cell.flood)
        check(cell.steady, steady=True)


def test_query_and_a_running_broker(run: Call, broker: RunningBroker) -> None:
    report = document(run("query", "--url", broker.msglite, *SHORT, "--json"))
    (query,) = report.results
    assert isinstance(query, QueryMeasurement)
    assert (query.transport, query.durability) == ("unix", "")
    check(query.run, watched=False)
    report = document(
        run(
            *("matrix", "--url", broker.phpmq, "--size", "8", "--producers", "1"),
            *("--consumers", "1", "--rate", "500", *SHORT, "--json"),
        )
    )
    (cell,) = report.results
    assert isinstance(cell, Cell)
    assert cell.steady.target_rate == 500
    check(cell.steady, steady=True, watched=False)


def test_backlog(run: Call) -> None:
    report = document(run("backlog", "--messages", "1000", *SHORT, "--json"))
    (backlog,) = report.results
    assert isinstance(backlog, BacklogResult)
    assert backlog.recovery.messages == backlog.messages == backlog.fill.messages == 1000
    assert 0 < backlog.recovery.serving_seconds <= backlog.recovery.first_message_seconds
    assert backlog.shallow.ready == 1000
    assert backlog.deep.ready == 1000
    for costs in (backlog.shallow, backlog.deep):
        for load_run in (costs.other_queue, costs.same_queue, costs.publish):
            check(load_run)
    # one of them was received to see how long that takes
    assert backlog.drain_recovered.messages == 999
    assert backlog.drain_ratio == pytest.approx(backlog.drain.rate / backlog.live.rate, abs=0.001)


def test_idle(run: Call) -> None:
    protocols = ["phpmq", "msglite", "jmq"]
    report = document(
        run(
            *("idle", "--connections", "30", "--rate", "300", *SHORT, "--json"),
            *("--protocol", ",".join(protocols)),
        )
    )
    assert [load_run.protocol for load_run in report.results] == protocols
    for measured in report.results:
        assert isinstance(measured, Idle)
        assert measured.connections == 30
        for load_run in (measured.before, measured.during, measured.after):
            check(load_run, steady=True)
            assert load_run.messages == 15


def test_the_document_is_documented() -> None:
    documented_names = set(re.findall(r"`([a-z0-9_]+)`", README.read_text(encoding="utf-8")))
    records = [
        item
        for module in (result, backlog, idle)
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, result.ResultPart)
    ]
    fields = {name for record in records for name in record.__struct_fields__}
    assert len(records) > 10
    assert fields - documented_names == set()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["matrix", "--size", "7"], "7 is not from 8 to 1,048,576 bytes"),
        (["matrix", "--size", "2MiB"], "2MiB is not from 8"),
        (["matrix", "--size", "big"], "'big' is not a number of bytes"),
        (["matrix", "--size", "100,,200"], "no list of values"),
        (["matrix", "--producers", "0"], "'0' is not a number from 1"),
        (["matrix", "--consumers", "1,-4"], "'-4' is not a number from 1"),
        (["matrix", "--consumers", "9" * 50], "is not a number from 1"),
        (["matrix", "--pipeline", "x"], "'x' is not a number"),
        (["matrix", "--protocol", "phpmq,http"], "'http' is not one of phpmq, phpmq+unix, msglite"),
        (["matrix", "--durability", "most"], "'most' is not one of sync, lazy, none"),
        (["matrix", "--seconds", "0"], "--seconds"),
        (["matrix", "--url", "http://127.0.0.1:1"], "bench speaks phpmq, msglite, vibemq, jmq,"),
        (["matrix", "--url", "phpmq://127.0.0.1:1/orders"], "a queue of its own"),
        (["matrix", "--url", "phpmq://:1", "--protocol", "phpmq"], "--url says it"),
        (["matrix", "--url", "phpmq://:1", "--durability", "sync"], "a running broker has its own"),
        (["query", "--protocol", "phpmq"], "only msglite has queries"),
        (["query", "--url", "phpmq://:1"], "only msglite has queries"),
        (["backlog", "--durability", "none"], "--durability"),
        (["backlog", "--size", "100,200"], "takes one value here"),
        (["idle", "--connections", "999999"], "open files are needed"),
        (["quick", "--seconds", "0"], "--seconds"),
        (["quick", "--url", "http://127.0.0.1:1"], "bench speaks phpmq, msglite, vibemq, jmq,"),
        (["quick", "--url", "phpmq://127.0.0.1:1/orders"], "a queue of its own"),
        (["quick", "nonsense"], "nonsense"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(run: Call, arguments: list[str], says: str) -> None:
    answer = run(*arguments)
    assert answer.code == 2
    assert says in re.sub(r"[\s│]+", " ", answer.err)
    assert answer.out == ""
