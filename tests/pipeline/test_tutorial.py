"""Every snippet of docs/pipeline/tutorial.md, run in its order against a real broker.

Shell snippets run in one directory, Python snippets in one namespace, `sluicemq pipeline` in this
process; a `text` block is what the snippet before it prints, in which … stands for anything. Only
the ports are others than in the text.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main

TUTORIAL = Path(__file__).parents[2] / "docs" / "pipeline" / "tutorial.md"
BLOCK = re.compile(
    r"(?:<!-- tested by (?P<elsewhere>[^>]*) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
LISTENER = re.compile(r"(?P<scheme>\w+)://127\.0\.0\.1:(?P<port>\d+)(?P<options>\S*)")
SHELL_SECONDS = 120


@dataclass
class Snippet:
    line: int
    language: str
    code: str
    prints: str | None = None


def snippets(text: str) -> list[Snippet]:
    """What is to be run, with what it is to print."""
    found: list[Snippet] = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        if match["elsewhere"]:
            continue
        if match["language"] == "text":
            found[-1].prints = match["code"]
        else:
            found.append(Snippet(line, match["language"], match["code"]))
    return found


@dataclass
class Reader:
    """Somebody who follows the tutorial."""

    directory: Path
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    broker: LocalBroker | None = None
    ports: dict[str, str] = field(default_factory=dict)

    def run(self, snippet: Snippet) -> str:
        """Do it; what it prints."""
        code = re.sub(r"127\.0\.0\.1:(\d+)", self._moved, snippet.code)
        if snippet.language == "python":
            return self.python(code, snippet)
        return self.pipeline(code) if code.startswith("sluicemq pipeline") else self.shell(code)

    def _moved(self, match: re.Match[str]) -> str:
        return f"127.0.0.1:{self.ports.get(match[1], match[1])}"

    def python(self, code: str, snippet: Snippet) -> str:
        # Tracebacks show the line of the tutorial.
        compiled = compile("\n" * snippet.line + code, str(TUTORIAL), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compiled, self.namespace)
        return printed.getvalue()

    def pipeline(self, code: str) -> str:
        """In this process: it has a session already."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            done = main(shlex.split(code)[1:])
        assert done == 0, f"{code}\n{printed.getvalue()}"
        return printed.getvalue()

    def shell(self, code: str) -> str:
        before, serve, _ = code.partition("sluicemq serve")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{before}\npwd > {shlex.quote(str(self._where))}"],
            cwd=self.directory,
            env={**os.environ, "PATH": f"{self._programs()}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=SHELL_SECONDS,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        self.directory = Path(self._where.read_text().strip())
        os.chdir(self.directory)
        if serve:
            self._serve(code)
        return done.stdout

    @property
    def _where(self) -> Path:
        return Path(self.namespace.setdefault("__base__", self.directory)) / "where"

    def _programs(self) -> Path:
        """A directory with `sluicemq` as this Python has it."""
        programs = self._where.parent / "bin"
        if not programs.exists():
            programs.mkdir()
            program = programs / "sluicemq"
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sluicemq.cli "$@"\n')
            program.chmod(0o755)
        return programs

    def _serve(self, code: str) -> None:
        """The broker of the tutorial, on ports that are free."""
        words = shlex.split(code.rpartition("sluicemq serve")[2].rstrip("& \n"))
        listeners = [LISTENER.fullmatch(word) for word in words if "://" in word]
        urls = [f"{each['scheme']}://127.0.0.1:0{each['options']}" for each in listeners if each]
        self.broker = LocalBroker(self.directory / "data", urls).start()
        for each in listeners:
            assert each
            self.ports[each["port"]] = str(self.broker.port(each["scheme"]))


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    yield reader
    if reader.broker is not None:
        reader.broker.stop()


def test_the_tutorial(reader: Reader, spark: SparkSession) -> None:
    """`spark` is there so that the tutorial's own call finds a session."""
    steps = snippets(TUTORIAL.read_text())
    assert {step.language for step in steps} == {"sh", "python"}
    try:
        for step in steps:
            printed = reader.run(step)
            if step.prints is not None:
                assert matches(step.prints, printed), f"line {step.line} printed\n{printed}"
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.catalog.dropTempView("gold")
        spark.catalog.dropTempView("totals")


def matches(expected: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def test_what_a_snippet_prints_is_checked() -> None:
    """The test above would notice."""
    text = "```python\nprint(1)\n```\n\n```text\n1\n```\n\n<!-- tested by x -->\n```sh\nmake\n```\n"
    (snippet,) = snippets(text)
    assert (snippet.line, snippet.code, snippet.prints) == (1, "print(1)\n", "1\n")
    assert matches("1\n", "1\n")
    assert matches("a … c", "a b\nb c")
    assert not matches("1", "11")
