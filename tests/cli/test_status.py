from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run, RunningBroker


def test_status_describes_the_broker(run_as_owner: Run) -> None:
    run_as_owner("messages", "publish", "counted", "x")
    output = run_as_owner("status").out
    for text in ("sluicemq ", "journal", "fdatasync p50", "event loop", "phpmq+unix://", "memory"):
        assert text in output
    overview = json.loads(run_as_owner("status", "--json").out)
    assert {"version", "totals", "journal", "listeners", "history"} <= overview.keys()


def test_health_sets_the_exit_code(run_as_owner: Run, run: Run, tmp_path: Path) -> None:
    result = run_as_owner("health", "--json")
    assert (result.code, json.loads(result.out)["state"]) == (0, "serving")
    unreachable = run("health", "--data-dir", str(tmp_path))
    assert unreachable.code == 1
    assert f"no broker answers at {tmp_path}/admin.sock" in unreachable.err
    assert "sluicemq serve" in unreachable.err


def test_slots_are_created_advanced_and_deleted(run_as_owner: Run, broker: RunningBroker) -> None:
    assert "There are no slots" in run_as_owner("slots").err
    assert run_as_owner("slots", "create", "mine", "--limit", "1GiB").code == 0
    (slot,) = json.loads(run_as_owner("slots", "--json").out)
    assert (slot["name"], slot["limit_bytes"]) == ("mine", 1 << 30)
    assert run_as_owner("slots", "advance", "mine", "--position", "1").code == 0
    details = json.loads(run_as_owner("slots", "show", "mine", "--json").out)
    assert details["position"] == 1
    assert details["lag_records"] >= 0
    result = run_as_owner("slots", "advance", "mine", "--position", "0")
    assert result.code == 2
    assert "cannot go back" in result.err
    assert run_as_owner("slots", "delete", "mine", "--yes").code == 0
    assert run_as_owner("slots", "show", "mine").code == 1
    assert run_as_owner("slots", "create", "x", "--limit", "much").code == 2
