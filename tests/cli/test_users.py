from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sluicemq.model.access import Operation
from sluicemq.security.passwords import verify
from sluicemq.security.records import Database, UserRecord, UserStore, fingerprint
from tests.cli.conftest import Result, Run

SECRET = "correct horse battery"


def database(tmp_path: Path) -> Database:
    return UserStore(tmp_path / "data" / "users.json").read()


@pytest.fixture
def run_with_password(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command with a data directory and typed input."""

    def call(*arguments: str, typed: str = SECRET + "\n") -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        return run(*arguments, "--data-dir", "data")

    return call


def test_user_is_added_changed_and_removed(run_with_password: Run, tmp_path: Path) -> None:
    assert run_with_password("users", "add", "anna", "--password-stdin").code == 0
    record = database(tmp_path).users["anna"]
    assert verify(record.password, SECRET)
    assert (record.digest, record.superuser, record.permissions) == ("", False, ())
    assert abs(record.created - time.time()) < 60
    assert (
        run_with_password("users", "passwd", "anna", "--password-stdin", typed="other\n").code == 0
    )
    record = database(tmp_path).users["anna"]
    assert verify(record.password, "other")
    assert record.digest == ""
    assert run_with_password("users", "add", "root", "--superuser", "--password-stdin").code == 0
    assert run_with_password("users", "remove", "anna", "--yes").code == 0
    assert [*database(tmp_path).users] == ["root"]
    assert "on the command line" in database(tmp_path).changed_by


def test_user_is_added_to_a_directory_with_a_path_that_no_socket_can_have(
    run: Run, tmp_path: Path
) -> None:
    """The broker can have its admin socket elsewhere (`broker.admin_socket`)."""
    directory = tmp_path / ("x" * 120)
    options = ("--superuser", "--no-password", "--data-dir", str(directory))
    result = run("users", "add", "root", *options)
    assert result.code == 0
    assert set(UserStore(directory / "users.json").read().users) == {"root"}


def test_digest_is_stored_only_if_allowed(run_with_password: Run, tmp_path: Path) -> None:
    def digest() -> str:
        return database(tmp_path).users["guest"].digest

    guest = ["guest", "--password-stdin"]
    run_with_password("users", "add", *guest, "--allow-digest", typed="guest")
    assert digest() == "-2c3c4a34aa2c392f39edd112333c230d"
    run_with_password("users", "passwd", *guest, typed="other")
    assert digest() not in ("", "-2c3c4a34aa2c392f39edd112333c230d")
    run_with_password("users", "passwd", *guest, "--no-digest", typed="guest")
    assert digest() == ""
    run_with_password("users", "passwd", *guest, typed="guest")
    assert digest() == ""
    run_with_password("users", "passwd", *guest, "--allow-digest", typed="guest")
    assert digest() == "-2c3c4a34aa2c392f39edd112333c230d"


def test_password_is_read_from_a_file(run_with_password: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\nnot this\n")
    assert run_with_password("users", "add", "anna", "--password-file", "secret").code == 0
    assert verify(database(tmp_path).users["anna"].password, SECRET)


@pytest.mark.parametrize(
    ("arguments", "typed", "code", "error"),
    [
        (["users", "add", "anna", "--password-stdin"], SECRET, 1, "the user anna exists already"),
        (["users", "add", "a b", "--password-stdin"], SECRET, 1, "cannot be a user's name"),
        (["users", "add", "bert"], "", 2, "no terminal"),
        (["users", "add", "bert", "--password-stdin"], "", 1, "cannot be empty"),
        (["users", "add", "bert", "--password-stdin"], "x" * 2000, 1, "at most 1024"),
        (["users", "add", "bert", "--password-file", "none"], "", 2, "none: the file cannot"),
        (["users", "add", "bert", "--password", SECRET], "", 2, "No such option"),
        (["users", "add", "bert", "--no-password", "--password-stdin"], SECRET, 2, "--no-password"),
        (
            ["users", "add", "bert", "--no-password", "--role", "x"],
            "",
            1,
            "the role 'x' does not exist",
        ),
        (
            ["users", "passwd", "bert", "--password-stdin"],
            SECRET,
            1,
            "the user 'bert' does not exist",
        ),
        (["users", "remove", "bert", "--yes"], "", 1, "the user 'bert' does not exist"),
        (["users", "remove", "anna", "--yes"], "", 1, "the last user"),
        (["users", "token", "add", "bert"], "", 1, "the user 'bert' does not exist"),
        (["users", "token", "add", "anna", "--expires", "soon"], "", 2, "--expires"),
        (["users", "token", "add", "anna", "--expires", ""], "", 2, "--expires"),
        (["users", "token", "list", "bert"], "", 1, "the user 'bert' does not exist"),
        (["users", "token", "remove", "anna", "1f", "--yes"], "", 1, "anna has no token '1f'"),
        (["permissions", "grant", "bert", "*", "consume"], "", 1, "the user 'bert' does not exist"),
        (["permissions", "grant", "anna", "*", "consum"], "", 2, "did you mean consume?"),
        (["permissions", "grant", "anna", "", "consume"], "", 1, "1 to 256 characters"),
        (["permissions", "grant", "anna", "\udcff", "consume"], "", 2, "is not UTF-8"),
        (["users", "token", "add", "anna", "--label", "\udcff"], "", 2, "is not UTF-8"),
        (
            ["permissions", "grant", "anna", "*", "all", "--role"],
            "",
            1,
            "the role 'anna' does not exist",
        ),
        (["permissions", "revoke", "anna", "x"], "", 1, "no permission for the pattern 'x'"),
        (["permissions", "revoke", "bert", "x"], "", 1, "the user 'bert' does not exist"),
        (["permissions", "list", "bert"], "", 1, "the user 'bert' does not exist"),
        (["permissions", "role", "remove", "x"], "", 1, "the role 'x' does not exist"),
        (["permissions", "role", "assign", "x", "anna"], "", 1, "the role 'x' does not exist"),
    ],
)
def test_invalid_commands_change_nothing(
    run_with_password: Run, tmp_path: Path, arguments: list[str], typed: str, code: int, error: str
) -> None:
    run_with_password("users", "add", "anna", "--password-stdin")
    before = (tmp_path / "data" / "users.json").read_bytes()
    result = run_with_password(*arguments, typed=typed)
    assert result.code == code
    assert error in result.err
    assert "Traceback" not in result.err
    assert SECRET not in result.err
    assert (tmp_path / "data" / "users.json").read_bytes() == before


def test_last_superuser_and_last_user_are_removed_only_by_force(
    run_with_password: Run, tmp_path: Path
) -> None:
    run_with_password("users", "add", "anna", "--no-password")
    run_with_password("users", "add", "root", "--no-password", "--superuser")
    assert "last superuser" in run_with_password("users", "remove", "root", "--yes").err
    assert run_with_password("users", "remove", "root", "--force", "--yes").code == 0
    assert run_with_password("users", "remove", "anna", "--force", "--yes").code == 0
    assert database(tmp_path).users == {}


def test_damaged_database_is_not_changed(run_with_password: Run, tmp_path: Path) -> None:
    run_with_password("users", "add", "anna", "--no-password")
    (tmp_path / "data" / "users.json").write_text('{"version": 1')
    for arguments in (["users", "list"], ["users", "add", "bert", "--no-password"]):
        result = run_with_password(*arguments)
        assert result.code == 2
        assert "users.json is not a user database" in result.err
    assert (tmp_path / "data" / "users.json").read_text() == '{"version": 1'


def test_list_has_no_hashes(run_with_password: Run) -> None:
    run_with_password("users", "add", "anna", "--password-stdin")
    run_with_password("users", "add", "root", "--no-password", "--superuser")
    listed_users = json.loads(run_with_password("users", "list", "--json").out)
    assert [(user["name"], user["superuser"], user["has_password"]) for user in listed_users] == [
        ("anna", False, True),
        ("root", True, False),
    ]
    text = run_with_password("users", "list")
    assert "anna password" in text.out
    assert "superuser" in text.out
    assert "$argon2" not in text.out + json.dumps(listed_users)


def test_tokens_are_printed_once(run_with_password: Run, tmp_path: Path) -> None:
    run_with_password("users", "add", "anna", "--no-password")
    result = run_with_password(
        "users", "token", "add", "anna", "--label", "[bold]ci", "--expires", "2h"
    )
    token = result.out.strip()
    (record,) = database(tmp_path).users["anna"].tokens
    assert record.sha256 == fingerprint(token)
    assert record.expires - record.created == 7200
    assert token not in result.err
    assert token not in (tmp_path / "data" / "users.json").read_text()
    tokens = json.loads(run_with_password("users", "token", "list", "--json").out)
    assert tokens == [
        {
            "user": "anna",
            "id": record.id,
            "label": "[bold]ci",
            "created": record.created * 1000,
            "expires": record.expires * 1000,
        }
    ]
    assert "[bold]ci" in run_with_password("users", "token", "list", "anna").out
    created_token = json.loads(run_with_password("users", "token", "add", "anna", "--json").out)
    assert created_token["expires"] == 0
    assert run_with_password("users", "token", "remove", "anna", record.id, "-y").code == 0
    (remaining,) = database(tmp_path).users["anna"].tokens
    assert remaining.id == created_token["id"]
    assert remaining.sha256 == fingerprint(created_token["token"])


def test_permissions_and_roles_are_granted_and_revoked(
    run_with_password: Run, tmp_path: Path
) -> None:
    run_with_password("users", "add", "anna", "--no-password")
    run_with_password("users", "add", "root", "--no-password", "--superuser")
    assert run_with_password("permissions", "role", "add", "workers").code == 0
    assert (
        run_with_password("permissions", "grant", "workers", "jobs.*", "consume", "--role").code
        == 0
    )
    assert run_with_password("permissions", "role", "assign", "workers", "anna").code == 0
    assert run_with_password("permissions", "grant", "anna", "a", "Produce", "browse").code == 0
    assert run_with_password("permissions", "grant", "anna", "b", "all").code == 0
    rows = json.loads(run_with_password("permissions", "list", "anna", "--json").out)
    assert rows == [
        {
            "user": "anna",
            "pattern": "a",
            "operations": ["produce", "browse"],
            "ignore_case": False,
            "through": "",
        },
        {
            "user": "anna",
            "pattern": "b",
            "operations": [*Operation],
            "ignore_case": False,
            "through": "",
        },
        {
            "user": "anna",
            "pattern": "jobs.*",
            "operations": ["consume"],
            "ignore_case": False,
            "through": "workers",
        },
    ]
    assert run_with_password("permissions", "grant", "anna", "A", "list", "--ignore-case").code == 0
    [row] = [
        item
        for item in json.loads(run_with_password("permissions", "list", "anna", "--json").out)
        if item["pattern"] == "A"
    ]
    assert (row["operations"], row["ignore_case"]) == (["list"], True)
    result = run_with_password("permissions", "list").out
    assert "ignored" in result
    for part in ("superuser", "role workers", "jobs.*"):
        assert part in result
    assert json.loads(run_with_password("permissions", "list", "--role", "--json").out) == [
        {
            "role": "workers",
            "pattern": "jobs.*",
            "operations": ["consume"],
            "ignore_case": False,
            "through": "",
        }
    ]
    assert "assigned to anna" in run_with_password("permissions", "role", "remove", "workers").err
    assert run_with_password("permissions", "revoke", "workers", "jobs.*", "--role").code == 0
    assert run_with_password("permissions", "revoke", "anna", "b").code == 0
    assert run_with_password("permissions", "role", "unassign", "workers", "anna").code == 0
    assert run_with_password("permissions", "role", "remove", "workers").code == 0
    remaining = database(tmp_path)
    assert remaining.roles == {}
    assert [p.pattern for p in remaining.users["anna"].permissions] == ["a", "A"]


def test_configured_file_is_used(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sluicemq.toml").write_text('[auth]\nusers_file = "etc/people.json"\n')
    assert run("users", "add", "anna", "--no-password").code == 0
    assert isinstance(UserStore(tmp_path / "etc/people.json").read().users["anna"], UserRecord)


def answer_prompts(terminal: int, process: subprocess.Popen[bytes], answers: list[str]) -> str:
    """Answer all prompts and return the output of the terminal."""
    screen = ""
    with suppress(OSError):  # the terminal of a process that has ended
        while data := os.read(terminal, 1000):
            screen += data.decode()
            if answers and screen.rstrip(" ").endswith(":"):
                command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                assert answers[0].encode() not in command + environment
                os.write(terminal, answers.pop(0).encode() + b"\n")
                screen += "\n"
    return screen


@pytest.mark.parametrize(
    ("repetition", "code"), [(SECRET, 0), ("mistyped", 1)], ids=["the same", "different"]
)
def test_typed_password_is_not_visible(tmp_path: Path, repetition: str, code: int) -> None:
    terminal, process_end = pty.openpty()
    arguments = ["users", "add", "anna", "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(
        [sys.executable, "-m", "sluicemq.cli", *arguments],
        stdin=process_end,
        stdout=process_end,
        stderr=process_end,
        start_new_session=True,
    ) as process:
        os.close(process_end)
        try:
            screen = answer_prompts(terminal, process, [SECRET, repetition])
            assert process.wait(30) == code
        finally:
            process.kill()
            os.close(terminal)
    assert SECRET not in screen
    stored_users = database(tmp_path).users
    if code == 0:
        assert verify(stored_users["anna"].password, SECRET)
    else:
        assert "differ" in screen
        assert stored_users == {}


@pytest.mark.parametrize(("length", "has_warning"), [(57, False), (58, True)])
def test_password_too_long_for_java_clients_prints_a_warning(
    run_with_password: Run, tmp_path: Path, length: int, has_warning: bool
) -> None:
    result = run_with_password(
        "users", "add", "anna", "--password-stdin", typed="x" * length + "\n"
    )
    assert result.code == 0
    assert ("first 57 bytes" in " ".join(result.err.split())) == has_warning
    assert verify(database(tmp_path).users["anna"].password, "x" * length)


def write_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "sluicemq.toml").write_text(text)


def test_first_user_output_lists_login_changes_and_open_listeners(
    run_with_password: Run, tmp_path: Path
) -> None:
    write_configuration(
        tmp_path,
        """
        [[listeners]]
        url = "vibemq://127.0.0.1:1"
        [[listeners]]
        url = "phpmq://127.0.0.1:2"
        [[listeners]]
        url = "msglite://127.0.0.1:3?user=anna"
        [[listeners]]
        url = "msglite+unix:///run/m.socket"
        """,
    )
    result = run_with_password(
        "users", "add", "anna", "--password-stdin", "--config", "sluicemq.toml"
    )
    assert result.code == 0
    output = " ".join((result.out + result.err).split())
    assert "Added anna, the first user." in output
    assert (
        "No broker is running here. When it starts, VibeMQ, JMQ and HTTP require a login" in output
    )
    assert "phpmq://127.0.0.1:2, msglite+unix:///run/m.socket." in output
    assert "?user=NAME" in output
    assert 'auth.required = "always"' in output
    assert "vibemq://" not in output
    assert "msglite://127.0.0.1:3" not in output
    second = run_with_password(
        "users", "add", "bert", "--password-stdin", "--config", "sluicemq.toml"
    )
    assert " ".join((second.out + second.err).split()) == "Added bert."


def test_first_user_changes_no_login_if_none_is_required(
    run_with_password: Run, tmp_path: Path
) -> None:
    write_configuration(tmp_path, "[auth]\nrequired = 'never'\n")
    arguments = ["anna", "--password-stdin", "--config", "sluicemq.toml", "--json"]
    result = run_with_password("users", "add", *arguments)
    document = json.loads(result.out)
    assert (document["added"], document["first"], document["login_required"]) == (
        "anna",
        True,
        False,
    )


def test_password_below_the_minimum_is_rejected(run_with_password: Run, tmp_path: Path) -> None:
    write_configuration(tmp_path, "[auth]\nmin_password_length = 8\n")
    config = ["--password-stdin", "--config", "sluicemq.toml"]
    result = run_with_password("users", "add", "anna", *config, typed="1234567\n")
    assert result.code == 1
    assert "has 7 characters, and this broker requires 8" in " ".join(result.err.split())
    assert "1234567" not in result.err
    assert database(tmp_path).users == {}
    # characters, not bytes
    assert run_with_password("users", "add", "anna", *config, typed="ééééééé\n").code == 1
    result = run_with_password("users", "add", "anna", *config, typed="12345678\n")
    assert result.code == 0
    assert "fewer than 12 characters" in " ".join(result.err.split())
    result = run_with_password("users", "passwd", "anna", *config, typed="1234567\n")
    assert result.code == 1
    assert verify(database(tmp_path).users["anna"].password, "12345678")
    result = run_with_password("users", "passwd", "anna", *config, typed="123456789012\n")
    assert (result.code, "fewer" in result.err) == (0, False)
