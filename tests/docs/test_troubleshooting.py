"""docs/troubleshooting.md: the error messages that it quotes are those of the program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import sluicemq

ROOT: Final = Path(sluicemq.__file__).parent
PAGE: Final = ROOT.parents[1] / "docs" / "troubleshooting.md"
ANYTHING: Final = "…"
"""Stands for a value in a message."""
_QUOTED: Final = re.compile(r"`([^`]+)`")


def _strings(path: Path) -> Iterator[str]:
    """Yield the texts of a module, with ANYTHING for what is inserted."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else ANYTHING
                for part in node.values
            )


def _messages() -> list[str]:
    """Return the messages in the tables of the page."""
    messages: list[str] = []
    in_table = False
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("| "):
            in_table = in_table or line.startswith("| message |")
            if in_table and not line.startswith("| message |"):
                messages += _QUOTED.findall(line.split(" | ")[0])
        elif not line.startswith("|"):
            in_table = False
    return messages


def test_messages_are_those_of_program() -> None:
    texts = "\0".join(text for path in sorted(ROOT.rglob("*.py")) for text in _strings(path))
    messages = [message for message in _messages() if " " in message]
    assert len(messages) > 60
    missing = []
    for message in messages:
        parts = [re.escape(part) for part in message.strip(f"{ANYTHING} ").split(ANYTHING)]
        if not re.search(r"[^\0]*?".join(parts), texts):
            missing.append(message)
    assert missing == []
