"""Completion of commands, options and names in a shell."""

from __future__ import annotations

import getpass
import sys

import pytest

from tests.cli.conftest import Run, RunningBroker, SecuredBroker


@pytest.fixture
def complete(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that completes the last word of a command line."""

    def complete(*words: str) -> list[str]:  # type: ignore[misc]
        monkeypatch.setenv("_SLUICEMQ_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["sluicemq", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return run().out.split()

    return complete  # type: ignore[return-value]


def test_commands_and_options_are_completed(complete: Run) -> None:
    assert "queues" in complete("qu")
    assert {"purge", "pause"} <= set(complete("queues", "pu") + complete("queues", "pa"))
    assert "--data-dir" in complete("queues", "show", "--da")
    assert "--sort" in complete("queues", "list", "--so")


def test_destination_names_are_completed(run: Run, complete: Run, broker: RunningBroker) -> None:
    for group, name in (("queues", "tab.q1"), ("queues", "tab.q2"), ("topics", "tab.t")):
        run(group, "create", name, *broker.location)
    location = broker.location
    assert complete("queues", *location, "show", "tab.") == []  # groups have no options
    assert complete("queues", "show", *location, "tab.") == ["tab.q1", "tab.q2"]
    assert complete("topics", "purge", *location, "tab.") == ["tab.t"]
    assert complete("messages", "list", *location, "tab.q") == ["tab.q1", "tab.q2"]


@pytest.mark.parametrize(
    "name", ["tab;reboot", "tab$(reboot)", "tab`x`", "tab a", "tab\nb", "tab'"]
)
def test_names_that_a_shell_would_run_are_not_offered(
    run: Run, complete: Run, broker: RunningBroker, name: str
) -> None:
    assert run("queues", "create", name, *broker.location).code == 0
    assert not [
        word for word in complete("queues", "show", *broker.location, "ta") if "." not in word
    ]


def test_completion_does_not_prompt_for_a_password(
    run: Run, complete: Run, secured_broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prompt(*_: object) -> str:
        raise AssertionError("a prompt")

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(getpass, "getpass", prompt)
    run("queues", "create", "tab.q", *secured_broker.location)
    monkeypatch.setenv("SLUICEMQ_URL", secured_broker.url)
    monkeypatch.setenv("SLUICEMQ_USER", "root")
    assert complete("queues", "show", "tab.") == []
    monkeypatch.setenv("SLUICEMQ_PASSWORD_FILE", str(secured_broker.secret))
    assert complete("queues", "show", "tab.") == ["tab.q"]
    assert complete("queues", "show", "--user", "root", "tab.") == ["tab.q"]
    run("queues", "delete", "tab.q", "--yes", *secured_broker.location)


def test_no_names_without_a_broker_or_a_login(complete: Run, secured_broker: SecuredBroker) -> None:
    assert complete("queues", "show", "--data-dir", "none", "x") == []
    assert complete("queues", "show", "--url", secured_broker.url, "x") == []
    assert complete("queues", "show", "--url", secured_broker.url, "--user", "root", "x") == []
