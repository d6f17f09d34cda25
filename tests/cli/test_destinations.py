from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from tests.cli.conftest import Run, RunningBroker


def queue(ask: Run, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ask("queues", "show", name, "--json").out)
    return document


def test_a_queue_from_beginning_to_end(ask: Run) -> None:
    assert ask("queues", "create", "q.life", "max_messages=3", "message_ttl=1h").code == 0
    settings = queue(ask, "q.life")["settings"]
    assert (settings["max_messages"], settings["message_ttl"]) == (3, 3_600_000)
    repetition = ask("queues", "create", "q.life")
    assert repetition.code == 1
    assert "alter" in repetition.err
    assert ask("queues", "alter", "q.life", "overflow=drop-oldest").code == 0
    settings = queue(ask, "q.life")["settings"]
    assert (settings["max_messages"], settings["overflow"]) == (3, "drop-oldest")
    assert ask("messages", "publish", "q.life", "a", "b").code == 0
    output = ask("queues", "show", "q.life").out
    assert "max_messages" in output
    assert "1h" in output
    assert ask("queues", "pause", "q.life").code == 0
    assert queue(ask, "q.life")["paused"] is True
    assert "q.life paused" in ask("queues", "q.life").out
    assert ask("queues", "resume", "q.life").code == 0
    assert queue(ask, "q.life")["paused"] is False
    purged = ask("queues", "purge", "q.life", "--yes", "--json")
    assert json.loads(purged.out)["purged"] == 2
    assert queue(ask, "q.life")["ready"] == 0
    assert "Even if it has consumers." in ask("queues", "delete", "--help").out
    assert ask("queues", "delete", "q.life", "--yes").code == 0
    missing = ask("queues", "show", "q.life")
    assert missing.code == 1
    assert "q.life" in missing.err
    assert "sluicemq queues" in missing.err


def test_queue_commands_refuse_topics(ask: Run) -> None:
    assert ask("topics", "create", "t.only").code == 0
    assert [t["name"] for t in json.loads(ask("topics", "t.only", "--json").out)] == ["t.only"]
    assert ask("queues", "t.only").code == 1
    assert ask("queues", "show", "t.only").code == 1
    assert ask("topics", "show", "t.only").code == 0
    assert ask("topics", "delete", "t.only", "--yes").code == 0


def test_lists_by_pattern_and_order(ask: Run) -> None:
    for name, count in (("l.a", 1), ("l.b", 3), ("l.bc", 2)):
        ask("messages", "publish", name, *["x"] * count)
    rows = [line.split() for line in ask("queues", "l.*").out.splitlines()]
    assert rows[0][:2] == ["Name", "Ready"]
    assert [row[:2] for row in rows[1:]] == [["l.a", "1"], ["l.b", "3"], ["l.bc", "2"]]
    by_waiting = json.loads(ask("queues", "list", "l.*", "--sort", "ready", "--json").out)
    assert [queue["name"] for queue in by_waiting] == ["l.b", "l.bc", "l.a"]
    assert [q["name"] for q in json.loads(ask("queues", "l.b", "--json").out)] == ["l.b"]
    assert [q["name"] for q in json.loads(ask("queues", "l.[ab]", "--json").out)] == ["l.a", "l.b"]
    assert len(json.loads(ask("queues", "l.*", "-n", "2", "--json").out)) == 2


def test_more_than_one_page(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicemq.cli.api.PAGE_SIZE", 3)
    for number in range(7):
        ask("queues", "create", f"many.{number}")
    queues = json.loads(ask("queues", "many.*", "--json").out)
    assert [queue["name"] for queue in queues] == [f"many.{number}" for number in range(7)]


def test_empty_lists(ask: Run) -> None:
    result = ask("queues", "none.*")
    assert (result.code, result.out) == (1, "")
    assert "No queue is like none.*" in result.err
    assert json.loads(ask("queues", "none.*", "--json").out) == []
    assert "sluicemq queues create?" in ask("queues", "creat").err
    assert ask("queues", "create", "permanent").code == 0
    assert ask("queues", "list", "--temporary").err == "There are no queues that are temporary.\n"
    assert ask("queues", "delete", "permanent", "--yes").code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["queues", "--sort", "redy"], "did you mean ready?"),
        (["queues", "create", "x", "max_mesages=1"], "did you mean max_messages?"),
        (["queues", "create", "x", "max_messages"], "NAME=VALUE"),
        (["queues", "create", "x", "max_messages=many"], "many"),
        (["queues", "create", "x", "message_ttl=1x"], "1x"),
        (["queues", "create", "x", "overflow=explode"], "explode"),
        (["queues", "alter", "x"], "name the settings to change"),
    ],
)
def test_mistakes_of_the_command_line(ask: Run, arguments: list[str], says: str) -> None:
    result = ask(*arguments)
    assert result.code == 2
    assert says in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "name", ["a/b", "c d?e#f%", "~", "..", "é\n", "[red]x", "\x1b[2Jz", "\udcff\udc80"]
)
def test_any_name_is_accepted_and_cannot_control_the_terminal(ask: Run, name: str) -> None:
    def call(*arguments: str) -> Any:
        result = ask(*arguments)
        assert "\x1b" not in result.out + result.err
        return result

    assert call("queues", "create", name).code == 0
    assert call("messages", "publish", name, "x").code == 0
    assert call("queues", "show", name).code == 0
    output_lines = call("queues", "list").out.splitlines()
    assert len([line for line in output_lines if "\n" in line]) == 0
    assert json.loads(call("queues", "show", name, "--json").out)["ready"] == 1
    assert json.loads(call("messages", "list", name, "--json").out)["total"] == 1
    assert call("queues", "purge", name, "--yes").code == 0
    assert call("queues", "delete", name, "--yes").code == 0


def test_a_name_like_an_option(run: Run, broker: RunningBroker) -> None:
    assert run("queues", "create", *broker.where, "--", "--yes").code == 0
    assert run("queues", "delete", *broker.where, "--yes", "--", "--yes").code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["queues", "delete", "kept"],
        ["queues", "purge", "kept"],
        ["messages", "delete", "kept", "--all"],
        ["messages", "move", "kept", "elsewhere", "--all"],
        ["dlq", "purge", "kept"],
        ["dlq", "redrive", "kept", "--all"],
        ["connections", "close", "1"],
        ["transactions", "rollback", "1"],
        ["slots", "delete", "kept"],
    ],
)
def test_destructive_commands_ask_for_confirmation(ask: Run, command: list[str]) -> None:
    ask("messages", "publish", "kept", "x")
    before = queue(ask, "kept")["ready"]
    result = ask(*command)
    assert result.code == 2
    assert "--yes" in result.err
    assert queue(ask, "kept")["ready"] == before


@pytest.mark.parametrize(("typed", "code", "left"), [("n\n", 1, 1), ("\n", 1, 1), ("y\n", 0, 0)])
def test_confirmation_prompt_is_respected(
    ask: Run, broker: RunningBroker, typed: str, code: int, left: int
) -> None:
    ask("queues", "purge", "asked", "--yes")
    ask("messages", "publish", "asked", "x")
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "sluicemq.cli", "queues", "purge", "asked", *broker.where],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "dumb"},
            start_new_session=True,
        )
        os.write(master, typed.encode())
        assert process.wait(60) == code
        os.close(slave)
        output = b""
        with suppress(OSError):  # the end, after all that was written
            while data := os.read(master, 4096):
                output += data
        assert b"1 messages" in output
    finally:
        os.close(master)
    assert queue(ask, "asked")["ready"] == left
