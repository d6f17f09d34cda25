"""The commands of docs/cli.md, run in order against a broker."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import COMMANDS, main
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.jmq import JmqClient, Topic
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.protocols.jmq.fields import Xid

PAGE: Final = Path(__file__).parents[2] / "docs" / "cli.md"
OTHER_PAGES: Final = {"bench", "demo", "journal", "pipeline", "receive", "send", "serve"}
"""Commands that other pages describe."""


def code_blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


class Shell:
    """A shell with the features that the page needs.

    `sluicemq` runs in this process because starting a process is slow; sh runs pipelines.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd
        self._variables: dict[str, str] = {}
        self.commands: list[str] = []

    def run(self, line: str) -> str:
        """Run a line and return its standard output."""
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self._monkeypatch.setenv(name, value.replace("$PWD", os.getcwd()))
            return ""
        if match := re.fullmatch(r"(\w+)=\$\((.*)\)", line):
            self._variables[match[1]] = self.run(match[2]).strip()
            return ""
        if "|" in line:
            program = shlex.join([sys.executable, "-m", "sluicemq.cli"])
            return subprocess.check_output(line.replace("sluicemq", program), shell=True, text=True)
        file = ""
        if match := re.fullmatch(r"(.*) > (\w+)", line):
            line, file = match.groups()
        words = [
            self._variables.get(word.removeprefix("$"), word) if word.startswith("$") else word
            for word in shlex.split(line, comments=True)
        ]
        assert words[0] == "sluicemq", line
        self.commands.append(" ".join(words[1:3]))
        self._capfd.readouterr()
        code = main(words[1:])
        captured = self._capfd.readouterr()
        assert code == 0, f"{line}\n{captured.out}\n{captured.err}"
        if file:
            Path(file).write_text(captured.out)
        return captured.out


def test_commands_of_the_page_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLUICEMQ_")]:
        monkeypatch.delenv(name)
    (tmp_path / "secret").write_text("correct horse battery\n")
    listen = ["http://127.0.0.1:0", "phpmq://127.0.0.1:0", "jmq://127.0.0.1:0"]
    shell = Shell(monkeypatch, capfd)
    with LocalBroker(tmp_path / "data", listen) as broker, ExitStack() as clients:
        url = f"http://127.0.0.1:{broker.port('http')}"
        for line in "".join(code_blocks()).splitlines():
            line = line.replace("http://127.0.0.1:7680", url)
            if line == "sluicemq subscriptions":
                _connect(broker, clients)
            elif line.startswith("sluicemq connections close 12"):
                line = line.replace("12", _first_id(shell, "connections list --protocol phpmq"))
            elif line.startswith("sluicemq transactions rollback 34"):
                line = line.replace("34", _first_id(shell, "transactions --prepared"))
            shell.run(line)
    assert (tmp_path / "order.json").read_text() == '{"article": 17}'
    _check_every_command(shell.commands)


def _connect(broker: LocalBroker, clients: ExitStack) -> None:
    """Create the connection, subscription and prepared transaction that the page ends."""
    phpmq = BlockingClient(PhpmqClient.connect, port=broker.port("phpmq"))
    clients.callback(phpmq.close)
    jms = BlockingClient(JmqClient.connect, port=broker.port("jmq"), client_id="c", reconnect=None)
    clients.callback(jms.close)
    session = jms.session()
    session.consumer(Topic("prices"), name="board", durable=True).close()
    xid = Xid(1, b"g", b"b")
    session.xa.start(xid)
    session.producer("payments").send("x")
    session.xa.end(xid)
    session.xa.prepare(xid)


def _first_id(shell: Shell, command: str) -> str:
    items = json.loads(shell.run(f"sluicemq {command} --json"))
    return str(items[0]["id"])


def _check_every_command(commands: list[str]) -> None:
    groups = {command.split()[0] for command in commands}
    missing = set(COMMANDS) - groups - OTHER_PAGES - {"backup", "restore", "migrate"}
    assert not missing, f"docs/cli.md has no example of {', '.join(sorted(missing))}"
