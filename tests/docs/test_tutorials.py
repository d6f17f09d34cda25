"""Run the tutorials and the readme. (The pipeline's tutorial is run in tests/pipeline.)"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from tests.tutorials import DOCS, README, Reader, matches, snippets


@pytest.fixture
def reader(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLUICEMQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    reader = Reader(tmp_path, DOCS / request.param, in_process="nothing")
    yield reader
    reader.close()


@pytest.mark.parametrize("reader", ["quickstart.md", "tutorial.md"], indirect=True)
def test_tutorial_works(reader: Reader) -> None:
    assert len(snippets(reader.text.read_text())) > 3
    reader.follow()


@pytest.mark.parametrize("reader", [README], indirect=True)
def test_readme_sends_and_receives(reader: Reader, tmp_path: Path) -> None:
    """Run its commands that send and receive, and its Python example, which ends by itself."""
    protocols = {"phpmq": "9100", "msglite": "9813", "jmq": "7676"}
    reader.broker = LocalBroker(tmp_path / "data", [f"{name}://127.0.0.1:0" for name in protocols])
    reader.broker.start()
    reader.ports = {port: str(reader.broker.port(name)) for name, port in protocols.items()}
    output = ""
    for snippet in snippets(reader.text.read_text()):
        if "clients.blocking" in snippet.code:
            output += reader.run(snippet)
        for line in snippet.code.splitlines():
            if line.startswith((".venv/bin/sluicemq send", ".venv/bin/sluicemq receive")):
                output += reader.shell(line.removeprefix(".venv/bin/"))
    assert output == "hello\nb'hello'\n"


def test_unexpected_output_of_snippet_is_reported() -> None:
    """The test above depends on this."""
    text = (
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\n"
        "<!-- tested by x -->\n```sh\nmake\n```\n\n```text\nbuilt\n```\n"
    )
    (snippet,) = snippets(text)
    assert (snippet.line, snippet.code, snippet.prints) == (1, "print(1)\n", "1\n")
    assert matches("1\n", "1\n")
    assert matches("a … c", "a b\nb c")
    assert matches("a\nb", "a  \nb ")
    assert not matches("1", "11")


def test_failing_command_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.md"
    text.write_text("```sh\nexport WHO=me\ntrue\n```\n```sh\necho $WHO\n```\n```text\nme\n```\n")
    Reader(tmp_path, text).follow()
    text.write_text("```sh\nfalse\n```\n")
    with pytest.raises(AssertionError, match="false"):
        Reader(tmp_path, text).follow()
