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
    """A command that runs in a terminal of 100 by 24 characters."""

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
            # processes in the background ignore SIGINT
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(slave)
        self._output = b""

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """Wait for a text; return the output since the last call, up to the end of the text."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self._output:
            remaining = deadline - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(0, remaining))
            if not ready:
                pytest.fail(f"{text!r} was not printed; last output: {self._output[-3000:]!r}")
            try:
                self._output += os.read(self._master, 1 << 16)
            except OSError:
                pytest.fail(f"the command ended before {text!r}: {self._output[-3000:]!r}")
        before, _, self._output = self._output.partition(text.encode())
        return (before + text.encode()).decode(errors="replace")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def wait_for_exit(self) -> int:
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
    view_state = ViewState()
    view_state.press("s")
    assert (view_state.sort, view_state.ascending) == ("name", True)
    view_state.press("S")
    assert (view_state.sort, view_state.ascending) == ("publish_rate", False)
    view_state.press("S")
    assert view_state.sort == view_state.view.sorts[-1]
    view_state.press("r")
    assert view_state.ascending
    view_state.press("down")
    view_state.press("page down")
    assert view_state.page == 3
    view_state.press("up")
    assert view_state.page == 2
    view_state.press("2")
    assert (view_state.view, view_state.page, view_state.sort) == (VIEWS["2"], 1, "")
    view_state.press("s")
    assert view_state.sort == ""
    view_state.press(" ")
    assert view_state.frozen
    view_state.press("+")
    assert view_state.interval == 0.5
    for _ in range(20):
        view_state.press("-")
    assert view_state.interval == 60
    view_state.press("x")
    assert not view_state.is_done
    view_state.press("q")
    assert view_state.is_done


def test_filter_is_typed_and_edited() -> None:
    view_state = ViewState(page=3)
    for key in ["/", "o", "q", "x", "backspace"]:
        view_state.press(key)
    assert (view_state.filter, view_state.typing, view_state.is_done, view_state.page) == (
        "oq",
        True,
        False,
        1,
    )
    view_state.press("enter")
    assert (view_state.filter, view_state.typing) == ("oq", False)
    view_state.press("escape")
    assert view_state.filter == ""
    for key in ["/", "o", "escape"]:
        view_state.press(key)
    assert (view_state.filter, view_state.typing) == ("", False)


def test_samples_are_printed_without_a_terminal(run: Run, broker: RunningBroker) -> None:
    run("messages", "publish", "topped", "x", *broker.location)
    options = ["--count", "2", "--interval", "0.1", *broker.location]
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
        run("messages", "publish", f"live.{name}", "x", *broker.location)
    terminal = Terminal("top", "live.*", *broker.location)
    try:
        terminal.wait_for("q quit")
        terminal.press("s")
        terminal.wait_for("by name")  # the previous view may be printed once more
        screen = terminal.wait_for("q quit")
        assert screen.index("live.first") < screen.index("live.second")
        terminal.press("/second\r")
        terminal.wait_for("like second")
        assert "live.first" not in terminal.wait_for("q quit")
        terminal.press("2")
        terminal.wait_for("connections")
        terminal.press("q")
        assert terminal.wait_for_exit() == 0
    finally:
        terminal.kill()


def test_top_ends_by_ctrl_c(broker: RunningBroker) -> None:
    terminal = Terminal("top", *broker.location)
    try:
        terminal.wait_for("q quit")
        terminal.interrupt()
        assert terminal.wait_for_exit() == 0
    finally:
        terminal.kill()


def test_watch_updates_the_terminal(run: Run, broker: RunningBroker) -> None:
    terminal = Terminal("queues", "watched*", "--watch", "0.1", *broker.location)
    try:
        terminal.wait_for("every 0.1 s")
        run("messages", "publish", "watched.now", "x", *broker.location)
        terminal.wait_for("watched.now")
        terminal.interrupt()
        assert terminal.wait_for_exit() == 0
    finally:
        terminal.kill()


def test_watch_repeats_the_output_in_a_pipe(
    run: Run, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []

    def sleep(seconds: float) -> None:
        times.append(seconds)
        if len(times) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("sluicemq.cli.api.time.sleep", sleep)
    result = run("queues", "none*", "--watch", "--json", *broker.location)
    assert result.code == 0
    assert [json.loads(line) for line in result.out.splitlines()] == [[], []]
    assert times == [2.0, 2.0]
    times.clear()
    run("queues", "--watch", "5", *broker.location)
    assert times == [5.0, 5.0]


@pytest.mark.parametrize("interval", ["nan", "inf", "1e300", "0", "-1"])
def test_invalid_intervals_are_usage_errors(run: Run, broker: RunningBroker, interval: str) -> None:
    for command in (["queues", f"--watch={interval}"], ["top", "--interval", interval]):
        result = run(*command, *broker.location)
        assert (result.code, result.out) == (2, "")
        assert "Invalid value" in result.err


def test_sizes_ages_and_sparklines_are_formatted() -> None:
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
