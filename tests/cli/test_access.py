"""Users and permissions of a running broker, and requests without permission."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.security.records import UserStore
from tests.cli.conftest import Run, SecuredBroker


@pytest.fixture
def run_as_root(run: Run, secured_broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command as the superuser, over the network."""
    for name, value in secured_broker.environment_of("root").items():
        monkeypatch.setenv(name, value)
    return run


@pytest.fixture
def run_as_shop(run: Run, secured_broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command as `shop`, over the network."""
    for name, value in secured_broker.environment_of("shop").items():
        monkeypatch.setenv(name, value)
    return run


def test_list_does_not_deny_destinations_that_the_user_may_not_see(
    run_as_shop: Run, run: Run, secured_broker: SecuredBroker
) -> None:
    assert run("topics", "create", "hidden", *secured_broker.location).code == 0
    text = "There are no topics on which you have a permission.\n"
    assert run_as_shop("topics", "--url", secured_broker.url).err == text


def test_users_over_the_api_are_those_in_the_file(
    run_as_root: Run, secured_broker: SecuredBroker, tmp_path: Path
) -> None:
    run = run_as_root
    (tmp_path / "new").write_text("of anna\n")
    assert run("permissions", "role", "add", "readers").code == 0
    options = ["--password-file", "new", "--role", "readers", "--allow-digest"]
    assert run("users", "add", "anna", *options).code == 0
    assert run("permissions", "grant", "anna", "a.*", "browse", "consume").code == 0
    assert run("permissions", "grant", "--role", "readers", "*", "browse").code == 0
    token = json.loads(run("users", "token", "add", "anna", "--label", "ci", "--json").out)
    database = UserStore(secured_broker.data_dir / "users.json").read()
    record = database.users["anna"]
    assert (record.roles, bool(record.digest), record.superuser) == (("readers",), True, False)
    assert [p.pattern for p in record.permissions] == ["a.*"]
    assert [t.id for t in record.tokens] == [token["id"]]
    assert database.changed_by.startswith("root")
    rows = json.loads(run("permissions", "list", "anna", "--json").out)
    assert [(row["pattern"], row["through"]) for row in rows] == [("a.*", ""), ("*", "readers")]
    (user,) = [u for u in json.loads(run("users", "--json").out) if u["name"] == "anna"]
    assert user["tokens"][0]["label"] == "ci"
    assert token["token"] not in json.dumps(user)

    (tmp_path / "token").write_text(token["token"])
    token_options = ["--url", secured_broker.url, "--token-file", "token"]
    assert run("queues", *token_options).code == 0

    (tmp_path / "new").write_text("another\n")
    assert run("users", "passwd", "anna", "--password-file", "new").code == 0
    assert UserStore(secured_broker.data_dir / "users.json").read().users["anna"] != record
    login = ["--user", "anna", "--password-file", "new"]
    assert run("queues", "--url", secured_broker.url, *login).code == 0
    assert "does not exist" in run("permissions", "grant", "bert", "*", "all").err
    assert "already" in run("permissions", "role", "add", "readers").err
    assert "assigned to anna" in run("permissions", "role", "remove", "readers").err
    assert run("permissions", "role", "unassign", "readers", "anna").code == 0
    assert run("permissions", "role", "remove", "readers").code == 0
    assert run("permissions", "revoke", "anna", "a.*").code == 0
    assert "no permission for the pattern" in run("permissions", "revoke", "anna", "a.*").err
    assert run("users", "token", "remove", "anna", token["id"], "--yes").code == 0
    assert run("queues", *token_options).code == 1
    assert run("users", "remove", "anna", "--yes").code == 0
    assert "does not exist" in run("users", "remove", "anna", "--yes").err
    assert "last superuser" in run("users", "remove", "root", "--yes").err


def test_login_and_password_of_a_new_user_in_one_command(
    run: Run, secured_broker: SecuredBroker, tmp_path: Path
) -> None:
    (tmp_path / "new").write_text("of carl\n")
    login = [
        "--url",
        secured_broker.url,
        "--user",
        "root",
        "--login-password-file",
        str(secured_broker.secret),
    ]
    assert run("users", "add", "carl", "--password-file", "new", *login).code == 0
    carl_options = ["--url", secured_broker.url, "--user", "carl", "--password-file", "new"]
    assert run("queues", *carl_options).code == 0


def test_adding_a_user_twice_changes_nothing(run: Run, secured_broker: SecuredBroker) -> None:
    before = UserStore(secured_broker.data_dir / "users.json").read()
    result = run("users", "add", "shop", "--no-password", "--superuser", *secured_broker.location)
    assert result.code == 1
    assert "the user shop exists already" in result.err
    assert UserStore(secured_broker.data_dir / "users.json").read() == before


def test_new_password_does_not_create_a_missing_user(
    run: Run, secured_broker: SecuredBroker
) -> None:
    file = ["--password-file", str(secured_broker.secret)]
    result = run("users", "passwd", "unknown", *file, *secured_broker.location)
    assert result.code == 1
    assert "the user 'unknown'" in result.err


def test_output_is_the_same_with_and_without_a_broker(run: Run, tmp_path: Path) -> None:
    """Results and output are the same for a running broker and for its file."""
    commands = [
        ["users", "list", "--json"],
        ["users", "add", "anna", "--no-password", "--superuser", "--json"],
        ["users", "add", "anna", "--no-password"],
        ["users", "add", "b/c", "--no-password"],
        ["users", "add", "bert", "--no-password", "--role", "none"],
        ["users", "remove", "bert", "--yes"],
        ["users", "remove", "anna", "--yes"],
        ["users", "token", "remove", "anna", "12", "--yes"],
        ["permissions", "grant", "anna", "x*", "browse", "--json"],
        ["permissions", "list", "anna", "--json"],
        ["permissions", "role", "add", "r", "--json"],
        ["permissions", "role", "add", "r"],
        ["permissions", "role", "remove", "s"],
        ["permissions", "role", "assign", "s", "anna"],
        ["permissions", "role", "assign", "r", "anna"],
        ["permissions", "role", "list", "--json"],
        ["permissions", "grant", "--role", "s", "*", "all"],
        ["permissions", "list", "--role", "s"],
        ["users", "list"],
        ["users", "remove", "anna", "--force", "--yes"],
    ]

    def outputs(data: Path) -> list[tuple[int, str, str]]:
        results = []
        for command in commands:
            result = run(*command, "--data-dir", str(data))
            # over the API an error begins with the broker's address
            err = result.err.replace(f"{data}/admin.sock: ", "").splitlines()[:1]
            # the running broker has listeners of its own
            output = re.sub(r'"open_listeners":\[[^]]*\]', "", result.out)
            # users are created at different times
            output = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME", output)
            results.append((result.code, output, "".join(err)))
        return results

    outputs_without = outputs(tmp_path / "alone")
    with LocalBroker(tmp_path / "running", ["phpmq://127.0.0.1:0"]):
        running = outputs(tmp_path / "running")
    for command, expected, output in zip(commands, outputs_without, running, strict=True):
        assert expected == output, command


def test_requests_without_a_valid_login_are_rejected(
    run: Run, secured_broker: SecuredBroker
) -> None:
    result = run("queues", "--url", secured_broker.url)
    assert result.code == 1
    assert result.out == ""
    assert "--user NAME" in result.err
    Path("wrong").write_text("guess\n")
    login = ["--user", "shop", "--password-file", "wrong"]
    assert run("queues", "--url", secured_broker.url, *login).code == 1


def test_health_requires_no_login(run: Run, secured_broker: SecuredBroker) -> None:
    assert run("health", "--url", secured_broker.url).code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["users"],
        ["users", "add", "eve", "--no-password", "--superuser"],
        ["users", "remove", "root", "--yes"],
        ["permissions", "list"],
        ["permissions", "grant", "shop", "*", "all"],
        ["permissions", "role", "add", "evil"],
        ["audit"],
        ["config", "show", "--live"],
        ["slots"],
        ["slots", "create", "mine"],
        ["queues", "create", "forbidden"],
        ["queues", "alter", "theirs", "max_messages=1"],
        ["queues", "delete", "theirs", "--yes"],
        ["queues", "purge", "theirs", "--yes"],
        ["queues", "pause", "theirs"],
        ["queues", "show", "theirs"],
        ["messages", "list", "theirs"],
        ["messages", "show", "theirs", "1"],
        ["messages", "save", "theirs", "1", "file"],
        ["messages", "publish", "theirs", "x"],
        ["messages", "delete", "theirs", "--all", "--yes"],
        ["messages", "move", "theirs", "mine", "--all", "--yes"],
        ["messages", "copy", "mine", "theirs", "--all"],
        ["dlq", "redrive", "theirs", "--all", "--yes"],
    ],
)
def test_operations_without_permission_are_rejected(
    run_as_shop: Run, run: Run, secured_broker: SecuredBroker, command: list[str]
) -> None:
    for name in ("theirs", "mine"):
        run("queues", "create", name, *secured_broker.location)
    run("messages", "publish", "theirs", "secret", *secured_broker.location)
    run("permissions", "grant", "shop", "mine", "all", *secured_broker.location)
    users = (secured_broker.data_dir / "users.json").read_bytes()
    result = run_as_shop(*command)
    assert result.code == 1, result
    assert "shop may not" in result.err
    # the error suggests a permission only if one suffices
    assert ("permissions grant" in result.err) == ("requires a superuser" not in result.err)
    assert "secret" not in result.out + result.err
    assert (secured_broker.data_dir / "users.json").read_bytes() == users
    queue = json.loads(run("queues", "show", "theirs", "--json", *secured_broker.location).out)
    assert queue["ready"] >= 1
    assert not queue["paused"]


def test_lists_contain_only_visible_destinations(
    run_as_shop: Run, run: Run, secured_broker: SecuredBroker
) -> None:
    for name in ("theirs", "mine.a"):
        run("queues", "create", name, *secured_broker.location)
    run("permissions", "grant", "shop", "mine.*", "browse", *secured_broker.location)
    names = {queue["name"] for queue in json.loads(run_as_shop("queues", "--json").out)}
    assert "mine.a" in names
    assert "theirs" not in names


def test_audit_log_names_the_user(
    run: Run, run_as_root: Run, secured_broker: SecuredBroker
) -> None:
    marker = f"audited{time.time_ns()}"
    assert run_as_root("queues", "create", marker).code == 0
    lines = json.loads(run_as_root("audit", "--json", "--limit", "20").out)
    (line,) = [line for line in lines if marker in str(line)]
    assert line["user"] == "root"
    assert marker in run("audit", *secured_broker.location).out
