"""Short runs of the scenarios of `benchmarks/`, and the documented format of their output."""

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
from tests.cli.conftest import Result, Run, RunningBroker

README = Path(__file__).parents[2] / "benchmarks" / "README.md"
SHORT = ("--seconds", "0.05")
Results = Document[Cell | QueryMeasurement | BacklogResult | Idle]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs scenarios."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> Result:
        capfd.readouterr()
        code = run_app(scenarios.app, "benchmarks.scenarios", arguments)
        return Result(code, *capfd.readouterr())

    return call


def decode_report(result: Result) -> Results:
    """Decode the output; unknown, missing and mistyped fields are errors."""
    assert result.code == 0, result.err
    return msgspec.json.decode(result.out, type=Results)


def check_measurement(
    run: TransferResult, *, steady: bool = False, has_process: bool = True
) -> None:
    assert run.messages > 0
    assert run.seconds > 0
    assert run.rate == pytest.approx(run.messages / run.seconds, rel=0.05, abs=1)
    assert run.generator_us > 0
    assert (run.resident_bytes > 1_000_000) is has_process
    assert run.peak_bytes >= run.resident_bytes
    assert (run.target_rate > 0) is steady
    if steady:
        assert run.latency is not None
    if run.latency is not None:
        latency = run.latency
        assert 0 < latency.p50 <= latency.p99 <= latency.p999 <= latency.maximum


def test_quick_prints_tables(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "QUICK", quick.QUICK[-1:])
    monkeypatch.setattr(quick, "QUERIES", quick.QUERIES[-1:])
    result = run("quick", *SHORT)
    assert result.code == 0
    for text in ("Flood", "Steady rate", "msglite+unix", "1 → 16", "Queries and replies"):
        assert text in result.out


def test_quick_with_a_running_broker(run: Run, broker: RunningBroker) -> None:
    report = decode_report(run("quick", "--url", broker.msglite, *SHORT, "--json"))
    assert report.command == "benchmarks.scenarios quick"
    cell, query = report.results
    assert isinstance(cell, Cell)
    assert isinstance(query, QueryMeasurement)
    assert {(measurement.transport, measurement.durability) for measurement in report.results} == {
        ("unix", "")
    }
    assert min(cell.flood.messages, query.run.messages) > 0


def test_unreachable_broker_is_an_error(run: Run) -> None:
    result = run("quick", "--url", "msglite://127.0.0.1:1", *SHORT)
    assert (result.code, result.out) == (1, "")
    assert "Connection refused" in result.err


def test_matrix_reports_each_cell(run: Run) -> None:
    output = run(
        *("matrix", "--protocol", "phpmq,msglite+unix,vibemq,jmq", "--durability", "lazy"),
        *("--size", "1KiB", "--producers", "2", "--consumers", "3", "--pipeline", "4"),
        *("--window", "50", "--confirms", "7", "--replies", "8", *SHORT, "--json"),
    )
    report = decode_report(output)
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
        check_measurement(cell.flood)
        check_measurement(cell.steady, steady=True)


def test_query_and_matrix_of_a_running_broker(run: Run, broker: RunningBroker) -> None:
    report = decode_report(run("query", "--url", broker.msglite, *SHORT, "--json"))
    (query,) = report.results
    assert isinstance(query, QueryMeasurement)
    assert (query.transport, query.durability) == ("unix", "")
    check_measurement(query.run, has_process=False)
    report = decode_report(
        run(
            *("matrix", "--url", broker.phpmq, "--size", "8", "--producers", "1"),
            *("--consumers", "1", "--rate", "500", *SHORT, "--json"),
        )
    )
    (cell,) = report.results
    assert isinstance(cell, Cell)
    assert cell.steady.target_rate == 500
    check_measurement(cell.steady, steady=True, has_process=False)


def test_backlog_reports_each_phase(run: Run) -> None:
    report = decode_report(run("backlog", "--messages", "1000", *SHORT, "--json"))
    (backlog,) = report.results
    assert isinstance(backlog, BacklogResult)
    assert backlog.recovery.messages == backlog.messages == backlog.fill.messages == 1000
    assert 0 < backlog.recovery.serving_seconds <= backlog.recovery.first_message_seconds
    assert backlog.shallow.ready == 1000
    assert backlog.deep.ready == 1000
    for costs in (backlog.shallow, backlog.deep):
        for load_run in (costs.other_queue, costs.same_queue, costs.publish):
            check_measurement(load_run)
    # one message was received to measure the time until the first delivery
    assert backlog.drain_recovered.messages == 999
    assert backlog.drain_ratio == pytest.approx(backlog.drain.rate / backlog.live.rate, abs=0.001)


def test_idle_reports_each_protocol(run: Run) -> None:
    protocols = ["phpmq", "msglite", "jmq"]
    report = decode_report(
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
            check_measurement(load_run, steady=True)
            assert load_run.messages == 15


def test_fields_of_the_output_are_documented() -> None:
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
    ("arguments", "error"),
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
def test_wrong_command_line_is_a_usage_error(run: Run, arguments: list[str], error: str) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert error in re.sub(r"[\s│]+", " ", result.err)
    assert result.out == ""
