"""The calls that the page on the architecture lists exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "architecture.md"
CALL = re.compile(r"^\d+\. `(?P<file>[\w/]+\.py)`: `(?P<name>[\w.]+)`", re.MULTILINE)


def defined(file: Path) -> set[str]:
    """Return the qualified names of the functions and methods of a module."""
    names = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{member.name}"
                for member in node.body
                if isinstance(member, ast.FunctionDef)
            }
    return names


def test_listed_calls_exist() -> None:
    calls = CALL.findall(PAGE.read_text("utf-8"))
    assert len(calls) >= 25
    for file, name in calls:
        assert name in defined(ROOT / "src" / "sluicemq" / file), f"{file}: {name}"
