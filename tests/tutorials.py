"""Runs the snippets of a text in their order, as a reader of the text would.

A `toml` block is the file pipeline.toml. Shell snippets run in one directory and keep exported
variables, Python snippets run in one namespace. `sluicemq serve … &` starts a broker and `kill %1`
stops it, on ports that are free and stand for those in the text. A `text` block is the output of
the snippet before it; … stands for anything. `<!-- tested by … -->` before a snippet names the test
that runs it, or the reason for no test.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main

DOCS = Path(__file__).parents[1] / "docs"
README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(
    r"(?:<!-- tested by (?P<elsewhere>[^>]*) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
LISTENER = re.compile(r"(?P<scheme>\w+)://127\.0\.0\.1:(?P<port>\d+)(?P<options>\S*)")
SHELL_SECONDS = 120


@dataclass
class Snippet:
    """A snippet; `prints` is None if the text gives no output."""

    line: int
    language: str
    code: str
    prints: str | None = None


def snippets(text: str) -> list[Snippet]:
    """Return the snippets of a text, with their expected output."""
    snippets: list[Snippet] = []
    skipped = False
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        if not match["language"]:
            continue  # a drawing
        if match["elsewhere"]:
            skipped = True
        elif match["language"] != "text":
            skipped = False
            snippets.append(Snippet(line, match["language"], match["code"]))
        elif not skipped:
            snippets[-1].prints = match["code"]
    return snippets


@dataclass
class Reader:
    """A reader who follows a text in a directory.

    in_process  prefix of commands that run in this process
    """

    directory: Path
    text: Path
    in_process: str = "sluicemq pipeline"
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    broker: LocalBroker | None = None
    ports: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._base = self.directory
        self._environment = self._base / "environment"

    def follow(self, until: str = "") -> None:
        """Run all snippets, or those before a heading. AssertionError if the output differs or a
        command fails."""
        text = self.text.read_text()
        for step in snippets(text.partition(until)[0] if until else text):
            printed = self.run(step)
            if step.prints is not None:
                assert matches(step.prints, printed), f"line {step.line} printed\n{printed}"

    def close(self) -> None:
        """Stop the broker, if one runs."""
        if self.broker is not None:
            self.broker.stop()
            self.broker = None

    def run(self, snippet: Snippet) -> str:
        """Run a snippet and return its output."""
        code = snippet.code
        if snippet.language == "toml":
            (self.directory / "pipeline.toml").write_text(code)
            return ""
        if snippet.language == "python":
            return self.python(self._moved(code), snippet)
        if code.startswith(self.in_process):
            return self.here(self._moved(code))
        return self.shell(code)

    def _moved(self, code: str) -> str:
        """Replace the ports of the text with the ports of the broker."""

        def moved(match: re.Match[str]) -> str:
            return match[1] + self.ports.get(match[2], match[2])

        return re.sub(r"(127\.0\.0\.1:|\bport=)(\d+)", moved, code)

    def python(self, code: str, snippet: Snippet) -> str:
        """Run Python code; tracebacks have the line of the text."""
        compiled = compile("\n" * snippet.line + code, str(self.text), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compiled, self.namespace)
        return printed.getvalue()

    def here(self, code: str) -> str:
        """Run one command in this process."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            status = main(shlex.split(code)[1:])
        assert status == 0, f"{code}\n{printed.getvalue()}"
        return printed.getvalue()

    def shell(self, code: str) -> str:
        """Run a script; lines `sluicemq serve … &` and `kill %1` take effect in order with the
        other lines."""
        printed = ""
        script: list[str] = []
        for line in [*code.replace("\\\n", " ").splitlines(), "kill %0"]:
            serve, stop = line.startswith("sluicemq serve"), line.startswith("kill %")
            if not serve and not stop:
                script.append(line)
                continue
            printed += self._bash(self._moved("\n".join(script)))
            script = []
            if serve:
                self._serve(line)
            elif line == "kill %1":
                assert self.broker is not None
                assert self.broker.stop() == 0
                self.broker = None
        return printed

    def _bash(self, code: str) -> str:
        if not code.strip():
            return ""
        path = self._base / "where"
        before = f". {shlex.quote(str(self._environment))}\n" * self._environment.exists()
        after = f"pwd > {shlex.quote(str(path))}\n"
        after += f"export -p > {shlex.quote(str(self._environment))}"
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{before}{code}\n{after}"],
            cwd=self.directory,
            env={**os.environ, "PATH": f"{self._programs()}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=SHELL_SECONDS,
        )
        assert result.returncode == 0, f"{code}\n{result.stdout}\n{result.stderr}"
        self.directory = Path(path.read_text().strip())
        os.chdir(self.directory)
        return result.stdout

    def _programs(self) -> Path:
        """Create a directory with a `sluicemq` program that uses this Python."""
        programs = self._base / "bin"
        if not programs.exists():
            programs.mkdir()
            program = programs / "sluicemq"
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sluicemq.cli "$@"\n')
            program.chmod(0o755)
        return programs

    def _serve(self, line: str) -> None:
        """Start the broker of the text on free ports."""
        words = iter(shlex.split(line.rstrip("& "))[2:])
        urls: list[str] = []
        ports: list[tuple[str, str]] = []
        options: list[str] = []
        data_dir = self.directory / "data"
        for word in words:
            if word == "--data-dir":
                data_dir = self.directory / next(words)
            elif word == "--listen":
                listener = LISTENER.fullmatch(next(words))
                assert listener is not None, line
                urls.append(f"{listener['scheme']}://127.0.0.1:0{listener['options']}")
                ports.append((listener["port"], listener["scheme"]))
            else:
                options.append(word)
        self.broker = LocalBroker(data_dir, urls, options).start()
        for port, scheme in ports:
            self.ports[port] = str(self.broker.port(scheme))


def matches(expected: str, printed: str) -> bool:
    """Compare; … stands for anything, blanks at the ends of lines are ignored."""
    expected, printed = (
        "\n".join(line.rstrip() for line in text.strip().splitlines())
        for text in (expected, printed)
    )
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None
