from __future__ import annotations

import fcntl
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import sluicemq
from sluicemq.broker import broker
from sluicemq.cli import console, main
from sluicemq.model.errors import AddressUnavailable, ConnectionLost
from tests.cli.conftest import Run, RunningBroker


def test_version_is_printed(run: Run) -> None:
    compiled = Path(broker.__file__).suffix == ".so"
    version = f"sluicemq {sluicemq.__version__}"
    result = run("--version")
    assert (result.code, result.err) == (0, "")
    assert result.out == (f"{version} (compiled)\n" if compiled else f"{version}\n")
    assert run("--version", "nonsense").out == result.out


def test_every_command_has_help(run: Run) -> None:
    overview = run("--help").out
    assert "--version" in overview
    for command in (
        *("serve", "send", "receive", "queues", "top", "config", "journal"),
        *("users", "permissions"),
    ):
        assert command in overview
        assert run(command, "--help").code == 0


def test_interrupted_output_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    text = "".join(f"{number:7}\n" for number in range(1000))

    def interrupt(*_: object) -> None:
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 1 << 16)
        raise KeyboardInterrupt

    def interrupt_when_pipe_is_full(thread: int) -> None:
        select.select([read_end], [], [])
        signal.pthread_kill(thread, signal.SIGUSR1)

    def command() -> int:
        interrupter = threading.Thread(
            target=interrupt_when_pipe_is_full, args=[threading.get_ident()]
        )
        interrupter.start()
        with suppress(KeyboardInterrupt):
            print(text, end="", flush=True)
        interrupter.join()
        return 0

    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with open(read_end) as stream, open(write_end, "w") as output:
            monkeypatch.setattr(sys, "stdout", output)
            monkeypatch.setattr(main, "main", command)
            with pytest.raises(SystemExit):
                main.run()
            output.close()
            assert stream.read() == text
    finally:
        signal.signal(signal.SIGUSR1, previous)


@pytest.mark.parametrize("arguments", [["nonsense"], ["send"], ["serve", "--nonsense"]])
def test_wrong_command_line_is_a_usage_error(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--listen", "phpmq://0.0.0.0:9100"], "insecure_public"),
        (["--listen", "phpmq://:x"], "not a port number"),
        (["--config", "none.toml"], "none.toml: the file cannot be read"),
        (["--log-level", "loud"], "command line: logging.level"),
        (["--data-dir", "n\udcff"], "broker.data_dir: the path 'n\\udcff' is not UTF-8 text"),
    ],
)
def test_serve_rejects_invalid_settings(run: Run, arguments: list[str], error: str) -> None:
    result = run("serve", *arguments)
    assert result.code == 2
    assert error in result.err
    assert "sluicemq config show --explain" in result.err
    assert result.out == ""


def test_every_problem_has_its_own_line(run: Run) -> None:
    result = run("serve", "--listen", "phpmq://0.0.0.0:1", "--listen", "phpmq+tls://:2")
    assert result.err.count("error:") == 2


def test_system_errors_are_reported_without_a_traceback(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "app", lambda **_: tmp_path.read_bytes())
    result = run()
    assert result.code == 1
    assert result.err == f"error: {tmp_path}: Is a directory\n"


def test_output_cannot_control_the_terminal(run: Run) -> None:
    result = run("config", "check", "--listen", "phpmq://\x1b[2J")
    assert "\x1b" not in result.err
    assert console.printable("a\x1b\udcffb\u202e") == "a\\x1b\\udcffb\\x202e"


def test_errors_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_error("sluicemq.toml:100: [x] :key:", "[y] :key:")
    assert capsys.readouterr().err == "error: sluicemq.toml:100: [x] :key:\n[y] :key:\n"


def test_lost_connection_error_contains_advice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(**_: object) -> None:
        raise ConnectionLost("gone")

    monkeypatch.setattr(main, "app", lose)
    result = run()
    assert result.code == 1
    assert result.err.startswith("error: gone\n")
    assert "sluicemq serve" in result.err


def test_advice_depends_on_cause_of_lost_connection(capsys: pytest.CaptureFixture[str]) -> None:
    error = ConnectionLost("cannot connect to /s: the certificate is not readable")
    error.__cause__ = PermissionError(13, "Permission denied")
    console.report(error)
    assert capsys.readouterr().err.endswith(
        "\nRun the command as the owner of that file or directory.\n"
    )


def test_address_that_is_not_permitted_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    error = AddressUnavailable("cannot listen on http://127.0.0.1:80: Permission denied")
    error.__cause__ = PermissionError(13, "Permission denied")
    console.report(error)
    assert capsys.readouterr().err == f"error: {error}\n"


def test_closed_standard_streams_do_not_end_a_broker(tmp_path: Path) -> None:
    command = f"{sys.executable} -m sluicemq.cli serve --ephemeral --data-dir {tmp_path}"
    listen = f"--listen phpmq+unix://{tmp_path}/phpmq.sock"
    script = f"exec {command} {listen} <&- >&- 2>&-"
    process = subprocess.Popen(["sh", "-c", script])
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "phpmq.sock").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.terminate()
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ("queues create closed.streams <&- >&-", 0, "Created the queue"),
        ("queues delete closed.streams <&-", 2, "confirm with --yes"),
        ("messages publish closed.streams <&-", 2, "standard input is empty"),
        ("messages publish closed.streams x >&-", 1, "standard output: Bad file descriptor"),
        ("queues --json >&-", 1, "standard output: Bad file descriptor"),
        ("queues --json > /dev/full", 1, "standard output: No space left on device"),
        ("status > /dev/full", 1, "standard output: No space left on device"),
    ],
)
def test_unusable_standard_streams_are_errors(
    broker: RunningBroker, arguments: str, code: int, error: str
) -> None:
    program = shlex.join([sys.executable, "-m", "sluicemq.cli"])
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "",
        "SLUICEMQ_BROKER__DATA_DIR": str(broker.data_dir),
    }
    result = subprocess.run(
        ["sh", "-c", f"{program} {arguments}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == code, result.stderr
    assert error in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr


def test_unbuffered_output_that_fails_is_an_error(broker: RunningBroker) -> None:
    """Unbuffered output fails like output that exceeds the buffer."""
    command = [sys.executable, "-m", "sluicemq.cli", "queues", "--json", *broker.location]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 1
    assert result.stderr == "error: standard output: No space left on device\n"


def test_closed_pipe_prints_no_error(broker: RunningBroker) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "sluicemq.cli", "queues", "--json", *broker.location]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    try:
        result = subprocess.run(
            command, env=environment, stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (1, b"")


def test_names_that_are_not_utf_8_are_escaped_in_json(run: Run, broker: RunningBroker) -> None:
    name = "bytes\udcff"
    sent = run("send", f"{broker.phpmq}?queue={name}", "x", "--json")
    assert (sent.code, json.loads(sent.out)["queue"]) == (0, "bytes\\udcff")
    deleted = run("queues", "delete", name, "--yes", "--json", *broker.location)
    assert (deleted.code, json.loads(deleted.out)) == (0, {"deleted": "bytes\\udcff"})


def test_characters_that_the_locale_lacks_are_escaped(run: Run, broker: RunningBroker) -> None:
    run("messages", "publish", "prices", "3 €", *broker.location)
    command = [sys.executable, "-m", "sluicemq.cli", "messages", "list", "prices", "--body"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    result = subprocess.run(
        [*command, *broker.location], env=environment, capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert b"3 \\u20ac" in result.stdout
