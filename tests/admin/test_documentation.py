"""docs/http.md: its examples work unchanged, and it has every error code."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec

import sluicemq
from sluicemq.management.broker import StatusView
from sluicemq.management.journal import JournalView
from sluicemq.management.messages import Action, PublishRequest
from sluicemq.management.operation import ApiOperation, Need
from sluicemq.model.access import Operation
from tests.server.conftest import Start
from tests.support.api import ApiFixture
from tests.support.http import HTTP, ready_counts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
MESSAGES = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
ADMIN = Path(sluicemq.__file__).parent / "admin"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_examples_of_the_page_work(start: Start, tmp_path: Path) -> None:
    broker = start(HTTP)
    port = str(broker.port("http"))

    def run(commands: str) -> None:
        script = "set -e\n" + commands.replace("7680", port).replace(
            "DATA/", f"{broker.directory}/"
        )
        completed = subprocess.run(
            ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr

    # once there are users, every client has to log in
    with_users = [block for block in code_blocks("sh") if "/users/root" in block]
    for commands in code_blocks("sh"):
        if commands not in with_users:
            run(commands)
    assert (tmp_path / "header").read_bytes().startswith(b"SLUICEMQ")
    [program] = code_blocks("python")
    completed = subprocess.run(
        [sys.executable, "-c", program.replace("7680", port)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert completed.returncode == 0, completed.stderr
    documented = [
        line for block in code_blocks("json") for line in block.splitlines() if "written" in line
    ]
    output = completed.stdout.splitlines()
    assert [json.loads(line) for line in output] == [json.loads(line) for line in documented]
    assert ready_counts(broker) == {"orders": 10_000, "billing": 1}
    assert with_users
    for commands in with_users:
        run(commands)


def test_examples_of_responses_have_the_fields_of_their_types() -> None:
    for member, kind in (("pid", StatusView), ("segments", JournalView)):
        [example] = [block for block in code_blocks("json") if f'"{member}"' in block]
        assert json.loads(example) == msgspec.to_builtins(msgspec.json.decode(example, type=kind))


def test_fields_and_actions_of_messages_are_documented_by_their_names() -> None:
    published = {field.name for field in msgspec.structs.fields(PublishRequest)}
    assert set(documented_names("Publishing")) == published
    assert set(documented_names("Actions")) >= set(get_args(Action))


def documented_names(heading: str) -> list[str]:
    """Return the names in the first cells of the tables below a heading of docs/messages.md."""
    text = MESSAGES.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_every_error_code_is_documented() -> None:
    """In the source, every error has its status followed by its code."""
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(ADMIN.rglob("*.py")))
    codes = set(re.findall(r'\b[45]\d\d,\s+"([a-z-]+)"', code))
    assert len(codes) > 20
    error_table = PAGE.partition("| status | codes |")[2]
    assert set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", error_table)) <= codes
    missing = {error_code for error_code in codes if f"`{error_code}`" not in PAGE}
    assert missing == {"client-disconnected"}  # no client receives it


REQUIREMENTS = {
    Need.NOTHING: "nothing",
    Need.USER: "a user",
    Need.VISIBLE: "a user",
    Need.OWNER: "the owner",
    Need.SUPERUSER: "a superuser",
}


def permission_names(needs: tuple[Operation, ...]) -> str:
    return " or ".join(f"`{permission}`" for permission in needs)


def endpoint_table(operations: list[ApiOperation[Any, Any]]) -> str:
    """Return the table of endpoints for the page."""
    rows = ["| request | | parameters | requires |", "|---|---|---|---|"]
    for operation in sorted(
        operations, key=lambda operation: (operation.prefix == "", operation.full_path)
    ):
        permission = (
            REQUIREMENTS[operation.needs]
            if isinstance(operation.needs, Need)
            else permission_names(operation.needs)
        )
        names = ", ".join(f"`{name}`" for name in operation.query_names)
        media = "" if operation.media == "application/json" else f" ({operation.media})"
        rows.append(
            f"| {operation.method} `{operation.full_path}` | {operation.summary}{media} "
            f"| {names} | {permission} |"
        )
    return "\n".join(rows)


def test_every_endpoint_is_documented(tmp_path: Path) -> None:
    """`WRITE=1` writes the table into the page."""

    async def scenario() -> list[ApiOperation[Any, Any]]:
        api_fixture = ApiFixture(tmp_path)
        api_fixture.authenticator.close()
        return [endpoint.operation for endpoint in api_fixture.endpoints]

    expected = endpoint_table(asyncio.run(scenario()))
    before, _, rest = PAGE.partition("<!-- table -->\n")
    table_text, _, after = rest.partition("<!-- end of table -->")
    if os.environ.get("WRITE"):
        text = f"{before}<!-- table -->\n{expected}\n<!-- end of table -->{after}"
        (ROOT / "docs" / "http.md").write_text(text, encoding="utf-8")
    else:
        assert table_text.strip().splitlines() == expected.splitlines()
