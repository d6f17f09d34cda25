"""Decoding by Spark: the DataFrame, its files and the summary."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.decode import FRAMES, DecodeOptions, Raw, decode, parse_ports, run
from tests.pipeline.decode.conftest import Recorded
from tests.pipeline.decode.packet_captures import capture, pcap, pcapng
from tests.pipeline.decode.tables import decoded


@pytest.fixture(scope="module")
def files(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two overlapping files with half of the packets each, and a damaged one."""
    directory = tmp_path_factory.mktemp("files")
    packets = capture(recorded.segments)
    half = len(packets) // 2
    paths = [directory / name for name in ("a.pcap", "b.pcapng", "broken.pcap")]
    paths[0].write_bytes(pcap(packets[: half + 9]))
    paths[1].write_bytes(pcapng(packets[half:]))
    paths[2].write_bytes(b"nothing of that kind")
    return paths


def test_dataframe_has_rows_of_plain_functions(spark: SparkSession, files: list[Path]) -> None:
    frame = decode(spark, [files[0].parent])
    table = frame.toArrow()
    assert table.column_names == FRAMES.names
    expected = [row for file in files for row in decoded(file)]
    assert sorted(map(repr, table.to_pylist())) == sorted(map(repr, expected))


def test_run_writes_table_and_lines_and_summary(
    spark: SparkSession, files: list[Path], tmp_path: Path
) -> None:
    lines = StringIO()
    options = DecodeOptions(ports=parse_ports("1234=jmq"))
    summary = run(spark, files, options, output=tmp_path / "frames", lines=lines)
    expected = [row for file in files for row in decoded(file)]
    assert sum(count.frames for count in summary.counts) == len(expected)
    assert summary.errors == sum(row["error"] is not None for row in expected)
    assert summary.connections == len(
        {(row["file"], row["connection"]) for row in expected if row["connection"] is not None}
    )
    text = "\n".join(summary.lines())
    assert f"{summary.errors:,} errors" in text
    assert "broken.pcap, byte 0: this is neither pcap nor pcapng" in text
    assert "TEXT_MESSAGE" in text
    records = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert len(records) == len(expected)
    assert [row["file"] for row in records] == sorted(row["file"] for row in records)
    bodies = {row.get("body") for row in records if row.get("frame") == "TEXT_MESSAGE"}
    assert any(body and body.startswith("39 é") for body in bodies)
    assert pq.read_table(tmp_path / "frames").num_rows == len(expected)


def test_invalid_arguments_are_rejected_at_once(spark: SparkSession, tmp_path: Path) -> None:
    for paths, reason in (
        ([tmp_path / "missing"], "there is no such file"),
        ([tmp_path], "there is no file to decode"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            decode(spark, paths)
    for text, reason in (
        ("jmq", "is not PORT=PROTOCOL"),
        ("0=jmq", "0 is not a port number"),
        ("1=amqp", "unknown protocol 'amqp'"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            DecodeOptions(ports=parse_ports(text))
    with pytest.raises(ConfigurationError, match="neither client nor server"):
        DecodeOptions(raw=Raw("jmq", "broker"))
    with pytest.raises(ConfigurationError, match="max_frame_bytes: must be at least 1"):
        DecodeOptions(max_frame_bytes=0)
