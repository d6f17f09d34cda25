from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from sluicemq.cli.message_options import parse_milliseconds
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from tests.cli.conftest import Run, RunningBroker


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of a queue for the test."""
    return str(request.node.name).replace("[", ".").replace("]", "")


def items(run_as_owner: Run, name: str, *options: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(
        run_as_owner("messages", "list", name, *options, "--json").out
    )["items"]
    return messages


def bodies(run_as_owner: Run, name: str, *options: str) -> list[Any]:
    return [item["body"]["value"] for item in items(run_as_owner, name, "--body", *options)]


def test_published_message_is_printed(run_as_owner: Run, name: str) -> None:
    result = run_as_owner(
        *("messages", "publish", name, '{"a": [1, "ü"]}', "--kind", "json"),
        *("-p", "colour=red", "-p", "n:int=3", "-p", "ok:boolean=true", "-p", "x:float=1.5"),
        *("--priority", "7", "--ttl", "1h", "--correlation-id", "4711", "--type", "order"),
        *("--reply-to", "topic:answers", "--message-id", "mine", "--durability", "lazy"),
    )
    assert result.code == 0
    (number,) = result.out.split()
    message = json.loads(run_as_owner("messages", "show", name, number, "--json").out)
    assert message["body"]["encoding"] == "json"
    assert json.loads(message["body"]["value"]) == {"a": [1, "ü"]}
    assert {k: v["value"] for k, v in message["properties"].items()} == {
        "colour": "red",
        "n": 3,
        "ok": True,
        "x": 1.5,
    }
    assert (message["priority"], message["correlation_id"], message["type"]) == (7, "4711", "order")
    assert 3_600_000 <= message["expiration"] - message["timestamp"] < 3_660_000
    output = run_as_owner("messages", "show", name, number).out
    for text in ("colour", "red", "4711", "answers", '"ü"', "priority"):
        assert text in output


def test_arguments_files_and_standard_input_are_published(
    run_as_owner: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blob").write_bytes(b"\xff\0")
    published = run_as_owner("messages", "publish", name, "one", "two", "--file", "blob")
    assert len(published.out.split()) == 3
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped\n")))
    assert run_as_owner("messages", "publish", name).code == 0
    assert bodies(run_as_owner, name) == ["one", "two", "/wA=", "piped\n"]
    assert [item["body_kind"] for item in items(run_as_owner, name)] == [
        "text",
        "text",
        "bytes",
        "text",
    ]
    run_as_owner("messages", "publish", name, "three", "--kind", "bytes")
    assert items(run_as_owner, name)[-1]["body_kind"] == "bytes"


def test_empty_standard_input_publishes_nothing(
    run_as_owner: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    result = run_as_owner("messages", "publish", name)
    assert (result.code, result.out) == (2, "")
    assert "standard input is empty" in result.err
    assert run_as_owner("messages", "publish", name, "").code == 0
    assert bodies(run_as_owner, name) == [""]


def test_publish_from_a_terminal_prints_a_prompt(
    run_as_owner: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(b"typed"))
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    result = run_as_owner("messages", "publish", name)
    assert result.code == 0
    assert "Type the message" in result.err
    assert bodies(run_as_owner, name) == ["typed"]


def test_list_has_pages_selectors_and_states(run_as_owner: Run, name: str) -> None:
    for number in range(5):
        run_as_owner("messages", "publish", name, f"m{number}", "-p", f"n:int={number}")
    run_as_owner("messages", "publish", name, "later", "--delay", "1h")
    first = json.loads(run_as_owner("messages", "list", name, "--limit", "2", "--json").out)
    assert (len(first["items"]), first["total"]) == (2, 5)
    output = run_as_owner("messages", "list", name, "--limit", "2").out
    assert "--after" in output
    second = items(run_as_owner, name, "--limit", "2", "--after", first["next_cursor"])
    assert [item["id"] for item in second] == [
        item["id"] for item in items(run_as_owner, name)[2:4]
    ]
    assert bodies(run_as_owner, name, "--offset", "4") == ["m4"]
    assert bodies(run_as_owner, name, "--selector", "n > 2") == ["m3", "m4"]
    assert bodies(run_as_owner, name, "--state", "scheduled") == ["later"]
    empty = run_as_owner("messages", "list", name, "--selector", "n > 9")
    assert (empty.code, empty.out) == (0, "")
    assert "no such message" in empty.err


def test_body_is_saved_to_a_file(run_as_owner: Run, name: str, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(bytes(range(256)) * 1000)
    number = run_as_owner("messages", "publish", name, "--file", "blob").out.strip()
    assert run_as_owner("messages", "save", name, number, "copy").code == 0
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "blob").read_bytes()
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600
    second_save = run_as_owner("messages", "save", name, number, "copy")
    assert second_save.code == 2
    assert "--overwrite" in second_save.err
    (tmp_path / "copy").write_text("longer than nothing")
    assert run_as_owner("messages", "save", name, number, "copy", "--overwrite").code == 0
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "blob").read_bytes()
    text_id = run_as_owner("messages", "publish", name, "text").out.strip()
    assert run_as_owner("messages", "save", name, text_id, "-").out == "text"
    assert run_as_owner("messages", "save", name, text_id, "-", "--json").out == "text"
    full = run_as_owner("messages", "save", name, number, "/dev/full", "--overwrite")
    assert (full.code, full.err) == (1, "error: /dev/full: No space left on device\n")
    missing = run_as_owner("messages", "save", name, "999999999", "none")
    assert missing.code == 1
    assert not (tmp_path / "none").exists()


def test_messages_are_moved_copied_and_deleted(run_as_owner: Run, name: str) -> None:
    ids = run_as_owner("messages", "publish", name, *"abcdef").out.split()
    target = f"{name}.target"
    assert run_as_owner("messages", "copy", name, target, ids[0]).code == 0
    assert bodies(run_as_owner, target) == ["a"]
    assert len(items(run_as_owner, name)) == 6
    move = run_as_owner("messages", "move", name, target, ids[1], ids[2], "--json")
    assert json.loads(move.out) == {"processed": 2, "failed": []}
    assert bodies(run_as_owner, target) == ["a", "b", "c"]
    assert run_as_owner("messages", "delete", name, ids[0], "--yes").code == 0
    assert bodies(run_as_owner, name) == ["d", "e", "f"]
    assert run_as_owner("messages", "delete", name, "--all", "--limit", "1", "--yes").code == 0
    assert bodies(run_as_owner, name) == ["e", "f"]
    move_of_all = run_as_owner("messages", "move", name, target, "--all", "--yes")
    assert "2 moved" in move_of_all.err
    assert bodies(run_as_owner, name) == []
    partial_delete = run_as_owner("messages", "delete", target, ids[0], "999999999", "--yes")
    assert partial_delete.code == 1
    assert "message 999999999: it no longer exists" in partial_delete.err


def test_many_messages_are_moved_in_batches(
    run_as_owner: Run, name: str, broker: RunningBroker
) -> None:
    client = BlockingClient(PhpmqClient.connect, path=broker.phpmq.partition("://")[2])
    for number in range(3000):
        client.send(name, b"%d" % number)
    client.close()
    result = run_as_owner("messages", "move", name, f"{name}.target", "--all", "--yes", "--json")
    assert json.loads(result.out) == {"processed": 3000, "failed": []}
    result = run_as_owner(
        "messages", "delete", f"{name}.target", "--all", "--limit", "2999", "-y", "--json"
    )
    assert json.loads(result.out)["processed"] == 2999
    assert bodies(run_as_owner, f"{name}.target") == ["2999"]


def test_unacked_messages_are_requeued(run_as_owner: Run, name: str, broker: RunningBroker) -> None:
    run_as_owner("messages", "publish", name, "held")
    client = BlockingClient(PhpmqClient.connect, path=broker.phpmq.partition("://")[2])
    try:
        client.subscribe(name, 1)
        client.receive(10)
        (unacked_message,) = items(run_as_owner, name, "--state", "unacked")
        refused_move = run_as_owner(
            "messages", "move", name, f"{name}.target", unacked_message["id"]
        )
        assert refused_move.code == 1
        assert "redeliver requeues it" in refused_move.err
        state_option = ("--state", "unacked")
        redeliver_all = run_as_owner("messages", "redeliver", name, "--all", *state_option)
        assert redeliver_all.code == 2
        assert "selected by their ids" in redeliver_all.err
        assert (
            run_as_owner("messages", "redeliver", name, unacked_message["id"], *state_option).code
            == 0
        )
        # and redelivered to the same consumer
        assert client.receive(10).body == b"held"
        (redelivered,) = items(run_as_owner, name, "--state", "unacked")
        assert (redelivered["id"], redelivered["redelivered"]) == (unacked_message["id"], True)
    finally:
        client.close()


def test_scheduled_message_is_delivered_at_once(run_as_owner: Run, name: str) -> None:
    run_as_owner("messages", "publish", name, "later", "--delay", "1h")
    assert bodies(run_as_owner, name) == []
    assert run_as_owner("messages", "redeliver", name, "--all", "--state", "scheduled").code == 0
    assert bodies(run_as_owner, name) == ["later"]


def test_messages_sent_before_an_error_are_reported(run_as_owner: Run, name: str) -> None:
    run_as_owner("queues", "create", name, "max_messages=2", "overflow=reject-new")
    result = run_as_owner("messages", "publish", name, "a", "b", "c")
    assert result.code == 1
    assert (
        f"Published before: {', '.join(item['id'] for item in items(run_as_owner, name))}."
        in result.err
    )


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("30", 30_000), ("1.5", 1_500), ("1.5ms", 2), ("2min", 120_000)]
)
def test_time_without_a_unit_is_in_seconds(text: str, milliseconds: int) -> None:
    assert parse_milliseconds("--ttl", text) == milliseconds


def test_bodies_and_properties_cannot_control_the_terminal(run_as_owner: Run, name: str) -> None:
    number = run_as_owner(
        *("messages", "publish", name, "\x1b[2Jboo\u202e"),
        *("-p", "x=\x1b[31m", "--correlation-id", "a\x07\nb", "--type", "[red]t"),
    ).out.strip()
    for command in (
        ["list", name],
        ["list", name, "--body"],
        ["show", name, number],
    ):
        result = run_as_owner("messages", *command)
        assert result.code == 0
        for character in ("\x1b", "\x07", "\u202e"):
            assert character not in result.out + result.err
    assert "\\x1b[2Jboo" in run_as_owner("messages", "show", name, number).out
    assert "[red]t" in run_as_owner("messages", "show", name, number).out


def test_help_names_the_default_state(run: Run) -> None:
    assert "default: ready" in run("messages", "list", "--help").out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["list", "q", "--state", "redy"], "did you mean ready?"),
        (["delete", "q", "--yes"], "select messages by"),
        (["delete", "q", "1", "--all", "--yes"], "select messages by"),
        (["delete", "q", "--selector", "", "--yes"], "select messages by"),
        (["move", "q", "", "1"], "a destination has a name"),
        (["publish", "q", "x", "-p", "novalue"], "NAME=VALUE"),
        (["publish", "q", "x", "-p", "n:int=three"], "'three' is not of type int"),
        (["publish", "q", "x", "-p", "n:complex=3"], "there is no type 'complex'"),
        (["publish", "q", "{", "--kind", "json"], "the body is not JSON"),
        (["publish", "q", "[" * 5000, "--kind", "json"], "the body is not JSON"),
        (
            ["publish", "q", "x", "--kind", "txt"],
            "--kind: there is no kind 'txt'; did you mean text",
        ),
        (["publish", "q", "x", "--durability", "fsync"], "--durability: there is no durability"),
        (["publish", "q", "x", "-p", "n:float=nan"], "'nan' is not of type float"),
        (["publish", "q", "x", "--ttl", "soon"], "--ttl"),
        (["publish", "q", "x", "--correlation-id", "\udcff"], "is not UTF-8"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    run_as_owner: Run, arguments: list[str], error: str
) -> None:
    result = run_as_owner("messages", *arguments)
    assert result.code == 2
    assert error in result.err


def test_errors_of_the_broker_are_printed(run_as_owner: Run, name: str) -> None:
    run_as_owner("messages", "publish", name, "x")
    selector = run_as_owner("messages", "list", name, "--selector", "n >")
    assert selector.code == 1
    assert "Traceback" not in selector.err
    missing = run_as_owner("messages", "show", name, "999999999")
    assert missing.code == 1
    assert "sluicemq messages list" in missing.err
    result = run_as_owner("messages", "list", "not.there")
    assert result.code == 1
    assert "sluicemq queues" in result.err
