"""The container file: no process runs as root, no secret is copied, every name in it exists."""

from __future__ import annotations

import shlex
import subprocess
import tomllib
from pathlib import Path

from sluicemq.cli.main import main
from sluicemq.server.listener_settings import default_listeners
from sluicemq.server.loading import load

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    text = CONTAINERFILE.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_container_does_not_run_as_root() -> None:
    last = len(instructions()) - 1 - [name for name, _ in reversed(instructions())].index("FROM")
    stage = instructions()[last:]
    users = [value for name, value in stage if name == "USER"]
    assert users == ["7680:7680"]
    names = [name for name, _ in stage]
    assert "RUN" not in names[names.index("USER") :]


def test_base_images_have_required_python_version() -> None:
    bases = {value.split()[0] for name, value in instructions() if name == "FROM"}
    assert len(bases) == 1
    [base] = bases
    assert "/" not in base
    assert base.rpartition(":")[2] not in ("", "latest")
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert required.removeprefix(">=") in base


def test_only_built_files_are_copied() -> None:
    copied = [
        source
        for name, value in instructions()
        if name == "COPY" and not value.startswith("--from")
        for source in value.split()[:-1]
    ]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    for source in copied:
        assert (ROOT / source).exists()
        if tracked:
            assert any(line.split("/")[0] == source for line in tracked.splitlines())
    ignored = (CONTAINERFILE.parent / "Containerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied)


def test_commands_and_settings_exist() -> None:
    instruction = dict(instructions())
    environment = dict(part.split("=", 1) for part in shlex.split(instruction["ENV"]))
    settings = {k: v for k, v in environment.items() if k.startswith("SLUICEMQ_")}
    config = load(None, settings, {}, ()).config
    assert config.logging.format == "json"
    assert str(config.broker.data_dir).startswith(instruction["VOLUME"])
    assert '["sluicemq", "health"]' in instruction["HEALTHCHECK"]
    assert main(["health", "--help"]) == 0
    assert main(["serve", "--help"]) == 0


def test_every_default_port_is_exposed() -> None:
    ports = {int(port) for port in dict(instructions())["EXPOSE"].split()}
    assert ports == {listener.url.port for listener in default_listeners()}
