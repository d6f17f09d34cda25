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


def show_queue(run_as_owner: Run, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run_as_owner("queues", "show", name, "--json").out)
    return document


def test_queue_is_created_changed_and_deleted(run_as_owner: Run) -> None:
    assert run_as_owner("queues", "create", "q.life", "max_messages=3", "message_ttl=1h").code == 0
    settings = show_queue(run_as_owner, "q.life")["settings"]
    assert (settings["max_messages"], settings["message_ttl"]) == (3, 3_600_000)
    repetition = run_as_owner("queues", "create", "q.life")
    assert repetition.code == 1
    assert "alter" in repetition.err
    assert run_as_owner("queues", "alter", "q.life", "overflow=drop-oldest").code == 0
    settings = show_queue(run_as_owner, "q.life")["settings"]
    assert (settings["max_messages"], settings["overflow"]) == (3, "drop-oldest")
    assert run_as_owner("messages", "publish", "q.life", "a", "b").code == 0
    output = run_as_owner("queues", "show", "q.life").out
    assert "max_messages" in output
    assert "1h" in output
    assert run_as_owner("queues", "pause", "q.life").code == 0
    assert show_queue(run_as_owner, "q.life")["paused"] is True
    assert "q.life paused" in run_as_owner("queues", "q.life").out
    assert run_as_owner("queues", "resume", "q.life").code == 0
    assert show_queue(run_as_owner, "q.life")["paused"] is False
    purged = run_as_owner("queues", "purge", "q.life", "--yes", "--json")
    assert json.loads(purged.out)["purged"] == 2
    assert show_queue(run_as_owner, "q.life")["ready"] == 0
    assert "Even if it has consumers." in run_as_owner("queues", "delete", "--help").out
    assert run_as_owner("queues", "delete", "q.life", "--yes").code == 0
    missing = run_as_owner("queues", "show", "q.life")
    assert missing.code == 1
    assert "q.life" in missing.err
    assert "sluicemq queues" in missing.err


def test_queue_commands_reject_topics(run_as_owner: Run) -> None:
    assert run_as_owner("topics", "create", "t.only").code == 0
    assert [t["name"] for t in json.loads(run_as_owner("topics", "t.only", "--json").out)] == [
        "t.only"
    ]
    assert run_as_owner("queues", "t.only").code == 1
    assert run_as_owner("queues", "show", "t.only").code == 1
    assert run_as_owner("topics", "show", "t.only").code == 0
    assert run_as_owner("topics", "delete", "t.only", "--yes").code == 0


def test_lists_by_pattern_and_order(run_as_owner: Run) -> None:
    for name, count in (("l.a", 1), ("l.b", 3), ("l.bc", 2)):
        run_as_owner("messages", "publish", name, *["x"] * count)
    rows = [line.split() for line in run_as_owner("queues", "l.*").out.splitlines()]
    assert rows[0][:2] == ["Name", "Ready"]
    assert [row[:2] for row in rows[1:]] == [["l.a", "1"], ["l.b", "3"], ["l.bc", "2"]]
    by_waiting = json.loads(run_as_owner("queues", "list", "l.*", "--sort", "ready", "--json").out)
    assert [show_queue["name"] for show_queue in by_waiting] == ["l.b", "l.bc", "l.a"]
    assert [q["name"] for q in json.loads(run_as_owner("queues", "l.b", "--json").out)] == ["l.b"]
    assert [q["name"] for q in json.loads(run_as_owner("queues", "l.[ab]", "--json").out)] == [
        "l.a",
        "l.b",
    ]
    assert len(json.loads(run_as_owner("queues", "l.*", "-n", "2", "--json").out)) == 2


def test_list_reads_all_pages(run_as_owner: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicemq.cli.api.PAGE_SIZE", 3)
    for number in range(7):
        run_as_owner("queues", "create", f"many.{number}")
    queues = json.loads(run_as_owner("queues", "many.*", "--json").out)
    assert [show_queue["name"] for show_queue in queues] == [
        f"many.{number}" for number in range(7)
    ]


def test_empty_list_is_explained(run_as_owner: Run) -> None:
    result = run_as_owner("queues", "none.*")
    assert (result.code, result.out) == (1, "")
    assert "No queue is like none.*" in result.err
    assert json.loads(run_as_owner("queues", "none.*", "--json").out) == []
    assert "sluicemq queues create?" in run_as_owner("queues", "creat").err
    assert run_as_owner("queues", "create", "permanent").code == 0
    assert (
        run_as_owner("queues", "list", "--temporary").err
        == "There are no queues that are temporary.\n"
    )
    assert run_as_owner("queues", "delete", "permanent", "--yes").code == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
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
def test_invalid_arguments_are_usage_errors(
    run_as_owner: Run, arguments: list[str], error: str
) -> None:
    result = run_as_owner(*arguments)
    assert result.code == 2
    assert error in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "name", ["a/b", "c d?e#f%", "~", "..", "é\n", "[red]x", "\x1b[2Jz", "\udcff\udc80"]
)
def test_any_name_is_accepted_and_cannot_control_the_terminal(run_as_owner: Run, name: str) -> None:
    def run_checked(*arguments: str) -> Any:
        result = run_as_owner(*arguments)
        assert "\x1b" not in result.out + result.err
        return result

    assert run_checked("queues", "create", name).code == 0
    assert run_checked("messages", "publish", name, "x").code == 0
    assert run_checked("queues", "show", name).code == 0
    output_lines = run_checked("queues", "list").out.splitlines()
    assert len([line for line in output_lines if "\n" in line]) == 0
    assert json.loads(run_checked("queues", "show", name, "--json").out)["ready"] == 1
    assert json.loads(run_checked("messages", "list", name, "--json").out)["total"] == 1
    assert run_checked("queues", "purge", name, "--yes").code == 0
    assert run_checked("queues", "delete", name, "--yes").code == 0


def test_name_like_an_option_follows_two_dashes(run: Run, broker: RunningBroker) -> None:
    assert run("queues", "create", *broker.location, "--", "--yes").code == 0
    assert run("queues", "delete", *broker.location, "--yes", "--", "--yes").code == 0


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
def test_destructive_commands_ask_for_confirmation(run_as_owner: Run, command: list[str]) -> None:
    run_as_owner("messages", "publish", "kept", "x")
    before = show_queue(run_as_owner, "kept")["ready"]
    result = run_as_owner(*command)
    assert result.code == 2
    assert "--yes" in result.err
    assert show_queue(run_as_owner, "kept")["ready"] == before


@pytest.mark.parametrize(
    ("reply", "code", "remaining"), [("n\n", 1, 1), ("\n", 1, 1), ("y\n", 0, 0)]
)
def test_confirmation_prompt_is_respected(
    run_as_owner: Run, broker: RunningBroker, reply: str, code: int, remaining: int
) -> None:
    run_as_owner("queues", "purge", "asked", "--yes")
    run_as_owner("messages", "publish", "asked", "x")
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "sluicemq.cli", "queues", "purge", "asked", *broker.location],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "dumb"},
            start_new_session=True,
        )
        os.write(master, reply.encode())
        assert process.wait(60) == code
        os.close(slave)
        output = b""
        with suppress(OSError):  # the end, after all that was written
            while data := os.read(master, 4096):
                output += data
        assert b"1 messages" in output
    finally:
        os.close(master)
    assert show_queue(run_as_owner, "asked")["ready"] == remaining
