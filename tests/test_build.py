"""The compiled build has all modules that setup.py names, the other build has none."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

from sluicemq.broker import COMPILED

ROOT = Path(__file__).parents[1]


def named() -> list[str]:
    """Return the modules that setup.py would compile."""
    for statement in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "COMPILED":
            packages: dict[str, tuple[str, ...]] = ast.literal_eval(statement.value)
            return [
                f"sluicemq.{package.replace('/', '.')}.{name}"
                for package, names in packages.items()
                for name in names
            ]
    raise AssertionError("setup.py names no modules")


def test_all_modules_that_setup_names_are_compiled_or_none() -> None:
    modules = named()
    assert "sluicemq.broker.broker" in modules
    excluded = {".py" if COMPILED else ".so"}
    for name in modules:
        file = import_module(name).__file__
        assert file is not None
        assert Path(file).suffix not in excluded, file
