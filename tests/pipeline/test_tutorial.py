"""Every snippet of docs/pipeline/tutorial.md, run in its order against a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.tutorials import DOCS, Reader


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, DOCS / "pipeline" / "tutorial.md")
    yield reader
    reader.close()


def test_the_tutorial(reader: Reader, spark: SparkSession) -> None:
    """`spark` is there so that the tutorial's own call finds a session."""
    try:
        reader.follow()
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.catalog.dropTempView("gold")
        spark.catalog.dropTempView("totals")
