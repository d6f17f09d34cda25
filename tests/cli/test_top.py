from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluicemq.cli.console import age, size, sparkline
from sluicemq.cli.status import VIEWS, ViewState, key_names
from tests.cli.conftest import Run, RunningBroker


class Terminal:
    """The program, at a terminal of 100 by 24."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sluicemq.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ,
            start_new_session=True,
            # whatever runs the tests may do so in the background, where it is ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(slave)
        self._output = b""

    def until(self, text: str, seconds: float = 60) -> str:
        """Wait for a text, and return the output up to its end; later calls start after it."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self._output:
            remaining = deadline - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(0, remaining))
            if not ready:
                pytest.fail(f"{text!r} did not come; what came last: {self._output[-3000:]!r}")
            try:
                self._output += os.read(self._master, 1 << 16)
            except OSError:
                pytest.fail(f"it ended before {text!r}: {self._output[-3000:]!r}")
        before, _, self._output = self._output.partition(text.encode())
        return (before + text.encode()).decode(errors="replace")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        code = self._process.wait(60)
        os.close(self._master)
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def test_keys_have_names() -> None:
    assert key_names("q\x1b[A\x1bOBs\x1b[6~\r\x7f\x1b") == [
        *("q", "up", "down", "s", "page down", "enter", "backspace", "escape")
    ]
    assert key_names("ü") == ["ü"]


def test_keys_change_the_view() -> None:
    choice = ViewState()
    choice.press("s")
    assert (choice.sort, choice.ascending) == ("name", True)
    choice.press("S")
    assert (choice.sort, choice.ascending) == ("publish_rate", False)
    choice.press("S")
    assert choice.sort == choice.view.sorts[-1]
    choice.press("r")
    assert choice.ascending
    choice.press("down")
    choice.press("page down")
    assert choice.page == 3
    choice.press("up")
    assert choice.page == 2
    choice.press("2")
    assert (choice.view, choice.page, choice.sort) == (VIEWS["2"], 1, "")
    choice.press("s")
    assert choice.sort == ""
    choice.press(" ")
    assert choice.frozen
    choice.press("+")
    assert choice.interval == 0.5
    for _ in range(20):
        choice.press("-")
    assert choice.interval == 60
    choice.press("x")
    assert not choice.is_done
    choice.press("q")
    assert choice.is_done


def test_a_filter_is_typed() -> None:
    choice = ViewState(page=3)
    for key in ["/", "o", "q", "x", "backspace"]:
        choice.press(key)
    assert (choice.filter, choice.typing, choice.is_done, choice.page) == ("oq", True, False, 1)
    choice.press("enter")
    assert (choice.filter, choice.typing) == ("oq", False)
    choice.press("escape")
    assert choice.filter == ""
    for key in ["/", "o", "escape"]:
        choice.press(key)
    assert (choice.filter, choice.typing) == ("", False)


def test_without_a_terminal_each_sample_is_printed(run: Run, broker: RunningBroker) -> None:
    run("messages", "publish", "topped", "x", *broker.where)
    options = ["--count", "2", "--interval", "0.1", *broker.where]
    result = run("top", *options)
    assert result.code == 0
    assert result.out.count("sluicemq ") == 2
    assert "\x1b" not in result.out
    rows = run("top", "topped", *options).out.splitlines()
    assert len([row for row in rows if row.startswith("topped")]) == 2
    assert "no destinations like that" in run("top", "no.such.*", *options).out
    assert "did you mean ready?" in run("top", "--sort", "redy").err


def test_top_at_a_terminal(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    for name in ("first", "second"):
        run("messages", "publish", f"live.{name}", "x", *broker.where)
    terminal = Terminal("top", "live.*", *broker.where)
    try:
        terminal.until("q quit")
        terminal.press("s")
        terminal.until("by name")  # a look that was drawn before the key was read may come first
        screen = terminal.until("q quit")
        assert screen.index("live.first") < screen.index("live.second")
        terminal.press("/second\r")
        terminal.until("like second")
        assert "live.first" not in terminal.until("q quit")
        terminal.press("2")
        terminal.until("connections")
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.kill()


def test_top_ends_by_ctrl_c(broker: RunningBroker) -> None:
    terminal = Terminal("top", *broker.where)
    try:
        terminal.until("q quit")
        terminal.interrupt()
        assert terminal.end() == 0
    finally:
        terminal.kill()


def test_watching_at_a_terminal(run: Run, broker: RunningBroker) -> None:
    terminal = Terminal("queues", "watched*", "--watch", "0.1", *broker.where)
    try:
        terminal.until("every 0.1 s")
        run("messages", "publish", "watched.now", "x", *broker.where)
        terminal.until("watched.now")
        terminal.interrupt()
        assert terminal.end() == 0
    finally:
        terminal.kill()


def test_watching_in_a_pipe(
    run: Run, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []

    def sleep(seconds: float) -> None:
        times.append(seconds)
        if len(times) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("sluicemq.cli.api.time.sleep", sleep)
    result = run("queues", "none*", "--watch", "--json", *broker.where)
    assert result.code == 0
    assert [json.loads(line) for line in result.out.splitlines()] == [[], []]
    assert times == [2.0, 2.0]
    times.clear()
    run("queues", "--watch", "5", *broker.where)
    assert times == [5.0, 5.0]


@pytest.mark.parametrize("interval", ["nan", "inf", "1e300", "0", "-1"])
def test_invalid_intervals_are_usage_errors(run: Run, broker: RunningBroker, interval: str) -> None:
    for command in (["queues", f"--watch={interval}"], ["top", "--interval", interval]):
        result = run(*command, *broker.where)
        assert (result.code, result.out) == (2, "")
        assert "Invalid value" in result.err


def test_amounts_for_people() -> None:
    assert [size(n) for n in (0, 1023, 1024, 5 * 1024**3, 3 * 1024**4)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
        "3.0 TiB",
    ]
    assert [
        age(ms) for ms in (0, 250, 999.7, 12_500, 59_990, 60_000, 65_000, 3_900_000, 172_800_000)
    ] == [
        "0 ms",
        "250 ms",
        "1.0 s",
        "12.5 s",
        "1m",
        "1m",
        "1m 5s",
        "1h 5m",
        "2d",
    ]
    assert sparkline([0, 1, 2, 4, 8], 4) == "▁▂▄█"
    assert sparkline([], 4) == ""
    assert sparkline([0, 0], 4) == "  "
