"""Completion of commands, options and names in a shell."""

from __future__ import annotations

import getpass
import sys

import pytest

from tests.cli.conftest import GuardedBroker, Run, RunningBroker


@pytest.fixture
def offered(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return the completions of a command line whose last word is not finished."""

    def complete(*words: str) -> list[str]:  # type: ignore[misc]
        monkeypatch.setenv("_SLUICEMQ_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["sluicemq", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return run().out.split()

    return complete  # type: ignore[return-value]


def test_commands_and_options(offered: Run) -> None:
    assert "queues" in offered("qu")
    assert {"purge", "pause"} <= set(offered("queues", "pu") + offered("queues", "pa"))
    assert "--data-dir" in offered("queues", "show", "--da")
    assert "--sort" in offered("queues", "list", "--so")


def test_names(run: Run, offered: Run, broker: RunningBroker) -> None:
    for group, name in (("queues", "tab.q1"), ("queues", "tab.q2"), ("topics", "tab.t")):
        run(group, "create", name, *broker.where)
    location = broker.where
    assert offered("queues", *location, "show", "tab.") == []  # options of a group there are none
    assert offered("queues", "show", *location, "tab.") == ["tab.q1", "tab.q2"]
    assert offered("topics", "purge", *location, "tab.") == ["tab.t"]
    assert offered("messages", "list", *location, "tab.q") == ["tab.q1", "tab.q2"]


@pytest.mark.parametrize(
    "name", ["tab;reboot", "tab$(reboot)", "tab`x`", "tab a", "tab\nb", "tab'"]
)
def test_names_that_a_shell_would_run_are_not_offered(
    run: Run, offered: Run, broker: RunningBroker, name: str
) -> None:
    assert run("queues", "create", name, *broker.where).code == 0
    assert not [word for word in offered("queues", "show", *broker.where, "ta") if "." not in word]


def test_completion_does_not_ask_for_a_password(
    run: Run, offered: Run, guarded: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prompt(*_: object) -> str:
        raise AssertionError("a prompt")

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(getpass, "getpass", prompt)
    run("queues", "create", "tab.q", *guarded.where)
    monkeypatch.setenv("SLUICEMQ_URL", guarded.url)
    monkeypatch.setenv("SLUICEMQ_USER", "root")
    assert offered("queues", "show", "tab.") == []
    monkeypatch.setenv("SLUICEMQ_PASSWORD_FILE", str(guarded.secret))
    assert offered("queues", "show", "tab.") == ["tab.q"]
    assert offered("queues", "show", "--user", "root", "tab.") == ["tab.q"]
    run("queues", "delete", "tab.q", "--yes", *guarded.where)


def test_nothing_is_offered_without_a_broker_or_a_login(
    offered: Run, guarded: GuardedBroker
) -> None:
    assert offered("queues", "show", "--data-dir", "none", "x") == []
    assert offered("queues", "show", "--url", guarded.url, "x") == []
    assert offered("queues", "show", "--url", guarded.url, "--user", "root", "x") == []
