"""The texts that a newcomer follows, followed. (The pipeline's is in tests/pipeline.)"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tutorials import DOCS, Reader, matches, snippets


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
def test_the_text_does_what_it_says(reader: Reader) -> None:
    assert len(snippets(reader.text.read_text())) > 3
    reader.follow()


def test_what_a_snippet_prints_is_checked() -> None:
    """The test above would notice."""
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


def test_a_command_that_fails_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.md"
    text.write_text("```sh\nexport WHO=me\ntrue\n```\n```sh\necho $WHO\n```\n```text\nme\n```\n")
    Reader(tmp_path, text).follow()
    text.write_text("```sh\nfalse\n```\n")
    with pytest.raises(AssertionError, match="false"):
        Reader(tmp_path, text).follow()
