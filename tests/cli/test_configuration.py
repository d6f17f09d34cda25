from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from sluicemq.server.reference import describe
from tests.cli.conftest import Run, RunningBroker


def test_show_prints_a_file_that_loads_as_the_same(run: Run, tmp_path: Path) -> None:
    shown = run("config", "show", "--listen", "msglite://:1?durability=sync", "--ephemeral").out
    tree = tomllib.loads(shown)
    assert tree["broker"]["ephemeral"] is True
    assert tree["listeners"][0]["durability"] == "sync"
    (tmp_path / "again.toml").write_text(shown)
    assert run("config", "show", "--config", "again.toml").out == shown


def test_explain_names_the_source(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEMQ_BROKER__MAX_DESTINATIONS", "7")
    lines = run("config", "show", "--explain", "--data-dir", "/x").out.splitlines()

    def source_of(assignment: str) -> str:
        return lines[lines.index(assignment) - 1]

    assert source_of('data_dir = "/x"') == "# from: command line"
    assert "SLUICEMQ_BROKER__MAX_DESTINATIONS" in source_of("max_destinations = 7")
    assert source_of("auto_create_queues = true") == "# from: default"


def test_show_as_json(run: Run) -> None:
    tree = json.loads(run("config", "show", "--json").out)
    assert [listener["url"] for listener in tree["listeners"]] == [
        "msglite://127.0.0.1:9813",
        "phpmq://127.0.0.1:9100",
        "phpmq-maintenance://127.0.0.1:9101",
        "vibemq://127.0.0.1:2925",
        "jmq://127.0.0.1:7676",
        "http://127.0.0.1:7680",
    ]


def test_check_accepts_and_names_the_sources(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sluicemq.toml").write_text("[broker]\nephemeral = true\n")
    result = run("config", "check")
    assert (result.code, result.out) == (0, "")
    assert "sound (from sluicemq.toml)" in result.err


def test_check_tells_all_problems(run: Run) -> None:
    result = run("config", "check", "--listen", "phpmq://0.0.0.0:1", "--listen", "http://:1/q")
    assert result.code == 2
    assert "insecure_public" in result.err
    assert "neither a user nor a queue" in result.err


def test_docs(run: Run, tmp_path: Path) -> None:
    assert run("config", "docs").out == describe()
    run("config", "docs", "--write", "page.md")
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == describe()


def test_what_a_running_broker_has_in_force(run: Run, broker: RunningBroker) -> None:
    found = json.loads(run("config", "show", "--live", "--json", *broker.where).out)
    named = {each["name"]: each for each in found}
    assert named["broker.data_dir"]["value"] == str(broker.data_dir)
    assert named["broker.data_dir"]["source"] == "command line"
    rows = run("config", "show", "--live", *broker.where).out.splitlines()
    assert any(row.split() == ["broker.idle_timeout", "2min", "2min", "default"] for row in rows)
    assert "Directory" in run("config", "show", "--live", "--explain", *broker.where).out
    refused = run("config", "show", "--url", "http://127.0.0.1:1")
    assert refused.code == 2
    assert "--live" in refused.err
