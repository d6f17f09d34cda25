from __future__ import annotations

import json
import socket
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Run, RunningBroker


def test_output_of_show_is_a_configuration_file(run: Run, tmp_path: Path) -> None:
    output = run("config", "show", "--listen", "msglite://:1?durability=sync", "--ephemeral").out
    tree = tomllib.loads(output)
    assert tree["broker"]["ephemeral"] is True
    assert tree["listeners"][0]["durability"] == "sync"
    (tmp_path / "again.toml").write_text(output)
    assert run("config", "show", "--config", "again.toml").out == output


def test_explain_names_the_source(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEMQ_BROKER__MAX_DESTINATIONS", "7")
    lines = run("config", "show", "--explain", "--data-dir", "/x").out.splitlines()

    def source_of(assignment: str) -> str:
        return lines[lines.index(assignment) - 1]

    assert source_of('data_dir = "/x"') == "# from: command line"
    assert "SLUICEMQ_BROKER__MAX_DESTINATIONS" in source_of("max_destinations = 7")
    assert source_of("auto_create_queues = true") == "# from: default"


def test_show_prints_json(run: Run) -> None:
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
    assert "valid (from sluicemq.toml)" in result.err


def test_check_reports_all_problems(run: Run) -> None:
    result = run("config", "check", "--listen", "phpmq://0.0.0.0:1", "--listen", "http://:1/q")
    assert result.code == 2
    assert "insecure_public" in result.err
    assert "neither a user nor a queue" in result.err


def test_effective_configuration_of_a_running_broker(run: Run, broker: RunningBroker) -> None:
    settings = json.loads(run("config", "show", "--live", "--json", *broker.location).out)
    by_name = {setting["name"]: setting for setting in settings}
    assert by_name["broker.data_dir"]["value"] == str(broker.data_dir)
    assert by_name["broker.data_dir"]["source"] == "command line"
    rows = run("config", "show", "--live", *broker.location).out.splitlines()
    assert any(
        row.split() == ["broker.destination_idle_timeout", "2min", "2min", "default"]
        for row in rows
    )
    assert "Directory" in run("config", "show", "--live", "--explain", *broker.location).out
    unreachable = run("config", "show", "--url", "http://127.0.0.1:1")
    assert unreachable.code == 2
    assert "--live" in unreachable.err


def test_check_reports_all_errors_with_file_and_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (tmp_path / "sluicemq.toml").write_text(
            "[broker]\n"
            'data_dir = "file/data"\n'
            "max_destinatons = 1\n"
            "[limits]\n"
            'idle-timeout = "soon"\n'
            "[[listeners]]\n"
            'url = "phpmq+tls://127.0.0.1:0"\n'
            'certificate = "none.pem"\n'
            "[[listeners]]\n"
            f'url = "msglite://127.0.0.1:{port}"\n'
            'durability = "fast"\n'
            "[destinations.orders]\n"
            "active_consumers = 3\n"
            "max_consumers = 2\n"
        )
        result = run("config", "check")
    assert result.code == 2
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    for location, text in (
        ("sluicemq.toml:2:", "file is not a directory"),
        ("sluicemq.toml:3:", "did you mean max_destinations?"),
        ("sluicemq.toml:5:", "'soon' is not a number of s"),
        ("sluicemq.toml:6:", "none.pem"),
        ("sluicemq.toml:9:", f"cannot listen on msglite://127.0.0.1:{port}"),
        ("sluicemq.toml:11:", "none, lazy, sync"),
        ("sluicemq.toml:12:", "active_consumers (3)"),
    ):
        assert [line for line in errors if location in line and text in line], (
            location,
            result.err,
        )
    assert len(errors) == 7


def test_serve_names_file_and_line_of_every_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sluicemq.toml").write_text(
        '[jmq]\ninstance = "two words"\n[[listeners]]\nurl = "phpmq://0.0.0.0:0"\n'
    )
    result = run("serve")
    assert result.code == 2
    assert "error: sluicemq.toml:2: jmq.instance" in result.err
    assert "error: sluicemq.toml:3: phpmq://0.0.0.0:0" in result.err


def test_check_lists_its_steps_and_leaves_no_files(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    addresses = ["--listen", "msglite://127.0.0.1:0", "--listen", f"phpmq+unix://{tmp_path}/sock"]
    result = run("config", "check", "--data-dir", str(data), *addresses)
    assert result.code == 0
    steps = [line for line in result.err.splitlines() if line.startswith("tried: ")]
    for subject in (f"directory {data}", "user database", "msglite://127.0.0.1:0", "/sock: may"):
        assert [line for line in steps if subject in line]
    assert list(tmp_path.iterdir()) == []
    missing = run("config", "check", "--listen", f"phpmq+unix://{tmp_path}/none/sock")
    assert missing.code == 2
    assert f"there is no directory {tmp_path}/none" in missing.err


def test_check_reports_that_the_library_for_tracing_is_missing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sluicemq.toml").write_text("[tracing]\nendpoint = 'http://127.0.0.1:4318'\n")
    arguments = ("config", "check", "--listen", "msglite://127.0.0.1:0")
    result = run(*arguments)
    assert result.code == 0
    assert "tried: OpenTelemetry: installed" in result.err
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    result = run(*arguments)
    assert result.code == 2
    assert "error: sluicemq.toml:2: tracing.endpoint is set, but OpenTelemetry" in result.err


def test_check_does_not_try_the_addresses_of_the_running_broker(
    run: Run, broker: RunningBroker
) -> None:
    result = run("config", "check", *broker.location, "--listen", broker.phpmq)
    assert result.code == 0
    assert "addresses: not tried, because a broker runs" in result.err
    result_for_other_address = run("config", "check", "--listen", broker.phpmq)
    assert result_for_other_address.code == 2
    assert "the address is in use by another program" in result_for_other_address.err


def test_file_in_place_of_the_data_directory_is_one_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("config", "check", "--data-dir", "file", "--listen", "msglite://127.0.0.1:0")
    assert result.code == 2
    assert result.err.count("error: ") == 1
    assert "is not a directory" in result.err
