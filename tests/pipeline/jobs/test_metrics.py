"""`sluicemq pipeline run --metrics-port`: lag of the queries, and counts of typed tables."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from sluicemq.cli.main import main
from sluicemq.journal import FileJournal
from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.jobs.metrics import serve_metrics
from sluicemq.pipeline.typed.definition import Definition
from tests.pipeline.source.support import SMALL, message, put
from tests.protocols.sockets import unused_port

TIMEOUT_SECONDS = 120.0
DEFINITION = """
[[table]]
name = "orders"
destination = "orders"
format = "json"
schema = "id BIGINT, amount DECIMAL(10,2)"

[[table.expect]]
name = "positive amount"
check = "amount > 0"
action = "quarantine"

[[table.expect]]
name = "small id"
check = "id < 1000"
action = "warn"
"""
EXPECTED = {
    ("sluicemq_typed_messages_total", "orders", "written"): 3.0,
    ("sluicemq_typed_messages_total", "orders", "dropped"): 0.0,
    ("sluicemq_typed_messages_total", "orders", "quarantined"): 2.0,
    ("sluicemq_typed_messages_unparsed_total", "orders", ""): 1.0,
    ("sluicemq_typed_expectation_failures_total", "orders", "positive amount"): 1.0,
    ("sluicemq_typed_expectation_failures_total", "orders", "small id"): 0.0,
    ("sluicemq_typed_unknown_fields_total", "orders", ""): 3.0,
}

Samples = dict[tuple[str, ...], float]


class Scraper(threading.Thread):
    """Reads the metrics of this process until they are as expected, then asks it to stop."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._address = f"http://127.0.0.1:{port}/metrics"
        self.typed: Samples = {}
        self.lag: Samples = {}

    def run(self) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < end and not self._complete():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _complete(self) -> bool:
        try:
            with urllib.request.urlopen(self._address) as response:
                text = response.read().decode()
        except OSError:
            return False  # not listening yet
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = sample.labels
                if "query" in labels:
                    self.lag[sample.name, labels["query"]] = sample.value
                elif sample.name.endswith("_total"):
                    last = labels.get("expectation") or labels.get("outcome", "")
                    self.typed[sample.name, labels["table"], last] = sample.value
        return self.typed == EXPECTED and len(self.lag) == 9 and set(self.lag.values()) == {0.0}


def test_metrics_of_running_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    (tmp_path / "pipeline.toml").write_text(DEFINITION)
    bodies = [json.dumps({"id": 1, "amount": 3, "colour": "red"})] * 3
    bodies += [json.dumps({"id": 1, "amount": -1}), "no JSON"]
    with closing(FileJournal.open(directory / "journal", SMALL)) as journal:
        for body in bodies:
            put(journal, message(body.encode()))
        journal.sync()
        port = unused_port()
        scraper = Scraper(port)
        scraper.start()
        command = ["pipeline", "run", "--journal", str(directory), "--lake", str(tmp_path / "lake")]
        command += ["--definition", str(tmp_path / "pipeline.toml"), "--interval", "10ms"]
        assert main([*command, "--json", "--metrics-port", str(port)]) == 0
        scraper.join(TIMEOUT_SECONDS)
    assert scraper.typed == EXPECTED
    prefix = "sluicemq_source_lag"
    assert scraper.lag == {
        (f"{prefix}_{unit}", f"main.{query}"): 0.0
        for unit in ("records", "bytes", "seconds")
        for query in ("gold", "tables", "typed")
    }


def test_port_in_use_is_error(spark: SparkSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        error = f"--metrics-port: 127.0.0.1:{port}: Address already in use"
        with (
            pytest.raises(ConfigurationError, match=error),
            serve_metrics(spark, Definition(), (host, port)),
        ):
            pass
