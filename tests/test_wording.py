"""tools/wording.py finds replaced words in the right places only."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "wording.py"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = spec_from_file_location("wording", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["wording"] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["wording"]


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("src/a.py", "class FastLane:\n    pass\n", [(1, "lane")]),
        ("src/a.py", "x = 1\nself._lanes = 2\n", [(2, "lanes")]),
        ("src/a.py", "plane = aliens = 1\n", []),
        ("src/a.py", 'x = "lane"  # a lane\n', []),
        ("src/doorkeeper.py", "", [(0, "doorkeeper")]),
        ("src/a.py", "# That makes no sense.\n", [(1, "makes no sense")]),
        ("src/a.py", 'raise ValueError(\n    "at the door"\n)\n', [(2, "at the door")]),
        ("src/a.py", '"""One.\n\nMoving in.\n"""\n', [(3, "moving in")]),
        ("src/a.py", 'def f():\n    """Somebody calls."""\n', [(1, "Somebody")]),
        ("src/a.py", 'async def f():\n    """Told, or not."""\n', [(1, "Told")]),
        ("src/a.py", 'class C:\n    """Somebody calls."""\n', []),
        ("docs/a.md", "As usual, a lane.\n", [(1, "as usual")]),
        ("console/a.js", 'const houseRules = "house";\n', [(1, "house")]),
        ("console/a.js", "x = `as usual`;\n", [(1, "as usual")]),
    ],
)
def test_finds(tool: Any, path: str, text: str, found: list[tuple[int, str]]) -> None:
    findings = list(tool.check_file(path, text))
    assert [(finding.line, finding.word) for finding in findings] == found
    assert all(finding.path == path for finding in findings)


def test_exceptions_are_for_one_word_in_some_files(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("lane = 1\nroster = 2\n")
    Path("b.py").write_text("lane = 1\n")
    exceptions = tool.read_exceptions("# comment\n\na.* lane  # argon2 calls it so\n")
    assert tool.check(["a.py", "b.py"], exceptions, complete=True) == [
        'a.py:2: "roster": use "users"',
        'b.py:1: "lane": use "pending_queue"',
    ]


def test_exception_may_cover_every_word(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("lane = 1  # makes no sense\n")
    exceptions = tool.read_exceptions("a.py *  # examples\n")
    assert tool.check(["a.py"], exceptions, complete=True) == []


def test_exception_that_nothing_needs_is_reported(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("queue = 1\n")
    exceptions = tool.read_exceptions("a.py lane  # reason\n")
    assert tool.check(["a.py"], exceptions, complete=False) == []
    (line,) = tool.check(["a.py"], exceptions, complete=True)
    assert line.startswith("tools/wording.allow:1: ")


@pytest.mark.parametrize("line", ["a.py lane", "a.py  # reason", "a.py lane  # "])
def test_exception_needs_path_word_and_reason(tool: Any, line: str) -> None:
    with pytest.raises(ValueError, match="line 2: write"):
        tool.read_exceptions(f"# comment\n{line}\n")
