"""kill -9 of the driver, a Python worker or the broker at random times, while continuous queries
read the journal and write to queues or a lake: finally each row exists once and equals the result
of one batch over the same journal."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sluicemq.cli.local import PROGRAM, LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.journal import Slots
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.typed.definition import load_definition
from tests.faults import pipeline_driver as program
from tests.faults.kill_loop import TIMEOUT, VICTIMS, Driver, Producer, finish, kill_at_random
from tests.faults.load import make_body, number_of
from tests.faults.plan import SMALL_SEGMENTS, seeded_random, size
from tests.pipeline.conftest import spark
from tests.pipeline.java_options import SMALL_HEAP
from tests.pipeline.recomputed import compare
from tests.pipeline.sink.published_messages import published
from tests.protocols.sockets import unused_port

__all__ = ["spark"]

BURST = 20
ORDERS = "kill.orders"
DEFINITION = f"""
[[table]]
name = "orders"
destination = "{ORDERS}"
format = "json"
schema = "id BIGINT, turn BIGINT"
key = ["id"]

[[table.expect]]
name = "not every seventh"
check = "turn % 7 > 0"
action = "quarantine"

[[gold]]
name = "turns"
sql = "SELECT turn % 5 AS part, count(*) AS orders FROM silver.orders GROUP BY turn % 5"
keys = ["part"]
refresh = "incremental"
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    url = f"http://127.0.0.1:{unused_port()}"
    with LocalBroker(
        tmp_path / "data", ["phpmq://127.0.0.1:0", url], (), SMALL_SEGMENTS
    ) as local_broker:
        yield local_broker


def test_queues_have_each_row_once(broker: LocalBroker, tmp_path: Path) -> None:
    """Writes with the streaming sink and with foreachBatch."""
    rng = seeded_random()
    bodies = random.Random(rng.random())
    sent = iter(range(1 << 32))

    def burst(client: BlockingClient) -> None:
        for _ in range(BURST):
            client.send(program.IN, make_body(next(sent), bodies.choice((0, 100, 1000))))

    def start(mode: str = "run") -> Driver:
        rows = rng.choice((50, 500, 5000)) if mode == "run" else 10_000
        url = f"http://127.0.0.1:{broker.port('http')}"
        arguments = [mode, str(broker.directory), url, str(tmp_path), str(rows)]
        command = [sys.executable, program.__file__, *arguments]
        return Driver(command, tmp_path / program.CHECKPOINTS, tmp_path / "driver.log")

    producer = Producer(broker, lambda client: None, burst)
    driver = kill_at_random(broker, start, 2, size(2, len(VICTIMS)), rng)
    producer.end()
    if driver.is_running:
        driver.kill(rng)
    finish(partial(start, "finish"))
    assert broker.stop() == 0

    rows = pq.read_table(tmp_path / program.EXPECTED).to_pylist()
    assert rows
    expected = {row["message_id"]: (row["body"], dict(row["properties"])) for row in rows}
    for queue in (program.STREAMED, program.BATCHED):
        messages = published(broker.directory, queue)
        assert len(messages) == len({message.message_id for message in messages}), (
            "rows were written twice"
        )
        assert expected == {
            message.message_id: (
                message.body,
                {name: str(value) for name, value in (message.properties or {}).items()},
            )
            for message in messages
        }
        for message in messages:
            number_of(message.body)


def test_tables_of_the_lake_equal_a_recomputation(
    broker: LocalBroker, tmp_path: Path, spark: SparkSession
) -> None:
    """Messages of earlier batches remain unacked, so that later batches change their rows."""
    rng = seeded_random()
    choices = random.Random(rng.random())
    iterations = iter(range(1 << 32))
    Slots(broker.directory / "journal").create("recomputation")  # retains the whole journal
    lake = Lake(tmp_path / "lake")
    definition = tmp_path / "pipeline.toml"
    definition.write_text(DEFINITION)

    def subscribe(client: BlockingClient) -> None:
        client.subscribe(ORDERS, 10)

    def burst(client: BlockingClient) -> None:
        iteration = next(iterations)
        for number in range(4):
            body = json.dumps({"id": iteration * 7 % 50 + number, "turn": iteration})
            client.send(ORDERS, body.encode())
        for _ in range(3):  # the backlog grows
            message = client.receive(TIMEOUT)
            if choices.random() < 0.9:
                message.ack()
            else:
                message.requeue()

    def start(command: str = "run") -> Driver:
        arguments = [
            *(sys.executable, *PROGRAM, "pipeline", command, "--definition", str(definition)),
            *("--journal", str(broker.directory), "--lake", str(lake)),
            *("--max-rows", str(rng.choice((50, 500, 5000)) if command == "run" else 10_000)),
            *("--conf", f"spark.driver.extraJavaOptions={SMALL_HEAP}"),
            *("--conf", "spark.driver.memory=1g"),
        ]
        return Driver(arguments, tmp_path / "lake/_checkpoints/main", tmp_path / "driver.log")

    producer = Producer(broker, subscribe, burst)
    driver = kill_at_random(broker, start, 3, size(1, len(VICTIMS)), rng)
    producer.end()
    if driver.is_running:
        driver.kill_java()
        early_error = "error: Spark's Java process ended before it was ready"
        late_error = "error: Spark's Java process was killed by signal 9"
        assert early_error in driver.output() or late_error in driver.output()
        assert "py4j" not in driver.output()
    assert broker.stop() == 0
    finish(partial(start, "backfill"))
    counts = compare(spark, lake, broker.directory, load_definition(definition))
    assert counts["silver"] == len(published(broker.directory, ORDERS))
    assert counts["silver.orders"]
    assert counts["silver.orders_quarantine"]
    assert counts["gold.turns"] == 5
