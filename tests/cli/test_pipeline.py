"""`sluicemq pipeline`: errors are reported before Spark is started."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--master", "local", "--conf", "cores=2"), "--conf: 'cores=2' is not a setting"),
        (("run", "--broker", "a/b"), "--broker: 'a/b' is not a valid name"),
        (("run", "--journal", "x", "--url", "http://h:1"), "give either --url or a data directory"),
        (("run", "--password-file", "x"), "--password-file requires --url"),
        (("run", "--journal", "nowhere"), "there is no directory nowhere"),
        (("run", "--url", "http://h:1", "--tables", "tin"), "--tables: 'tin' is none of"),
        (("run", "--url", "http://h:1", "--tables", ","), "--tables: name one of"),
        (("run", "--url", "http://h:1", "--interval", "soon"), "--interval"),
        (("run", "--url", "http://h:1", "--tables-interval", "soon"), "--tables-interval"),
        (
            ("run", "--url", "http://h:1", "--watermark", "9999999999d"),
            "--watermark: 9999999999d is",
        ),
        (("maintain", "--retention", "9999999999d"), "--retention: 9999999999d is too long"),
        (("maintain", "--retention", "59min"), "--retention: 59min is less than 1h"),
        (("backfill", "--url", "http://h:1", "--max-bytes", "9 parsec"), "--max-bytes"),
        (("backfill", "--from-bronze", "--url", "http://h:1"), "--from-bronze reads no journal"),
        (("backfill", "--from-bronze"), "there is no table bronze.events in"),
        (("replay",), "give --url, the HTTP listener of the broker"),
        (("run", "--url", "http://h:1", "--user", "spark"), "no terminal to ask for the password"),
        (("replay", "--url", "http://h:1"), "sluicemq pipeline run or backfill creates it"),
        (("replay", "--url", "http://h:1", "--selector", "a ="), "--selector: expected a value"),
        (("report",), "there is no lake in"),
        (("maintain",), "there is no lake in"),
        (("report", "--since", "once"), "--since: 'once' is not a time such as"),
    ],
)
def test_invalid_arguments_are_errors(run: Run, arguments: tuple[str, ...], message: str) -> None:
    command, *rest = arguments
    result = run("pipeline", command, "--lake", "lake", *rest)
    assert result.code != 0
    assert message in result.err
    assert result.out == ""
    assert not Path("lake").exists()


def test_missing_capture_is_an_error(run: Run) -> None:
    result = run("pipeline", "decode", "gone.pcap")
    assert (result.code, result.out) == (2, "")
    assert "there is no file gone.pcap" in result.err


def test_missing_spark_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    original_import = builtins.__import__

    def import_without_spark(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] in ("pyspark", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
        if name.startswith("sluicemq.pipeline"):
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
        return original_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", import_without_spark)
    result = run("pipeline", "run", "--lake", "lake")
    assert result.code == 2
    assert "the pipeline needs pyspark, which is not installed" in result.err
    assert "pip install 'sluicemq[pipeline]'" in result.err


@pytest.mark.parametrize("lake", ["s3://bucket/x", "ftp://host/x", "file://host/x"])
def test_lake_on_an_unknown_file_system_is_an_error(run: Run, lake: str) -> None:
    result = run("pipeline", "run", "--lake", lake, "--journal", "data")
    assert result.code == 2
    assert f"--lake: {lake}" in result.err
    assert not list(Path().iterdir())
