"""URL or socket of the broker, and credentials."""

from __future__ import annotations

import getpass
import io
import sys
from pathlib import Path

import pytest

from sluicemq.cli.location import BrokerLocation
from sluicemq.model.errors import ConfigurationError
from tests.cli.conftest import Run
from tests.support.http import basic_auth

URL = "http://127.0.0.1:7680"


@pytest.fixture(autouse=True)
def _clean_environment(run: Run, tmp_path: Path) -> None:
    """Clear the environment, as `run` does, and create files with credentials."""
    (tmp_path / "secret").write_text("pass word\nnot this\n")
    (tmp_path / "token").write_text("slq_x\n")


def test_options_override_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICEMQ_URL", "http://other:1")
    assert str(BrokerLocation(url=URL).target()) == URL
    assert str(BrokerLocation().target()) == "http://other:1"
    assert not BrokerLocation().local
    local = BrokerLocation(data_dir=tmp_path)
    assert local.local
    assert local.target().path == str(tmp_path / "admin.sock")


def test_configured_data_directory_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICEMQ_BROKER__DATA_DIR", str(tmp_path / "there"))
    assert BrokerLocation().target().path == str(tmp_path / "there" / "admin.sock")
    (tmp_path / "my.toml").write_text("[broker]\nadmin_socket = '/run/my.sock'\n")
    assert BrokerLocation(config=tmp_path / "my.toml").target().path == "/run/my.sock"


def test_environment_names_the_configuration_file(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "my.toml").write_text("[broker]\ndata_dir = 'mine'\nadmin_socket = 'my.sock'\n")
    monkeypatch.setenv("SLUICEMQ_CONFIG", str(tmp_path / "my.toml"))
    assert "my.sock" in run("status").err
    assert f"no directory {tmp_path / 'mine'}" in run("journal", "check").err
    monkeypatch.setenv("SLUICEMQ_URL", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1" in run("status").err
    assert "http://127.0.0.1:1" in run("config", "show", "--live").err
    assert "my.sock" in run("status", "--config", "my.toml").err


def test_url_names_a_socket() -> None:
    assert BrokerLocation(url="http+unix:///run/a%20b.sock").target().path == "/run/a b.sock"


@pytest.mark.parametrize(
    ("environment", "location", "authorization"),
    [
        ({}, BrokerLocation(url=URL), ""),
        ({}, BrokerLocation(URL, "anna", Path("secret")), basic_auth("anna", "pass word")),
        ({}, BrokerLocation(URL, token_file=Path("token")), "Bearer slq_x"),
        ({}, BrokerLocation("http://anna:pw@127.0.0.1:1"), basic_auth("anna", "pw")),
        ({"USER": "anna", "PASSWORD": "pw"}, BrokerLocation(URL), basic_auth("anna", "pw")),
        (
            {"TOKEN": "slq_y"},
            BrokerLocation("http://anna@127.0.0.1:1", password_file=Path("secret")),
            basic_auth("anna", "pass word"),
        ),
        (
            {"USER": "anna", "PASSWORD_FILE": "secret"},
            BrokerLocation(URL),
            basic_auth("anna", "pass word"),
        ),
        ({"TOKEN": "slq_y"}, BrokerLocation(URL), "Bearer slq_y"),
        ({"TOKEN_FILE": "token"}, BrokerLocation(URL), "Bearer slq_x"),
        (
            {"TOKEN": "slq_y"},
            BrokerLocation(URL, "anna", Path("secret")),
            basic_auth("anna", "pass word"),
        ),
        (
            {"USER": "a", "PASSWORD": "b"},
            BrokerLocation(URL, token_file=Path("token")),
            "Bearer slq_x",
        ),
    ],
)
def test_requests_have_the_configured_credentials(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    location: BrokerLocation,
    authorization: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(f"SLUICEMQ_{name}", value)
    target = location.target()
    assert target.authorization == authorization
    assert "pw" not in str(target)


@pytest.mark.parametrize(
    ("location", "error"),
    [
        (BrokerLocation(URL, data_dir=Path("d")), "either --url or a data directory"),
        (BrokerLocation(URL, "anna"), "no terminal to ask for the password"),
        (BrokerLocation(URL, password_file=Path("secret")), "--password-file requires --user"),
        (BrokerLocation(URL, "anna", token_file=Path("token")), "leave out --user"),
        (BrokerLocation("http://a:b@127.0.0.1", "anna"), "the URL contains the user"),
        (BrokerLocation("http://a@127.0.0.1", "anna"), "the URL contains the user"),
        (
            BrokerLocation("http://a:b@127.0.0.1", password_file=Path("secret")),
            "the URL contains the password",
        ),
        (BrokerLocation("http://a@127.0.0.1"), "no terminal to ask for the password of a"),
        (BrokerLocation(URL, "\udcff", Path("secret")), "is not UTF-8 text"),
        (BrokerLocation(URL, ca=Path("ca")), "requires https"),
        (BrokerLocation("phpmq://127.0.0.1"), "names the HTTP listener"),
        (BrokerLocation(URL, "anna", Path("none")), "none: the file cannot be read"),
        (BrokerLocation(user="anna", data_dir=Path("d")), "--user requires --url"),
        (BrokerLocation(ca=Path("ca"), data_dir=Path("d")), "--ca requires --url"),
    ],
)
def test_contradictory_options_are_rejected(
    monkeypatch: pytest.MonkeyPatch, location: BrokerLocation, error: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(ConfigurationError, match=error):
        location.target()


def test_typed_password_that_is_not_utf_8_is_rejected(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: object) -> str:
        return b"\xfcber\n".decode()

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(getpass, "getpass", decode)
    for command in (["queues", "--url", URL, "--user", "anna"], ["users", "add", "anna"]):
        result = run(*command)
        assert (result.code, result.err) == (1, "error: the typed password is not UTF-8 text\n")


def test_errors_name_the_environment_only_if_it_is_their_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICEMQ_CA", "ca.pem")
    assert BrokerLocation(URL).target().ca == ""
    assert BrokerLocation("https://localhost").target().ca == str(Path("ca.pem").absolute())
    assert BrokerLocation("https://localhost?ca=other.pem").target().ca == "other.pem"
    monkeypatch.setenv("SLUICEMQ_URL", "phpmq://localhost")
    with pytest.raises(ConfigurationError, match=r"^SLUICEMQ_URL: "):
        BrokerLocation().target()


def test_credentials_over_plain_http_print_a_warning(
    capfd: pytest.CaptureFixture[str],
) -> None:
    BrokerLocation("http://10.0.0.5", token_file=Path("token")).target()
    assert "use https" in capfd.readouterr().err
    for location in (
        BrokerLocation("http://localhost", token_file=Path("token")),
        BrokerLocation("https://10.0.0.5", token_file=Path("token")),
        BrokerLocation("http://10.0.0.5"),
    ):
        location.target()
        assert capfd.readouterr().err == ""


def test_broker_ignores_environment_variables_of_clients(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEMQ_URL", URL)
    monkeypatch.setenv("SLUICEMQ_TOKEN", "slq_x")
    assert run("config", "check").code == 0
    monkeypatch.setenv("SLUICEMQ_URLS", URL)
    assert run("config", "check").code == 2
