"""Validation of the settings for users and logins."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.model.errors import ConfigurationError
from sluicemq.security import records
from sluicemq.security.records import UserRecord, UserStore
from sluicemq.server.configuration_reference import render
from sluicemq.server.loading import load


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def add_user(directory: Path, name: str = "anna", digest: str = "") -> None:
    record = UserRecord(digest=digest, created=1, updated=1)
    UserStore(directory / "users.json").change(
        lambda database: records.add_user(database, name, record), ""
    )


def problems(tmp_path: Path, *listen: str, **settings: object) -> list[str]:
    settings = {"broker.data_dir": str(tmp_path), **settings}
    return list(load(listen=listen, flags=settings).config.problems())


@pytest.mark.parametrize(
    ("listen", "required", "user", "error"),
    [
        ("phpmq://0.0.0.0:1", "auto", False, "phpmq has no logins"),
        ("phpmq://0.0.0.0:1", "auto", True, "phpmq has no logins"),
        ("phpmq://0.0.0.0:1?user=anna", "auto", True, ""),
        ("phpmq://0.0.0.0:1?user=anna", "never", True, ""),
        ("phpmq://:1?user=anna", "auto", False, "there is no user 'anna'"),
        ("phpmq://:1", "always", True, "required is always"),
        ("phpmq://:1?user=anna", "always", True, ""),
        ("phpmq+unix:///s", "always", True, "required is always"),
        ("vibemq://0.0.0.0:1", "auto", False, "no users that could log in"),
        ("vibemq://0.0.0.0:1", "auto", True, ""),
        ("vibemq://:1", "always", False, ""),
        ("auto://0.0.0.0:1", "auto", False, "no users that could log in"),
        ("auto://0.0.0.0:1", "auto", True, ""),
        ("auto://0.0.0.0:1", "always", False, ""),
        ("auto://0.0.0.0:1", "never", True, "no users that could log in"),
        ("auto://:1", "auto", False, ""),
    ],
)
def test_reachable_listeners_require_users(
    tmp_path: Path, listen: str, required: str, user: bool, error: str
) -> None:
    if user:
        add_user(tmp_path)
    reported = problems(tmp_path, listen, **{"auth.required": required})
    assert len(reported) == bool(error)
    assert not error or error in reported[0]
    if "public" in str(reported):
        assert problems(tmp_path, listen, insecure_public=True) == []


def test_admin_token_counts_as_a_user(tmp_path: Path) -> None:
    file = tmp_path / "token"
    settings: dict[str, object] = {"auth.admin_token_file": str(file)}
    assert "No such file" in problems(tmp_path, "auto://:1", **settings)[0]
    file.write_text("short\n")
    (problem,) = problems(tmp_path, "auto://0.0.0.0:1", **settings)
    assert "less than 16 characters" in problem
    assert "short" not in problem
    file.write_text("0123456789abcdef\n")
    assert problems(tmp_path, "auto://0.0.0.0:1", **settings) == []


def test_damaged_user_database_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text("{")
    (problem,) = problems(tmp_path, "phpmq://:1")
    assert problem.startswith("auth.users_file:")


def test_contradictory_login_times_are_problems(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "phpmq://:1", **{"auth.login_backoff": "2min"})
    assert "login_backoff_max" in problem
    (problem,) = problems(tmp_path, "phpmq://:1", **{"auth.login_backoff_max": "1h"})
    assert "login_failure_window" in problem


def test_user_option_is_rejected_for_protocols_with_logins() -> None:
    with pytest.raises(ConfigurationError, match="not an option of vibemq"):
        load(listen=["vibemq://:1?user=anna"])


def test_settings_are_equal_after_a_round_trip(tmp_path: Path) -> None:
    listen = ["phpmq://:1?user=anna", "msglite://:2"]
    config = load(
        listen=listen,
        flags={"auth.required": "always", "auth.users_file": "/x/users.json"},
    ).config
    file = tmp_path / "again.toml"
    file.write_text(render(config))
    assert load(file).config == config
    assert config.users_file == Path("/x/users.json")


def test_digest_logins_without_digest_users_are_a_warning(tmp_path: Path) -> None:
    def warnings(method: str) -> list[str]:
        listen = f"jmq://:1?authentication={method}"
        settings = {"broker.data_dir": str(tmp_path)}
        return list(load(listen=[listen], flags=settings).config.warnings())

    assert warnings("digest") == []
    add_user(tmp_path)
    (warning,) = warnings("digest")
    assert "no user has been added with --allow-digest" in warning
    assert warnings("auto") == warnings("basic") == []
    add_user(tmp_path, "bert", digest="1f")
    assert warnings("digest") == []
