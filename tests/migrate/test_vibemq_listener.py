"""Settings of VibeMQ's server that become options of the listener, or are named in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluicemq.migrate.plan import Plan
from sluicemq.migrate.vibemq import inspect_source


def plan_for(directory: Path, **values: Any) -> Plan:
    file = directory / "appsettings.json"
    file.write_text(json.dumps({"VibeMQ": values}))
    return inspect_source(file, None)


def options(plan: Plan) -> dict[str, str | int | bool]:
    (listener,) = plan.listeners
    return listener.options


def reported_settings(plan: Plan) -> dict[str, str]:
    return {item.name: item.reason for item in plan.skipped if item.what == "setting"}


@pytest.mark.parametrize(
    ("values", "expected", "not_migrated"),
    [
        (["Brotli", "Gzip"], {}, ""),
        (["brotli", "GZIP", "None"], {}, ""),
        ([1, 2], {}, ""),
        ([], {"compression": False}, ""),
        (["None"], {"compression": False}, ""),
        (["Gzip"], {}, "VibeMQ.SupportedCompressions=Gzip"),
    ],
)
def test_compressions(
    tmp_path: Path, values: list[object], expected: dict[str, object], not_migrated: str
) -> None:
    plan = plan_for(tmp_path, SupportedCompressions=values)
    assert options(plan) == expected
    assert list(reported_settings(plan)) == ([not_migrated] if not_migrated else [])


@pytest.mark.parametrize(
    ("defaults", "expected", "not_migrated"),
    [
        (
            {"DefaultDeliveryMode": "PriorityBased", "MaxQueueSize": 5},
            {"default_mode": "PriorityBased", "default_max_queue_size": 5},
            [],
        ),
        (
            {"DefaultDeliveryMode": "fanoutwithack", "MaxQueueSize": "7"},
            {"default_mode": "FanOutWithAck", "default_max_queue_size": 7},
            [],
        ),
        (
            {"DefaultDeliveryMode": 2, "MaxQueueSize": -3},
            {"default_mode": "FanOutWithoutAck", "default_max_queue_size": 1},
            [],
        ),
        (
            {"DefaultDeliveryMode": "Random", "MaxQueueSize": "many"},
            {},
            [
                "VibeMQ.QueueDefaults.DefaultDeliveryMode=Random",
                "VibeMQ.QueueDefaults.MaxQueueSize=many",
            ],
        ),
    ],
)
def test_defaults_of_queues(
    tmp_path: Path,
    defaults: dict[str, object],
    expected: dict[str, object],
    not_migrated: list[str],
) -> None:
    plan = plan_for(tmp_path, QueueDefaults=defaults)
    assert options(plan) == expected
    assert list(reported_settings(plan)) == not_migrated


@pytest.mark.parametrize(
    ("protocols", "expected", "not_migrated"),
    [
        ("Tls13", {"tls_min_version": "1.3"}, ""),
        ("Tls12, Tls13", {"tls_min_version": "1.2"}, ""),
        (12288, {"tls_min_version": "1.3"}, ""),
        ("None", {}, ""),
        ("Tls11, Tls12", {"tls_min_version": "1.2"}, "TLS 1.2 and 1.3 are offered here, not tls11"),
    ],
)
def test_versions_of_tls(
    tmp_path: Path, protocols: object, expected: dict[str, object], not_migrated: str
) -> None:
    tls = {"Enabled": True, "CertificatePath": "certs/a.pfx", "SslProtocols": protocols}
    plan = plan_for(tmp_path, Tls=tls)
    assert options(plan) == {**expected, "certificate": str(tmp_path / "certs" / "a.pfx")}
    assert list(reported_settings(plan).values()) == ([not_migrated] if not_migrated else [])
    assert "Tls.SslProtocols" in next(
        iter(reported_settings(plan_for(tmp_path, Tls={"SslProtocols": "x"})))
    )


def test_paths_of_certificates_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may be started in another directory; symbolic links are kept, as their target may
    change."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "real.pfx").touch()
    (tmp_path / "app" / "link.pfx").symlink_to("real.pfx")
    (tmp_path / "app" / "appsettings.json").write_text(
        json.dumps({"VibeMQ": {"Tls": {"Enabled": True, "CertificatePath": "../app/link.pfx"}}})
    )
    monkeypatch.chdir(tmp_path)
    plan = inspect_source(Path("app"), None)
    assert options(plan)["certificate"] == str(tmp_path / "app" / "link.pfx")


def test_rate_limits_are_taken_over_or_named(tmp_path: Path) -> None:
    limits = {"MaxMessagesPerClientPerSecond": 50, "MaxConnectionsPerIpPerWindow": 5}
    plan = plan_for(tmp_path, RateLimit={"ConnectionWindow": "00:01:00", **limits})
    assert options(plan) == {"rate_limit": 50}
    assert set(reported_settings(plan)) == {
        "VibeMQ.RateLimit.MaxConnectionsPerIpPerWindow",
        "VibeMQ.RateLimit.ConnectionWindow",
    }
    plan = plan_for(tmp_path, RateLimit={"Enabled": False, **limits})
    assert options(plan) == {}
    reason = reported_settings(plan)["VibeMQ.RateLimit.MaxMessagesPerClientPerSecond"]
    assert reason == "RateLimit is not enabled"


def test_redis_is_named_as_not_migrated(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, StorageType="Redis")
    assert ("messages", "in Redis") in [item[:2] for item in plan.skipped]
    assert any("not migrated" in item.reason for item in plan.skipped if item.what == "messages")
