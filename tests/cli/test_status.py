from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run, RunningBroker


def test_status_describes_the_broker(ask: Run) -> None:
    ask("messages", "publish", "counted", "x")
    output = ask("status").out
    for text in ("sluicemq ", "journal", "fdatasync p50", "event loop", "phpmq+unix://", "memory"):
        assert text in output
    overview = json.loads(ask("status", "--json").out)
    assert {"version", "totals", "journal", "listeners", "history"} <= overview.keys()


def test_health_is_an_exit_code(ask: Run, run: Run, tmp_path: Path) -> None:
    result = ask("health", "--json")
    assert (result.code, json.loads(result.out)["state"]) == (0, "serving")
    unreachable = run("health", "--data-dir", str(tmp_path))
    assert unreachable.code == 1
    assert f"no broker answers at {tmp_path}/admin.sock" in unreachable.err
    assert "sluicemq serve" in unreachable.err


def test_slots_of_a_running_broker(ask: Run, broker: RunningBroker) -> None:
    assert "There are no slots" in ask("slots").err
    assert ask("slots", "create", "mine", "--limit", "1GiB").code == 0
    (slot,) = json.loads(ask("slots", "--json").out)
    assert (slot["name"], slot["limit_bytes"]) == ("mine", 1 << 30)
    assert ask("slots", "advance", "mine", "--position", "1").code == 0
    details = json.loads(ask("slots", "show", "mine", "--json").out)
    assert details["position"] == 1
    assert details["lag_records"] >= 0
    result = ask("slots", "advance", "mine", "--position", "0")
    assert result.code == 2
    assert "cannot go back" in result.err
    assert ask("slots", "delete", "mine", "--yes").code == 0
    assert ask("slots", "show", "mine").code == 1
    assert ask("slots", "create", "x", "--limit", "much").code == 2
