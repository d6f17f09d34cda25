"""docs/http.md: its examples work as they stand, and it names every refusal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import sluicemq
from tests.admin.client import HTTP, waiting
from tests.server.conftest import Start

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
ADMIN = Path(sluicemq.__file__).parent / "admin"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_examples(start: Start, tmp_path: Path) -> None:
    broker = start(HTTP)
    port = str(broker.port("http"))
    for commands in blocks("sh"):
        script = "set -e\n" + commands.replace("7680", port)
        done = subprocess.run(
            ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "header").read_bytes().startswith(b"SLUICEMQ")
    [program] = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", program.replace("7680", port)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    promised = [line for each in blocks("json") for line in each.splitlines() if "written" in line]
    shown = done.stdout.splitlines()
    assert [json.loads(line) for line in shown] == [json.loads(line) for line in promised]
    assert waiting(broker) == {"orders": 10_000}


def test_every_code_is_there() -> None:
    """A code stands behind a status wherever a refusal is made."""
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(ADMIN.glob("*.py")))
    found = set(re.findall(r'\b[45]\d\d,\s+"([a-z-]+)"', code))
    assert len(found) > 20
    missing = {each for each in found if f"`{each}`" not in PAGE}
    assert missing == {"disconnected"}  # nobody is there to be told
