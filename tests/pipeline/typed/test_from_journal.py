"""From a running broker's journal to typed tables, and to a proposed declaration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import ConnectionLost
from sluicemq.pipeline.typed import infer
from sluicemq.pipeline.typed.definition import parse_definition
from sluicemq.pipeline.typed.infer import infer_schema, read_published
from sluicemq.pipeline.typed.tables import process
from sluicemq.pipeline.typed.validation import check
from tests.pipeline.source.support import read
from tests.pipeline.source.test_readers import rewritten
from tests.pipeline.typed.lakes import LakeDirectory

DEFINITION = """
[[table]]
name = "orders"
destination = "orders"
format = "json"
schema = "id BIGINT, amount DECIMAL(10,2), customer STRING"
key = ["id"]

[[table.expect]]
name = "has an amount"
check = "amount >= 0"
action = "quarantine"

[[gold]]
name = "turnover"
sql = "SELECT customer, sum(amount) AS amount FROM silver.orders GROUP BY customer"
keys = ["customer"]
refresh = "incremental"
"""
ORDERS = (
    b'{"id": 1, "amount": 12.50, "customer": "Ada"}',
    b'{"id": 2, "amount": 99.00, "customer": "Bob"}',
    b'{"id": 1, "amount": 15.00, "customer": "Ada"}',
    b'{"id": 3, "customer": "Cy"}',
    b"hello",
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Path]:
    data = tmp_path / "data"
    with LocalBroker(data, ["phpmq://127.0.0.1:0"]) as broker:
        with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
            for body in ORDERS:
                client.send("orders", body)
            client.send("stock", b"A-100")
        yield data


def test_messages_of_queue_become_rows(spark: SparkSession, tmp_path: Path, journal: Path) -> None:
    lake = LakeDirectory(tmp_path / "lake")
    definition = parse_definition(DEFINITION)
    check(spark, definition)
    events = read_published(spark, {"path": str(journal)}, "*").persist()
    for _ in range(2):
        process(events, definition, lake)
    assert lake.rows(spark, "silver.orders", "id", "double(amount)", "customer") == [
        (1, 15.0, "Ada"),
        (2, 99.0, "Bob"),
    ]
    assert lake.rows(spark, "silver.orders_quarantine", "reason", "expectation") == [
        ("expectation failed: has an amount", ["has an amount"]),
        ("the body is not JSON", []),
    ]
    assert lake.rows(spark, "gold.turnover", "customer", "double(amount)") == [
        ("Ada", 15.0),
        ("Bob", 99.0),
    ]


def test_command_prints_declaration(
    spark: SparkSession, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pipeline", "schema", "infer", "orders", "--journal", str(journal)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert (
        printed
        == """\
# inferred from 4 of 5 messages:
# review the types, and name the columns that identify a row
[[table]]
name = "orders"
destination = "orders"
format = "json"
schema = '''
    amount DECIMAL(18,2),
    customer STRING,
    id BIGINT
'''
key = []            # empty: every message is a row
partition_by = []
"""
    )
    check(spark, parse_definition(printed))


def test_messages_that_broker_moved_forward_have_schema(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory = rewritten(tmp_path)
    inferred = infer_schema(read_published(spark, {"path": str(directory)}, "orders"), "orders")
    assert inferred.sampled == len(read(directory, events="relocated")) > 0


def test_error_within_spark_is_reported_without_traceback(
    spark: SparkSession,
    journal: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unavailable(*_: object) -> NoReturn:
        raise ConnectionLost("no answer from the broker")

    def read(*_: object) -> None:
        spark.range(1).select(udf(unavailable, "int")("id")).collect()

    monkeypatch.setattr(infer, "infer_schema", read)
    assert main(["pipeline", "schema", "infer", "orders", "--journal", str(journal)]) != 0
    assert capsys.readouterr().err == "error: no answer from the broker\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--journal", "x", "--url", "http://h:1"), "give either --url or a data directory"),
        (("--url", "http://h:1", "--format", "yaml"), "--format: 'yaml' is none of json, csv"),
    ],
)
def test_wrong_options_are_errors(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "schema", "infer", "orders", *options]) != 0
    assert message in capsys.readouterr().err
