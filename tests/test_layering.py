"""The import rules of the packages, and a proof that a violation is reported."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
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


VIOLATIONS = [
    ("sluicemq.admin.app", "sluicemq.server.run", "downwards only"),
    ("sluicemq.security.authenticator", "sluicemq.protocols.transport", "downwards only"),
    ("sluicemq.broker.broker", "sluicemq.admin", "downwards only"),
    ("sluicemq.model.message", "sluicemq.journal", "downwards only"),
    ("sluicemq.broker", "sluicemq.protocols.transport", "downwards only"),
    ("sluicemq.broker", "time", "no wall clock"),
    ("sluicemq.broker", "asyncio", "no wall clock"),
    ("sluicemq.protocols.phpmq.session", "socket", "no I/O"),
    ("sluicemq.protocols.transport", "asyncio", "no I/O"),
    ("sluicemq.protocols.phpmq.session", "sluicemq.clients.transport", "downwards only"),
    ("sluicemq.clients.phpmq", "sluicemq.clients.msglite", "Clients are independent"),
    ("sluicemq.clients.transport", "sluicemq.server", "downwards only"),
    ("sluicemq.admin.app", "sluicemq.broker.subscription", "as sluicemq.broker only"),
    ("sluicemq.pipeline.replay", "sluicemq.broker", "without an engine"),
    ("sluicemq.protocols.phpmq.wire", "sluicemq.broker", "of SluiceMQ only the model"),
    ("sluicemq.management.users", "sluicemq.security", "downwards only"),
    ("sluicemq.management.users", "starlette", "neither HTTP libraries"),
    ("sluicemq.cli.users", "sluicemq.broker", "instead of the engine"),
    ("sluicemq.cli.status", "sluicemq.admin.overview", "instead of the engine"),
    (
        "sluicemq.protocols.phpmq.session",
        "sluicemq.protocols.msglite.wire",
        "Protocols are independent",
    ),
]
"""Modules, what they must not import, and the contract that forbids it."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return what is reported if all modules have their violation, by contract."""
    source = tmp_path_factory.mktemp("layers") / "src"
    shutil.copytree(
        ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for module, imported, _ in VIOLATIONS:
        path = source.joinpath(*module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        with file.open("a", encoding="utf-8") as output:
            output.write(f"\nimport {imported}\n")
    result = lint(source.parent)
    assert result.returncode == 1, result.stdout + result.stderr
    _, heading, broken = result.stdout.partition("Broken contracts\n")
    assert heading, result.stdout
    sections = re.split(r"^(\S.*)\n-+$", broken, flags=re.MULTILINE)
    return dict(zip(sections[1::2], sections[2::2], strict=True))


def test_the_import_rules_hold() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("module", "imported", "contract"), VIOLATIONS)
def test_a_violation_is_reported(
    reports: Mapping[str, str], module: str, imported: str, contract: str
) -> None:
    [report] = [text for name, text in reports.items() if contract in name]
    assert f"{module} -> {imported} (l." in report


def test_the_state_shared_by_the_parts_of_the_engine_is_read_by_them_only() -> None:
    package = ROOT / "src" / "sluicemq"
    other_paths = [path for path in package.rglob("*.py") if path.parent.name != "broker"]
    assert other_paths
    for path in other_paths:
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
    modules = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            assert node.module
            for alias in node.names:
                inner = Path(*node.module.split("."), alias.name)
                source = ROOT / "src" / inner
                is_module = source.is_dir() or source.with_suffix(".py").exists()
                modules.add(f"{node.module}.{alias.name}" if is_module else node.module)
    return modules
