"""The unit file agrees with the program: exit codes, times, arguments, notifications."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from sluicemq.cli.console import Exit
from sluicemq.cli.main import main
from sluicemq.server.config import BrokerSettings
from sluicemq.server.run import EXIT_JOURNAL
from sluicemq.server.settings import Unit, parse_quantity

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "sluicemq.service"
MAX_EXPOSURE = 2.0
"""Highest exposure level, of 10; systemd calls levels up to slightly above it "safe"."""


def options() -> dict[str, list[str]]:
    values: dict[str, list[str]] = defaultdict(list)
    section = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, value = line.split("=", 1)
            values[f"{section}.{name}"].append(value)
    return values


def seconds(name: str) -> float:
    [value] = options()[f"Service.{name}"]
    return float(parse_quantity(value, Unit.SECONDS))


def test_errors_that_persist_do_not_cause_restart() -> None:
    unit_options = options()
    assert unit_options["Service.Restart"] == ["on-failure"]
    codes = {int(code) for code in unit_options["Service.RestartPreventExitStatus"][0].split()}
    assert codes == {Exit.USAGE, EXIT_JOURNAL}


def test_stop_timeout_exceeds_shutdown_timeout() -> None:
    assert seconds("TimeoutStopSec") > 2 * BrokerSettings().shutdown_timeout
    assert seconds("WatchdogSec") >= 10
    assert options()["Service.Type"] == ["notify"]


def test_command_exists(capfd: pytest.CaptureFixture[str]) -> None:
    [command] = options()["Service.ExecStart"]
    program, *arguments = command.split()
    assert program.endswith("/sluicemq")
    assert arguments[0] == "serve"
    assert main([*arguments, "--help"]) == 0
    assert "SLUICEMQ_LOGGING__FORMAT=json" in options()["Service.Environment"]
    assert arguments[arguments.index("--data-dir") + 1] == (
        "%S/" + options()["Service.StateDirectory"][0]
    )


def test_configuration_file_sets_log_level() -> None:
    [command] = options()["Service.ExecStart"]
    assert "--log-level" not in command
    assert not any("LEVEL" in value for value in options()["Service.Environment"])


@pytest.fixture
def analyze(tmp_path: Path) -> tuple[str, Path]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd is not installed")
    unit_file = tmp_path / UNIT.name
    unit_file.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()))
    return program, unit_file


def test_systemd_accepts_every_option(analyze: tuple[str, Path]) -> None:
    program, unit_file = analyze
    done = subprocess.run([program, "verify", unit_file], capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if unit_file.name in line] == []


def test_exposure_level_is_low(analyze: tuple[str, Path]) -> None:
    program, unit_file = analyze
    command = [program, "security", "--offline=true", "--no-pager", unit_file]
    done = subprocess.run(command, capture_output=True, text=True)
    match = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    if match is None:
        pytest.skip(f"this systemd reports no exposure level: {done.stderr}")
    assert float(match[1]) < MAX_EXPOSURE
