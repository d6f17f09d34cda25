"""The import rules of the packages, and a proof that a violation is reported."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of pyproject.toml on the package in `directory`/src."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    return subprocess.run(
        [*command, "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        cwd=directory,
        env={"PYTHONPATH": str(directory / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("layers")
    shutil.copytree(
        ROOT / "src", directory / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    return directory


def test_the_import_rules_hold(fixture: Path) -> None:
    result = lint(fixture)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("admin/app.py", "import sluicemq.server.run", "downwards only"),
        ("security/authenticator.py", "import sluicemq.protocols.transport", "downwards only"),
        ("broker/broker.py", "import sluicemq.admin", "downwards only"),
        ("model/message.py", "import sluicemq.journal", "downwards only"),
        ("broker/__init__.py", "import sluicemq.protocols.transport", "downwards only"),
        ("broker/__init__.py", "import time", "no wall clock"),
        ("broker/__init__.py", "import asyncio", "no wall clock"),
        ("protocols/phpmq/session.py", "import socket", "no I/O"),
        ("protocols/transport.py", "import asyncio", "no I/O"),
        ("protocols/phpmq/session.py", "import sluicemq.clients.transport", "downwards only"),
        ("clients/phpmq.py", "import sluicemq.clients.msglite", "independent"),
        ("clients/transport.py", "import sluicemq.server", "downwards only"),
        ("admin/app.py", "import sluicemq.broker.subscription", "as sluicemq.broker only"),
        ("pipeline/replay.py", "import sluicemq.broker", "without an engine"),
        ("protocols/phpmq/wire.py", "import sluicemq.broker", "of SluiceMQ only the model"),
        ("management/users.py", "import sluicemq.security", "downwards only"),
        ("management/users.py", "import starlette", "neither HTTP libraries"),
        ("cli/users.py", "import sluicemq.broker", "instead of the engine"),
        ("cli/status.py", "import sluicemq.admin.overview", "instead of the engine"),
        ("protocols/phpmq/session.py", "import sluicemq.protocols.msglite.wire", "independent"),
    ],
)
def test_a_violation_is_reported(fixture: Path, module: str, line: str, contract: str) -> None:
    file = fixture / "src" / "sluicemq" / module
    intact = file.read_text(encoding="utf-8")
    try:
        file.write_text(f"{intact}\n{line}\n", encoding="utf-8")
        result = lint(fixture)
    finally:
        file.write_text(intact, encoding="utf-8")
    assert result.returncode == 1, result.stdout + result.stderr
    violations = [
        output_line for output_line in result.stdout.splitlines() if " BROKEN" in output_line
    ]
    assert any(contract in output_line for output_line in violations), result.stdout


def test_the_state_shared_by_the_parts_of_the_engine_is_read_by_them_only() -> None:
    package = ROOT / "src" / "sluicemq"
    other_files = [path for path in package.rglob("*.py") if path.parent.name != "broker"]
    assert other_files
    for path in other_files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "core":
                owner = ast.unparse(node.value)
                assert not owner.endswith("broker"), f"{path}: {owner}.core"


DECLARATIONS = [path.stem for path in (ROOT / "src/sluicemq/management").glob("[!_]*.py")]
COMMANDS = ["client_commands", "destinations", "messages", "send_receive", "status", "users"]


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (
            ["clients.management", *(f"management.{name}" for name in DECLARATIONS)],
            r"sluicemq\.(broker|journal|security|server)",
        ),
        ([f"cli.{name}" for name in COMMANDS], r"sluicemq\.(admin|broker|server\.run)|starlette"),
    ],
)
def test_clients_of_the_management_api_load_no_engine(modules: list[str], absent: str) -> None:
    assert len(modules) > 5
    code = f"import sys, {', '.join(f'sluicemq.{name}' for name in modules)}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded_modules = result.stdout.split()
    assert "sluicemq.management.operation" in loaded_modules
    assert [name for name in loaded_modules if re.match(absent, name)] == []


def test_no_module_is_in_an_import_cycle() -> None:
    source = ROOT / "src"
    modules = {_name(path.relative_to(source)): path for path in source.rglob("*.py")}
    assert len(modules) > 200
    sorter = TopologicalSorter(
        {name: _imports(name, path) & (modules.keys() - {name}) for name, path in modules.items()}
    )
    sorter.prepare()  # raises CycleError, which shows the cycle


def test_an_import_cycle_is_found() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(name: str, path: Path) -> set[str]:
    """Return the modules that a module imports, also in functions and for type annotations."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            assert node.module
            for alias in node.names:
                inner = Path(*node.module.split("."), alias.name)
                source = ROOT / "src" / inner
                is_module = source.is_dir() or source.with_suffix(".py").exists()
                names.add(f"{node.module}.{alias.name}" if is_module else node.module)
    return names
