"""Every snippet of the tutorials of the pipeline, run in its order against a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluicemq.cli.local import LocalBroker
from tests.tutorials import DOCS, README, Reader, matches, snippets


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, DOCS / "pipeline" / "tutorial.md")
    yield reader
    reader.close()


def test_example_of_readme_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    """As written, in a directory with the broker's data. `spark` is the session that it finds."""
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, README)
    reader.broker = LocalBroker(tmp_path / "data", ["phpmq://127.0.0.1:0", "http://127.0.0.1:0"])
    reader.broker.start()
    reader.ports = {"7680": str(reader.broker.port("http"))}
    url = f"phpmq://127.0.0.1:{reader.broker.port('phpmq')}/orders"
    try:
        reader.shell(f"sluicemq send {url} hello")
        (example,) = [
            snippet for snippet in snippets(README.read_text()) if "spark = " in snippet.code
        ]
        assert matches("…|     orders|published|    1|…", reader.run(example))
        assert reader.shell(f"sluicemq receive {url} --count 2") == "hello\nfrom Spark\n"
    finally:
        reader.close()


def test_tutorial_works(reader: Reader, spark: SparkSession) -> None:
    """`spark` is there so that the tutorial's own call finds a session."""
    try:
        reader.follow()
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.catalog.dropTempView("gold")
        spark.catalog.dropTempView("totals")


def test_tutorial_of_typed_tables_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, DOCS / "pipeline" / "typed-tables.md")
    try:
        reader.follow(until="## Definition file")
    finally:
        reader.close()
