"""Brokers in other processes, and functions that run commands in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main


class Result(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class RunningBroker(NamedTuple):
    """Data directory and URLs of the broker under test."""

    data_dir: Path
    phpmq: str
    msglite: str
    vibemq: str
    jmq: str

    @property
    def location(self) -> list[str]:
        """Return the options of a command that manages the broker as its owner."""
        return ["--data-dir", str(self.data_dir)]


class SecuredBroker(NamedTuple):
    """A broker that requires a login.

    `root` is a superuser; tests grant permissions to `shop`; the file `secret` contains the
    password of both.
    """

    data_dir: Path
    url: str
    vibemq: str
    jmq: str
    secret: Path

    @property
    def location(self) -> list[str]:
        """Return the options of a command that manages the broker as its owner."""
        return ["--data-dir", str(self.data_dir)]

    def environment_of(self, user: str) -> dict[str, str]:
        """Return the environment of commands that the user runs over the network."""
        return {
            "SLUICEMQ_URL": self.url,
            "SLUICEMQ_USER": user,
            "SLUICEMQ_PASSWORD_FILE": str(self.secret),
        }


Run = Callable[..., Result]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Return a function that runs a command in an empty directory without environment settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name in [name for name in os.environ if name.startswith("SLUICEMQ_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str) -> Result:
        capfd.readouterr()
        code = main(arguments)
        return Result(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    directory = tmp_path_factory.mktemp("broker")
    data_dir = directory / "data"
    phpmq = f"phpmq+unix://{directory}/phpmq.sock"
    msglite = f"msglite+unix://{directory}/msglite.sock"
    vibemq = f"vibemq+unix://{directory}/vibemq.sock"
    jmq = f"jmq+unix://{directory}/jmq.sock"
    with LocalBroker(data_dir, (phpmq, msglite, vibemq, jmq)) as local:
        yield RunningBroker(data_dir, phpmq, msglite, vibemq, jmq)
        assert local.stop() == 0


@pytest.fixture(scope="package")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    directory = tmp_path_factory.mktemp("secured")
    secret = directory / "secret"
    secret.write_text("correct horse battery\n")
    data = directory / "data"
    vibemq = f"vibemq+unix://{directory}/vibemq.sock"
    jmq = f"jmq+unix://{directory}/jmq.sock"
    listeners = ["http://127.0.0.1:0", vibemq, f"{jmq}?authentication=basic"]
    with LocalBroker(data, listeners) as local:
        for user, *options in (("root", "--superuser"), ("shop",)):
            arguments = ["--password-file", str(secret), "--data-dir", str(data)]
            assert main(["users", "add", user, *options, *arguments]) == 0
        yield SecuredBroker(data, f"http://127.0.0.1:{local.port('http')}", vibemq, jmq, secret)


@pytest.fixture
def run_as_owner(run: Run, broker: RunningBroker) -> Run:
    """Return a function that runs a command as the owner of the broker."""
    return lambda *arguments: run(*arguments, *broker.location)
