"""Exit codes of `serve`, which distinguish errors that a restart may solve."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from sluicemq.cli.local import PROGRAM, LocalBroker
from sluicemq.journal import FileJournal
from tests.cli.conftest import Run
from tests.faults.plan import machine


def start(
    directory: Path, url: str, program: Sequence[str] = PROGRAM
) -> subprocess.CompletedProcess[str]:
    """Run a broker that cannot start, in another process because it configures logging."""
    command = [sys.executable, *program, "serve", "--data-dir", str(directory), "--listen", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_damaged_journal_has_the_exit_code_of_a_failed_start(tmp_path: Path) -> None:
    journal_directory = tmp_path / "data" / "journal"
    FileJournal.open(journal_directory).close()
    (segment,) = journal_directory.glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[0] ^= 1
    segment.write_bytes(data)
    result = start(tmp_path / "data", "phpmq://127.0.0.1:0")
    assert result.returncode == 74
    assert "sluicemq journal check" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("number", [1, 3])
def test_failed_write_at_the_start_has_the_exit_code_of_a_failed_journal(
    tmp_path: Path, number: int
) -> None:
    """The first sync is that of the segment left by the last stop, the third that of a record."""
    FileJournal.open(tmp_path / "data" / "journal").close()
    result = start(tmp_path / "data", "phpmq://127.0.0.1:0", machine(f"eio:{number}"))
    assert result.returncode == 74
    [error] = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert f"the journal in {tmp_path}/data/journal " in error
    assert "Check the disk" in error


def test_signals_during_shutdown_do_not_change_the_exit_code(tmp_path: Path) -> None:
    """Signals may arrive until the interpreter has exited, which takes a while."""
    broker = LocalBroker(tmp_path / "data", ["msglite://127.0.0.1:0", "http://127.0.0.1:0"]).start()
    pid = broker.pid
    exit_codes: list[int] = []
    waiter = threading.Thread(target=lambda: exit_codes.append(broker.wait()))
    waiter.start()
    with suppress(ProcessLookupError):
        while waiter.is_alive():
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
            waiter.join(0.001)
    waiter.join()
    assert exit_codes == [0]


def test_log_contains_the_url_of_the_console(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "data", ["http://127.0.0.1:0", "phpmq://127.0.0.1:0"]) as broker:
        log = broker.log.read_text()
        url = f"http://127.0.0.1:{broker.port('http')}/console/"
        assert [line for line in log.splitlines() if "console" in line and f"url={url}" in line]
        with urllib.request.urlopen(url) as page:
            assert b"<html" in page.read()


def test_invalid_configuration_has_its_own_exit_code(run: Run) -> None:
    assert run("serve", "--listen", "carrier-pigeon://").code == 2


def test_address_in_use_is_not_a_configuration_error(tmp_path: Path) -> None:
    """systemd restarts the service, as the address may be free then."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"phpmq://127.0.0.1:{server.getsockname()[1]}"
        result = start(tmp_path / "data", url)
    assert result.returncode == 1
    assert f"cannot listen on {url}" in result.stderr
    assert "docs/configuration.md" not in result.stderr
