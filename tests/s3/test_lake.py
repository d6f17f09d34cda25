"""Every command of the pipeline on a lake in S3."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from tests.s3.gateway import ACCESS_KEY, SECRET_KEY, Gateway

BUCKET = "warehouse"
LAKE = f"s3a://{BUCKET}/lake"
DEFINITION = """
[[table]]
name = "orders"
destination = "orders"
format = "json"
schema = "id BIGINT, amount DECIMAL(10,2)"
key = ["id"]
"""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path / "s3", BUCKET)
    yield gateway
    gateway.stop()


def pipeline(gateway: Gateway, work: Path, command: str, *options: str) -> list[dict[str, Any]]:
    """Run a command, and return the objects that it prints."""
    settings = {
        "spark.hadoop.fs.s3a.endpoint": gateway.endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.driver.memory": "1g",
    }
    confs = [f"--conf={name}={value}" for name, value in settings.items()]
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "XDG_STATE_HOME": str(work / "state"),
    }
    arguments = [sys.executable, "-m", "sluicemq.cli", "pipeline", command, "--lake", LAKE]
    result = subprocess.run(
        [*arguments, *confs, *options],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def table(gateway: Gateway, name: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read a table without Spark."""
    options = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT_URL": gateway.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    delta_table = DeltaTable(f"s3://{BUCKET}/lake/{name}", storage_options=options)
    rows: list[dict[str, Any]] = delta_table.to_pyarrow_table(columns=list(columns)).to_pylist()
    return rows


def age(table: Path) -> None:
    """Let a table have been created long ago, so that `maintain` searches it for old files."""
    for file in (table / "_delta_log").iterdir():
        if file.suffix == ".crc":
            file.unlink()
        elif file.suffix == ".json":
            file.write_text(re.sub('(?<="createdTime":1)[0-9]', "0", file.read_text()))


def test_all_commands_work_on_a_lake_in_s3(gateway: Gateway, tmp_path: Path) -> None:
    listen = ["phpmq://127.0.0.1:0", "http://127.0.0.1:0"]
    (tmp_path / "pipeline.toml").write_text(DEFINITION)
    with ExitStack() as stack:
        broker = stack.enter_context(LocalBroker(tmp_path / "data", listen))
        url = f"http://127.0.0.1:{broker.port('http')}"
        client = stack.enter_context(BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")))

        def send(numbers: Sequence[int], amount: str) -> None:
            for number in numbers:
                client.send("orders", b'{"id": %d, "amount": %s}' % (number, amount.encode()))

        send(range(100), "1.50")
        assert pipeline(gateway, tmp_path, "backfill", "--url", url, "--json")[-1]["rows"] > 0
        send(range(50, 150), "2.50")
        pipeline(gateway, tmp_path, "backfill", "--url", url, "--json", "--max-rows", "50")

        bodies = [
            row["json"] or row["text"]
            for row in table(gateway, "silver/messages", ["json", "text"])
        ]
        assert len(bodies) == 200
        assert sum(r["published"] for r in table(gateway, "gold/traffic", ["published"])) == 200
        events = table(gateway, "bronze/events", ["event"])
        assert sum(row["event"] == "published" for row in events) == 200
        orders = {
            row["id"]: str(row["amount"])
            for row in table(gateway, "silver/orders", ["id", "amount"])
        }
        assert orders == {n: "1.50" if n < 50 else "2.50" for n in range(150)}

        age(tmp_path / "s3" / BUCKET / "lake" / "silver" / "orders")
        maintained = pipeline(gateway, tmp_path, "maintain", "--json", "--retention", "1h")
        log = (tmp_path / "state" / "sluicemq" / "spark.log").read_text()
        assert re.findall("Deleted .* files", log) == ["Deleted 0 files"]
        assert all(entry["files"] <= entry["files_before"] for entry in maintained)
        assert len(table(gateway, "silver/messages", ["message_sequence"])) == 200

        pipeline(gateway, tmp_path, "backfill", "--from-bronze", "--json")
        assert len(table(gateway, "silver/messages", ["message_sequence"])) == 200

        pipeline(gateway, tmp_path, "report", "--output", "report.html")
        assert "orders" in (tmp_path / "report.html").read_text()

        (report,) = pipeline(gateway, tmp_path, "replay", "--url", url, "--to", "again", "--json")
        assert report["written"] == 200
