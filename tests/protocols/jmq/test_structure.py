"""The modules of a broker session are few, and do not import each other in cycles."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

from sluicemq.protocols import jmq

PACKAGE = Path(jmq.__file__).parent
NAME = f"{jmq.__name__}."


def imported(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, also for type checking only."""
    modules = {"__init__"} - {path.stem}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == jmq.__name__:
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(NAME):
            modules.add(node.module.removeprefix(NAME) if node.module else "")
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith(NAME)]
            modules |= {name.removeprefix(NAME) for name in names}
    return modules


def test_no_import_cycle() -> None:
    graph = {path.stem: imported(path) for path in PACKAGE.glob("*.py")}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("wire") < order.index("connection") < order.index("session")


def test_session_imports_at_most_fourteen_modules() -> None:
    modules = {"session"}
    while (
        added := {name for file in modules for name in imported(PACKAGE / f"{file}.py")} - modules
    ):
        modules |= added
    assert len(modules - {"__init__"}) <= 14, sorted(modules)
